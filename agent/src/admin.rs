//! The agent's small HTTP server: `/metrics`, `/healthz`, `/readyz` (with `?agent=UID`: whether that agent is ready). Unauthenticated, so it listens on the loopback address unless told otherwise.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// What the server tells.
pub trait Tell: Send + Sync + 'static {
    /// UID of the agent's pod.
    fn uid(&self) -> &str;
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
            let service = service_fn(move |request: Request<Incoming>| answer(Arc::clone(&tell), request));
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(5)).keep_alive(false);
            if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
                debug!(%error, "connection ended early");
            }
        });
    }
}

fn of_agent(uid: &str) -> String {
    format!("agent={uid}")
}

/// Asks the server of this node's agent whether it is the one of this pod, and ready. All agents of a node that is being
/// upgraded listen on one port, in turn.
///
/// # Errors
/// One sentence that says what is missing.
pub async fn is_ready(address: SocketAddr, uid: &str) -> Result<()> {
    let stream = TcpStream::connect(address).await.context("the agent does not serve yet")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get(format!("/readyz?{}", of_agent(uid)))
        .header(header::HOST, address.to_string())
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let said = response.into_body().collect().await?.to_bytes();
    ensure!(status == StatusCode::OK, "{}", String::from_utf8_lossy(&said).trim_end());
    Ok(())
}

#[expect(clippy::unused_async, reason = "hyper wants a future")]
async fn answer(
    tell: Arc<dyn Tell>,
    request: Request<impl Sized>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match request.uri().path() {
        "/metrics" => (StatusCode::OK, tell.metrics()),
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" if request.uri().query().is_some_and(|query| query != of_agent(tell.uid())) => {
            (StatusCode::SERVICE_UNAVAILABLE, "another agent of this node is at work\n".to_owned())
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Told(Result<(), String>);

    impl Tell for Told {
        fn uid(&self) -> &'static str {
            "mine"
        }
        fn metrics(&self) -> String {
            String::new()
        }
        fn ready(&self) -> Result<(), String> {
            self.0.clone()
        }
    }

    async fn asked(told: Result<(), &str>, query: &str) -> StatusCode {
        let request = Request::get(format!("/readyz{query}")).body(()).unwrap();
        answer(Arc::new(Told(told.map_err(str::to_owned))), request).await.unwrap().status()
    }

    #[tokio::test]
    async fn only_the_agent_that_is_asked_for_is_ready() {
        let (ok, busy) = (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(asked(Ok(()), "").await, ok);
        assert_eq!(asked(Ok(()), "?agent=mine").await, ok);
        assert_eq!(asked(Ok(()), "?agent=other").await, busy);
        assert_eq!(asked(Err("not yet"), "?agent=mine").await, busy);
    }
}
