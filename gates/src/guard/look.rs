//! A look into a pod's network namespace, on a thread of its own that ends with it: nothing has to be restored,
//! and a kernel that does not answer stops nobody else.

use std::{
    fs::File,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sched::{CloneFlags, setns},
};

use super::rule::Held;
use crate::marker::{self, LoError, Verdict, Wait};

/// How long a look may take. The runtime waits 2 s, with every other pod of the node behind it.
const DEADLINE: Duration = Duration::from_secs(1);
/// Looks that may be under way; more only add up while the kernel does not answer.
const UNDER_WAY: usize = 16;

#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error("open the network namespace: {0}")]
    Open(#[source] io::Error),
    #[error("enter the network namespace: {0}")]
    Enter(#[source] Errno),
    #[error(transparent)]
    Read(#[from] LoError),
    #[error("start a thread: {0}")]
    Thread(#[source] io::Error),
    #[error("the network namespace did not answer within {} s", DEADLINE.as_secs())]
    Late,
    #[error("{UNDER_WAY} network namespaces did not answer yet")]
    Crowded,
}

/// Looks, and how many are under way.
#[derive(Debug, Default)]
pub struct Looks(Arc<AtomicUsize>);

impl Looks {
    /// What the marker says about a held pod; at most [`DEADLINE`] later.
    pub fn at(&self, held: Held<'_>) -> Verdict {
        self.within(held, DEADLINE).unwrap_or_else(|error| Verdict::Wait(Wait::CannotRead(error.to_string())))
    }

    fn within(&self, held: Held<'_>, deadline: Duration) -> Result<Verdict, LookError> {
        if self.0.load(Ordering::Relaxed) >= UNDER_WAY {
            return Err(LookError::Crowded);
        }
        let (answer, answered) = mpsc::sync_channel(1);
        let (namespace, uid) = (held.namespace.to_owned(), held.uid.to_owned());
        let under_way = Count::new(&self.0);
        let look = move || {
            let _under_way = under_way;
            // Nobody listens any more if it was too late.
            answer.send(look(&namespace, &uid)).ok();
        };
        thread::Builder::new().name("look".into()).spawn(look).map_err(LookError::Thread)?;
        match answered.recv_timeout(deadline) {
            Ok(verdict) => verdict,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(LookError::Late),
        }
    }
}

fn look(namespace: &Path, uid: &str) -> Result<Verdict, LookError> {
    let namespace = File::open(namespace).map_err(LookError::Open)?;
    setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(LookError::Enter)?;
    let seen = marker::observe()?;
    Ok(marker::judge(seen.alias.as_deref(), uid, seen.cookie))
}

/// One more under way, until it is dropped.
struct Count(Arc<AtomicUsize>);

impl Count {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(looks: &Looks, path: &str, deadline: Duration) -> String {
        looks.within(Held { namespace: Path::new(path), uid: "u1" }, deadline).unwrap_err().to_string()
    }

    #[test]
    fn a_namespace_that_is_gone_and_a_file_that_is_none_are_told_apart() {
        let looks = Looks::default();
        assert!(
            why(&looks, "/run/netns/no such", DEADLINE).starts_with("open the network namespace: No such")
        );
        assert!(why(&looks, "/proc/self/status", DEADLINE).starts_with("enter the network namespace: E"));
    }

    #[test]
    fn what_does_not_answer_is_not_waited_for_and_not_piled_up() {
        let folder = tempfile::tempdir().unwrap();
        let silent = folder.path().join("silent");
        // Opening a pipe that nobody writes to waits for ever.
        nix::unistd::mkfifo(&silent, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let looks = Looks::default();
        let path = silent.to_str().unwrap();
        for _ in 0..UNDER_WAY {
            assert!(why(&looks, path, Duration::from_millis(1)).contains("did not answer within"));
        }
        assert_eq!(why(&looks, path, DEADLINE), "16 network namespaces did not answer yet");
        // They end once they are answered, and others may look again.
        let writer = File::options().read(true).write(true).open(&silent).unwrap();
        let end = std::time::Instant::now() + 10 * DEADLINE;
        while looks.0.load(Ordering::Relaxed) > 0 && std::time::Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        drop(writer);
        assert!(why(&looks, "/proc/self/status", DEADLINE).starts_with("enter"));
    }
}
