//! What happens while the parameter of the mutating policies is missing.

use anyhow::{Result, ensure};
use fairlead_crds::names;
use serde_json::{Value, json};

use super::{
    hold::{asking, plain},
    place::{ADMISSION, Place, Verb, refused, send},
};
use crate::fixtures::eventually;

const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";

/// Without controller and Admission unrelated pods start as ever, and those that ask are refused with one sentence.
///
/// Nothing may write the Admission meanwhile.
pub async fn a_broken_installation_stops_only_who_asks(place: &Place) -> Result<()> {
    let path = format!("{BINDINGS}/fairlead-admission");
    let mut binding = send(&place.client, Verb::Get, &path, &Value::Null).await?;
    let metadata = &binding["metadata"];
    binding["metadata"] = json!({ "name": metadata["name"], "labels": metadata["labels"], "annotations": metadata["annotations"] });
    send(&place.client, Verb::Delete, &path, &Value::Null).await?;
    let outcome = without_the_admission(place).await;
    send(&place.client, Verb::Create, BINDINGS, &binding).await?;
    outcome
}

async fn without_the_admission(place: &Place) -> Result<()> {
    eventually("the Admission to be deletable", || async {
        send(&place.client, Verb::Delete, ADMISSION, &Value::Null).await?;
        Ok(())
    })
    .await?;
    let sentence = "fairlead does not work at the moment, so a pod that asks for a network cannot be created";
    for request in [place.counted.as_str(), ""] {
        eventually("the missing Admission to be noticed", || async {
            refused(place.try_pod(&asking(request)).await, sentence)
        })
        .await?;
    }
    let stored = place.try_pod(&plain()).await?;
    ensure!(
        stored["spec"]["initContainers"].is_null() && stored["metadata"]["annotations"].is_null(),
        "{stored:#}"
    );
    let mut on_the_node = asking(&place.counted);
    on_the_node["spec"]["hostNetwork"] = json!(true);
    place.try_pod(&on_the_node).await?;
    place.label_namespace(&json!({ names::ATTACH_LABEL: names::ATTACH_ENABLED })).await?;
    eventually("the label to be seen", || async { refused(place.try_pod(&plain()).await, sentence) }).await
}
