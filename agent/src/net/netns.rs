//! Network namespaces: open, enter, name. The one place that calls `setns` and `unshare`.
//!
//! A namespace is entered on a fresh thread that ends with the work, never on one that is used again: what
//! runs there cannot await, and there is nothing to restore. Descriptors, not paths, after the first open.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socket, sockopt};

use super::NetError;

/// The calling thread's namespace. `/proc/self` would be that of the process' first thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// asm-generic/socket.h, Linux 5.14; not in libc.
const SO_NETNS_COOKIE: libc::c_int = 71;

#[derive(Clone, Copy, Debug)]
struct NetnsCookie;

nix::getsockopt_impl!(NetnsCookie, libc::SOL_SOCKET, SO_NETNS_COOKIE, u64, sockopt::GetStruct<u64>);

/// Opens a namespace's file. That it is a network namespace is only seen when it is used.
///
/// # Errors
/// [`NetError::NamespaceGone`] if there is no such file.
pub fn open(path: &Path) -> Result<OwnedFd, NetError> {
    match File::open(path) {
        Ok(file) => Ok(file.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(NetError::NamespaceGone(path.display().to_string()))
        }
        Err(source) => {
            Err(NetError::System { action: format!("open the namespace {}", path.display()), source })
        }
    }
}

/// The calling thread's namespace.
///
/// # Errors
/// If /proc is not there.
pub fn own() -> Result<OwnedFd, NetError> {
    open(Path::new(OWN))
}

/// Runs `work` in a namespace, on a thread of its own.
///
/// # Errors
/// If the thread cannot be made or the namespace cannot be entered. A panic in `work` goes on in the caller.
pub fn run<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> Result<T, NetError> {
    on_a_thread(move || setns(namespace, CloneFlags::CLONE_NEWNET).map(|()| work()))?
        .map_err(|errno| system("enter the network namespace", errno))
}

/// Runs `work` in a new namespace that ends with it, on a thread of its own.
///
/// # Errors
/// If the thread or the namespace cannot be made. A panic in `work` goes on in the caller.
pub fn run_in_new<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, NetError> {
    on_a_thread(move || unshare(CloneFlags::CLONE_NEWNET).map(|()| work()))?
        .map_err(|errno| system("make a network namespace", errno))
}

/// Starts `work` in a namespace, on a thread of its own that nobody waits for; it learns whether the namespace was
/// entered.
///
/// # Errors
/// If the thread cannot be made.
pub fn start(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce(Result<(), NetError>) + Send + 'static,
) -> Result<(), NetError> {
    let failed = |source| NetError::System { action: "start a thread".into(), source };
    let namespace = namespace.try_clone_to_owned().map_err(failed)?;
    let enter = move || {
        let entered = setns(namespace, CloneFlags::CLONE_NEWNET);
        work(entered.map_err(|errno| system("enter the network namespace", errno)));
    };
    thread::Builder::new().name("netns".into()).spawn(enter).map(drop).map_err(failed)
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, NetError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("netns".into()).spawn_scoped(scope, work);
        let thread = thread.map_err(|source| NetError::System { action: "start a thread".into(), source })?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// The cookie of the calling thread's namespace: the kernel's name for it, unique per boot, never reused.
///
/// # Errors
/// `ENOPROTOOPT` on a kernel older than 5.14.
pub fn own_cookie() -> Result<u64, NetError> {
    let probe = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None);
    probe.map_err(|errno| system("make a socket", errno)).and_then(|probe| cookie(&probe))
}

/// The cookie of the namespace that a socket was made in.
///
/// # Errors
/// As [`own_cookie`].
pub fn cookie(socket: &impl AsFd) -> Result<u64, NetError> {
    getsockopt(socket, NetnsCookie)
        .map_err(|errno| system("read the namespace's cookie (Linux 5.14 or later)", errno))
}

/// The kernel's id of this boot. Cookies and namespace ids of another boot mean nothing.
///
/// # Errors
/// If /proc is not there.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

pub(super) fn system(action: &str, errno: Errno) -> NetError {
    NetError::System { action: action.to_owned(), source: errno.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_does_not_exist_is_a_namespace_that_is_gone() {
        assert!(matches!(open(Path::new("/run/netns/no such")), Err(NetError::NamespaceGone(_))));
    }

    #[test]
    fn the_boot_has_an_id() {
        assert_eq!(boot_id().unwrap().len(), 36);
    }

    #[test]
    fn a_file_that_is_no_namespace_cannot_be_entered() {
        let file = open(Path::new("/proc/self/status")).unwrap();
        assert!(matches!(run(file.as_fd(), || ()), Err(NetError::System { .. })));
    }
}
