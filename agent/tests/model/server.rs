//! The way to the store: each request waits until the model answers it, loses it, or lets it arrive late.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::store::{Answer, Key, Store, Style};

/// Who asks: a node by its number, or the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Node(usize),
    Controller,
}

/// What is asked.
#[derive(Debug, Clone)]
pub struct Call {
    method: String,
    pub key: Key,
    status: bool,
    selector: Option<String>,
    style: Style,
    pub body: Value,
}

/// A request that was not answered yet.
pub struct Pending {
    pub who: Who,
    pub call: Call,
    pub since: Duration,
    reply: Option<oneshot::Sender<Answer>>,
}

/// Requests, in the order of their arrival.
pub type Inbox = Arc<Mutex<Vec<Pending>>>;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is served and answered.
    Serve,
    /// It is served, and nobody hears of it.
    LoseAnswer,
    /// It never arrives, and the caller hears so or waits in vain.
    Lose,
    /// It is refused for the moment.
    Refuse,
}

/// A client whose requests go to the inbox.
pub fn client(inbox: &Inbox, who: Who, now: impl Fn() -> Duration + Clone + Send + Sync + 'static) -> Client {
    let inbox = Arc::clone(inbox);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (inbox, now) = (Arc::clone(&inbox), now.clone());
        async move {
            let call = read(request).await;
            let (reply, answered) = oneshot::channel();
            inbox.lock().unwrap().push(Pending { who, call, since: now(), reply: Some(reply) });
            let answer = answered.await.map_err(|_| "the connection broke")?;
            let (code, body) = match answer {
                Ok(object) => (200, object),
                Err(refusal) => (refusal.code, refusal.body()),
            };
            let body = Body::from(serde_json::to_vec(&body).unwrap());
            Ok::<_, tower::BoxError>(Response::builder().status(code).body(body).unwrap())
        }
    });
    Client::new(service, "default")
}

async fn read(request: Request<Body>) -> Call {
    let (parts, body) = request.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let path: Vec<&str> = parts.uri.path().trim_start_matches('/').split('/').collect();
    let rest = if path[0] == "api" { &path[2..] } else { &path[3..] };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let of = |name: &str| {
        let query = parts.uri.query().unwrap_or_default();
        let pair = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name);
        pair.map(|(_, value)| value.replace("%3D", "="))
    };
    let style = match parts.headers.get("content-type").and_then(|style| style.to_str().ok()) {
        Some(style) if style.starts_with("application/json-patch") => Style::Json,
        Some(style) if style.starts_with("application/strategic") => Style::Strategic,
        _ => Style::Merge,
    };
    let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let named = rest.get(1).copied().or(body["metadata"]["name"].as_str().filter(|_| parts.method == "POST"));
    Call {
        method: parts.method.to_string(),
        key: Key::new(rest[0], namespace, named.unwrap_or_default()),
        status: rest.get(2) == Some(&"status"),
        selector: of("fieldSelector"),
        style,
        body,
    }
}

impl Call {
    /// Whether nothing of the model depends on it.
    pub fn is_chatter(&self) -> bool {
        self.key.resource == "events"
    }

    fn serve(&self, store: &mut Store) -> Answer {
        let Key { resource, namespace, name } = &self.key;
        match (self.method.as_str(), name.as_str()) {
            ("POST", _) => store.create(&self.key, self.body.clone()),
            ("GET", "") => Ok(store.list(resource, namespace, self.selector.as_deref())),
            ("GET", _) => store.read(&self.key),
            ("PATCH", _) => store.patch(&self.key, self.status, self.style, &self.body),
            ("DELETE", _) => store.delete(&self.key, &self.body["preconditions"]),
            (method, _) => panic!("{method} {:?}", self.key),
        }
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = if self.status { "/status" } else { "" };
        write!(f, "{} {} {}{part}", self.method, self.key.resource, self.key.name)?;
        if self.method == "PATCH" { write!(f, " {}", self.body) } else { Ok(()) }
    }
}

impl Pending {
    /// Whether the caller has given up.
    pub fn is_abandoned(&self) -> bool {
        self.reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Lets it come to its fate. What remains is a caller who waits in vain, if it is not told.
    pub fn settle(mut self, fate: Fate, told: bool, store: &mut Store) -> Option<oneshot::Sender<Answer>> {
        let answer = match fate {
            Fate::Serve | Fate::LoseAnswer => Some(self.call.serve(store)),
            Fate::Lose | Fate::Refuse => None,
        };
        let reply = self.reply.take()?;
        match (fate, answer) {
            (Fate::Serve, Some(answer)) => drop(reply.send(answer)),
            (Fate::Refuse, _) => {
                let busy = super::store::Refusal::new(500, "InternalError", "etcdserver: request timed out");
                drop(reply.send(Err(busy)));
            }
            _ if told => drop(reply),
            _ => return Some(reply),
        }
        None
    }

    /// Answers chatter.
    pub fn echo(mut self) {
        if let Some(reply) = self.reply.take() {
            drop(
                reply.send(Ok(json!({ "metadata": {}, "kind": "Event", "apiVersion": "events.k8s.io/v1" }))),
            );
        }
    }
}
