//! The socket to the runtime: made by the plugin, or given to it by the runtime that started it.

use std::env;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};

use crate::frame::{Demultiplexer, Message, encode};
use crate::{Error, Identity};

/// How long a message may take from its first byte to its last, in either direction.
const MESSAGE: Duration = Duration::from_secs(2);
/// How long the first answer may take: the runtime accepts one plugin after the other.
const FIRST: Duration = Duration::from_secs(15);

/// A connection to a runtime, not yet registered. Dropping it closes it.
#[derive(Debug)]
pub struct Connection {
    pub(crate) socket: UnixStream,
    demultiplexer: Demultiplexer,
    /// When what was begun has to be complete.
    due: Option<Instant>,
}

/// Connects to a runtime's socket for plugins, usually [`crate::DEFAULT_SOCKET`].
///
/// # Errors
/// [`Error::Connect`]; also if the runtime is too busy to accept at once.
pub fn connect(socket: &Path) -> Result<Connection, Error> {
    let failed = |source: io::Error| Error::Connect { path: socket.to_owned(), source };
    // Not blocking: a runtime that hangs does not accept, and a blocking connect would wait for it forever.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let address = SocketAddrUnix::new(socket).map_err(|errno| failed(errno.into()))?;
    let connected = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .and_then(|fd| rustix::net::connect(&fd, &address).map(|()| fd));
    let stream = UnixStream::from(connected.map_err(|errno| failed(errno.into()))?);
    stream.set_nonblocking(false).map_err(failed)?;
    Connection::new(stream)
}

/// The connection that a runtime gives to a plugin which it starts itself from its plugin folder, with the identity
/// that the file's name there says.
///
/// # Errors
/// [`Error::Environment`] if no runtime started this program.
pub fn inherited() -> Result<(Connection, Identity), Error> {
    let variable = |name| env::var(name).map_err(|_| Error::Environment(name));
    let fd: RawFd = variable(SOCKET)?.parse().map_err(|_| Error::Environment(SOCKET))?;
    let index = variable(INDEX)?.parse().map_err(|_| Error::Environment(INDEX))?;
    let identity = Identity { name: variable(NAME)?, index };
    // A second descriptor of the same socket: the first can only be had with unsafe code.
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())
        .and_then(|this| rustix::process::pidfd_getfd(this, fd, PidfdGetfdFlags::empty()));
    let stream = UnixStream::from(own.map_err(|_| Error::Environment(SOCKET))?);
    Ok((Connection::new(stream)?, identity))
}

/// Whether a runtime started this program from its plugin folder, so that [`inherited`] is of use.
pub fn is_started() -> bool {
    env::var_os(SOCKET).is_some()
}

const SOCKET: &str = "NRI_PLUGIN_SOCKET";
const NAME: &str = "NRI_PLUGIN_NAME";
const INDEX: &str = "NRI_PLUGIN_IDX";

impl Connection {
    pub(crate) fn new(socket: UnixStream) -> Result<Self, Error> {
        let set =
            socket.set_read_timeout(Some(MESSAGE)).and_then(|()| socket.set_write_timeout(Some(MESSAGE)));
        set.map_err(|source| Error::Socket { action: "set the socket's deadlines", source })?;
        Ok(Self { socket, demultiplexer: Demultiplexer::default(), due: Some(Instant::now() + FIRST) })
    }

    /// From now on it may be silent for as long as it likes.
    pub(crate) fn established(&mut self) {
        self.due = None;
    }

    /// Another descriptor of the socket.
    pub(crate) fn second(&self) -> Result<UnixStream, Error> {
        self.socket.try_clone().map_err(|source| Error::Socket { action: "duplicate the socket", source })
    }

    /// Sends one message.
    ///
    /// # Errors
    /// If the runtime does not take it in time, or is gone.
    pub(crate) fn send(&mut self, message: &Message) -> Result<(), Error> {
        let sent = self.socket.write_all(&encode(message));
        sent.map_err(|source| Error::Socket { action: "answer the runtime", source })
    }

    /// Waits for the next message; none when the runtime closed the connection between two.
    ///
    /// # Errors
    /// If what was begun is not complete in time, is cut short, or is not the protocol.
    pub(crate) fn receive(&mut self) -> Result<Option<Message>, Error> {
        let mut buffer = [0; 16 << 10];
        let mut begun: Option<Instant> = None;
        loop {
            if let Some(message) = self.demultiplexer.next() {
                return Ok(Some(message));
            }
            let whole = self.demultiplexer.is_between();
            match self.socket.read(&mut buffer) {
                Ok(0) if whole => return Ok(None),
                Ok(0) => return Err(Error::Closed),
                Ok(read) => self.demultiplexer.feed(&buffer[..read])?,
                Err(error) if is_pause(&error) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset && whole => return Ok(None),
                Err(source) => return Err(Error::Socket { action: "hear from the runtime", source }),
            }
            let now = Instant::now();
            let partial = !self.demultiplexer.is_between();
            begun = if partial { begun.or(Some(now)) } else { None };
            if begun.is_some_and(|begun| now.duration_since(begun) > MESSAGE) {
                return Err(Error::Deadline("finish a message"));
            }
            if self.due.is_some_and(|due| now > due) {
                return Err(Error::Deadline("register and configure the plugin"));
            }
        }
    }
}

impl Drop for Connection {
    /// Also where the program's first descriptor of the socket is still open, see [`inherited`].
    fn drop(&mut self) {
        self.socket.shutdown(Shutdown::Both).ok();
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_not_there_says_which() {
        let error = connect(Path::new("/nonexistent/nri.sock")).unwrap_err();
        assert_eq!(error.to_string(), "cannot connect to /nonexistent/nri.sock");
    }

    #[test]
    fn a_socket_that_is_there_is_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nri.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let mut connection = connect(&path).unwrap();
        drop(listener.accept().unwrap());
        assert!(connection.receive().unwrap().is_none());
    }

    #[test]
    fn a_program_that_no_runtime_started_has_nothing_inherited() {
        assert!(matches!(inherited(), Err(Error::Environment("NRI_PLUGIN_SOCKET"))));
    }

    #[test]
    fn a_message_that_does_not_go_on_is_not_waited_for() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(ours).unwrap();
        theirs.write_all(&[0, 0, 0]).unwrap();
        let begun = Instant::now();
        assert!(matches!(connection.receive(), Err(Error::Deadline("finish a message"))));
        assert!(begun.elapsed() < 3 * MESSAGE);
    }

    #[test]
    fn a_connection_cut_in_a_message_is_an_error_and_between_two_is_not() {
        for (bytes, whole) in [(&[][..], true), (&[0, 0, 0][..], false)] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let mut connection = Connection::new(ours).unwrap();
            theirs.write_all(bytes).unwrap();
            drop(theirs);
            assert_eq!(connection.receive().is_ok(), whole);
        }
    }
}
