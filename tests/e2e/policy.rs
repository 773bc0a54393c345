//! The admission policies, on the API server they run in: what is injected, what is refused, and to whom.
//!
//! Most of it is dry runs, so it needs no node to start anything.

mod agent;
mod broken;
mod gate;
mod hold;
mod limits;
mod nri;
pub mod place;
mod refuse;

use std::sync::Arc;

use anyhow::Result;
use serde_json::json;

use crate::{
    controllers,
    fixtures::Net,
    policy::{nri::Runtime, place::Place},
    trial::{Case, Env},
};

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        trial!("policy_everything_is_injected_once", hold::everything_is_injected_once),
        trial!("policy_running_twice_changes_nothing", hold::running_twice_changes_nothing),
        trial!(
            "policy_the_gate_is_first_again_after_another_plugin",
            hold::the_gate_is_first_again_after_another_plugin
        ),
        trial!("policy_the_gate_passes_the_restricted_level", hold::the_gate_passes_the_restricted_level),
        trial!(
            "policy_a_gate_that_the_user_brought_is_replaced",
            hold::a_gate_that_the_user_brought_is_replaced
        ),
        trial!(
            "policy_a_snapshot_that_the_user_brought_is_overwritten",
            hold::a_snapshot_that_the_user_brought_is_overwritten
        ),
        trial!("policy_the_quality_of_service_class_is_kept", hold::the_quality_of_service_class_is_kept),
        trial!("policy_attachments_are_counted_in_both_forms", hold::attachments_are_counted_in_both_forms),
        trial!("policy_selectors_are_evaluated_at_creation", hold::selectors_are_evaluated_at_creation),
        trial!("policy_other_pods_are_left_alone", hold::other_pods_are_left_alone),
        trial!(
            "policy_a_pod_is_gated_while_no_node_could_help_it",
            gate::a_pod_is_gated_while_no_node_could_help_it
        ),
        trial!(
            "policy_a_gate_that_the_user_brought_is_set_right",
            gate::a_gate_that_the_user_brought_is_set_right
        ),
        trial!(
            "policy_the_controller_lifts_its_gate_and_changes_nothing_else",
            gate::the_controller_lifts_its_gate_and_changes_nothing_else
        ),
        runtime!("policy_the_runtimes_form_is_exactly_this", nri::the_form_is_exactly_this),
        runtime!("policy_the_strictest_network_decides", nri::the_strictest_network_decides),
        runtime!("policy_a_copy_gets_the_form_it_needs", nri::a_copy_gets_the_form_it_needs),
        runtime!(
            "policy_the_guard_is_required_for_every_container",
            nri::the_guard_is_required_for_every_container
        ),
        runtime!("policy_the_first_container_is_counted", nri::the_first_container_is_counted),
        runtime!("policy_nobody_forges_the_hold", nri::nobody_forges_the_hold),
        trial!(
            "policy_unsupported_runtimes_are_refused_by_name",
            refuse::unsupported_runtimes_are_refused_by_name
        ),
        trial!("policy_our_resources_stand_on_the_gate_only", refuse::our_resources_stand_on_the_gate_only),
        trial!("policy_a_held_pod_stays_as_it_was_admitted", refuse::a_held_pod_stays_as_it_was_admitted),
        trial!("policy_nobody_changes_a_record_by_hand", refuse::nobody_changes_a_record_by_hand),
        trial!("policy_nobody_changes_the_admission_by_hand", refuse::nobody_changes_the_admission_by_hand),
        trial!("policy_the_controller_makes_no_real_pod", refuse::the_controller_makes_no_real_pod),
        trial!(
            "policy_an_agent_writes_objects_of_its_own_node_only",
            agent::an_agent_writes_objects_of_its_own_node_only
        ),
        trial!(
            "policy_an_agent_writes_what_is_named_as_its_node_only",
            agent::an_agent_writes_what_is_named_as_its_node_only
        ),
        trial!(
            "policy_an_agent_writes_one_condition_of_its_own_pods_only",
            agent::an_agent_writes_one_condition_of_its_own_pods_only
        ),
        trial!(
            "policy_the_policy_knows_every_field_of_a_pods_status",
            agent::the_policy_knows_every_field_of_a_pods_status
        ),
        trial!(
            "policy_an_agent_has_no_right_that_its_code_does_not_need",
            agent::an_agent_has_no_right_that_its_code_does_not_need
        ),
        Case::new("policy_the_largest_admission_is_affordable", largest_admission).alone(),
        Case::new("policy_a_broken_installation_stops_only_who_asks", broken_installation).alone(),
    ]
}

macro_rules! trial {
    ($name:literal, $body:path) => {
        Case::new($name, |env| async move { $body(&prepare(&env).await?).await })
    };
}
use trial;

macro_rules! runtime {
    ($name:literal, $body:path) => {
        Case::new($name, |env| async move { $body(&prepare_runtime(&env).await?).await })
    };
}
use runtime;

/// Two Networks with the rules that [`hold::selectors_are_evaluated_at_creation`] describes.
async fn prepare(env: &Env) -> Result<Place> {
    let here = json!({ "matchLabels": { "kubernetes.io/metadata.name": env.namespace } });
    let counted =
        Net::island(env, "counted", &["10.9.0.0/24"]).with("/exhaustion", json!({ "resource": true })).with(
            "/attach",
            json!([{
                "interface": "picked",
                "namespaceSelector": here,
                "podSelector": { "matchExpressions": [
                    { "key": "pick", "operator": "In", "values": ["both", "strict"] },
                    { "key": "never", "operator": "DoesNotExist" },
                ] },
            }]),
        );
    let uncounted = Net::island(env, "uncounted", &["10.10.0.0/24"])
        .with("/exhaustion", json!({ "resource": false, "taint": "None" }))
        .with(
            "/attach",
            json!([{ "namespaceSelector": here, "podSelector": { "matchLabels": { "pick": "one" } } }]),
        );
    for net in [&counted, &uncounted] {
        net.create(env).await?;
    }
    let place =
        Place::new(&env.cluster.kubeconfig_path(), &env.namespace, counted.name(), uncounted.name()).await?;
    place.wait_for_admission().await?;
    Ok(place)
}

/// The same, and a Network whose pods the container runtime holds.
async fn prepare_runtime(env: &Env) -> Result<Runtime> {
    let place = prepare(env).await?;
    let strict = Net::island(env, "strict", &["10.11.0.0/24"]).with("/hold", json!("Nri"));
    strict.create(env).await?;
    let runtime = Runtime { place, strict: strict.name().to_owned() };
    runtime.wait_for_admission().await?;
    Ok(runtime)
}

async fn broken_installation(env: Arc<Env>) -> Result<()> {
    let place = prepare(&env).await?;
    controllers::scale(&env.cluster, 0).await?;
    let outcome = broken::a_broken_installation_stops_only_who_asks(&place).await;
    controllers::scale(&env.cluster, 2).await?;
    outcome?;
    place.wait_for_admission().await
}

async fn largest_admission(env: Arc<Env>) -> Result<()> {
    let place = prepare(&env).await?;
    controllers::scale(&env.cluster, 0).await?;
    let outcome = limits::the_largest_admission_is_affordable(&place).await;
    controllers::scale(&env.cluster, 2).await?;
    outcome?;
    place.wait_for_admission().await
}
