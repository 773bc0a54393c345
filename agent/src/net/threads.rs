//! Threads for work on the kernel. Each ends with its work, so it may be moved into a namespace and stay there. One is
//! there before its work is: to make one takes a pod as long as a request to the kernel.

use std::cell::Cell;
use std::io;
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::NetError;

thread_local! {
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

type Work = Box<dyn FnOnce() + Send>;

/// Whether the calling thread is one of these.
pub fn ends_with_its_work() -> bool {
    ENDS.get()
}

/// A supply of such threads. The one that waits for work ends with it.
#[derive(Debug, Default)]
pub struct Threads {
    next: Mutex<Option<Sender<Work>>>,
}

impl Threads {
    /// Starts `work` on a thread that ends with it. As many run side by side as were started.
    ///
    /// A thread begins in the namespace of the one that made it. So the next is made here, not by one that ends: it would
    /// keep a pod's namespace alive while it waits.
    ///
    /// # Errors
    /// If a thread is to be made and cannot be.
    pub fn start(&self, work: Work) -> Result<(), NetError> {
        let failed = |source| NetError::System { action: "start a thread".into(), source };
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = match next.take() {
            Some(thread) => thread,
            None => make().map_err(failed)?,
        };
        thread.send(work).map_err(|error| failed(io::Error::other(error.to_string())))?;
        // Without it, the next work has to wait for its own.
        *next = make().ok();
        Ok(())
    }
}

fn make() -> io::Result<Sender<Work>> {
    let (sender, work) = mpsc::channel::<Work>();
    let wait = move || {
        ENDS.set(true);
        if let Ok(work) = work.recv() {
            work();
        }
    };
    thread::Builder::new().name("kernel".into()).spawn(wait).map(|_| sender)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::sync::{Arc, Barrier};
    use std::thread::ThreadId;
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn one(threads: &Threads) -> ThreadId {
        let (told, heard) = sync_channel(1);
        threads.start(Box::new(move || told.send(thread::current().id()).unwrap())).unwrap();
        heard.recv_timeout(LONG).unwrap()
    }

    #[test]
    fn no_thread_gets_work_twice() {
        let threads = Threads::default();
        let mut seen = vec![thread::current().id()];
        for _ in 0..5 {
            let id = one(&threads);
            assert!(!seen.contains(&id));
            seen.push(id);
        }
    }

    #[test]
    fn work_runs_side_by_side_however_much_it_is() {
        let threads = Threads::default();
        let all = Arc::new(Barrier::new(9));
        let (told, heard) = sync_channel(8);
        for _ in 0..8 {
            let (all, told) = (Arc::clone(&all), told.clone());
            let together = move || {
                all.wait();
                told.send(ends_with_its_work()).unwrap();
            };
            threads.start(Box::new(together)).unwrap();
        }
        all.wait();
        assert!((0..8).all(|_| heard.recv_timeout(LONG).unwrap()));
        assert!(!ends_with_its_work());
    }

    #[test]
    fn a_panic_costs_its_own_work_only() {
        let threads = Threads::default();
        threads.start(Box::new(|| std::panic::resume_unwind(Box::new(())))).unwrap();
        one(&threads);
    }
}
