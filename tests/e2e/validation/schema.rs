//! What a kind's schema demands, place by place.

use serde_json::{Map, Value};

use super::row::Said;

/// A place in a schema, such as `spec.ipam.ranges[].cidr`; `{}` stands for the keys of a map.
pub type Place = Vec<String>;

/// The parts of a root schema that are the API server's own.
const IMPLICIT: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// A place and its schema.
pub struct Node {
    /// Where.
    pub place: Place,
    /// What is demanded there.
    pub schema: Map<String, Value>,
}

impl Node {
    /// The place as people write it.
    pub fn path(&self) -> String {
        path(&self.place)
    }

    /// The messages of the rules of this place, with the path that each is said of.
    pub fn rules(&self) -> Vec<Rule> {
        let rules = self.schema.get("x-kubernetes-validations").and_then(Value::as_array);
        let of = |rule: &Value| {
            let below = rule["fieldPath"].as_str().unwrap_or_default().to_owned();
            Rule {
                path: format!("{}{below}", self.path()).trim_start_matches('.').to_owned(),
                below,
                words: words(rule),
            }
        };
        rules.into_iter().flatten().map(of).collect()
    }
}

/// A rule in the API server's expression language.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The place that its message is about.
    pub path: String,
    /// The part of that which is below the place of the rule.
    pub below: String,
    /// What its message always has.
    pub words: String,
}

/// What the message of a rule has always: all of it, or the longest text in the expression that makes it.
fn words(rule: &Value) -> String {
    if let Some(message) = rule["message"].as_str() {
        return message.to_owned();
    }
    let expression = rule["messageExpression"].as_str().unwrap_or_default();
    expression.split('\'').skip(1).step_by(2).max_by_key(|text| text.len()).unwrap_or_default().to_owned()
}

impl Rule {
    /// Whether its message was said of its place.
    pub fn is_in(&self, said: &[Said]) -> bool {
        let by_this = |(field, message): &Said| *field == self.path && message.contains(&self.words);
        !self.words.is_empty() && said.iter().any(by_this)
    }
}

/// A place as people write it.
pub fn path(place: &[String]) -> String {
    let mut path = String::new();
    for step in place {
        if !path.is_empty() && !step.starts_with(['[', '{']) {
            path.push('.');
        }
        path.push_str(step);
    }
    path
}

/// Every place of a kind, the root first.
pub fn nodes(schema: &Value) -> Vec<Node> {
    let mut found = Vec::new();
    walk(schema, &[], &mut found);
    found
}

fn walk(schema: &Value, place: &[String], found: &mut Vec<Node>) {
    let Some(schema) = schema.as_object() else { return };
    found.push(Node { place: place.to_vec(), schema: schema.clone() });
    if place.is_empty() {
        // What is no object at all does not come as far as the schema.
        found[0].schema.remove("type");
    }
    let step = |name: &str| [place, &[name.to_owned()]].concat();
    for (name, child) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        if !place.is_empty() || !IMPLICIT.contains(&name.as_str()) {
            walk(child, &step(name), found);
        }
    }
    if let Some(items) = schema.get("items") {
        walk(items, &step("[]"), found);
    }
    if let Some(values) = schema.get("additionalProperties") {
        walk(values, &step("{}"), found);
    }
}

/// The JSON pointer of a place in an object: of the first list item and map entry that have it.
pub fn locate(object: &Value, place: &[String]) -> Option<String> {
    let Some((step, rest)) = place.split_first() else { return Some(String::new()) };
    let inside = |(key, child): (String, &Value)| Some(format!("/{key}{}", locate(child, rest)?));
    match (step.as_str(), object) {
        ("[]", Value::Array(items)) => {
            items.iter().enumerate().find_map(|(i, item)| inside((i.to_string(), item)))
        }
        ("{}", Value::Object(entries)) => {
            entries.iter().find_map(|(key, value)| inside((key.clone(), value)))
        }
        (name, Value::Object(fields)) => inside((name.to_owned(), fields.get(name)?)),
        _ => None,
    }
}

/// A JSON pointer as the API server writes it: `/spec/ranges/0/cidr` is `spec.ranges[0].cidr`.
pub fn field(pointer: &str) -> String {
    let mut field = String::new();
    for step in pointer.split('/').skip(1) {
        if step.bytes().all(|byte| byte.is_ascii_digit()) {
            field = format!("{field}[{step}]");
        } else {
            let dot = if field.is_empty() { "" } else { "." };
            field = format!("{field}{dot}{step}");
        }
    }
    field
}
