//! What an agent's credentials can do: write the objects of its own node, and nothing else.
//!
//! Everything is a dry run, because the cluster's own agents write the same objects.

use anyhow::{Context, Result, ensure};
use fairlead_crds::names;
use kube::Client;
use serde_json::{Value, json};

use super::place::{Place, Verb, refused, send};
use crate::policy::hold::plain;

/// A record of a pod that does not exist.
pub fn pod_network(name: &str, node: &str, finalizer: bool) -> Value {
    let finalizers: Vec<&str> = finalizer.then_some(names::POD_NETWORK_FINALIZER).into_iter().collect();
    json!({
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "PodNetwork",
        "metadata": { "name": name, "finalizers": finalizers },
        "spec": { "podName": name, "podUID": "0f3c2a11-9d1e-4c3b-8f00-000000000000", "nodeName": node },
    })
}

fn block(name: &str, cidr: &str, node: &str) -> Value {
    json!({
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "IPBlock",
        "metadata": { "name": name, "finalizers": [names::BLOCK_FINALIZER] },
        "spec": { "space": "policy", "network": "none", "networkUID": "none", "nodeName": node, "cidr": cidr },
    })
}

fn lease(name: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": name },
        "spec": { "holderIdentity": "nobody", "leaseDurationSeconds": 40 },
    })
}

fn node_network(name: &str) -> Value {
    json!({ "apiVersion": "fairlead.dev/v1alpha1", "kind": "NodeNetwork", "metadata": { "name": name }, "spec": {} })
}

const KINDS: &str = "/apis/fairlead.dev/v1alpha1";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/fairlead-system/leases";

/// Sends without storing.
async fn attempt(client: &Client, verb: Verb, path: &str, body: &Value) -> kube::Result<Value> {
    send(client, verb, &format!("{path}?dryRun=All"), body).await
}

/// With the token of node1's agent: its own objects yes, those of node2 no.
pub async fn an_agent_writes_objects_of_its_own_node_only(place: &Place) -> Result<()> {
    let (one, two) = (place.agent("node1").await?, place.agent("node2").await?);
    let records = format!("{KINDS}/namespaces/{}/podnetworks", place.namespace);
    let blocks = format!("{KINDS}/ipblocks");
    attempt(&one, Verb::Create, &records, &pod_network("mine", "node1", true)).await?;
    attempt(&one, Verb::Create, &blocks, &block("policy-10-9-0-0-28", "10.9.0.0/28", "node1")).await?;
    let mut reserved = block("policy-10-9-0-7-32", "10.9.0.7/32", "node1");
    reserved["spec"]["claim"] = json!({ "pod": "team/web-0" });
    reserved["spec"]["holder"] = json!({ "podUID": "0f3c2a11", "turn": 1 });
    let granted = "reserved addresses are granted by fairlead-controller";
    refused(attempt(&one, Verb::Create, &blocks, &reserved).await, granted)?;
    let not_yours = "this token is of node node1";
    refused(attempt(&one, Verb::Create, &records, &pod_network("theirs", "node2", true)).await, not_yours)?;
    refused(
        attempt(&one, Verb::Create, &blocks, &block("policy-10-9-0-0-28", "10.9.0.0/28", "node2")).await,
        not_yours,
    )?;

    send(&two, Verb::Create, &records, &pod_network("theirs", "node2", true)).await?;
    let block_name = format!("policy-10-{}-0-28", place.octets());
    let cidr = format!("10.{}.0/28", place.octets().replace('-', "."));
    send(&two, Verb::Create, &blocks, &block(&block_name, &cidr, "node2")).await?;
    let theirs = [format!("{records}/theirs"), format!("{blocks}/{block_name}")];
    let mut outcome = Ok(());
    for path in &theirs {
        outcome = outcome.and(others_are_refused(&one, path, not_yours).await);
        send(&two, Verb::Merge, path, &json!({ "metadata": { "finalizers": null } })).await?;
        send(&two, Verb::Delete, path, &Value::Null).await?;
    }
    outcome
}

async fn others_are_refused(one: &Client, path: &str, words: &str) -> Result<()> {
    let adopt = json!([{ "op": "replace", "path": "/spec/nodeName", "value": "node1" }]);
    // Either the schema or the policy is first to refuse.
    refused(attempt(one, Verb::Json, path, &adopt).await, "")?;
    refused(attempt(one, Verb::Merge, path, &json!({ "metadata": { "finalizers": null } })).await, words)?;
    refused(
        attempt(one, Verb::Merge, path, &json!({ "metadata": { "labels": { "a": "b" } } })).await,
        words,
    )?;
    refused(attempt(one, Verb::Merge, &format!("{path}/status"), &json!({ "status": {} })).await, words)?;
    refused(attempt(one, Verb::Delete, path, &Value::Null).await, words)
}

/// The objects that are named as the node: NodeNetwork and Lease.
pub async fn an_agent_writes_what_is_named_as_its_node_only(place: &Place) -> Result<()> {
    let (one, two) = (place.agent("node1").await?, place.agent("node2").await?);
    let nodes = format!("{KINDS}/nodenetworks");
    // They may be there already, then creating them is a conflict, which admission comes before.
    for (client, name) in [(&one, "node1"), (&two, "node2")] {
        for (path, object) in [(nodes.as_str(), node_network(name)), (LEASES, lease(name))] {
            match send(client, Verb::Create, path, &object).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                other => drop(other?),
            }
        }
    }
    let status = json!({ "status": { "summary": "forged" } });
    attempt(&one, Verb::Merge, &format!("{nodes}/node1/status"), &status).await?;
    attempt(
        &one,
        Verb::Merge,
        &format!("{LEASES}/node1"),
        &json!({ "metadata": { "labels": { "a": "b" } } }),
    )
    .await?;
    let (theirs, forged) = (format!("{nodes}/node2"), json!({ "metadata": { "labels": { "a": "b" } } }));
    refused(attempt(&one, Verb::Merge, &format!("{theirs}/status"), &status).await, "node node1")?;
    refused(attempt(&one, Verb::Merge, &theirs, &forged).await, "cannot patch resource")?;
    refused(attempt(&one, Verb::Create, &nodes, &node_network("node3")).await, "node node1")?;
    refused(attempt(&one, Verb::Merge, &format!("{LEASES}/node2"), &forged).await, "Lease of its own node")?;
    refused(attempt(&one, Verb::Create, LEASES, &lease("node3")).await, "Lease of its own node")?;
    refused(
        attempt(&one, Verb::Merge, &format!("{LEASES}/{}", names::CONTROLLER), &forged).await,
        "Lease of its own node",
    )
}

/// Of a pod of its own node the agent writes one condition, and when it became true.
pub async fn an_agent_writes_one_condition_of_its_own_pods_only(place: &Place) -> Result<()> {
    let one = place.agent("node1").await?;
    let pods = Place::pods(&place.namespace);
    let mut paths = Vec::new();
    for node in ["node1", "node2"] {
        let mut pod = plain();
        pod["metadata"]["labels"] = json!({ "app": "target" });
        // Never to be started: no node tolerates this runtime's absence of an image.
        pod["spec"]["containers"][0]["image"] = json!("none.invalid/none");
        pod["spec"]["nodeName"] = json!(node);
        let stored = send(&place.client, Verb::Create, &pods, &pod).await?;
        paths
            .push(format!("{pods}/{}", stored["metadata"]["name"].as_str().context("a pod without a name")?));
    }
    let condition = |name: &str| json!({ "status": { "conditions": [{ "type": name, "status": "True" }] } });
    let status = |path: &str| format!("{path}/status");
    attempt(&one, Verb::Strategic, &status(&paths[0]), &condition(names::NETWORK_READY)).await?;
    let attached =
        json!({ "metadata": { "annotations": { names::ATTACHED_AT_ANNOTATION: "2026-01-01T00:00:00Z" } } });
    attempt(&one, Verb::Strategic, &status(&paths[0]), &attached).await?;
    refused(
        attempt(&one, Verb::Strategic, &status(&paths[1]), &condition(names::NETWORK_READY)).await,
        "of its own node",
    )?;
    for change in [
        condition("Ready"),
        json!({ "status": { "phase": "Failed" } }),
        json!({ "status": { "podIP": "10.0.0.1" } }),
        json!({ "status": { "message": "forged" } }),
        json!({ "metadata": { "labels": { "app": "other" } } }),
        json!({ "metadata": { "annotations": { names::SELECTED_ANNOTATION: "[]" } } }),
        json!({ "metadata": { "finalizers": ["mine.example/keep"] } }),
    ] {
        refused(
            attempt(&one, Verb::Strategic, &status(&paths[0]), &change).await,
            "nothing of a pod but the condition",
        )?;
    }
    for path in &paths {
        send(&place.client, Verb::Delete, &format!("{path}?gracePeriodSeconds=0"), &Value::Null).await?;
    }
    Ok(())
}

/// Every field of a pod's status is either compared by the policy or the conditions, which are.
pub async fn the_policy_knows_every_field_of_a_pods_status(place: &Place) -> Result<()> {
    let document = send(&place.client, Verb::Get, "/openapi/v3/api/v1", &Value::Null).await?;
    let fields = document["components"]["schemas"]["io.k8s.api.core.v1.PodStatus"]["properties"].as_object();
    let policy = send(
        &place.client,
        Verb::Get,
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/fairlead-pods",
        &Value::Null,
    )
    .await?;
    let expressions = policy["spec"]["matchConditions"].to_string();
    let unknown: Vec<_> = fields
        .context("no schema of PodStatus")?
        .keys()
        .filter(|field| !expressions.contains(&format!("status.?{field} ")) && *field != "conditions")
        .collect();
    ensure!(unknown.is_empty(), "an agent could change {unknown:?}");
    Ok(())
}

/// The rights of the agent, as the API server sees them, are those its code needs.
pub async fn an_agent_has_no_right_that_its_code_does_not_need(place: &Place) -> Result<()> {
    let agent = place.agent("node1").await?;
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let kinds = [
        ("", "pods", ""),
        ("", "pods", "status"),
        ("", "pods", "exec"),
        ("", "pods", "eviction"),
        ("", "pods", "binding"),
        ("", "pods", "ephemeralcontainers"),
        ("", "nodes", ""),
        ("", "nodes", "status"),
        ("", "namespaces", ""),
        ("", "secrets", ""),
        ("", "configmaps", ""),
        ("", "serviceaccounts", "token"),
        ("", "events", ""),
        ("events.k8s.io", "events", ""),
        ("coordination.k8s.io", "leases", ""),
        ("apps", "daemonsets", ""),
        ("fairlead.dev", "networks", ""),
        ("fairlead.dev", "networks", "status"),
        ("fairlead.dev", "admissions", ""),
        ("fairlead.dev", "podnetworks", ""),
        ("fairlead.dev", "podnetworks", "status"),
        ("fairlead.dev", "ipblocks", ""),
        ("fairlead.dev", "ipblocks", "status"),
        ("fairlead.dev", "nodenetworks", ""),
        ("fairlead.dev", "nodenetworks", "status"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies", ""),
        ("rbac.authorization.k8s.io", "clusterroles", ""),
    ];
    let needed = [
        "patch pods/status",
        "create coordination.k8s.io/leases",
        "patch coordination.k8s.io/leases",
        "create events.k8s.io/events",
        "patch events.k8s.io/events",
        "create fairlead.dev/podnetworks",
        "patch fairlead.dev/podnetworks",
        "delete fairlead.dev/podnetworks",
        "create fairlead.dev/ipblocks",
        "patch fairlead.dev/ipblocks",
        "delete fairlead.dev/ipblocks",
        "create fairlead.dev/nodenetworks",
        "patch fairlead.dev/podnetworks/status",
        "patch fairlead.dev/ipblocks/status",
        "patch fairlead.dev/nodenetworks/status",
    ];
    let mut allowed = Vec::new();
    for (group, resource, subresource) in kinds {
        // In its own namespace the agent may do more: it has a Lease there.
        let namespace =
            if resource == "leases" { names::INSTALL_NAMESPACE } else { place.namespace.as_str() };
        for verb in
            ["create", "update", "patch", "delete", "deletecollection", "bind", "escalate", "impersonate"]
        {
            let review = json!({
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": { "resourceAttributes": {
                    "group": group, "resource": resource, "subresource": subresource, "verb": verb, "namespace": namespace,
                } },
            });
            if send(&agent, Verb::Create, reviews, &review).await?["status"]["allowed"] == true {
                let parts = [group, resource, subresource].into_iter().filter(|part| !part.is_empty());
                allowed.push(format!("{verb} {}", parts.collect::<Vec<_>>().join("/")));
            }
        }
    }
    let mut expected: Vec<String> = needed.map(str::to_owned).into();
    allowed.sort();
    expected.sort();
    ensure!(allowed == expected, "{allowed:#?}");
    Ok(())
}
