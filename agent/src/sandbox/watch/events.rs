//! The runtime's stream of events, with the runtimes that have none.

use std::future::pending;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::BoxStream;
use tracing::debug;

use crate::sandbox::cri::{CriError, Event, Runtime};

/// A stream that ends well within this time without an event is one of a runtime that has no events.
const AT_ONCE: Duration = Duration::from_secs(1);

pub(super) struct Events {
    runtime: Runtime,
    state: State,
    /// How long to do without a stream that ended at once.
    reopen: Option<Duration>,
}

enum State {
    Open { stream: BoxStream<'static, Result<Event, CriError>>, since: Instant, heard: bool },
    Without { since: Instant },
}

impl Events {
    /// Listens. Must be read from now on.
    pub fn open(runtime: Runtime, reopen: Duration) -> Self {
        let state = State::open(&runtime);
        let reopen = Some(reopen);
        Self { runtime, state, reopen }
    }

    /// Never listens.
    pub fn none(runtime: Runtime) -> Self {
        let state = State::Without { since: Instant::now() };
        let reopen = None;
        Self { runtime, state, reopen }
    }

    /// Since when it listens; none while the runtime has no events.
    pub fn opened(&self) -> Option<Instant> {
        match &self.state {
            State::Open { since, .. } => Some(*since),
            State::Without { .. } => None,
        }
    }

    /// The next event; none when [`Self::opened`] changed instead. May be cancelled without losing an event.
    ///
    /// # Errors
    /// If the stream broke: the runtime may be gone.
    pub async fn next(&mut self) -> Result<Option<Event>, CriError> {
        match &mut self.state {
            State::Open { stream, since, heard } => match stream.next().await {
                Some(Ok(event)) => {
                    *heard = true;
                    return Ok(Some(event));
                }
                Some(Err(error)) if !error.is_unimplemented() => return Err(error),
                None if *heard || since.elapsed() > AT_ONCE => return Err(CriError::EventsEnded),
                Some(Err(_)) | None => {
                    debug!("the container runtime has no events; sandboxes are listed instead");
                    self.state = State::Without { since: Instant::now() };
                }
            },
            State::Without { since } => {
                let Some(reopen) = self.reopen else {
                    return pending().await;
                };
                tokio::time::sleep_until((*since + reopen).into()).await;
                self.state = State::open(&self.runtime);
            }
        }
        Ok(None)
    }
}

impl State {
    fn open(runtime: &Runtime) -> Self {
        Self::Open { stream: runtime.events(), since: Instant::now(), heard: false }
    }
}
