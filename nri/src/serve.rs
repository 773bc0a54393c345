//! One connection from registration to its end: what the runtime asks, handed to the plugin.

use std::sync::Arc;

use prost::Message as _;

use crate::connection::Connection;
use crate::frame::{Message, PLUGIN, REQUEST, RESPONSE, RUNTIME};
use crate::{Error, EventMask, Identity, Plugin, Stop, wire};

/// The version of NRI that this is written for; runtimes log it.
const NRI_VERSION: &str = "v0.12.3";
const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";

/// Most pods and containers of one node; beyond, the runtime is not trusted.
const MAX_OBJECTS: usize = 1 << 16;
/// Longest sentence of a refusal, in characters: what an event of Kubernetes can carry.
const MAX_SENTENCE: usize = 1024;

/// Codes of `google.rpc.Code`.
const INVALID_ARGUMENT: i32 = 3;
const FAILED_PRECONDITION: i32 = 9;
const UNIMPLEMENTED: i32 = 12;

/// Numbers of the enumeration `Event`.
const RUN_POD_SANDBOX: i32 = 1;
const STOP_POD_SANDBOX: i32 = 2;
const REMOVE_POD_SANDBOX: i32 = 3;

/// The first call of a connection, and the only one that the plugin makes.
const REGISTRATION: u32 = 1;

/// Registers the plugin and answers the runtime until it goes, or until `stop`.
///
/// # Errors
/// If the plugin was not taken into use, or the connection broke. Try again with a new connection, later.
pub fn serve(
    mut connection: Connection,
    identity: &Identity,
    plugin: &Arc<dyn Plugin>,
    stop: &Stop,
) -> Result<(), Error> {
    let identity = identity.checked()?;
    stop.watch(connection.second()?);
    let mut server = Server { plugin: plugin.as_ref(), gathered: wire::SynchronizeRequest::default() };
    let outcome = server.run(&mut connection, identity);
    stop.forget();
    if stop.is_stopped() { Ok(()) } else { outcome }
}

struct Server<'a> {
    plugin: &'a dyn Plugin,
    /// What came of a list that is sent in parts.
    gathered: wire::SynchronizeRequest,
}

/// What goes back: an encoded message, or a code with a sentence.
type Answer = Result<Vec<u8>, (i32, String)>;

impl Server<'_> {
    fn run(&mut self, connection: &mut Connection, identity: &Identity) -> Result<(), Error> {
        connection.send(&registration(identity))?;
        let (mut registered, mut configured) = (false, false);
        while let Some(message) = connection.receive()? {
            match (message.connection, message.kind) {
                (RUNTIME, RESPONSE) if message.stream == REGISTRATION => {
                    accepted(&message.data)?;
                    registered = true;
                }
                (PLUGIN, REQUEST) => {
                    let (answer, method) = self.answer(&message.data)?;
                    connection.send(&response(message.stream, answer))?;
                    configured |= method == "Configure";
                }
                // ttrpc asks to ignore what is not known.
                _ => {}
            }
            if registered && configured {
                connection.established();
            }
        }
        if configured { Ok(()) } else { Err(Error::Closed) }
    }

    fn answer(&mut self, data: &[u8]) -> Result<(Answer, String), Error> {
        let Ok(request) = wire::Request::decode(data) else {
            return Ok((Err((INVALID_ARGUMENT, "not a request".to_owned())), String::new()));
        };
        let answer = if request.service == PLUGIN_SERVICE {
            self.call(&request.method, &request.payload)?
        } else {
            unknown(&format!("service {}", request.service))
        };
        Ok((answer, request.method))
    }

    fn call(&mut self, method: &str, payload: &[u8]) -> Result<Answer, Error> {
        let plugin = self.plugin;
        Ok(match method {
            "Configure" => with(payload, |asked| configure(plugin, &asked)),
            "Synchronize" => return self.synchronize(payload),
            "RunPodSandbox" => with(payload, |asked| tell(plugin, RUN_POD_SANDBOX, asked)),
            "StopPodSandbox" => with(payload, |asked| tell(plugin, STOP_POD_SANDBOX, asked)),
            "RemovePodSandbox" => with(payload, |asked| tell(plugin, REMOVE_POD_SANDBOX, asked)),
            "CreateContainer" => with(payload, |asked| create_container(plugin, asked)),
            "ValidateContainerAdjustment" => with(payload, |asked| validate_container(plugin, asked)),
            "StateChange" => with(payload, |asked: wire::StateChangeEvent| {
                tell(plugin, asked.event, wire::PodRequest { pod: asked.pod })
            }),
            // Nothing to do, and nothing to say, about the rest.
            "Shutdown"
            | "UpdatePodSandbox"
            | "PostUpdatePodSandbox"
            | "PostCreateContainer"
            | "StartContainer"
            | "PostStartContainer"
            | "UpdateContainer"
            | "PostUpdateContainer"
            | "StopContainer"
            | "RemoveContainer" => Ok(Vec::new()),
            other => unknown(&format!("method {other}")),
        })
    }

    /// A list may come in parts; the plugin gets it whole. More than fits a node is not answered at all.
    fn synchronize(&mut self, payload: &[u8]) -> Result<Answer, Error> {
        let Ok(part) = wire::SynchronizeRequest::decode(payload) else {
            return Ok(Err((INVALID_ARGUMENT, "the message cannot be read".to_owned())));
        };
        let more = part.more;
        self.gathered.pods.extend(part.pods);
        self.gathered.containers.extend(part.containers);
        if self.gathered.pods.len() + self.gathered.containers.len() > MAX_OBJECTS {
            return Err(Error::Protocol("more pods and containers than a node can have"));
        }
        if !more {
            let all = std::mem::take(&mut self.gathered);
            let pods = all.pods.into_iter().map(Into::into).collect();
            self.plugin.synchronize(pods, all.containers.into_iter().map(Into::into).collect());
        }
        Ok(Ok(wire::SynchronizeResponse { more }.encode_to_vec()))
    }
}

fn with<T: prost::Message + Default>(payload: &[u8], handle: impl FnOnce(T) -> Answer) -> Answer {
    match T::decode(payload) {
        Ok(asked) => handle(asked),
        Err(_) => Err((INVALID_ARGUMENT, "the message cannot be read".to_owned())),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "one of several handlers")]
fn configure(plugin: &dyn Plugin, asked: &wire::ConfigureRequest) -> Answer {
    let EventMask(events) = plugin.configure(&asked.runtime_name, &asked.runtime_version);
    Ok(wire::ConfigureResponse { events }.encode_to_vec())
}

fn tell(plugin: &dyn Plugin, event: i32, asked: wire::PodRequest) -> Answer {
    let pod = asked.pod.unwrap_or_default().into();
    match event {
        RUN_POD_SANDBOX => return refused(plugin.run_pod_sandbox(&pod)),
        STOP_POD_SANDBOX => plugin.stop_pod_sandbox(&pod),
        REMOVE_POD_SANDBOX => plugin.remove_pod_sandbox(&pod),
        _ => {}
    }
    Ok(Vec::new())
}

fn create_container(plugin: &dyn Plugin, asked: wire::CreateContainerRequest) -> Answer {
    let (pod, container) = (asked.pod.unwrap_or_default(), asked.container.unwrap_or_default());
    refused(plugin.create_container(&pod.into(), &container.into()))
}

#[expect(clippy::unnecessary_wraps, reason = "one of several handlers")]
fn validate_container(plugin: &dyn Plugin, asked: wire::ValidateContainerAdjustmentRequest) -> Answer {
    let (pod, container) = (asked.pod.unwrap_or_default(), asked.container.unwrap_or_default());
    let plugins: Vec<_> = asked.plugins.into_iter().filter_map(wire::PluginInstance::identity).collect();
    let refused = plugin.validate_container(&pod.into(), &container.into(), &plugins).err();
    let answer = wire::ValidateContainerAdjustmentResponse {
        reject: refused.is_some(),
        reason: refused.as_deref().map(shown).unwrap_or_default(),
    };
    Ok(answer.encode_to_vec())
}

fn registration(identity: &Identity) -> Message {
    let asked = wire::RegisterPluginRequest {
        plugin_name: identity.name.clone(),
        plugin_idx: identity.two_digits(),
        nri_version: NRI_VERSION.to_owned(),
    };
    let request = wire::Request {
        service: RUNTIME_SERVICE.to_owned(),
        method: "RegisterPlugin".to_owned(),
        payload: asked.encode_to_vec(),
        timeout_nano: 0,
    };
    Message { connection: RUNTIME, stream: REGISTRATION, kind: REQUEST, data: request.encode_to_vec() }
}

fn accepted(data: &[u8]) -> Result<(), Error> {
    let answer =
        wire::Response::decode(data).map_err(|_| Error::Protocol("an answer that cannot be read"))?;
    match answer.status {
        Some(status) if status.code != 0 => Err(Error::Refused(status.message)),
        _ => Ok(()),
    }
}

fn response(stream: u32, answer: Answer) -> Message {
    let response = match answer {
        Ok(payload) => wire::Response { status: None, payload },
        Err((code, message)) => {
            wire::Response { status: Some(wire::Status { code, message }), ..Default::default() }
        }
    };
    Message { connection: PLUGIN, stream, kind: RESPONSE, data: response.encode_to_vec() }
}

fn refused(outcome: Result<(), String>) -> Answer {
    outcome.map(|()| Vec::new()).map_err(|sentence| (FAILED_PRECONDITION, shown(&sentence)))
}

fn shown(sentence: &str) -> String {
    sentence.chars().take(MAX_SENTENCE).collect()
}

fn unknown(what: &str) -> Answer {
    let shown: String = what.chars().take(100).collect();
    Err((UNIMPLEMENTED, format!("{shown} is not known")))
}

#[cfg(test)]
mod tests;
