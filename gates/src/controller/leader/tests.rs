//! The election at HTTP level: every write names the version it was decided on.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tower_test::mock::{self, Handle};

use super::*;
use crate::controller::api::Leadership;
use crate::controller::metrics::Metrics;

type Server = Handle<Request<Body>, Response<Body>>;

fn elector() -> (Elector, Server) {
    let (service, server) = mock::pair::<Request<Body>, Response<Body>>();
    let caller = Caller {
        client: Client::new(service, "default"),
        metrics: Arc::new(Metrics::default()),
        leadership: Arc::new(Leadership::default()),
    };
    (Elector::new(caller, "me".into()), server)
}

fn lease(holder: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "fairlead-controller", "namespace": "fairlead-system", "resourceVersion": "5" },
        "spec": { "holderIdentity": holder, "leaseDurationSeconds": 20 }
    })
}

fn failure(code: u16, reason: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "m", "reason": reason, "code": code })
}

async fn serve(server: &mut Server, status: u16, answer: &Value) -> (String, Value) {
    let (request, send) = server.next_request().await.expect("a request");
    let line = format!("{} {}", request.method(), request.uri().path());
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let response =
        Response::builder().status(status).body(Body::from(serde_json::to_vec(answer).unwrap())).unwrap();
    send.send_response(response);
    (line, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

#[tokio::test]
async fn a_released_lease_is_taken_on_its_version_and_makes_the_term_fresh() {
    let (mut elector, mut server) = elector();
    let leadership = Arc::clone(&elector.caller.leadership);
    let work = tokio::spawn(async move { elector.try_lead().await });
    serve(&mut server, 200, &lease("")).await;
    let (line, patch) = serve(&mut server, 200, &lease("me")).await;
    assert_eq!(
        line,
        "PATCH /apis/coordination.k8s.io/v1/namespaces/fairlead-system/leases/fairlead-controller"
    );
    assert_eq!(
        (&patch["metadata"]["resourceVersion"], &patch["spec"]["holderIdentity"]),
        (&json!("5"), &json!("me"))
    );
    assert!(work.await.unwrap() && leadership.is_fresh());
}

#[tokio::test]
async fn a_lost_race_is_no_leadership() {
    let (mut elector, mut server) = elector();
    let leadership = Arc::clone(&elector.caller.leadership);
    let work = tokio::spawn(async move { elector.try_lead().await });
    serve(&mut server, 200, &lease("")).await;
    serve(&mut server, 409, &failure(409, "Conflict")).await;
    assert!(!work.await.unwrap() && !leadership.is_fresh());
}

#[tokio::test]
async fn a_lease_that_another_took_ends_the_term() {
    let (mut elector, mut server) = elector();
    let leadership = Arc::clone(&elector.caller.leadership);
    leadership.set(Some(Instant::now()));
    let work = tokio::spawn(async move { elector.try_lead().await });
    serve(&mut server, 200, &lease("you")).await;
    assert!(!work.await.unwrap() && !leadership.is_fresh());
}

#[tokio::test]
async fn the_first_candidate_creates_the_lease() {
    let (mut elector, mut server) = elector();
    let work = tokio::spawn(async move { elector.try_lead().await });
    serve(&mut server, 404, &failure(404, "NotFound")).await;
    let (line, body) = serve(&mut server, 201, &lease("me")).await;
    assert!(line.starts_with("POST ") && body["spec"]["holderIdentity"] == "me");
    assert!(work.await.unwrap());
}
