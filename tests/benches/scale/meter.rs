//! Counts what clients ask of the API server and what it answers, by verb and resource, below everything that could
//! hide a request.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Bytes;
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::{BoxError, Layer, Service};

/// Counts of all clients that it was given to. Cheap to clone; all clones are one meter.
#[derive(Clone, Default)]
pub struct Meter(Arc<Mutex<BTreeMap<Kind, Arc<Counter>>>>);

/// A verb of the API and what it is about, with its subresource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// `get`, `list`, `watch`, `create`, `patch`, …
    pub verb: &'static str,
    /// Such as `pods/status`.
    pub resource: String,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)
    }
}

#[derive(Default)]
struct Counter {
    requests: AtomicU64,
    successes: AtomicU64,
    conflicts: AtomicU64,
    bytes: AtomicU64,
    times: Mutex<Vec<f64>>,
}

/// What was counted of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// Requests that were sent.
    pub requests: u64,
    /// Answers 409: the object exists, or is not the one that was meant.
    pub conflicts: u64,
    /// Other answers that are not 2xx, and requests that were not answered in time or at all.
    pub failures: u64,
    /// Bytes of answers' bodies.
    pub bytes: u64,
}

/// What was counted, by kind.
pub type Counts = BTreeMap<Kind, Count>;

/// What came between two readings.
pub fn since(earlier: &Counts, later: &Counts) -> Counts {
    let difference = |(kind, after): (&Kind, &Count)| {
        let before = earlier.get(kind).copied().unwrap_or_default();
        let count = Count {
            requests: after.requests - before.requests,
            conflicts: after.conflicts - before.conflicts,
            failures: after.failures.saturating_sub(before.failures),
            bytes: after.bytes - before.bytes,
        };
        (count.requests + count.bytes > 0).then(|| (kind.clone(), count))
    };
    later.iter().filter_map(difference).collect()
}

impl Meter {
    /// A client whose requests are counted here.
    pub fn client(&self, config: Config) -> kube::Result<Client> {
        Ok(ClientBuilder::try_from(config)?.with_layer(self).build())
    }

    /// What was counted so far.
    pub fn read(&self) -> Counts {
        self.lock().iter().map(|(kind, counter)| (kind.clone(), counter.read())).collect()
    }

    /// How long requests of a kind took until the answer began, in milliseconds.
    pub fn times(&self, kind: &Kind) -> Vec<f64> {
        let counter = self.counter(kind.clone());
        let times = counter.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.clone()
    }

    fn counter(&self, kind: Kind) -> Arc<Counter> {
        Arc::clone(self.lock().entry(kind).or_default())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Kind, Arc<Counter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counter {
    fn read(&self) -> Count {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (requests, conflicts) = (of(&self.requests), of(&self.conflicts));
        let failures = requests.saturating_sub(conflicts + of(&self.successes));
        Count { requests, conflicts, failures, bytes: of(&self.bytes) }
    }

    fn answered(&self, status: Option<StatusCode>, begun: Instant) {
        match status {
            Some(status) if status.is_success() => drop(self.successes.fetch_add(1, Ordering::Relaxed)),
            Some(StatusCode::CONFLICT) => drop(self.conflicts.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
        let took = begun.elapsed().as_secs_f64() * 1000.0;
        self.times.lock().unwrap_or_else(PoisonError::into_inner).push(took);
    }
}

impl<S> Layer<S> for Meter {
    type Service = Metered<S>;

    fn layer(&self, inner: S) -> Metered<S> {
        Metered { inner, meter: self.clone() }
    }
}

/// A way to the API server that is counted.
pub struct Metered<S> {
    inner: S,
    meter: Meter,
}

impl<S, B> Service<Request<Body>> for Metered<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let counter = self.meter.counter(kind(request.method(), request.uri()));
        counter.requests.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            counter.answered(answer.as_ref().ok().map(Response::status), begun);
            Ok(answer?.map(|body| {
                let body = body.map_frame(move |frame| {
                    let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                    counter.bytes.fetch_add(length, Ordering::Relaxed);
                    frame
                });
                body.map_err(Into::into).boxed_unsync()
            }))
        })
    }
}

fn kind(method: &Method, uri: &Uri) -> Kind {
    let mut path = uri.path().trim_matches('/').split('/');
    // api/<version> or apis/<group>/<version>.
    let skipped = if path.next() == Some("api") { 1 } else { 2 };
    let rest: Vec<&str> = path.skip(skipped).collect();
    let rest = match rest.as_slice() {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let (resource, named) = match rest {
        [resource, _, subresource] => (format!("{resource}/{subresource}"), true),
        [resource, _] => ((*resource).to_owned(), true),
        [resource] => ((*resource).to_owned(), false),
        _ => (uri.path().to_owned(), true),
    };
    let watches = uri.query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
    let verb = match *method {
        _ if watches => "watch",
        Method::GET if named => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    };
    Kind { verb, resource }
}
