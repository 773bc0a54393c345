//! A container runtime for tests: CRI v1 over a socket in a folder of its own, with the failures a test asks for.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::net::UnixListener;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::sandbox::Sandbox;
use crate::sandbox::cri::Runtime;
use crate::sandbox::cri::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use crate::sandbox::cri::v1::{self, ContainerEventType};

/// A READY sandbox.
pub fn sandbox(id: &str, uid: &str, attempt: u32) -> Sandbox {
    Sandbox {
        uid: uid.into(),
        namespace: "default".into(),
        name: format!("pod-of-{uid}"),
        id: id.into(),
        attempt,
        ready: true,
        created_at: 1_700_000_000_000_000_000,
        runtime_handler: String::new(),
    }
}

/// How the runtime treats listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listeners {
    /// As containerd 2: no answer before the first event.
    Served,
    /// As CRI-O without `enable_pod_events`: an empty stream.
    EndAtOnce,
    /// As a runtime that is older than the call.
    Unimplemented,
}

pub struct State {
    pub version: (String, String),
    pub listeners: Listeners,
    pub sandboxes: Vec<Sandbox>,
    /// By id of the sandbox.
    pub containers: Vec<(String, v1::Container)>,
    /// The `info` of every verbose status.
    pub info: String,
    /// How long a list takes after it was taken.
    pub delay: Duration,
    pub lists: usize,
    pub subscriptions: usize,
}

#[derive(Clone)]
struct Service {
    state: Arc<Mutex<State>>,
    events: broadcast::Sender<v1::ContainerEventResponse>,
    crashed: CancellationToken,
}

/// The runtime. `crash` and `start` may follow each other at will.
pub struct FakeRuntime {
    folder: tempfile::TempDir,
    state: Arc<Mutex<State>>,
    running: Option<(Service, JoinHandle<()>)>,
}

impl FakeRuntime {
    pub fn new() -> Self {
        let state = State {
            version: ("containerd".into(), "2.4.2".into()),
            listeners: Listeners::Served,
            sandboxes: Vec::new(),
            containers: Vec::new(),
            info: "{}".into(),
            delay: Duration::ZERO,
            lists: 0,
            subscriptions: 0,
        };
        Self { folder: tempfile::tempdir().unwrap(), state: Arc::new(Mutex::new(state)), running: None }
    }

    pub fn started() -> Self {
        let mut runtime = Self::new();
        runtime.start();
        runtime
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("cri.sock")
    }

    pub fn client(&self) -> Runtime {
        Runtime::new(&self.socket(), Duration::from_secs(1)).unwrap()
    }

    pub fn set<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    pub fn start(&mut self) {
        let service = Service {
            state: Arc::clone(&self.state),
            events: broadcast::channel(1024).0,
            crashed: CancellationToken::new(),
        };
        let listener = UnixListener::bind(self.socket()).unwrap();
        let incoming = stream::unfold(listener, |listener| async {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        let (server, crashed) = (RuntimeServiceServer::new(service.clone()), service.crashed.clone());
        let task = tokio::spawn(async move {
            let listening = tonic::transport::Server::builder();
            let done =
                listening.serve_with_incoming_shutdown(server, incoming.boxed(), crashed.cancelled_owned());
            done.await.unwrap();
        });
        self.running = Some((service, task));
    }

    /// Ends streams and connections and removes the socket.
    pub async fn crash(&mut self) {
        let (service, task) = self.running.take().unwrap();
        service.crashed.cancel();
        task.await.unwrap();
        std::fs::remove_file(self.socket()).unwrap();
    }

    /// Puts a sandbox into the list in place of one of the same id.
    pub fn put(&self, sandbox: &Sandbox) {
        self.set(|state| {
            state.sandboxes.retain(|known| known.id != sandbox.id);
            state.sandboxes.push(sandbox.clone());
        });
    }

    /// Tells the listeners of a sandbox.
    pub fn tell(&self, kind: ContainerEventType, sandbox: &Sandbox) {
        let created_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
        let event = v1::ContainerEventResponse {
            container_id: sandbox.id.clone(),
            container_event_type: kind.into(),
            created_at: created_at.try_into().unwrap(),
            pod_sandbox_status: Some(status(sandbox)),
        };
        let (service, _) = self.running.as_ref().unwrap();
        assert!(service.events.send(event).is_ok(), "nobody listens");
    }
}

fn metadata(sandbox: &Sandbox) -> v1::PodSandboxMetadata {
    v1::PodSandboxMetadata {
        name: sandbox.name.clone(),
        uid: sandbox.uid.clone(),
        namespace: sandbox.namespace.clone(),
        attempt: sandbox.attempt,
    }
}

fn status(sandbox: &Sandbox) -> v1::PodSandboxStatus {
    v1::PodSandboxStatus {
        id: sandbox.id.clone(),
        metadata: Some(metadata(sandbox)),
        state: i32::from(!sandbox.ready),
        created_at: sandbox.created_at,
        runtime_handler: sandbox.runtime_handler.clone(),
    }
}

fn listed(sandbox: &Sandbox) -> v1::PodSandbox {
    v1::PodSandbox {
        id: sandbox.id.clone(),
        metadata: Some(metadata(sandbox)),
        state: i32::from(!sandbox.ready),
        created_at: sandbox.created_at,
        runtime_handler: sandbox.runtime_handler.clone(),
    }
}

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Result<Response<v1::VersionResponse>, Status> {
        let (runtime_name, runtime_version) = self.state.lock().unwrap().version.clone();
        Ok(Response::new(v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name,
            runtime_version,
            runtime_api_version: "v1".into(),
        }))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Result<Response<v1::PodSandboxStatusResponse>, Status> {
        let request = request.into_inner();
        let state = self.state.lock().unwrap();
        let found = state.sandboxes.iter().find(|sandbox| sandbox.id == request.pod_sandbox_id);
        let found = found.ok_or_else(|| Status::not_found("no such sandbox"))?;
        let info = request.verbose.then(|| ("info".to_owned(), state.info.clone()));
        Ok(Response::new(v1::PodSandboxStatusResponse {
            status: Some(status(found)),
            info: info.into_iter().collect(),
        }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Result<Response<v1::ListPodSandboxResponse>, Status> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let uid = filter.label_selector.get("io.kubernetes.pod.uid");
        let (items, delay) = self
            .state
            .lock()
            .map(|mut state| {
                state.lists += 1;
                let wanted =
                    state.sandboxes.iter().filter(|sandbox| uid.is_none_or(|uid| *uid == sandbox.uid));
                (wanted.map(listed).collect(), state.delay)
            })
            .unwrap();
        tokio::time::sleep(delay).await;
        Ok(Response::new(v1::ListPodSandboxResponse { items }))
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        let wanted = request.into_inner().filter.unwrap_or_default().pod_sandbox_id;
        let state = self.state.lock().unwrap();
        let containers = state.containers.iter().filter(|(sandbox, _)| *sandbox == wanted);
        let containers = containers.map(|(_, container)| container.clone()).collect();
        Ok(Response::new(v1::ListContainersResponse { containers }))
    }

    type GetContainerEventsStream = BoxStream<'static, Result<v1::ContainerEventResponse, Status>>;

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Result<Response<Self::GetContainerEventsStream>, Status> {
        let mut events = self.events.subscribe();
        let listeners = self
            .state
            .lock()
            .map(|mut state| {
                state.subscriptions += 1;
                state.listeners
            })
            .unwrap();
        match listeners {
            Listeners::EndAtOnce => return Ok(Response::new(stream::empty().boxed())),
            Listeners::Unimplemented => return Err(Status::unimplemented("unknown method")),
            Listeners::Served => {}
        }
        let lost = || Status::unavailable("the runtime ends");
        let crashed = self.crashed.clone();
        let first = crashed.run_until_cancelled(events.recv()).await.ok_or_else(lost)?;
        let first = first.map_err(|_| lost())?;
        let rest = stream::unfold((events, crashed), move |(mut events, crashed)| async move {
            let next = crashed.run_until_cancelled(events.recv()).await;
            let next = next.and_then(Result::ok).ok_or_else(lost);
            Some((next, (events, crashed)))
        });
        Ok(Response::new(stream::once(async { Ok(first) }).chain(rest).boxed()))
    }
}
