//! The order of writes at HTTP level: an address is accounted for on its block before its record goes.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::timeout;
use tower_test::mock::{self, Handle};

use super::*;
use crate::controller::api::Leadership;
use crate::controller::metrics::Metrics;

type Server = Handle<Request<Body>, Response<Body>>;

fn driver(leads: bool) -> (LostNodes, Server) {
    let (service, server) = mock::pair::<Request<Body>, Response<Body>>();
    let leadership = Leadership::default();
    leadership.set(leads.then(std::time::Instant::now));
    let caller = Caller {
        client: Client::new(service, "default"),
        metrics: Arc::new(Metrics::default()),
        leadership: Arc::new(leadership),
    };
    (LostNodes::new(caller, Duration::from_secs(60)), server)
}

fn record() -> PodNetwork {
    serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "PodNetwork",
        "metadata": { "namespace": "ns", "name": "p-1", "uid": "record", "resourceVersion": "3", "finalizers": ["fairlead.dev/release"] },
        "spec": { "podName": "p", "podUID": "pod", "nodeName": "n", "attachments": [{
            "network": "blue", "networkUID": "net", "interface": "net1", "mac": "02:00:00:00:00:01",
            "addresses": [{ "address": "10.20.0.17/24", "block": "b", "blockUID": "block" }] }] }
    }))
    .unwrap()
}

fn block(uid: &str) -> Value {
    json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "IPBlock",
        "metadata": { "name": "b", "uid": uid, "resourceVersion": "9", "finalizers": ["fairlead.dev/owned"] },
        "spec": { "space": "default", "network": "blue", "networkUID": "net", "nodeName": "n", "cidr": "10.20.0.16/28" }
    })
}

/// Answers the next request with status and body; returns method, path and body of the request.
async fn serve(server: &mut Server, status: u16, answer: &Value) -> (String, Value) {
    let (request, send) = server.next_request().await.expect("a request");
    let line = format!("{} {}", request.method(), request.uri().path());
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let response =
        Response::builder().status(status).body(Body::from(serde_json::to_vec(answer).unwrap())).unwrap();
    send.send_response(response);
    (line, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

async fn no_more(server: &mut Server) -> bool {
    timeout(Duration::from_millis(50), server.next_request()).await.map_or(true, |request| request.is_none())
}

#[tokio::test]
async fn a_released_address_is_in_quarantine_before_its_record_is_deleted() {
    let (driver, mut server) = driver(true);
    let work = tokio::spawn(async move { driver.dispose(&record(), Fate::Release, &View::default()).await });
    assert_eq!(
        serve(&mut server, 200, &block("block")).await.0,
        "GET /apis/fairlead.dev/v1alpha1/ipblocks/b"
    );
    let (line, patch) = serve(&mut server, 200, &block("block")).await;
    assert_eq!(line, "PATCH /apis/fairlead.dev/v1alpha1/ipblocks/b/status");
    assert_eq!(patch["metadata"]["resourceVersion"], "9");
    assert_eq!(patch["status"]["quarantined"][0]["address"], "10.20.0.17");
    let (line, options) = serve(&mut server, 200, &json!(record())).await;
    assert_eq!(line, "DELETE /apis/fairlead.dev/v1alpha1/namespaces/ns/podnetworks/p-1");
    assert_eq!(options["preconditions"], json!({ "uid": "record", "resourceVersion": "3" }));
    let (line, patch) = serve(&mut server, 200, &json!(record())).await;
    assert_eq!(line, "PATCH /apis/fairlead.dev/v1alpha1/namespaces/ns/podnetworks/p-1");
    assert_eq!(patch[0], json!({ "op": "test", "path": "/metadata/resourceVersion", "value": "3" }));
    assert_eq!(patch[1], json!({ "op": "test", "path": "/metadata/uid", "value": "record" }));
    work.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_record_stays_when_its_block_could_not_be_written() {
    let (driver, mut server) = driver(true);
    let work = tokio::spawn(async move { driver.dispose(&record(), Fate::Hold, &View::default()).await });
    serve(&mut server, 200, &block("block")).await;
    let conflict = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "changed", "reason": "Conflict", "code": 409 });
    let (_, patch) = serve(&mut server, 409, &conflict).await;
    let held = &patch["status"]["held"][0];
    assert_eq!(
        (&held["address"], &held["pod"], &held["podUID"]),
        (&json!("10.20.0.17"), &json!("ns/p"), &json!("pod"))
    );
    assert!(work.await.unwrap().unwrap_err().is_conflict());
    assert!(no_more(&mut server).await);
}

#[tokio::test]
async fn a_block_that_was_claimed_anew_is_left_alone() {
    let (driver, mut server) = driver(true);
    let work = tokio::spawn(async move { driver.dispose(&record(), Fate::Release, &View::default()).await });
    serve(&mut server, 200, &block("another")).await;
    assert!(serve(&mut server, 200, &json!(record())).await.0.starts_with("DELETE"));
    serve(&mut server, 200, &json!(record())).await;
    work.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_replica_whose_term_is_not_fresh_writes_nothing() {
    let (driver, mut server) = driver(false);
    let work = tokio::spawn(async move { driver.dispose(&record(), Fate::Release, &View::default()).await });
    serve(&mut server, 200, &block("block")).await;
    assert!(matches!(work.await.unwrap(), Err(CallError::NotLeading { .. })));
    assert!(no_more(&mut server).await);
}
