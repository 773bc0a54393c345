//! The namespace cookie: the kernel's name for a network namespace, unique per boot and never reused.

use std::os::fd::AsFd;

use nix::{
    libc,
    sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socket, sockopt},
};

/// asm-generic/socket.h, Linux 5.14; not in libc.
const SO_NETNS_COOKIE: libc::c_int = 71;

#[derive(Clone, Copy, Debug)]
struct NetnsCookie;

nix::getsockopt_impl!(NetnsCookie, libc::SOL_SOCKET, SO_NETNS_COOKIE, u64, sockopt::GetStruct<u64>);

/// The cookie of the namespace in which `socket` was made.
///
/// # Errors
/// `ENOPROTOOPT` on a kernel older than 5.14.
pub(super) fn of_socket(socket: &impl AsFd) -> nix::Result<u64> {
    getsockopt(socket, NetnsCookie)
}

/// The cookie of the calling thread's namespace.
///
/// # Errors
/// The kernel makes no socket or is older than 5.14.
pub fn own_cookie() -> nix::Result<u64> {
    of_socket(&socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_namespace_has_a_cookie_and_keeps_it() {
        let cookie = own_cookie().expect("Linux 5.14 or later is needed");
        assert_ne!(cookie, 0);
        assert_eq!(own_cookie(), Ok(cookie));
    }
}
