//! What the manifests say, as `kubectl kustomize` and as the embedded copy render them.

#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use fairlead_crds::{VERSION, names};
use fairlead_deploy::manifests::{self, Choices, kind};
use serde_json::{Value, json};

const REGISTRY: &str = "registry.example:5000/team/fairlead";

/// `kubectl`, or `None` after saying what is missing. Under `CI=true` it must be there.
fn kubectl() -> Option<PathBuf> {
    let home = env::var("HOME").unwrap_or_default();
    let cache = fs::read_dir(Path::new(&home).join(".cache/fairlead")).into_iter().flatten().flatten();
    let in_path = env::var("PATH").unwrap_or_default();
    let in_path = env::split_paths(&in_path).map(|folder| folder.join("kubectl")).collect::<Vec<_>>();
    let found = cache.map(|entry| entry.path().join("kubectl")).chain(in_path).find(|path| path.is_file());
    if found.is_none() {
        assert_ne!(env::var("CI").as_deref(), Ok("true"), "kubectl is missing");
        eprintln!("skipped: kubectl is missing; `cargo demo up` builds it, or install it in PATH");
    }
    found
}

fn kustomize(kubectl: &Path, folder: &Path) -> Vec<Value> {
    let output = Command::new(kubectl).arg("kustomize").arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap()
}

fn by_name(objects: &[Value]) -> BTreeMap<String, &Value> {
    let name = |object: &Value| {
        format!("{} {}/{}", kind(object), object["metadata"]["namespace"], object["metadata"]["name"])
    };
    objects.iter().map(|object| (name(object), object)).collect()
}

/// The paths at which two values differ. 1 and 1.0 are one number: kustomize writes whole ones without a fraction.
fn differences(ours: &Value, theirs: &Value, path: &str) -> Vec<String> {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
            keys.into_iter()
                .flat_map(|key| differences(&ours[key], &theirs[key], &format!("{path}/{key}")))
                .collect()
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let pairs = a.iter().zip(b).enumerate();
            pairs.flat_map(|(index, (a, b))| differences(a, b, &format!("{path}/{index}"))).collect()
        }
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => Vec::new(),
        _ if ours == theirs => Vec::new(),
        _ => vec![format!("{path}: {ours} and {theirs}")],
    }
}

fn assert_same(ours: &[Value], theirs: &[Value]) {
    let (ours, theirs) = (by_name(ours), by_name(theirs));
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    let found: Vec<_> =
        ours.iter().flat_map(|(name, object)| differences(object, theirs[name], name)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

fn embedded() -> Vec<Value> {
    manifests::render(&Choices::default()).unwrap()
}

fn only<'a>(objects: &'a [Value], wanted: &str) -> &'a Value {
    let found: Vec<_> = objects.iter().filter(|object| kind(object) == wanted).collect();
    assert_eq!(found.len(), 1, "{wanted}");
    found[0]
}

/// The values that name an image: of containers, and of the policies' variable.
fn images(objects: &[Value]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for object in objects {
        let place = format!("{} {}", kind(object), object["metadata"]["name"]);
        for field in ["initContainers", "containers"] {
            let containers = object["spec"]["template"]["spec"][field].as_array();
            let images = containers.into_iter().flatten().filter_map(|container| container["image"].as_str());
            found.extend(images.map(|image| (place.clone(), image.to_owned())));
        }
        let variables = object["spec"]["variables"].as_array().into_iter().flatten();
        let images =
            variables.filter(|variable| variable["name"] == "image").filter_map(|v| v["expression"].as_str());
        found.extend(images.map(|image| (place.clone(), image.trim_matches('\'').to_owned())));
    }
    found
}

#[test]
fn the_embedded_manifests_are_what_kustomize_makes() {
    let Some(kubectl) = kubectl() else { return };
    assert_same(&embedded(), &kustomize(&kubectl, Path::new(env!("CARGO_MANIFEST_DIR"))));
}

#[test]
fn the_tag_in_the_manifests_is_the_version() {
    let text =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/kustomization.yaml")).unwrap();
    assert!(text.contains(&format!("newTag: {VERSION}\n")), "{text}");
}

#[test]
fn a_private_registry_stands_in_every_place_and_no_other_image() {
    let Some(kubectl) = kubectl() else { return };
    let copy = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    self::copy("manifests", copy.path());
    let text = fs::read_to_string(source.join("kustomization.yaml")).unwrap();
    let edited = text.replace("newName: fairlead\n", &format!("newName: {REGISTRY}\n"));
    assert_ne!(text, edited);
    for (line, expected) in [
        ("", format!("{REGISTRY}:{VERSION}")),
        ("  newTag: v9\n", format!("{REGISTRY}:v9")),
        ("  digest: sha256:abcd\n", format!("{REGISTRY}@sha256:abcd")),
    ] {
        let name = format!("newName: {REGISTRY}\n");
        fs::write(copy.path().join("kustomization.yaml"), edited.replace(&name, &format!("{name}{line}")))
            .unwrap();
        let rendered = kustomize(&kubectl, copy.path());
        let found = images(&rendered);
        // Agent, guard, controller, two mutating policies and the two that check the gate.
        assert_eq!(found.len(), 7, "{found:?}");
        assert!(found.iter().all(|(_, image)| *image == expected), "{expected}: {found:?}");
        let embedded = manifests::render(&Choices { image: expected, ..Choices::default() }).unwrap();
        assert_same(&embedded, &rendered);
    }
}

#[test]
fn an_image_that_would_break_out_of_the_policy_is_refused() {
    for image in ["", "fairlead:1' + 'x", "fair lead", "fairlead\\"] {
        assert!(
            manifests::render(&Choices { image: image.to_owned(), ..Choices::default() }).is_err(),
            "{image:?}"
        );
    }
}

#[test]
fn the_choices_reach_the_agent() {
    let devices = vec!["eth1".to_owned(), "ens5f*".to_owned()];
    let choices = Choices { devices, pull_policy: Some("Never".to_owned()), ..Choices::default() };
    let objects = manifests::render(&choices).unwrap();
    for (wanted, has_devices) in [("DaemonSet", true), ("Deployment", false)] {
        let container = &only(&objects, wanted)["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["imagePullPolicy"], "Never");
        let arguments = container["args"].to_string();
        assert_eq!(
            arguments.contains("--devices=eth1") && arguments.contains("--devices=ens5f*"),
            has_devices
        );
    }
}

#[test]
fn the_local_overlay_renders() {
    let Some(kubectl) = kubectl() else { return };
    let objects = kustomize(&kubectl, &Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays/local"));
    let agent = &only(&objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0];
    assert!(agent["args"].to_string().contains("--devices=eth1"), "{agent:#}");
    assert!(images(&objects).iter().all(|(_, image)| *image == format!("fairlead:{VERSION}")));
}

#[test]
fn the_agent_has_the_privileges_it_needs_and_no_more() {
    let objects = embedded();
    let pod = &only(&objects, "DaemonSet")["spec"]["template"]["spec"];
    assert_eq!(
        (&pod["hostNetwork"], &pod["hostPID"], &pod["hostIPC"]),
        (&json!(true), &Value::Null, &Value::Null)
    );
    assert_eq!(pod["securityContext"], json!({ "seccompProfile": { "type": "RuntimeDefault" } }));
    assert_eq!(
        pod["containers"][0]["securityContext"],
        json!({
            "privileged": false,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "runAsUser": 0,
            "runAsGroup": 0,
            "capabilities": { "drop": ["ALL"], "add": ["NET_ADMIN", "SYS_ADMIN", "NET_RAW"] },
        })
    );
    assert_eq!(mounts(pod, "containers"), ["cri", "nri", "netns", "sysctl", "report"]);
    assert_eq!(host_paths(pod), ["/run/containerd", "/var/run/nri", "/run/netns", "/proc/sys/net"]);
}

#[test]
fn the_guard_outlives_the_agent_and_may_enter_namespaces_only() {
    let objects = embedded();
    let pod = &only(&objects, "DaemonSet")["spec"]["template"]["spec"];
    let guard = &pod["initContainers"][0];
    assert_eq!((&guard["name"], &guard["restartPolicy"]), (&json!("guard"), &json!("Always")));
    assert_eq!(
        guard["securityContext"],
        json!({
            "privileged": false,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "runAsUser": 0,
            "runAsGroup": 0,
            "capabilities": { "drop": ["ALL"], "add": ["SYS_ADMIN"] },
        })
    );
    assert_eq!(mounts(pod, "initContainers"), ["nri", "netns", "report"]);
}

#[test]
fn nothing_is_written_on_a_host_unless_it_is_asked_for() {
    let folder = "/usr/lib/nri/plugins";
    let choices = Choices { guard_folder: Some(folder.into()), ..Choices::default() };
    let (asked, unasked) = (manifests::render(&choices).unwrap(), embedded());
    let paths = |objects| host_paths(&only(objects, "DaemonSet")["spec"]["template"]["spec"]);
    assert!(paths(&asked).contains(&folder.to_owned()));
    let lasting =
        |path: &String| !["/run/", "/var/run/", "/proc/"].iter().any(|start| path.starts_with(start));
    assert!(!paths(&unasked).iter().any(lasting));
}

#[test]
fn the_component_installs_the_guard_as_the_embedded_patch_does() {
    let Some(kubectl) = kubectl() else { return };
    let overlay = tempfile::tempdir().unwrap();
    for folder in ["manifests", "components/guard-folder"] {
        copy(folder, overlay.path());
    }
    let text = "resources: [manifests]\ncomponents: [components/guard-folder]\n";
    fs::write(overlay.path().join("kustomization.yaml"), text).unwrap();
    let choices = Choices { guard_folder: Some("/opt/nri/plugins".into()), ..Choices::default() };
    assert_same(&manifests::render(&choices).unwrap(), &kustomize(&kubectl, overlay.path()));
}

/// Copies the files of a folder of this crate.
fn copy(folder: &str, to: &Path) {
    fs::create_dir_all(to.join(folder)).unwrap();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(folder).join(entry.file_name())).unwrap();
    }
}

fn mounts(pod: &Value, containers: &str) -> Vec<String> {
    let mounts = pod[containers][0]["volumeMounts"].as_array().unwrap().iter();
    mounts.map(|mount| mount["name"].as_str().unwrap().to_owned()).collect()
}

fn host_paths(pod: &Value) -> Vec<String> {
    let volumes = pod["volumes"].as_array().unwrap().iter();
    volumes.filter_map(|volume| Some(volume["hostPath"]["path"].as_str()?.to_owned())).collect()
}

/// As a condition of the policy, or as what its checks ask first.
#[test]
fn all_policies_on_held_pods_have_the_same_exemptions() {
    let objects = embedded();
    let policies =
        objects.iter().filter(|object| kind(object).ends_with("AdmissionPolicy")).filter(|object| {
            object["metadata"]["name"]
                .as_str()
                .is_some_and(|name| name.contains("-held") || name.contains("-hold"))
        });
    let exemptions: Vec<_> = policies
        .filter_map(|object| {
            let named = |list: &'static str, name: &'static str| {
                object["spec"][list].as_array().into_iter().flatten().find(move |item| item["name"] == name)
            };
            Some(&named("matchConditions", "not-exempt").or_else(|| named("variables", "subject"))?["expression"])
        })
        .collect();
    assert_eq!(exemptions.len(), 6);
    assert!(exemptions.iter().all(|exemption| *exemption == exemptions[0]), "{exemptions:#?}");
    let text = exemptions[0].to_string();
    assert!(text.contains(names::INSTALL_NAMESPACE) && text.contains("kube-system"), "{text}");
}

#[test]
fn every_policy_is_bound_and_acts_on_failure_as_it_must() {
    let objects = embedded();
    let (mut policies, mut bound) = (Vec::new(), Vec::new());
    for object in &objects {
        match kind(object) {
            "MutatingAdmissionPolicy" => assert_eq!(object["spec"]["failurePolicy"], "Ignore"),
            "ValidatingAdmissionPolicy" => {
                assert_eq!(object["spec"]["failurePolicy"], "Fail");
                assert_eq!(object["spec"]["paramKind"], Value::Null);
            }
            "MutatingAdmissionPolicyBinding" => {
                assert_eq!(object["spec"]["paramRef"]["parameterNotFoundAction"], "Allow");
                assert_eq!(object["spec"]["paramRef"]["name"], names::ADMISSION);
            }
            _ => {}
        }
        if kind(object).ends_with("AdmissionPolicy") {
            policies.push(&object["metadata"]["name"]);
        } else if kind(object).ends_with("AdmissionPolicyBinding") {
            bound.push(&object["spec"]["policyName"]);
        }
    }
    assert!(policies.len() > 8);
    assert_eq!(policies, bound);
}

/// Rules that only one of the two had would let a change through, or look at a pod for nothing.
#[test]
fn an_update_of_a_held_pod_matches_where_a_validation_refuses_it() {
    let objects = embedded();
    let policies = objects.iter().filter(|object| kind(object) == "ValidatingAdmissionPolicy");
    let mut held = policies.filter(|object| object["metadata"]["name"] == "fairlead-held-update");
    let spec = &held.next().unwrap()["spec"];
    let words = |rule: &Value| {
        let words: Vec<_> = rule["expression"].as_str().unwrap().split_whitespace().collect();
        words.join(" ")
    };
    let conditions = spec["matchConditions"].as_array().unwrap();
    let rules = spec["validations"].as_array().unwrap().iter().map(|rule| format!("({})", words(rule)));
    let all = rules.collect::<Vec<_>>().join(" && ");
    assert_eq!(words(conditions.last().unwrap()), format!("!({all})"));
}

#[test]
fn everything_is_applied_after_what_it_needs() {
    let phases: Vec<_> = embedded().iter().map(|object| manifests::phase(kind(object))).collect();
    assert!(phases.is_sorted());
    assert_eq!(kind(&embedded()[0]), "Namespace");
}

#[test]
fn the_well_known_names_in_the_policies_are_those_of_the_code() {
    let text = embedded().iter().map(Value::to_string).collect::<String>();
    for name in [
        names::NETWORKS_ANNOTATION,
        names::SELECTED_ANNOTATION,
        names::ATTACH_LABEL,
        names::NETWORK_READY,
        names::SCHEDULING_GATE,
        names::HOLD_ANNOTATION,
        names::HOLD_NRI,
        names::HOLD_LABEL,
        names::HOLD_NRI_STRICT,
        names::REQUIRED_PLUGINS_ANNOTATION,
        names::RESOURCE_PREFIX,
        names::GATE_CONTAINER,
        names::ENV_POD_UID,
        names::ENV_POD_NAME,
        names::ENV_POD_NAMESPACE,
        names::ENV_NODE_NAME,
    ] {
        assert!(text.contains(&format!("'{name}'")), "{name}");
    }
    assert!(text.contains(&format!("[\\\"{}\\\"]", names::GUARD_PLUGIN)), "{}", names::GUARD_PLUGIN);
    // The length of the resource's prefix is written as a number.
    assert!(text.contains(&format!("k.substring({})", names::RESOURCE_PREFIX.len())));
}
