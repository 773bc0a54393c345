//! What the mutating policies put into a pod.

use anyhow::{Result, ensure};
use fairlead_crds::names;
use serde_json::{Value, json};

use super::place::{Place, Verb, send};
use crate::fixtures::eventually;

/// A pod of one container that asks for networks.
pub fn asking(networks: &str) -> Value {
    let mut pod = plain();
    pod["metadata"]["annotations"] = json!({ names::NETWORKS_ANNOTATION: networks });
    pod
}

/// A pod of one container.
pub fn plain() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "generateName": "trial-" },
        "spec": { "containers": [container("app", &json!({}))] },
    })
}

/// A container with these resources.
pub fn container(name: &str, resources: &Value) -> Value {
    json!({ "name": name, "image": "busybox:stable", "command": ["sleep", "infinity"], "resources": resources })
}

fn counts(pod: &Value) -> Value {
    let limits =
        pod["spec"]["initContainers"][0]["resources"]["limits"].as_object().cloned().unwrap_or_default();
    limits.into_iter().filter(|(key, _)| key.starts_with(names::RESOURCE_PREFIX)).collect()
}

fn names_of(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(|item| item["name"].as_str()).collect()
}

fn snapshot(pod: &Value) -> &Value {
    &pod["metadata"]["annotations"][names::SELECTED_ANNOTATION]
}

fn is_held(pod: &Value) -> bool {
    pod["spec"]["initContainers"][0]["name"] == names::GATE_CONTAINER
}

/// A pod that asks has everything that is injected, once.
pub async fn everything_is_injected_once(place: &Place) -> Result<()> {
    let mut pod = asking(&place.counted);
    pod["spec"]["initContainers"] = json!([container("mine", &json!({}))]);
    let stored = place.try_pod(&pod).await?;
    ensure!(names_of(&stored["spec"]["initContainers"]) == [names::GATE_CONTAINER, "mine"], "{stored:#}");
    ensure!(*snapshot(&stored) == "[]");
    ensure!(stored["spec"]["readinessGates"] == json!([{ "conditionType": names::NETWORK_READY }]));
    let volumes = names_of(&stored["spec"]["volumes"]);
    ensure!(volumes.iter().filter(|name| **name == "fairlead-gate-token").count() == 1, "{volumes:?}");
    let gate = &stored["spec"]["initContainers"][0];
    ensure!(gate["command"] == json!(["/fairlead-gate"]));
    ensure!(gate["image"].as_str().is_some_and(|image| image.contains("fairlead")), "{gate:#}");
    ensure!(gate["restartPolicy"].is_null(), "a sidecar does not hold what comes after it");
    ensure!(
        gate["volumeMounts"]
            == json!([{ "name": "fairlead-gate-token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true }]),
        "the gate sees a token: {gate:#}"
    );
    ensure!(
        gate["securityContext"]
            == json!({
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
                "seccompProfile": { "type": "RuntimeDefault" },
            })
    );
    let paths: Vec<_> = gate["env"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|variable| (variable["name"].as_str(), variable["valueFrom"]["fieldRef"]["fieldPath"].as_str()))
        .collect();
    let expected = [
        (names::ENV_POD_UID, "metadata.uid"),
        (names::ENV_POD_NAME, "metadata.name"),
        (names::ENV_POD_NAMESPACE, "metadata.namespace"),
        (names::ENV_NODE_NAME, "spec.nodeName"),
    ];
    ensure!(paths == expected.map(|(name, path)| (Some(name), Some(path))), "{paths:?}");
    Ok(())
}

/// The strictest level of pod security lets the gate through.
pub async fn the_gate_passes_the_restricted_level(place: &Place) -> Result<()> {
    place.label_namespace(&json!({ "pod-security.kubernetes.io/enforce": "restricted" })).await?;
    eventually("the level to be enforced", || async {
        super::place::refused(place.try_pod(&asking(&place.counted)).await, "restricted")
    })
    .await?;
    let mut pod = asking(&place.counted);
    pod["spec"]["containers"][0]["securityContext"] = json!({
        "runAsNonRoot": true, "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    ensure!(is_held(&place.try_pod(&pod).await?));
    Ok(())
}

/// What is stored, sent again as a new pod, is stored as it is.
pub async fn running_twice_changes_nothing(place: &Place) -> Result<()> {
    let mut first = place.try_pod(&asking(&format!("{0},{0},{1}", place.counted, place.uncounted))).await?;
    first["metadata"] = json!({ "generateName": "trial-", "annotations": first["metadata"]["annotations"] });
    let second = place.try_pod(&first).await?;
    ensure!(first["spec"] == second["spec"], "{first:#}\n{second:#}");
    ensure!(first["metadata"]["annotations"] == second["metadata"]["annotations"]);
    Ok(())
}

/// Another policy that puts its own container first is followed by ours, in whichever order they run.
pub async fn the_gate_is_first_again_after_another_plugin(place: &Place) -> Result<()> {
    let name = format!("rival-{}", place.namespace);
    let policies = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
    let metadata = json!({ "name": name });
    let rival = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": place.namespace } },
                "resourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] }],
            },
            "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression":
                "(has(object.spec.initContainers) ? [] : [JSONPatch{op: 'add', path: '/spec/initContainers', value: []}]) + \
                 [JSONPatch{op: 'add', path: '/spec/initContainers/0', value: Object.spec.initContainers{name: 'rival', image: 'busybox:stable'}}]"
            } }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": { "policyName": name },
    });
    send(&place.client, Verb::Create, policies, &rival).await?;
    send(&place.client, Verb::Create, &policies.replace("policies", "policybindings"), &binding).await?;
    let outcome = rival_is_behind(place).await;
    for path in [policies.to_owned(), policies.replace("policies", "policybindings")] {
        send(&place.client, Verb::Delete, &format!("{path}/{name}"), &Value::Null).await?;
    }
    outcome
}

async fn rival_is_behind(place: &Place) -> Result<()> {
    let pod = asking(&place.counted);
    let stored = |pod| async move { anyhow::Ok(place.try_pod(pod).await?) };
    eventually("the rival to be active", || async {
        let stored = stored(&pod).await?;
        ensure!(names_of(&stored["spec"]["initContainers"]).contains(&"rival"));
        Ok(())
    })
    .await?;
    for _ in 0..20 {
        let stored = stored(&pod).await?;
        ensure!(
            names_of(&stored["spec"]["initContainers"]) == [names::GATE_CONTAINER, "rival"],
            "{stored:#}"
        );
    }
    Ok(())
}

/// A gate that the user brought is replaced, and so is a volume under the name of ours.
pub async fn a_gate_that_the_user_brought_is_replaced(place: &Place) -> Result<()> {
    let ours = place.try_pod(&asking(&place.counted)).await?;
    let mut pod = asking(&place.counted);
    let mut gate =
        container(names::GATE_CONTAINER, &json!({ "limits": { names::resource(&place.counted): "7" } }));
    gate["restartPolicy"] = json!("Always");
    pod["spec"]["initContainers"] = json!([container("mine", &json!({})), gate]);
    pod["spec"]["volumes"] = json!([{ "name": "fairlead-gate-token", "configMap": { "name": "trap" } }]);
    let stored = place.try_pod(&pod).await?;
    ensure!(names_of(&stored["spec"]["initContainers"]) == [names::GATE_CONTAINER, "mine"], "{stored:#}");
    ensure!(stored["spec"]["initContainers"][0] == ours["spec"]["initContainers"][0], "{stored:#}");
    let token = stored["spec"]["volumes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|volume| volume["name"] == "fairlead-gate-token");
    ensure!(token.map(|volume| volume["emptyDir"].is_object()).collect::<Vec<_>>() == [true], "{stored:#}");
    // A copy of a held pod without its annotations, as debuggers make it.
    pod["metadata"]["annotations"] = Value::Null;
    let stored = place.try_pod(&pod).await?;
    ensure!(stored["spec"]["initContainers"][0]["command"] == json!(["/fairlead-gate"]), "{stored:#}");
    ensure!(*snapshot(&stored) == "[]" && counts(&stored) == json!({}), "{stored:#}");
    Ok(())
}

/// A snapshot that the user brought does not survive, whether a selector matches or not.
pub async fn a_snapshot_that_the_user_brought_is_overwritten(place: &Place) -> Result<()> {
    let mut pod = plain();
    pod["metadata"]["annotations"] = json!({ names::SELECTED_ANNOTATION: r#"[{"name":"forged"}]"# });
    for label in [Value::Null, json!(names::ATTACH_ENABLED)] {
        place.label_namespace(&json!({ names::ATTACH_LABEL: label })).await?;
        eventually("the label to be seen", || async {
            let stored = place.try_pod(&pod).await?;
            ensure!(*snapshot(&stored) == "[]" && !is_held(&stored), "{stored:#}");
            ensure!(place.try_pod(&plain()).await?["metadata"]["annotations"].is_null() == label.is_null());
            Ok(())
        })
        .await?;
    }
    pod["spec"]["hostNetwork"] = json!(true);
    let stored = place.try_pod(&pod).await?;
    ensure!(*snapshot(&stored) == "[]" && !is_held(&stored), "{stored:#}");
    Ok(())
}

/// The gate has the smallest values that all containers set, so the pod's class stays.
pub async fn the_quality_of_service_class_is_kept(place: &Place) -> Result<()> {
    let guaranteed = |cpu: &str, memory: &str| {
        let both = json!({ "cpu": cpu, "memory": memory });
        json!({ "requests": both, "limits": both })
    };
    let cases = [
        ("Guaranteed", vec![guaranteed("1", "1Gi"), guaranteed("250m", "2Gi")], guaranteed("250m", "1Gi")),
        ("BestEffort", vec![json!({}), json!({})], json!({})),
        (
            "Burstable",
            vec![
                json!({ "requests": { "cpu": "0.2", "memory": "1Gi" } }),
                json!({ "requests": { "cpu": "150m" } }),
            ],
            json!({ "requests": { "cpu": "150m" } }),
        ),
        (
            "Burstable",
            vec![json!({ "limits": { "cpu": "2" } })],
            json!({ "requests": { "cpu": "2" }, "limits": { "cpu": "2" } }),
        ),
    ];
    for (class, containers, expected) in cases {
        let mut pod = asking(&place.uncounted);
        let containers = containers.iter().enumerate();
        pod["spec"]["containers"] =
            containers.map(|(index, resources)| container(&format!("c{index}"), resources)).collect();
        let stored = place.try_pod(&pod).await?;
        ensure!(stored["status"]["qosClass"] == class, "{stored:#}");
        ensure!(stored["spec"]["initContainers"][0]["resources"] == expected, "{stored:#}");
    }
    let mut pod = asking(&place.uncounted);
    pod["spec"]["resources"] = guaranteed("1", "1Gi");
    let stored = place.try_pod(&pod).await?;
    ensure!(
        stored["status"]["qosClass"] == "Guaranteed"
            && stored["spec"]["initContainers"][0]["resources"] == json!({}),
        "{stored:#}"
    );
    Ok(())
}

/// Both forms of the annotation are counted, for networks that are counted at all.
pub async fn attachments_are_counted_in_both_forms(place: &Place) -> Result<()> {
    let (counted, uncounted) = (&place.counted, &place.uncounted);
    let key = names::resource(counted);
    let json_form = json!([{ "name": counted, "interface": "name" }, { "name": uncounted }, { "mac": "02:00:00:00:00:01", "name": counted }]);
    for (request, count) in [
        (format!("{counted}, {uncounted} ,{counted}@net7"), Some("2")),
        (json_form.to_string(), Some("2")),
        (serde_json::to_string_pretty(&json_form)?, Some("2")),
        (format!("{counted}x,x{counted}"), None),
        (uncounted.clone(), None),
        (vec![counted.as_str(); 33].join(","), None),
        ("a,".repeat(20_000), None),
        (String::new(), None),
        ("[{]}".into(), None),
    ] {
        let stored = place.try_pod(&asking(&request)).await?;
        let expected = count.map_or(json!({}), |count| json!({ &key: count }));
        ensure!(is_held(&stored) && counts(&stored) == expected, "{request:.80}: {stored:#}");
    }
    let mut bound = asking(counted);
    bound["spec"]["nodeName"] = json!("node1");
    let stored = place.try_pod(&bound).await?;
    ensure!(is_held(&stored) && counts(&stored) == json!({}), "{stored:#}");
    Ok(())
}

/// Rules select by the labels of the pod and of its namespace, if an admin labelled the namespace.
///
/// The rules of the uncounted Network: pods with `pick: one`; of the counted one: pods whose `pick` is one of
/// `both` and `strict`, without a label `never`, in this namespace only, as interface `picked`.
pub async fn selectors_are_evaluated_at_creation(place: &Place) -> Result<()> {
    let labelled = |labels: Value| {
        let mut pod = plain();
        pod["metadata"]["labels"] = labels;
        pod
    };
    let one = format!(r#"[{{"name":"{}"}}]"#, place.uncounted);
    let picked = format!(r#"[{{"name":"{}","interface":"picked"}}]"#, place.counted);
    ensure!(
        !is_held(&place.try_pod(&labelled(json!({ "pick": "one" }))).await?),
        "the namespace is not labelled"
    );
    place.label_namespace(&json!({ names::ATTACH_LABEL: names::ATTACH_ENABLED })).await?;
    eventually("the label and the rules to be seen", || async {
        let stored = place.try_pod(&labelled(json!({ "pick": "both" }))).await?;
        ensure!(*snapshot(&stored) == picked, "{stored:#}");
        Ok(())
    })
    .await?;
    let cases = [
        (json!({ "pick": "one" }), one.as_str(), json!({})),
        (json!({ "pick": "strict" }), picked.as_str(), json!({ names::resource(&place.counted): "1" })),
        (json!({ "pick": "strict", "never": "" }), "[]", json!({})),
        (json!({ "pick": "other" }), "[]", json!({})),
        (Value::Null, "[]", json!({})),
    ];
    for (labels, selected, expected) in cases {
        let stored = place.try_pod(&labelled(labels)).await?;
        ensure!(*snapshot(&stored) == selected && is_held(&stored) == (selected != "[]"), "{stored:#}");
        ensure!(counts(&stored) == expected, "{stored:#}");
    }
    // What the pod asks for itself is not selected once more.
    let mut pod = labelled(json!({ "pick": "one" }));
    pod["metadata"]["annotations"] =
        json!({ names::NETWORKS_ANNOTATION: format!("{}@mine", place.uncounted) });
    let stored = place.try_pod(&pod).await?;
    ensure!(*snapshot(&stored) == "[]" && is_held(&stored), "{stored:#}");
    Ok(())
}

/// Pods on the node's network, of the system and of nobody come through untouched.
pub async fn other_pods_are_left_alone(place: &Place) -> Result<()> {
    let untouched = |stored: &Value| {
        !is_held(stored) && snapshot(stored).is_null() && stored["spec"]["readinessGates"].is_null()
    };
    let mut on_the_node = asking(&place.counted);
    on_the_node["spec"]["hostNetwork"] = json!(true);
    let mut mirror = asking(&place.counted);
    mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("0");
    mirror["spec"]["nodeName"] = json!("node1");
    mirror["spec"]["automountServiceAccountToken"] = json!(false);
    let in_namespace = |namespace: &str| {
        let mut pod = asking(&place.counted);
        pod["metadata"]["namespace"] = json!(namespace);
        pod
    };
    for pod in
        [plain(), on_the_node, mirror, in_namespace("kube-system"), in_namespace(names::INSTALL_NAMESPACE)]
    {
        let stored = place.try_pod(&pod).await?;
        ensure!(untouched(&stored), "{stored:#}");
    }
    Ok(())
}
