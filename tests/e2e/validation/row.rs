//! One rule of a kind with its examples, and how they are tried.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::server::Server;

/// A rule, and objects on both sides of it. Everything is JSON patches of a base object.
pub struct Row {
    name: &'static str,
    given: Vec<Value>,
    accepted: Vec<Vec<Value>>,
    refused: Vec<Refused>,
    edit: bool,
}

struct Refused {
    operations: Vec<Value>,
    field: &'static str,
    words: &'static str,
}

/// What was said of a field, with the numbers of list items left out.
pub type Said = (String, String);

/// A rule on objects that are created.
pub fn rule(name: &'static str) -> Row {
    Row { name, given: vec![], accepted: vec![], refused: vec![], edit: false }
}

/// A rule on changes: the base object really exists, and the examples are edits of it.
pub fn edit(name: &'static str) -> Row {
    Row { edit: true, ..rule(name) }
}

/// Puts a value at a place, by JSON pointer.
pub fn set(path: &str, value: impl Into<Value>) -> Value {
    json!({ "op": "add", "path": path, "value": value.into() })
}

/// Removes what is at a place.
pub fn unset(path: &str) -> Value {
    json!({ "op": "remove", "path": path })
}

impl Row {
    /// What both sides have in common, besides the base.
    pub fn given<const N: usize>(self, operations: [Value; N]) -> Self {
        Self { given: operations.into(), ..self }
    }

    /// An example that is accepted.
    pub fn accepts<const N: usize>(mut self, operations: [Value; N]) -> Self {
        self.accepted.push(operations.into());
        self
    }

    /// An example that is refused, with the field and the words that its user sees.
    pub fn refuses<const N: usize>(
        mut self,
        operations: [Value; N],
        field: &'static str,
        words: &'static str,
    ) -> Self {
        self.refused.push(Refused { operations: operations.into(), field, words });
        self
    }

    /// Tries all examples. Gives what was said of the refused ones, and what would be stored of the accepted ones.
    pub async fn run(&self, server: &Server, base: &Value) -> Result<(Vec<Said>, Vec<Value>)> {
        ensure!(!self.accepted.is_empty(), "{}: no example is accepted", self.name);
        let object = patched(base, &self.given).with_context(|| self.name)?;
        if !self.edit {
            return self.try_all(server, &object).await.with_context(|| self.name);
        }
        server.make(object.clone()).await.with_context(|| self.name)?;
        let outcome = self.try_all(server, &object).await.with_context(|| self.name);
        server.remove(name_of(&object)).await?;
        outcome
    }

    async fn try_all(&self, server: &Server, object: &Value) -> Result<(Vec<Said>, Vec<Value>)> {
        let (mut said, mut stored) = (Vec::new(), Vec::new());
        for operations in &self.accepted {
            let answer = self.ask(server, object, operations).await?;
            stored.push(answer.accepted().with_context(|| json!(operations).to_string())?);
        }
        for refused in &self.refused {
            let answer = self.ask(server, object, &refused.operations).await?;
            let message = answer.refused(refused.field, refused.words);
            said.push((
                without_numbers(refused.field),
                message.with_context(|| json!(refused.operations).to_string())?,
            ));
        }
        Ok((said, stored))
    }

    async fn ask(
        &self,
        server: &Server,
        object: &Value,
        operations: &[Value],
    ) -> Result<super::server::Answer> {
        if self.edit {
            server.edit(name_of(object), operations).await
        } else {
            server.create(&patched(object, operations)?).await
        }
    }
}

/// An object after some JSON patch operations.
pub fn patched(object: &Value, operations: &[Value]) -> Result<Value> {
    let mut object = object.clone();
    let patch: json_patch::Patch = serde_json::from_value(json!(operations))?;
    json_patch::patch(&mut object, &patch).with_context(|| json!(operations).to_string())?;
    Ok(object)
}

/// `spec.ranges[0].cidr` as `spec.ranges[].cidr`.
pub fn without_numbers(field: &str) -> String {
    let mut parts = field.split('[');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |path, part| format!("{path}[]{}", part.split_once(']').map_or("", |(_, rest)| rest)))
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}
