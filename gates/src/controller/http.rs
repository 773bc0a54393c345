//! `/metrics`, `/healthz` and `/readyz`. Read only, nothing secret.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::metrics::Metrics;

/// Connections that are served at once.
const CONNECTIONS: usize = 32;
/// How long a client may take to send its request.
const HEADER: Duration = Duration::from_secs(5);

/// What the endpoints show.
#[derive(Debug, Default)]
pub struct Health {
    /// Whether the mutating policy was seen at work.
    pub ready: AtomicBool,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

/// Serves until the token ends.
pub async fn serve(listener: TcpListener, health: Arc<Health>, token: CancellationToken) {
    let (tracker, slots) = (TaskTracker::new(), Arc::new(Semaphore::new(CONNECTIONS)));
    while let Some(Ok(slot)) = token.run_until_cancelled(Arc::clone(&slots).acquire_owned()).await {
        let Some(accepted) = token.run_until_cancelled(listener.accept()).await else { break };
        let Ok((stream, _)) = accepted else { continue };
        let (health, token) = (Arc::clone(&health), token.clone());
        tracker.spawn(async move {
            token.run_until_cancelled(connection(stream, health)).await;
            drop(slot);
        });
    }
    tracker.close();
    tracker.wait().await;
}

async fn connection(stream: TcpStream, health: Arc<Health>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = answer(request.uri().path(), &health);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    let builder = builder.timer(TokioTimer::new()).header_read_timeout(HEADER).keep_alive(false);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        debug!(%error, "connection ended early");
    }
}

fn answer(path: &str, health: &Health) -> Response<Full<Bytes>> {
    let (status, body) = match path {
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" if health.ready.load(Ordering::Relaxed) => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, "the mutating policy is not active yet\n".to_owned()),
        "/metrics" => (StatusCode::OK, health.metrics.text()),
        _ => (StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_ready_only_once_the_policy_is_proven() {
        let health = Health::default();
        assert_eq!(answer("/readyz", &health).status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer("/healthz", &health).status(), StatusCode::OK);
        health.ready.store(true, Ordering::Relaxed);
        assert_eq!(answer("/readyz", &health).status(), StatusCode::OK);
        assert_eq!(answer("/other", &health).status(), StatusCode::NOT_FOUND);
    }
}
