//! The sub-command `audit` of the controller's program.

use std::process::ExitCode;

use anyhow::Context;
use fairlead_crds::finding::Report;
use kube::Client;

use crate::controller::api::config;

/// Runs the check from the pod's service account or a kubeconfig.
pub async fn run(report: &Report, taint_prefix: &str) -> ExitCode {
    let outcome = async {
        let client = Client::try_from(config().await.context("find the API server")?)?;
        anyhow::Ok(super::check(&client, taint_prefix, report.settle).await?)
    };
    report.print(outcome.await).into()
}
