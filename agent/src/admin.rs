//! The agent's small HTTP server: `/metrics`, `/healthz`, `/readyz`. Unauthenticated, so it listens on the loopback address unless told otherwise.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// What the server tells.
pub trait Tell: Send + Sync + 'static {
    /// The metrics in `OpenMetrics` text.
    fn metrics(&self) -> String;
    /// Whether pods can be attached; otherwise what is missing.
    ///
    /// # Errors
    /// One sentence that says what is missing.
    fn ready(&self) -> Result<(), String>;
}

/// Serves until cancelled.
///
/// # Errors
/// If the address cannot be listened on.
pub async fn serve(
    address: SocketAddr,
    tell: Arc<dyn Tell>,
    cancel: CancellationToken,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let stream = tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    debug!(%error, "connection not accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let tell = Arc::clone(&tell);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&tell), request));
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(5)).keep_alive(false);
            if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
                debug!(%error, "connection ended early");
            }
        });
    }
}

#[expect(clippy::unused_async, reason = "hyper wants a future")]
async fn answer(
    tell: Arc<dyn Tell>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match request.uri().path() {
        "/metrics" => (StatusCode::OK, tell.metrics()),
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => match tell.ready() {
            Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
            Err(what) => (StatusCode::SERVICE_UNAVAILABLE, format!("{what}\n")),
        },
        _ => (StatusCode::NOT_FOUND, "try /metrics, /healthz or /readyz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    Ok(response)
}
