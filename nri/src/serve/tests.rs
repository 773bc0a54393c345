//! A runtime that a test plays, on the other end of a socket pair.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::frame::{Demultiplexer, encode};
use crate::{Container, PodSandbox};

/// Writes down what it is asked.
#[derive(Default)]
struct Notebook(Mutex<Vec<String>>);

impl Notebook {
    fn note(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Plugin for Notebook {
    fn configure(&self, runtime: &str, version: &str) -> EventMask {
        self.note(format!("configure {runtime} {version}"));
        EventMask::RUN_POD_SANDBOX | EventMask::CREATE_CONTAINER
    }

    fn synchronize(&self, pods: Vec<PodSandbox>, containers: Vec<Container>) {
        let names: Vec<_> = pods.iter().map(|pod| pod.name.as_str()).collect();
        self.note(format!("synchronize {} {}", names.join(","), containers.len()));
    }

    fn run_pod_sandbox(&self, pod: &PodSandbox) -> Result<(), String> {
        self.note(format!("run {} {:?}", pod.uid, pod.network_namespace));
        if pod.name == "bad" { Err("no room".repeat(1000)) } else { Ok(()) }
    }

    fn create_container(&self, pod: &PodSandbox, container: &Container) -> Result<(), String> {
        Err(format!("{} of {} has to wait", container.name, pod.annotations["why"]))
    }

    fn validate_container(
        &self,
        pod: &PodSandbox,
        container: &Container,
        plugins: &[Identity],
    ) -> Result<(), String> {
        let plugins: Vec<_> = plugins.iter().map(ToString::to_string).collect();
        self.note(format!("validate {} of {} with {}", container.name, pod.uid, plugins.join(",")));
        if pod.name == "bad" { Err("no room".repeat(1000)) } else { Ok(()) }
    }

    fn stop_pod_sandbox(&self, pod: &PodSandbox) {
        self.note(format!("stop {}", pod.uid));
    }

    fn remove_pod_sandbox(&self, pod: &PodSandbox) {
        self.note(format!("remove {}", pod.uid));
    }
}

/// The runtime's end.
struct Runtime {
    socket: UnixStream,
    demultiplexer: Demultiplexer,
    stream: u32,
}

type Served = JoinHandle<Result<(), Error>>;

impl Runtime {
    fn with(plugin: Arc<dyn Plugin>, stop: &Stop) -> (Self, Served) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (connection, stop) = (Connection::new(theirs).unwrap(), stop.clone());
        let identity = Identity { name: "fairlead".into(), index: 7 };
        let served = thread::spawn(move || serve(connection, &identity, &plugin, &stop));
        ours.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        (Self { socket: ours, demultiplexer: Demultiplexer::default(), stream: 1 }, served)
    }

    fn receive(&mut self) -> Message {
        let mut buffer = [0; 100];
        loop {
            if let Some(message) = self.demultiplexer.next() {
                return message;
            }
            let read = self.socket.read(&mut buffer).unwrap();
            assert!(read > 0, "the plugin closed the connection");
            self.demultiplexer.feed(&buffer[..read]).unwrap();
        }
    }

    fn registration(&mut self) -> wire::RegisterPluginRequest {
        let message = self.receive();
        assert_eq!((message.connection, message.stream, message.kind), (RUNTIME, 1, REQUEST));
        let request = wire::Request::decode(&message.data[..]).unwrap();
        assert_eq!((request.service.as_str(), request.method.as_str()), (RUNTIME_SERVICE, "RegisterPlugin"));
        wire::RegisterPluginRequest::decode(&request.payload[..]).unwrap()
    }

    fn accept(&mut self, status: Option<wire::Status>) {
        let data = wire::Response { status, payload: vec![] }.encode_to_vec();
        let message = Message { connection: RUNTIME, stream: 1, kind: RESPONSE, data };
        self.socket.write_all(&encode(&message)).unwrap();
    }

    fn call(&mut self, method: &str, asked: &impl prost::Message) -> wire::Response {
        let request = wire::Request {
            service: PLUGIN_SERVICE.into(),
            method: method.into(),
            payload: asked.encode_to_vec(),
            timeout_nano: 2_000_000_000,
        };
        let message =
            Message { connection: PLUGIN, stream: self.stream, kind: REQUEST, data: request.encode_to_vec() };
        self.socket.write_all(&encode(&message)).unwrap();
        let answer = self.receive();
        assert_eq!((answer.connection, answer.stream, answer.kind), (PLUGIN, self.stream, RESPONSE));
        self.stream += 2;
        wire::Response::decode(&answer.data[..]).unwrap()
    }

    fn configure(&mut self) -> i32 {
        let asked =
            wire::ConfigureRequest { runtime_name: "containerd".into(), runtime_version: "v2".into() };
        let answer = self.call("Configure", &asked);
        wire::ConfigureResponse::decode(&answer.payload[..]).unwrap().events
    }
}

fn pod(name: &str) -> wire::PodSandbox {
    let network = wire::LinuxNamespace { kind: "network".into(), path: "/var/run/netns/x".into() };
    wire::PodSandbox {
        name: name.into(),
        uid: format!("uid-{name}"),
        annotations: [("why".to_owned(), name.to_owned())].into(),
        linux: Some(wire::LinuxPodSandbox { namespaces: vec![network] }),
        ..Default::default()
    }
}

fn of(name: &str) -> wire::PodRequest {
    wire::PodRequest { pod: Some(pod(name)) }
}

#[test]
fn a_plugin_is_registered_configured_synchronized_and_called() {
    let (notebook, stop) = (Arc::new(Notebook::default()), Stop::default());
    let (mut runtime, served) = Runtime::with(notebook.clone(), &stop);
    let asked = runtime.registration();
    assert_eq!((asked.plugin_name.as_str(), asked.plugin_idx.as_str()), ("fairlead", "07"));
    // As containerd does it: the configuration may come before the answer to the registration.
    assert_eq!(runtime.configure(), 0b1001);
    runtime.accept(None);
    for (more, name) in [(true, "a"), (true, "b"), (false, "c")] {
        let part = wire::SynchronizeRequest { pods: vec![pod(name)], containers: vec![], more };
        let answer = runtime.call("Synchronize", &part);
        assert_eq!(wire::SynchronizeResponse::decode(&answer.payload[..]).unwrap().more, more);
    }
    assert_eq!(runtime.call("RunPodSandbox", &of("p")).status, None);
    assert_eq!(runtime.call("StopPodSandbox", &of("p")).status, None);
    let state_change = wire::StateChangeEvent { event: 3, pod: Some(pod("p")) };
    assert_eq!(runtime.call("StateChange", &state_change).status, None);
    drop(runtime);
    served.join().unwrap().unwrap();
    let said = [
        "configure containerd v2",
        "synchronize a,b,c 0",
        "run uid-p Some(\"/run/netns/x\")",
        "stop uid-p",
        "remove uid-p",
    ];
    assert_eq!(notebook.lines(), said);
}

#[test]
fn a_refusal_reaches_the_runtime_as_a_sentence_of_bounded_length() {
    let (mut runtime, _served) = Runtime::with(Arc::new(Notebook::default()), &Stop::default());
    runtime.registration();
    runtime.accept(None);
    runtime.configure();
    let container = Some(wire::Container { name: "app".into(), ..Default::default() });
    let asked = wire::CreateContainerRequest { pod: Some(pod("web")), container };
    let status = runtime.call("CreateContainer", &asked).status.unwrap();
    assert_eq!((status.code, status.message.as_str()), (FAILED_PRECONDITION, "app of web has to wait"));
    let status = runtime.call("RunPodSandbox", &of("bad")).status.unwrap();
    assert_eq!(status.message.len(), MAX_SENTENCE);
}

#[test]
fn the_last_word_about_a_container_comes_with_all_plugins() {
    let notebook = Arc::new(Notebook::default());
    let (mut runtime, _served) = Runtime::with(notebook.clone(), &Stop::default());
    runtime.registration();
    runtime.accept(None);
    runtime.configure();
    let plugin = |index: &str, name: &str| wire::PluginInstance { name: name.into(), index: index.into() };
    let mut validate = |name: &str| {
        let asked = wire::ValidateContainerAdjustmentRequest {
            pod: Some(pod(name)),
            container: Some(wire::Container { name: "app".into(), ..Default::default() }),
            plugins: vec![plugin("00", "default-validator"), plugin("7", "fairlead"), plugin("x", "odd")],
        };
        let answer = runtime.call("ValidateContainerAdjustment", &asked);
        wire::ValidateContainerAdjustmentResponse::decode(&answer.payload[..]).unwrap()
    };
    assert_eq!(validate("web"), wire::ValidateContainerAdjustmentResponse::default());
    let refused = validate("bad");
    assert!(refused.reject && refused.reason.len() == MAX_SENTENCE);
    assert_eq!(notebook.lines()[1], "validate app of uid-web with 00-default-validator,07-fairlead");
}

#[test]
fn what_is_not_known_is_unimplemented_and_the_next_call_works() {
    let (mut runtime, _served) = Runtime::with(Arc::new(Notebook::default()), &Stop::default());
    runtime.registration();
    assert_eq!(runtime.call("Teleport", &of("p")).status.unwrap().code, UNIMPLEMENTED);
    assert_eq!(runtime.call("PostUpdatePodSandbox", &of("p")).status, None);
    let nonsense = wire::Status { code: -1, message: "x".into() };
    assert_eq!(runtime.call("RunPodSandbox", &nonsense).status.unwrap().code, INVALID_ARGUMENT);
    assert_eq!(runtime.call("RunPodSandbox", &of("p")).status, None);
}

#[test]
fn a_refused_registration_is_told() {
    let (mut runtime, served) = Runtime::with(Arc::new(Notebook::default()), &Stop::default());
    runtime.registration();
    runtime.accept(Some(wire::Status { code: 2, message: "no such luck".into() }));
    let error = served.join().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the runtime refused the plugin: no such luck");
}

#[test]
fn a_connection_that_ends_before_the_plugin_is_in_use_is_an_error() {
    let (mut runtime, served) = Runtime::with(Arc::new(Notebook::default()), &Stop::default());
    runtime.registration();
    drop(runtime);
    assert!(matches!(served.join().unwrap(), Err(Error::Closed)));
}

#[test]
fn stopping_ends_an_idle_connection_at_once_and_one_that_begins_later() {
    let stop = Stop::default();
    let (mut runtime, served) = Runtime::with(Arc::new(Notebook::default()), &stop);
    runtime.registration();
    stop.stop();
    served.join().unwrap().unwrap();
    let (_runtime, served) = Runtime::with(Arc::new(Notebook::default()), &stop);
    served.join().unwrap().unwrap();
}

#[test]
fn a_name_that_runtimes_refuse_is_not_sent() {
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let (connection, plugin) = (Connection::new(theirs).unwrap(), Arc::new(Notebook::default()));
    let identity = Identity { name: "fair lead".into(), index: 7 };
    let served = serve(connection, &identity, &(plugin as Arc<dyn Plugin>), &Stop::default());
    assert!(matches!(served, Err(Error::Identity(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_runtime_that_sends_anything_ends_the_connection_or_is_answered(
        raw in vec(any::<u8>(), 0..300), payload in vec(any::<u8>(), 0..300), method in 0_usize..6
    ) {
        let methods = ["Configure", "Synchronize", "RunPodSandbox", "CreateContainer", "StateChange", "Shutdown"];
        let request = wire::Request {
            service: PLUGIN_SERVICE.into(), method: methods[method].into(), payload, timeout_nano: -1
        };
        let data = request.encode_to_vec();
        let message = Message { connection: PLUGIN, stream: 2, kind: REQUEST, data };
        // Any plugin but the notebook, whose refusals want an annotation.
        let (mut runtime, served) = Runtime::with(Arc::new(Silent), &Stop::default());
        runtime.registration();
        runtime.socket.write_all(&encode(&message)).unwrap();
        // The plugin may have closed its end already.
        runtime.socket.write_all(&raw).ok();
        runtime.socket.shutdown(Shutdown::Write).ok();
        // A panic would be an error of the join.
        served.join().unwrap().ok();
    }
}

struct Silent;

impl Plugin for Silent {
    fn configure(&self, _: &str, _: &str) -> EventMask {
        EventMask::RUN_POD_SANDBOX
    }
}
