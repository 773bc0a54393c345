//! The agent's small HTTP server: `/metrics`, `/healthz`, `/readyz` and `/started?agent=UID`, whether that agent has started. Unauthenticated, so it listens on the loopback address unless told otherwise.

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

/// How long an agent may take to answer another process of its pod.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the server tells.
pub trait Tell: Send + Sync + 'static {
    /// UID of the agent's pod.
    fn uid(&self) -> &str;
    /// Whether the agent's container has started; otherwise what is missing.
    ///
    /// # Errors
    /// One sentence that says what is missing.
    fn started(&self) -> Result<(), String>;
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
    serve_on(TcpListener::bind(address).await?, tell, cancel).await
}

async fn serve_on(
    listener: TcpListener,
    tell: Arc<dyn Tell>,
    cancel: CancellationToken,
) -> std::io::Result<()> {
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

fn of_agent(uid: &str) -> String {
    format!("agent={uid}")
}

/// Asks the server of this node's agent whether it is the one of this pod, and has started. All agents of a node that is
/// being upgraded listen on one port, in turn.
///
/// # Errors
/// One sentence that says what is missing.
pub async fn has_started(address: SocketAddr, uid: &str) -> Result<()> {
    let answer = tokio::time::timeout(PATIENCE, ask(address, &format!("/started?{}", of_agent(uid)))).await;
    let (status, said) = answer.context("the agent does not answer")??;
    ensure!(status == StatusCode::OK, "{}", said.trim_end());
    Ok(())
}

async fn ask(address: SocketAddr, path: &str) -> Result<(StatusCode, String)> {
    let stream = TcpStream::connect(address).await.context("the agent does not serve yet")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path).header(header::HOST, address.to_string()).body(Empty::<Bytes>::new())?;
    let answer = async move {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let said = response.into_body().collect().await?.to_bytes();
        anyhow::Ok((status, String::from_utf8_lossy(&said).into_owned()))
    };
    tokio::join!(answer, connection).0
}

#[expect(clippy::unused_async, reason = "hyper wants a future")]
async fn answer(
    tell: Arc<dyn Tell>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match request.uri().path() {
        "/metrics" => (StatusCode::OK, tell.metrics()),
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => verdict(tell.ready()),
        "/started" if request.uri().query() != Some(of_agent(tell.uid()).as_str()) => {
            verdict(Err("another agent of this node is at work".to_owned()))
        }
        "/started" => verdict(tell.started()),
        _ => (StatusCode::NOT_FOUND, "try /metrics, /healthz or /readyz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    Ok(response)
}

fn verdict(told: Result<(), String>) -> (StatusCode, String) {
    match told {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(what) => (StatusCode::SERVICE_UNAVAILABLE, format!("{what}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Told(Result<(), String>);

    impl Tell for Told {
        fn uid(&self) -> &'static str {
            "mine"
        }
        fn started(&self) -> Result<(), String> {
            self.0.clone()
        }
        fn metrics(&self) -> String {
            String::new()
        }
        fn ready(&self) -> Result<(), String> {
            self.0.clone()
        }
    }

    #[tokio::test]
    async fn only_the_agent_that_is_asked_for_has_started() {
        let cancel = CancellationToken::new();
        let told = [Ok(()), Err("not yet".to_owned())];
        for (told, uid, said) in [
            (told[0].clone(), "mine", None),
            (told[1].clone(), "mine", Some("not yet")),
            (told[0].clone(), "other", Some("another agent of this node is at work")),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let serving = tokio::spawn(serve_on(listener, Arc::new(Told(told)), cancel.clone()));
            let answer = has_started(address, uid).await.map_err(|error| error.to_string());
            assert_eq!(answer.err().as_deref(), said);
            serving.abort();
        }
    }

    #[tokio::test]
    async fn an_agent_that_does_not_serve_has_not_started() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let silent = has_started(address, "mine").await.unwrap_err().to_string();
        drop(listener);
        let gone = has_started(address, "mine").await.unwrap_err().to_string();
        assert_eq!(
            (silent.as_str(), gone.as_str()),
            ("the agent does not answer", "the agent does not serve yet")
        );
    }
}
