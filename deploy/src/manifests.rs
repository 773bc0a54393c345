//! The manifests of the tree, embedded: the same objects that `kubectl apply -k deploy/` makes.
//!
//! Knows neither a cluster nor a file. What kustomize does to the files is done here in the same way: a test
//! compares the two.

use json_patch::Patch;
use serde_json::{Value, json};

/// The files, in the order of `manifests/kustomization.yaml`.
const FILES: &[(&str, &str)] = &[
    ("namespace.yaml", include_str!("../manifests/namespace.yaml")),
    ("crds.yaml", include_str!("../manifests/crds.yaml")),
    ("priority.yaml", include_str!("../manifests/priority.yaml")),
    ("rbac-agent.yaml", include_str!("../manifests/rbac-agent.yaml")),
    ("rbac-controller.yaml", include_str!("../manifests/rbac-controller.yaml")),
    ("rbac-users.yaml", include_str!("../manifests/rbac-users.yaml")),
    ("policy-pods.yaml", include_str!("../manifests/policy-pods.yaml")),
    ("policy-objects.yaml", include_str!("../manifests/policy-objects.yaml")),
    ("controller.yaml", include_str!("../manifests/controller.yaml")),
    ("agent.yaml", include_str!("../manifests/agent.yaml")),
];

/// What installs the guard in the runtime's plugin folder: a patch of the agent's manifest.
const GUARD_FOLDER: (&str, &str) =
    ("components/guard-folder/patch.yaml", include_str!("../components/guard-folder/patch.yaml"));

/// The image's name in the files, and the name of the variable that repeats it in the policies.
const IMAGE: &str = "fairlead";
const IMAGE_VARIABLE: &str = "image";

/// Name of the init container that installs the guard in the runtime's plugin folder.
pub const INSTALLER: &str = "guard-installer";

/// The label that every object of the manifests carries, but for the custom resource definitions.
pub const PART_OF: &str = "app.kubernetes.io/part-of=fairlead";

/// What of the manifests is chosen at installation.
#[derive(Debug, Clone)]
pub struct Choices {
    /// The image of agents, controllers and gates, with its tag or digest.
    pub image: String,
    /// Globs of devices that Networks may use as uplink or parent.
    pub devices: Vec<String>,
    /// When the image is pulled; the cluster's default if `None`.
    pub pull_policy: Option<String>,
    /// The runtime's plugin folder, if the guard shall be installed there.
    pub guard_folder: Option<String>,
}

impl Default for Choices {
    fn default() -> Self {
        let image = format!("{IMAGE}:{}", fairlead_crds::VERSION);
        Self { image, devices: Vec::new(), pull_policy: None, guard_folder: None }
    }
}

/// Why the embedded manifests cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A file is not YAML.
    #[error("{file} is not valid YAML")]
    Yaml {
        /// The file's name.
        file: &'static str,
        /// What the parser says.
        source: Box<serde_saphyr::Error>,
    },
    /// A patch does not fit the file that it is for.
    #[error("{0} does not fit the manifests")]
    Patch(&'static str),
    /// The image would not be what the policies compare gates with.
    #[error("{0:?} is not the name of an image: quotes and white space cannot be part of it")]
    Image(String),
}

/// All objects, in the order in which they are applied.
///
/// # Errors
/// [`ManifestError`]; only the choice of the image can cause one.
pub fn render(choices: &Choices) -> Result<Vec<Value>, ManifestError> {
    if choices.image.is_empty()
        || choices.image.contains(|c: char| c.is_whitespace() || c == '\'' || c == '\\')
    {
        return Err(ManifestError::Image(choices.image.clone()));
    }
    let mut objects = parse()?;
    objects.iter_mut().try_for_each(|object| choose(object, choices))?;
    objects.sort_by_key(|object| phase(kind(object)));
    Ok(objects)
}

/// The kind of an object.
pub fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

/// When an object is applied: what others need comes first, what confines the programs before the programs.
pub fn phase(kind: &str) -> u8 {
    match kind {
        "Namespace" => 0,
        "CustomResourceDefinition" => 1,
        "MutatingAdmissionPolicy" | "ValidatingAdmissionPolicy" => 3,
        "MutatingAdmissionPolicyBinding" | "ValidatingAdmissionPolicyBinding" => 4,
        "DaemonSet" | "Deployment" => 5,
        _ => 2,
    }
}

fn parse() -> Result<Vec<Value>, ManifestError> {
    let mut objects = Vec::new();
    for &(file, text) in FILES {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|source| yaml(file, source))?;
        for mut document in documents {
            match document["items"].take() {
                Value::Array(items) if kind(&document) == "List" => objects.extend(items),
                _ => objects.push(without_nulls(document)),
            }
        }
    }
    Ok(objects)
}

/// Taking a key that is not there leaves a null behind.
fn without_nulls(mut document: Value) -> Value {
    if let Some(map) = document.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
    document
}

fn choose(object: &mut Value, choices: &Choices) -> Result<(), ManifestError> {
    let is_agent = kind(object) == "DaemonSet";
    for variable in list(object, "/spec/variables") {
        if variable["name"] == IMAGE_VARIABLE {
            variable["expression"] = json!(format!("'{}'", choices.image));
        }
    }
    if is_agent && let Some(folder) = &choices.guard_folder {
        install_guard(object, folder)?;
    }
    for container in list(object, "/spec/template/spec/initContainers") {
        choose_image(container, choices);
    }
    for container in list(object, "/spec/template/spec/containers") {
        choose_image(container, choices);
        if is_agent && let Some(arguments) = container["args"].as_array_mut() {
            arguments.extend(choices.devices.iter().map(|glob| json!(format!("--devices={glob}"))));
        }
    }
    Ok(())
}

fn choose_image(container: &mut Value, choices: &Choices) {
    container["image"] = json!(choices.image);
    if let Some(policy) = &choices.pull_policy {
        container["imagePullPolicy"] = json!(policy);
    }
}

/// Adds to the agent's pod what puts the guard into this plugin folder.
fn install_guard(agent: &mut Value, folder: &str) -> Result<(), ManifestError> {
    let (file, text) = GUARD_FOLDER;
    let mut patch: Value = serde_saphyr::from_str(text).map_err(|source| yaml(file, source))?;
    for volume in list(&mut patch, "").filter_map(|operation| operation.pointer_mut("/value/hostPath/path")) {
        *volume = json!(folder);
    }
    let patch: Patch = serde_json::from_value(patch).map_err(|_| ManifestError::Patch(file))?;
    json_patch::patch(agent, &patch).map_err(|_| ManifestError::Patch(file))
}

fn yaml(file: &'static str, source: serde_saphyr::Error) -> ManifestError {
    ManifestError::Yaml { file, source: Box::new(source) }
}

fn list<'a>(object: &'a mut Value, path: &str) -> impl Iterator<Item = &'a mut Value> {
    object.pointer_mut(path).and_then(Value::as_array_mut).into_iter().flatten()
}
