//! The container runtime: the few calls of CRI v1 that the agent makes, as values of the domain.
//!
//! The only module that knows tonic, protobuf and the runtimes' JSON. Every call has a deadline; the one
//! that has none is the stream of events, whose silence says nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

use crate::sandbox::Sandbox;

use v1::runtime_service_client::RuntimeServiceClient;

#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    missing_docs,
    unreachable_pub,
    reason = "generated"
)]
pub(in crate::sandbox) mod v1;
mod verbose;
mod version;

pub use version::{RuntimeVersion, UnsupportedRuntime};

/// How long a call may take by default. A runtime under load answers in milliseconds.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// As the kubelet has it: annotations of many pods make a list large.
const MAX_MESSAGE: usize = 16 << 20;
/// containerd stops sending events, and then starting sandboxes, when a listener's window is full.
const WINDOW: u32 = 4 << 20;
const POD_UID_LABEL: &str = "io.kubernetes.pod.uid";

/// Why the runtime did not say what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// The path is not one of a socket.
    #[error("{0:?} is not the path of a socket")]
    Socket(PathBuf),
    /// The runtime refused, or cannot be reached.
    #[error("cannot {action}: {}", source.message())]
    Call {
        /// What was attempted.
        action: &'static str,
        /// The runtime's answer.
        source: Box<Status>,
    },
    /// The runtime took too long.
    #[error("cannot {action}: no answer within {deadline:?}")]
    Deadline {
        /// What was attempted.
        action: &'static str,
        /// The time it had.
        deadline: Duration,
    },
    /// The runtime does not know the sandbox (any more).
    #[error("the container runtime does not know sandbox {0}")]
    Gone(String),
    /// The verbose status of a sandbox is not what containerd and CRI-O give.
    #[error("cannot read the verbose status of sandbox {id}: {source}")]
    Verbose {
        /// The sandbox.
        id: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The stream of events ended: the runtime stops, or closed it.
    #[error("the container runtime closed the stream of events")]
    EventsEnded,
}

impl CriError {
    /// Whether the runtime does not know the call at all.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Call { source, .. } if source.code() == Code::Unimplemented)
    }
}

/// What happened to a container or sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It was made.
    Created,
    /// It runs.
    Started,
    /// It ended.
    Stopped,
    /// It was removed.
    Deleted,
}

/// One event of the runtime, about a sandbox or a container in it.
#[derive(Debug, Clone)]
pub struct Event {
    /// Id of the container, or of the sandbox itself.
    pub container: String,
    /// What happened to it.
    pub kind: EventKind,
    /// When, by the node's clock: nanoseconds since 1970.
    pub at: i64,
    /// The sandbox as it was then, if the runtime could say.
    pub sandbox: Option<Sandbox>,
}

/// A handle on the container runtime. Clones share one connection, which is made and renewed as needed.
#[derive(Debug, Clone)]
pub struct Runtime {
    client: RuntimeServiceClient<Channel>,
    deadline: Duration,
}

impl Runtime {
    /// A handle on the runtime behind a socket; connects with the first call. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`CriError::Socket`] if the path cannot be one.
    pub fn new(socket: &Path, deadline: Duration) -> Result<Self, CriError> {
        let invalid = || CriError::Socket(socket.to_owned());
        let path = socket.to_str().filter(|path| path.starts_with('/')).ok_or_else(invalid)?;
        // No keep-alive pings: a server of grpc-go closes connections that ping more often than every five minutes.
        let channel = Endpoint::from_shared(format!("unix://{path}"))
            .map_err(|_| invalid())?
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .connect_lazy();
        let client = RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        Ok(Self { client, deadline })
    }

    /// Name and version of the runtime.
    ///
    /// # Errors
    /// If it does not answer in time.
    pub async fn version(&self) -> Result<RuntimeVersion, CriError> {
        let mut client = self.client.clone();
        let request = v1::VersionRequest::default();
        let found = self.call("ask for the runtime's version", client.version(request)).await?;
        Ok(RuntimeVersion { name: found.runtime_name, version: found.runtime_version })
    }

    /// Every sandbox of a pod, running or not.
    ///
    /// # Errors
    /// If the runtime does not answer in time.
    pub async fn list(&self) -> Result<Vec<Sandbox>, CriError> {
        self.list_filtered(None).await
    }

    /// The sandboxes of one pod, running or not: what is true now, for a decision that cannot be undone.
    ///
    /// # Errors
    /// If the runtime does not answer in time.
    pub async fn list_pod(&self, uid: &str) -> Result<Vec<Sandbox>, CriError> {
        let label_selector = [(POD_UID_LABEL.to_owned(), uid.to_owned())].into();
        let mut found = self.list_filtered(Some(v1::PodSandboxFilter { label_selector })).await?;
        found.retain(|sandbox| sandbox.uid == uid);
        Ok(found)
    }

    async fn list_filtered(&self, filter: Option<v1::PodSandboxFilter>) -> Result<Vec<Sandbox>, CriError> {
        let mut client = self.client.clone();
        let request = v1::ListPodSandboxRequest { filter };
        let found = self.call("list the sandboxes", client.list_pod_sandbox(request)).await?;
        Ok(found.items.into_iter().filter_map(v1::PodSandbox::into_domain).collect())
    }

    /// Whether a container of a sandbox runs or ran.
    ///
    /// # Errors
    /// If the runtime does not answer in time.
    pub async fn has_started(&self, sandbox: &str) -> Result<bool, CriError> {
        let mut client = self.client.clone();
        let filter = v1::ContainerFilter { pod_sandbox_id: sandbox.to_owned() };
        let request = v1::ListContainersRequest { filter: Some(filter) };
        let found = self.call("list a sandbox's containers", client.list_containers(request)).await?;
        let ran = [v1::ContainerState::ContainerRunning, v1::ContainerState::ContainerExited];
        Ok(found.containers.iter().any(|container| ran.contains(&container.state())))
    }

    /// Path of a sandbox's network namespace, below `/run` where the runtime says `/var/run`; none for a pod
    /// on the host's network. The path may be gone already: the runtime unmounts it before it forgets the sandbox.
    ///
    /// # Errors
    /// [`CriError::Gone`] if the runtime does not know the sandbox; or if it does not answer in time or understandably.
    pub async fn netns_path(&self, id: &str) -> Result<Option<PathBuf>, CriError> {
        let mut client = self.client.clone();
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
        let call = client.pod_sandbox_status(request);
        let found = self.call("ask for a sandbox's status", call).await.map_err(|error| gone(error, id))?;
        let info = found.info.get("info").map_or("{}", String::as_str);
        verbose::netns_path(info).map_err(|source| CriError::Verbose { id: id.to_owned(), source })
    }

    /// Events from now on, containers' included; at first also older ones, see `Sandboxes`.
    ///
    /// The stream cannot say that it is established: a server of grpc-go answers with the first event only.
    /// It ends at once where the runtime has no events (CRI-O without `enable_pod_events`).
    pub fn events(&self) -> BoxStream<'static, Result<Event, CriError>> {
        let mut client = self.client.clone();
        let open = async move { client.get_container_events(v1::GetEventsRequest {}).await };
        stream::once(open)
            .map_ok(Response::into_inner)
            .try_flatten()
            .map_ok(v1::ContainerEventResponse::into_domain)
            .map_err(|source| refused("read the runtime's events", source))
            .boxed()
    }

    async fn call<T>(
        &self,
        action: &'static str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CriError> {
        let deadline = self.deadline;
        match tokio::time::timeout(deadline, call).await {
            Ok(answer) => answer.map(Response::into_inner).map_err(|source| refused(action, source)),
            Err(_) => Err(CriError::Deadline { action, deadline }),
        }
    }
}

fn refused(action: &'static str, source: Status) -> CriError {
    let source = Box::new(source);
    CriError::Call { action, source }
}

fn gone(error: CriError, id: &str) -> CriError {
    match error {
        CriError::Call { source, .. } if source.code() == Code::NotFound => CriError::Gone(id.to_owned()),
        other => other,
    }
}

impl v1::PodSandbox {
    /// None for a sandbox that is not of a Kubernetes pod.
    fn into_domain(self) -> Option<Sandbox> {
        let state = self.state();
        sandbox(self.id, self.metadata, state, self.created_at, self.runtime_handler)
    }
}

impl v1::PodSandboxStatus {
    fn into_domain(self) -> Option<Sandbox> {
        let state = self.state();
        sandbox(self.id, self.metadata, state, self.created_at, self.runtime_handler)
    }
}

impl v1::ContainerEventResponse {
    fn into_domain(self) -> Event {
        let kind = match self.container_event_type() {
            v1::ContainerEventType::ContainerCreatedEvent => EventKind::Created,
            v1::ContainerEventType::ContainerStartedEvent => EventKind::Started,
            v1::ContainerEventType::ContainerStoppedEvent => EventKind::Stopped,
            v1::ContainerEventType::ContainerDeletedEvent => EventKind::Deleted,
        };
        Event {
            container: self.container_id,
            kind,
            at: self.created_at,
            sandbox: self.pod_sandbox_status.and_then(v1::PodSandboxStatus::into_domain),
        }
    }
}

fn sandbox(
    id: String,
    metadata: Option<v1::PodSandboxMetadata>,
    state: v1::PodSandboxState,
    created_at: i64,
    runtime_handler: String,
) -> Option<Sandbox> {
    let metadata = metadata.filter(|metadata| !metadata.uid.is_empty())?;
    Some(Sandbox {
        uid: metadata.uid,
        namespace: metadata.namespace,
        name: metadata.name,
        id,
        attempt: metadata.attempt,
        ready: state == v1::PodSandboxState::SandboxReady,
        created_at,
        runtime_handler,
    })
}

#[cfg(test)]
mod tests;
