//! JSON patches of Nodes, finalizers and gates. Each tests what it was decided on, so that a change by someone else makes it fail. Pure.

use fairlead_crds::{NodeHold, names};
use json_patch::jsonptr::{PointerBuf, Token};
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, TestOperation};
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};

use super::model::{Node, Published};

/// One change of one extended resource; `None` removes it.
pub type ResourceChange = (String, Option<u64>);

/// The patch of `nodes/status` that changes our resources: capacity and allocatable together, since the kubelet
/// computes allocatable from capacity every 10 s.
pub fn resources(node: &Node, changes: &[ResourceChange]) -> Patch {
    let mut operations = vec![test(["metadata", "uid"], json!(node.uid))];
    for (network, value) in changes {
        let old = node.resources.get(network).cloned().unwrap_or_default();
        let Published { capacity, allocatable } = old;
        for (place, old) in [("capacity", capacity), ("allocatable", allocatable)] {
            operations.extend(resource(place, &names::resource(network), old.as_deref(), *value));
        }
    }
    Patch(operations)
}

fn resource(place: &str, name: &str, old: Option<&str>, new: Option<u64>) -> Vec<PatchOperation> {
    let path = ["status", place, name];
    let existed = old.is_some();
    let mut operations = vec![test(path, json!(old))];
    match new {
        Some(value) => operations.push(add(path, json!(value.to_string()))),
        None if existed => operations.push(PatchOperation::Remove(RemoveOperation { path: pointer(path) })),
        None => {}
    }
    operations
}

/// The patch of a node that replaces its list of taints.
pub fn taints(node: &Node, taints: &[Taint]) -> Patch {
    Patch(vec![
        test(["metadata", "uid"], json!(node.uid)),
        // A `test` for null passes if the field is absent (evanphx/json-patch, which the API server uses).
        test(["spec", "taints"], json!(node.taints)),
        add(["spec", "taints"], json!(taints)),
    ])
}

/// The patch that gives the label of how a node holds pods this value, or removes it; `None` if it is so already.
pub fn hold_label(node: &Node, hold: Option<NodeHold>) -> Option<Patch> {
    let old = node.labels.get(names::HOLD_LABEL);
    if old.map(String::as_str) == hold.map(NodeHold::as_str) {
        return None;
    }
    let path = ["metadata", "labels", names::HOLD_LABEL];
    let change = match hold {
        Some(hold) => add(path, json!(hold.as_str())),
        None => PatchOperation::Remove(RemoveOperation { path: pointer(path) }),
    };
    let mut operations = vec![test(["metadata", "uid"], json!(node.uid))];
    if node.labels.is_empty() {
        operations
            .extend([test(["metadata", "labels"], Value::Null), add(["metadata", "labels"], json!({}))]);
    }
    operations.extend([test(path, json!(old)), change]);
    Some(Patch(operations))
}

/// The patch that removes one finalizer from an object of that UID; `None` if it is not there.
pub fn without_finalizer(uid: &str, finalizers: &[String], finalizer: &str) -> Option<Patch> {
    let index = finalizers.iter().position(|f| f == finalizer)?.to_string();
    let path = ["metadata", "finalizers", &index];
    Some(Patch(vec![
        test(["metadata", "uid"], json!(uid)),
        test(path, json!(finalizer)),
        PatchOperation::Remove(RemoveOperation { path: pointer(path) }),
    ]))
}

/// The patch with the condition that the object is still of this version.
pub fn of_version(version: &str, patch: Patch) -> Patch {
    Patch([vec![test(["metadata", "resourceVersion"], json!(version))], patch.0].concat())
}

/// The patch that adds one finalizer to an object of exactly this version.
pub fn with_finalizer(version: &str, finalizers: Option<&[String]>, finalizer: &str) -> Patch {
    let place = match finalizers {
        None => vec![
            test(["metadata", "finalizers"], Value::Null),
            add(["metadata", "finalizers"], json!([finalizer])),
        ],
        Some(_) => vec![add(["metadata", "finalizers", "-"], json!(finalizer))],
    };
    of_version(version, Patch(place))
}

/// The patch that lifts one scheduling gate of a pod of that UID; `None` if it is not there.
pub fn without_gate(uid: &str, gates: &[String], gate: &str) -> Option<Patch> {
    let index = gates.iter().position(|name| name == gate)?.to_string();
    Some(Patch(vec![
        test(["metadata", "uid"], json!(uid)),
        test(["spec", "schedulingGates", &index, "name"], json!(gate)),
        PatchOperation::Remove(RemoveOperation { path: pointer(["spec", "schedulingGates", &index]) }),
    ]))
}

fn pointer<const N: usize>(path: [&str; N]) -> PointerBuf {
    PointerBuf::from_tokens(path.map(Token::new))
}

fn test<const N: usize>(path: [&str; N], value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation { path: pointer(path), value })
}

fn add<const N: usize>(path: [&str; N], value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: pointer(path), value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        let published = Published { capacity: Some("4".into()), allocatable: None };
        Node {
            name: "n".into(),
            uid: "u".into(),
            resources: [("blue".to_owned(), published)].into(),
            ..Node::default()
        }
    }

    #[test]
    fn a_resource_is_changed_in_both_places_and_tested_in_both() {
        let patch = resources(&node(), &[("blue".into(), Some(5)), ("red".into(), None)]);
        assert_eq!(
            json!(patch),
            json!([
                { "op": "test", "path": "/metadata/uid", "value": "u" },
                { "op": "test", "path": "/status/capacity/fairlead.dev~1net-blue", "value": "4" },
                { "op": "add", "path": "/status/capacity/fairlead.dev~1net-blue", "value": "5" },
                { "op": "test", "path": "/status/allocatable/fairlead.dev~1net-blue", "value": null },
                { "op": "add", "path": "/status/allocatable/fairlead.dev~1net-blue", "value": "5" },
                { "op": "test", "path": "/status/capacity/fairlead.dev~1net-red", "value": null },
                { "op": "test", "path": "/status/allocatable/fairlead.dev~1net-red", "value": null },
            ])
        );
    }

    #[test]
    fn taints_are_replaced_only_if_they_are_what_was_seen() {
        let taint = Taint { key: "k".into(), effect: "NoSchedule".into(), ..Taint::default() };
        assert_eq!(
            json!(taints(&node(), &[taint])),
            json!([
                { "op": "test", "path": "/metadata/uid", "value": "u" },
                { "op": "test", "path": "/spec/taints", "value": null },
                { "op": "add", "path": "/spec/taints", "value": [{ "key": "k", "effect": "NoSchedule" }] },
            ])
        );
    }

    #[test]
    fn the_label_is_written_only_where_it_differs() {
        let mut node = node();
        assert_eq!(hold_label(&node, None), None);
        let bare = json!(hold_label(&node, Some(NodeHold::Nri)));
        assert_eq!(bare[2], json!({ "op": "add", "path": "/metadata/labels", "value": {} }));
        node.labels.insert("a".into(), "b".into());
        let first = json!(hold_label(&node, Some(NodeHold::NriStrict)));
        let path = "/metadata/labels/fairlead.dev~1hold";
        assert_eq!(first[1], json!({ "op": "test", "path": path, "value": null }));
        assert_eq!(first[2], json!({ "op": "add", "path": path, "value": "nri-strict" }));
        node.labels.insert(names::HOLD_LABEL.into(), "nri-strict".into());
        assert_eq!(hold_label(&node, Some(NodeHold::NriStrict)), None);
        let gone = json!(hold_label(&node, None));
        assert_eq!(gone[1], json!({ "op": "test", "path": path, "value": "nri-strict" }));
        assert_eq!(gone[2], json!({ "op": "remove", "path": path }));
    }

    #[test]
    fn a_finalizer_is_added_only_to_the_version_that_was_decided_on() {
        let first = json!(with_finalizer("7", None, "f"));
        assert_eq!(first[0], json!({ "op": "test", "path": "/metadata/resourceVersion", "value": "7" }));
        assert_eq!(first[2], json!({ "op": "add", "path": "/metadata/finalizers", "value": ["f"] }));
        let second = json!(with_finalizer("7", Some(&["other/one".to_owned()]), "f"));
        assert_eq!(second[1], json!({ "op": "add", "path": "/metadata/finalizers/-", "value": "f" }));
    }

    #[test]
    fn a_finalizer_is_removed_by_its_place_and_value() {
        let all = ["other/one".to_owned(), "fairlead.dev/in-use".to_owned()];
        let patch = without_finalizer("u", &all, "fairlead.dev/in-use").unwrap();
        assert_eq!(
            json!(patch)[1],
            json!({ "op": "test", "path": "/metadata/finalizers/1", "value": "fairlead.dev/in-use" })
        );
        assert_eq!(json!(patch)[2], json!({ "op": "remove", "path": "/metadata/finalizers/1" }));
        assert_eq!(without_finalizer("u", &all[..1], "fairlead.dev/in-use"), None);
    }

    #[test]
    fn only_the_gate_that_is_meant_is_lifted() {
        let all = ["example.com/other".to_owned(), names::SCHEDULING_GATE.to_owned()];
        assert_eq!(
            json!(without_gate("u", &all, names::SCHEDULING_GATE)),
            json!([
                { "op": "test", "path": "/metadata/uid", "value": "u" },
                { "op": "test", "path": "/spec/schedulingGates/1/name", "value": "fairlead.dev/scheduling" },
                { "op": "remove", "path": "/spec/schedulingGates/1" },
            ])
        );
        assert_eq!(without_gate("u", &all[..1], names::SCHEDULING_GATE), None);
    }
}
