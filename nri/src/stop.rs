//! Ending a served connection from another thread.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ends what [`crate::serve`] does, now or as soon as it begins. Clones are one.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    served: Option<UnixStream>,
}

impl Stop {
    /// Stops, for good. A call of the plugin that is under way ends first.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        // One that the runtime closed already is as good.
        state.served.take().map(|socket| socket.shutdown(Shutdown::Both).ok());
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// From now on stopping closes this socket.
    pub(crate) fn watch(&self, socket: UnixStream) {
        let mut state = self.lock();
        if state.stopped {
            socket.shutdown(Shutdown::Both).ok();
        } else {
            state.served = Some(socket);
        }
    }

    pub(crate) fn forget(&self) {
        self.lock().served = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
