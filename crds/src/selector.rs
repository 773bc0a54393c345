//! A label selector with the semantics of `metav1.LabelSelector`, bounded so that a policy can afford it.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Selects objects by their labels. All requirements must hold; an empty selector selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    /// Labels an object must have with exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels_schema")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements on an object's labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub match_expressions: Vec<Requirement>,
}

/// The schema of a map of labels, with the syntax that Kubernetes gives to keys and values.
///
/// Without it a mistyped key would be stored, and select nothing for ever.
pub(crate) fn labels_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 8,
        "additionalProperties": { "type": "string", "maxLength": 63 },
        "x-kubernetes-validations": [{
            "rule": "self.all(key, key.size() <= 317 && !format.qualifiedName().validate(key).hasValue())",
            "message": "has a key that no label can have; keys are such as tier or app.kubernetes.io/name"
        }, {
            "rule": "self.all(key, !format.labelValue().validate(self[key]).hasValue())",
            "message": "has a value that no label can have; values are letters, digits and inner '-', '_' and '.'"
        }]
    })
}

/// One requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.operator in ['In', 'NotIn'] ? has(self.values) && self.values.size() > 0 : !has(self.values) || self.values.size() == 0")
    .message("values is required with In and NotIn, and must be empty with Exists and DoesNotExist").field_path(".values"))]
pub struct Requirement {
    /// The label's key.
    #[schemars(length(min = 1, max = 317))]
    #[x_kube(validation = Rule::new("!format.qualifiedName().validate(self).hasValue()").message("must be a label's key, such as tier or app.kubernetes.io/name"))]
    pub key: String,
    /// How the label's value relates to `values`.
    pub operator: Operator,
    /// The values of `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 63)))]
    pub values: Vec<String>,
}

/// The operators of a [`Requirement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[expect(missing_docs, reason = "the names are the Kubernetes API's own")]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn expression(operator: Operator, values: &[&str]) -> Selector {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let requirement = Requirement { key: "tier".to_owned(), operator, values };
        Selector { match_expressions: vec![requirement], ..Selector::default() }
    }

    #[test]
    fn an_empty_selector_selects_everything() {
        assert!(Selector::default().matches(&labels(&[])));
    }

    #[test]
    fn every_operator_follows_the_kubernetes_semantics() {
        let (data, none) = (labels(&[("tier", "data")]), labels(&[]));
        for (operator, values, on_data, on_none) in [
            (Operator::In, &["data"][..], true, false),
            (Operator::NotIn, &["data"][..], false, true),
            (Operator::Exists, &[][..], true, false),
            (Operator::DoesNotExist, &[][..], false, true),
        ] {
            let selector = expression(operator, values);
            assert_eq!(selector.matches(&data), on_data, "{operator:?}");
            assert_eq!(selector.matches(&none), on_none, "{operator:?}");
        }
    }
}
