//! What the API server keeps, with the rules that the agent relies on: names are taken once, finalizers keep
//! objects, preconditions hold, versions grow.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::mutant::Mutant;

/// Resource, namespace (empty for what has none) and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub resource: String,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(resource: &str, namespace: &str, name: &str) -> Self {
        Self { resource: resource.into(), namespace: namespace.into(), name: name.into() }
    }
}

/// Why a call was refused.
#[derive(Debug, Clone)]
pub struct Refusal {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
}

impl Refusal {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into() }
    }

    pub fn body(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        })
    }
}

/// What a call is answered with.
pub type Answer = Result<Value, Refusal>;

/// How a patch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Merge,
    Strategic,
    Json,
}

/// All objects.
#[derive(Debug, Default)]
pub struct Store {
    objects: BTreeMap<Key, Value>,
    version: u64,
    uids: u64,
    /// What this server does wrong on purpose.
    pub mutant: Option<Mutant>,
    /// What changed since someone looked.
    pub changed: Vec<Key>,
}

impl Store {
    pub fn get(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key)
    }

    /// All objects of a resource.
    pub fn all<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = (&'a Key, &'a Value)> {
        let first = Key::new(resource, "", "");
        self.objects.range(first..).take_while(move |(key, _)| key.resource == resource)
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn read(&self, key: &Key) -> Answer {
        self.get(key).cloned().ok_or_else(|| not_found(key))
    }

    pub fn create(&mut self, key: &Key, mut object: Value) -> Answer {
        if let Some(found) = self.get(key) {
            if self.mutant == Some(Mutant::ClaimTaken) && key.resource == "ipblocks" {
                let mut mine = found.clone();
                mine["spec"]["nodeName"] = object["spec"]["nodeName"].clone();
                return Ok(mine);
            }
            return Err(Refusal::new(
                409,
                "AlreadyExists",
                format!("{} \"{}\" already exists", key.resource, key.name),
            ));
        }
        self.uids += 1;
        let given = object["metadata"]["uid"].as_str().map(str::to_owned);
        object["metadata"]["uid"] = json!(given.unwrap_or_else(|| format!("uid-{}", self.uids)));
        object["metadata"]["generation"] = json!(1);
        if self.mutant == Some(Mutant::SkipWriteAhead) && key.resource == "podnetworks" {
            object["metadata"]["resourceVersion"] = json!("0");
            return Ok(object);
        }
        Ok(self.put(key, object))
    }

    pub fn patch(&mut self, key: &Key, status: bool, style: Style, patch: &Value) -> Answer {
        let old = self.read(key)?;
        let mut new = old.clone();
        match style {
            Style::Json => Self::apply_json(&mut new, patch)?,
            Style::Merge => {
                self.check(&old, &patch["metadata"])?;
                json_patch::merge(&mut new, patch);
            }
            Style::Strategic => {
                self.check(&old, &patch["metadata"])?;
                merge_conditions(&mut new, patch);
            }
        }
        self.keep_what_a_patch_cannot_change(key, status, &old, &mut new);
        if new == old {
            return Ok(old);
        }
        if new["spec"] != old["spec"] {
            new["metadata"]["generation"] = json!(old["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        Ok(self.put(key, new))
    }

    fn keep_what_a_patch_cannot_change(&self, key: &Key, status: bool, old: &Value, new: &mut Value) {
        let part = if status { ["spec", "metadata"] } else { ["status", "status"] };
        for field in part {
            match old.get(field) {
                Some(kept) => new[field] = kept.clone(),
                None => drop(new.as_object_mut().map(|object| object.remove(field))),
            }
        }
        for field in ["uid", "name", "namespace", "resourceVersion", "deletionTimestamp", "generation"] {
            match old["metadata"].get(field) {
                Some(kept) => new["metadata"][field] = kept.clone(),
                None => drop(new["metadata"].as_object_mut().map(|metadata| metadata.remove(field))),
            }
        }
        if self.mutant == Some(Mutant::SkipQuarantine) && key.resource == "ipblocks" && status {
            new["status"]["quarantined"] = json!([]);
        }
        if self.mutant == Some(Mutant::SkipWriteAhead) && key.resource == "podnetworks" && !status {
            new["spec"] = old["spec"].clone();
        }
    }

    fn apply_json(object: &mut Value, patch: &Value) -> Result<(), Refusal> {
        let patch: json_patch::Patch = serde_json::from_value(patch.clone()).unwrap();
        json_patch::patch(object, &patch).map_err(|error| Refusal::new(422, "Invalid", error.to_string()))
    }

    /// Whether the object is the one that a write is about.
    fn check(&self, object: &Value, wanted: &Value) -> Result<(), Refusal> {
        let fields = if self.mutant == Some(Mutant::IgnoreVersions) {
            &["uid"][..]
        } else {
            &["uid", "resourceVersion"]
        };
        let differs = |field: &str| wanted[field].is_string() && wanted[field] != object["metadata"][field];
        let differs = fields.iter().find(|field| differs(field));
        match differs {
            Some(field) => Err(Refusal::new(409, "Conflict", format!("the {field} is another"))),
            None => Ok(()),
        }
    }

    pub fn delete(&mut self, key: &Key, preconditions: &Value) -> Answer {
        let mut object = self.read(key)?;
        self.check(&object, preconditions)?;
        let kept =
            object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
        if kept && object["metadata"]["deletionTimestamp"].is_string() {
            return Ok(object);
        }
        if kept {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            return Ok(self.put(key, object));
        }
        self.remove(key);
        Ok(json!({ "apiVersion": "v1", "kind": "Status", "status": "Success" }))
    }

    /// Takes an object away, whatever stands against it: for what others do.
    pub fn remove(&mut self, key: &Key) {
        self.version += 1;
        self.objects.remove(key);
        self.changed.push(key.clone());
    }

    /// Changes an object, if it is there: for what others do.
    pub fn edit(&mut self, key: &Key, edit: impl FnOnce(&mut Value)) {
        if let Some(mut object) = self.get(key).cloned() {
            edit(&mut object);
            self.put(key, object);
        }
    }

    fn put(&mut self, key: &Key, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let metadata = &object["metadata"];
        let kept = metadata["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
        if metadata["deletionTimestamp"].is_string() && !kept {
            self.objects.remove(key);
        } else {
            self.objects.insert(key.clone(), object.clone());
        }
        self.changed.push(key.clone());
        object
    }

    /// Objects of a resource that fit a field selector such as `spec.nodeName=a`.
    pub fn list(&self, resource: &str, namespace: &str, selector: Option<&str>) -> Value {
        let fits = |object: &Value| {
            let Some((path, value)) = selector.and_then(|selector| selector.split_once('=')) else {
                return true;
            };
            path.split('.').fold(object, |object, part| &object[part]) == value
        };
        let items: Vec<&Value> = self
            .all(resource)
            .filter(|(key, object)| (namespace.is_empty() || key.namespace == namespace) && fits(object))
            .map(|(_, object)| object)
            .collect();
        let metadata = json!({ "resourceVersion": self.version.to_string() });
        json!({ "apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items })
    }
}

fn not_found(key: &Key) -> Refusal {
    Refusal::new(404, "NotFound", format!("{} \"{}\" not found", key.resource, key.name))
}

/// A strategic merge of a pod's conditions, which are merged by their type; nothing else is patched so.
fn merge_conditions(object: &mut Value, patch: &Value) {
    let new = patch["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let mut conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|old| new.iter().all(|new| new["type"] != old["type"]));
    conditions.extend(new);
    object["status"]["conditions"] = json!(conditions);
}
