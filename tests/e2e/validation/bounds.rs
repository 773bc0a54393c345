//! What breaks each keyword of a schema, and by how little: types, required fields, enumerations, bounds.

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

/// One way to break a place.
pub struct Violation {
    /// What is put at the place.
    pub bad: Value,
    /// What the same keyword allows there.
    pub good: Vec<Value>,
    /// A part of the place that the message is about, such as `.name` or `[1]`.
    pub below: String,
    /// What the message has.
    pub words: String,
}

/// Keywords that demand nothing, or are covered otherwise.
const SILENT: [&str; 13] = [
    "description",
    "default",
    "title",
    "nullable",
    "properties",
    "items",
    "additionalProperties",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "format",
    "required",
    "type",
];

/// All ways to break a place that has this schema and, in some valid object, this value.
pub fn violations(schema: &Map<String, Value>, value: &Value) -> Result<Vec<Violation>> {
    let mut found = required(schema, value);
    found.extend(duplicate(schema, value));
    found.extend((schema.get("format") == Some(&json!("date-time"))).then(|| Violation {
        bad: json!("yesterday"),
        good: vec![json!("2024-01-01T00:00:00.123456Z")],
        below: String::new(),
        words: "must be of type date-time".to_owned(),
    }));
    for (keyword, demand) in schema {
        if !SILENT.contains(&keyword.as_str()) {
            found.push(violation(keyword, demand, value)?);
        }
    }
    if let Some(demand) = schema.get("type") {
        // Of a value with a format the server names that instead.
        let name = schema.get("format").unwrap_or(demand).as_str().unwrap_or_default();
        let words = format!("must be of type {name}");
        found.push(Violation { bad: wrong_type(demand), good: vec![], below: String::new(), words });
    }
    Ok(found)
}

fn violation(keyword: &str, demand: &Value, value: &Value) -> Result<Violation> {
    let number = demand.as_f64().unwrap_or_default();
    let whole = json!(number).to_string().trim_end_matches(".0").parse::<i64>().unwrap_or_default();
    let count = usize::try_from(whole).unwrap_or_default();
    let text = |length: usize| json!("a".repeat(length));
    let (bad, good, words) = match keyword {
        "type" => {
            (wrong_type(demand), vec![], format!("must be of type {}", demand.as_str().unwrap_or_default()))
        }
        "enum" => (json!("Nonsense"), demand.as_array().cloned().unwrap_or_default(), supported(demand)),
        "pattern" => (json!(" "), vec![], format!("should match '{}'", demand.as_str().unwrap_or_default())),
        "minimum" => {
            (json!(whole - 1), vec![json!(whole)], format!("should be greater than or equal to {whole}"))
        }
        "maximum" => {
            (json!(whole + 1), vec![json!(whole)], format!("should be less than or equal to {whole}"))
        }
        "minLength" => (text(count - 1), vec![text(count)], format!("should be at least {count} chars long")),
        "maxLength" => (text(count + 1), vec![text(count)], format!("may not be more than {count} bytes")),
        "minItems" => (json!([]), vec![], format!("should have at least {count} items")),
        "maxItems" => {
            (items(value, count + 1), vec![items(value, count)], format!("must have at most {count} items"))
        }
        "maxProperties" => {
            (labels(count + 1), vec![labels(count)], format!("must have at most {count} items"))
        }
        other => bail!("no test knows how to break the keyword {other}"),
    };
    Ok(Violation { bad, good, below: String::new(), words })
}

fn wrong_type(demand: &Value) -> Value {
    if demand == "object" || demand == "array" { json!("text") } else { json!({}) }
}

fn supported(demand: &Value) -> String {
    let values: Vec<String> = demand.as_array().into_iter().flatten().map(ToString::to_string).collect();
    format!("supported values: {}", values.join(", "))
}

fn items(value: &Value, count: usize) -> Value {
    let first = value.as_array().and_then(|items| items.first()).cloned().unwrap_or_default();
    Value::Array(vec![first; count])
}

fn labels(count: usize) -> Value {
    (0..count).map(|i| (format!("key{i}"), json!("value"))).collect::<Map<_, _>>().into()
}

fn required(schema: &Map<String, Value>, value: &Value) -> Vec<Violation> {
    let names =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let without = |name: &str| {
        let mut bad = value.clone();
        bad.as_object_mut().and_then(|fields| fields.remove(name));
        Violation { bad, good: vec![], below: format!(".{name}"), words: "Required value".to_owned() }
    };
    names.map(without).collect()
}

fn duplicate(schema: &Map<String, Value>, value: &Value) -> Option<Violation> {
    schema.get("x-kubernetes-list-map-keys")?;
    let bad = items(value, 2);
    Some(Violation {
        bad,
        good: vec![items(value, 1)],
        below: "[1]".to_owned(),
        words: "Duplicate value".to_owned(),
    })
}
