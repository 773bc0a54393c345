//! The form of a pod that the container runtime holds: what is injected, and what is refused.

use anyhow::{Context, Result, ensure};
use fairlead_crds::names;
use serde_json::{Value, json};

use super::{
    hold::{asking, container, plain},
    place::{Place, Verb, refused, send},
};
use crate::fixtures::eventually;

/// The list that fairlead writes.
const REQUIRED: &str = r#"["fairlead-guard"]"#;

/// A place and a Network on it whose pods the runtime holds.
pub struct Runtime {
    pub place: Place,
    /// Name of the Network; its addresses are counted.
    pub strict: String,
}

impl Runtime {
    /// Waits until the policies know the Network.
    pub async fn wait_for_admission(&self) -> Result<()> {
        eventually("the policies to know what the runtime holds", || async {
            let stored = self.place.try_pod(&asking(&self.strict)).await?;
            ensure!(is_held_by_the_runtime(&stored), "{stored:#}");
            Ok(())
        })
        .await
    }

    fn counts(&self, count: &str) -> Value {
        json!({ names::resource(&self.strict): count })
    }
}

fn is_held_by_the_runtime(pod: &Value) -> bool {
    pod["metadata"]["annotations"][names::HOLD_ANNOTATION] == names::HOLD_NRI
}

fn is_gated(pod: &Value) -> bool {
    pod["spec"]["initContainers"][0]["name"] == names::GATE_CONTAINER
}

/// What a copy of a pod begins with: its spec and its annotations.
fn copy(stored: &Value) -> Value {
    let mut pod = stored.clone();
    pod["metadata"] = json!({ "generateName": "trial-", "annotations": stored["metadata"]["annotations"] });
    pod
}

/// No gate and no volume of ours, but everything that keeps the pod on a strict node and its containers waiting.
pub async fn the_form_is_exactly_this(runtime: &Runtime) -> Result<()> {
    let place = &runtime.place;
    let mut pod = asking(&format!("{0},{0}@net7", runtime.strict));
    let own = json!({ "requests": { "cpu": "10m" }, "limits": { "memory": "1Gi" } });
    pod["spec"]["containers"] = json!([container("app", &own), container("side", &json!({}))]);
    pod["spec"]["initContainers"] = json!([container("mine", &json!({}))]);
    pod["spec"]["nodeSelector"] = json!({ "disk": "fast" });
    let stored = place.try_pod(&pod).await?;
    let mut before = pod.clone();
    before["metadata"]["annotations"] = Value::Null;
    let plain = place.try_pod(&before).await?;
    let annotations = json!({
        names::NETWORKS_ANNOTATION: pod["metadata"]["annotations"][names::NETWORKS_ANNOTATION],
        names::SELECTED_ANNOTATION: "[]",
        names::HOLD_ANNOTATION: names::HOLD_NRI,
        names::REQUIRED_PLUGINS_ANNOTATION: REQUIRED,
    });
    ensure!(stored["metadata"]["annotations"] == annotations, "{stored:#}");
    let mut expected = plain["spec"].clone();
    expected["nodeSelector"] = json!({ "disk": "fast", names::HOLD_LABEL: names::HOLD_NRI_STRICT });
    expected["readinessGates"] = json!([{ "conditionType": names::NETWORK_READY }]);
    for field in ["limits", "requests"] {
        expected["containers"][0]["resources"][field][names::resource(&runtime.strict)] = json!("2");
    }
    // Each dry run draws a name of its own for the token's volume.
    let (found, expected) = (without_token(&stored["spec"]), without_token(&expected));
    ensure!(found == expected, "{found:#}\n{expected:#}");
    ensure!(stored["status"]["qosClass"] == plain["status"]["qosClass"]);
    Ok(())
}

fn without_token(spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["volumes"] = Value::Null;
    for field in ["containers", "initContainers"] {
        for container in spec[field].as_array_mut().into_iter().flatten() {
            container["volumeMounts"] = Value::Null;
        }
    }
    spec
}

/// One network of a pod is enough, and a pod that chose its node gets the gate.
pub async fn the_strictest_network_decides(runtime: &Runtime) -> Result<()> {
    let (place, strict) = (&runtime.place, &runtime.strict);
    for (request, nri) in [
        (strict.clone(), true),
        (format!("{},{strict}", place.counted), true),
        (format!("{strict}, absent"), true),
        (json!([{ "name": place.uncounted }, { "name": strict }]).to_string(), true),
        (place.counted.clone(), false),
        ("absent".into(), false),
        (String::new(), false),
    ] {
        let stored = place.try_pod(&asking(&request)).await?;
        ensure!((is_held_by_the_runtime(&stored), is_gated(&stored)) == (nri, !nri), "{request}: {stored:#}");
    }
    let mut bound = asking(strict);
    bound["spec"]["nodeName"] = json!("node1");
    let stored = place.try_pod(&bound).await?;
    ensure!(is_gated(&stored) && !is_held_by_the_runtime(&stored), "{stored:#}");
    let mut on_the_node = asking(strict);
    on_the_node["spec"]["hostNetwork"] = json!(true);
    let stored = place.try_pod(&on_the_node).await?;
    ensure!(!is_gated(&stored) && !is_held_by_the_runtime(&stored), "{stored:#}");
    Ok(())
}

/// What is stored, sent again, is stored as it is; and a copy takes the form of the network it asks for now.
pub async fn a_copy_gets_the_form_it_needs(runtime: &Runtime) -> Result<()> {
    let (place, strict) = (&runtime.place, &runtime.strict);
    let held = place.try_pod(&asking(&format!("{strict},absent"))).await?;
    let again = place.try_pod(&copy(&held)).await?;
    ensure!(again["spec"] == held["spec"], "{held:#}\n{again:#}");
    ensure!(again["metadata"]["annotations"] == held["metadata"]["annotations"]);
    // From the runtime to the gate: nothing of the first form is left.
    let mut pod = copy(&held);
    pod["metadata"]["annotations"][names::NETWORKS_ANNOTATION] = json!(place.uncounted);
    let gated = place.try_pod(&pod).await?;
    ensure!(is_gated(&gated) && gated["spec"]["nodeSelector"].is_null(), "{gated:#}");
    ensure!(gated["spec"]["schedulingGates"].is_null(), "{gated:#}");
    ensure!(gated["spec"]["containers"][0]["resources"] == json!({}), "{gated:#}");
    for key in [names::HOLD_ANNOTATION, names::REQUIRED_PLUGINS_ANNOTATION] {
        ensure!(gated["metadata"]["annotations"][key].is_null(), "{key}: {gated:#}");
    }
    // And back.
    let mut pod = copy(&gated);
    pod["metadata"]["annotations"][names::NETWORKS_ANNOTATION] = json!(strict);
    let stored = place.try_pod(&pod).await?;
    ensure!(is_held_by_the_runtime(&stored) && !is_gated(&stored), "{stored:#}");
    let volumes = stored["spec"]["volumes"].to_string();
    ensure!(!volumes.contains("fairlead-gate-token"), "{volumes}");
    // Without its annotations, as debuggers make it: it asks for nothing, and is still held.
    let mut pod = copy(&stored);
    pod["metadata"]["annotations"] = Value::Null;
    let stored = place.try_pod(&pod).await?;
    ensure!(is_gated(&stored) || is_held_by_the_runtime(&stored), "{stored:#}");
    ensure!(stored["spec"]["containers"][0]["resources"] == json!({}), "{stored:#}");
    Ok(())
}

/// What others require of the runtime stays, behind ours; what would take ours away is refused.
pub async fn the_guard_is_required_for_every_container(runtime: &Runtime) -> Result<()> {
    let (place, key) = (&runtime.place, names::REQUIRED_PLUGINS_ANNOTATION);
    for (brought, written) in [
        ("[]", REQUIRED),
        (REQUIRED, REQUIRED),
        (r#"["other"]"#, r#"["fairlead-guard","other"]"#),
        (r#"["fairlead-guard","other"]"#, r#"["fairlead-guard","other"]"#),
    ] {
        let mut pod = asking(&runtime.strict);
        pod["metadata"]["annotations"][key] = json!(brought);
        let stored = place.try_pod(&pod).await?;
        ensure!(stored["metadata"]["annotations"][key] == written, "{brought}: {stored:#}");
    }
    let words = "must be a JSON list of plugins";
    for brought in ["other", "- other", r#"["other"] # and"#, r#"{"a": 1}"#, r#"["a\"b"]"#] {
        let mut pod = asking(&runtime.strict);
        pod["metadata"]["annotations"][key] = json!(brought);
        refused(place.try_pod(&pod).await, words)?;
    }
    for scope in ["pod", "container.app", "container.side"] {
        let mut pod = asking(&runtime.strict);
        pod["metadata"]["annotations"][format!("{key}/{scope}")] = json!("[]");
        refused(place.try_pod(&pod).await, words)?;
        // Nobody else is concerned.
        pod["metadata"]["annotations"][names::NETWORKS_ANNOTATION] = json!(place.counted);
        place.try_pod(&pod).await?;
    }
    Ok(())
}

/// The scheduler's count stands on the first container, and nowhere else.
pub async fn the_first_container_is_counted(runtime: &Runtime) -> Result<()> {
    let place = &runtime.place;
    let mut pod = asking(&runtime.strict);
    let thief = container("thief", &json!({ "limits": runtime.counts("7") }));
    for first in [&thief, &container("app", &json!({}))] {
        let mut second = thief.clone();
        second["name"] = json!("second");
        pod["spec"]["containers"] = json!([first, second]);
        let stored = place.try_pod(&pod).await?;
        let carried: Vec<_> =
            stored["spec"]["containers"].as_array().into_iter().flatten().map(|c| &c["resources"]).collect();
        let counted = json!({ "limits": runtime.counts("1"), "requests": runtime.counts("1") });
        ensure!(carried == [&counted, &json!({})], "{stored:#}");
    }
    let mut pod = asking(&runtime.strict);
    pod["spec"]["initContainers"] = json!([thief]);
    refused(place.try_pod(&pod).await, "by hand")
}

/// The annotation is fairlead's: who brings it does not keep it, and nobody changes it later.
pub async fn nobody_forges_the_hold(runtime: &Runtime) -> Result<()> {
    let (place, key) = (&runtime.place, names::HOLD_ANNOTATION);
    for mut pod in [asking(&place.counted), plain()] {
        pod["metadata"]["annotations"][key] = json!(names::HOLD_NRI);
        pod["metadata"]["annotations"][names::REQUIRED_PLUGINS_ANNOTATION] = json!(REQUIRED);
        let stored = place.try_pod(&pod).await?;
        ensure!(!is_held_by_the_runtime(&stored) && is_gated(&stored), "{stored:#}");
    }
    let mut never = asking(&runtime.strict);
    never["spec"]["nodeSelector"] = json!({ "no-node": "has-this" });
    let mut gated = asking(&place.uncounted);
    gated["spec"]["nodeSelector"] = never["spec"]["nodeSelector"].clone();
    for pod in [never, gated] {
        stays(place, &pod).await?;
    }
    Ok(())
}

/// A pod that is stored keeps what holds it, and takes no debug container before its networks are there.
async fn stays(place: &Place, pod: &Value) -> Result<()> {
    let pods = Place::pods(&place.namespace);
    let stored = send(&place.client, Verb::Create, &pods, pod).await?;
    let nri = is_held_by_the_runtime(&stored);
    let path = format!("{pods}/{}", stored["metadata"]["name"].as_str().context("a pod without a name")?);
    let annotate = async |key: &str, value: Value| {
        let change = json!({ "metadata": { "annotations": { key: value } } });
        send(&place.client, Verb::Merge, &format!("{path}?dryRun=All"), &change).await
    };
    let other = if nri { Value::Null } else { json!(names::HOLD_NRI) };
    refused(annotate(names::HOLD_ANNOTATION, other).await, "cannot be changed")?;
    let scoped = format!("{}/container.app", names::REQUIRED_PLUGINS_ANNOTATION);
    for (key, value) in [
        (names::REQUIRED_PLUGINS_ANNOTATION, json!("[]")),
        (names::REQUIRED_PLUGINS_ANNOTATION, Value::Null),
        (scoped.as_str(), json!("[]")),
    ] {
        let answer = annotate(key, value).await;
        if nri {
            refused(answer, "cannot be changed while")?;
        } else {
            answer?;
        }
    }
    annotate("mine", json!("yes")).await?;
    let selector = json!({ "spec": { "nodeSelector": null } });
    ensure!(send(&place.client, Verb::Merge, &path, &selector).await.is_err(), "the node selector went");
    let debug =
        json!({ "spec": { "ephemeralContainers": [{ "name": "debug", "image": "busybox:stable" }] } });
    let debug = send(&place.client, Verb::Strategic, &format!("{path}/ephemeralcontainers"), &debug).await;
    refused(debug, "would start before the pod's networks")?;
    send(&place.client, Verb::Delete, &path, &Value::Null).await?;
    Ok(())
}
