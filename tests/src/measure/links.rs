//! Sees from outside when a pod's interface comes and goes: `/proc/<pid>/net` is that of the process's namespace, and
//! is read without entering it.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// Between two looks: short beside a millisecond, and long beside the 20 µs that one takes.
const PAUSE: Duration = Duration::from_micros(200);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// It is up and has an IPv4 address: its kernel has a route through it.
    Usable,
    /// There is none of this name.
    Gone,
}

/// Waits for an interface of the process's namespace on a thread of its own; gives when it was seen.
///
/// # Errors
/// When it is not so within `patience`, or the process has ended.
pub async fn until(pid: i32, interface: &str, wanted: Link, patience: Duration) -> Result<Instant> {
    let interface = interface.to_owned();
    tokio::task::spawn_blocking(move || look(pid, &interface, wanted, patience)).await?
}

fn look(pid: i32, interface: &str, wanted: Link, patience: Duration) -> Result<Instant> {
    let deadline = Instant::now() + patience;
    let file = format!("/proc/{pid}/net/{}", if wanted == Link::Usable { "route" } else { "dev" });
    while Instant::now() < deadline {
        let table = fs::read_to_string(&file).with_context(|| format!("reading {file}"))?;
        if has_row(&table, interface) == (wanted == Link::Usable) {
            return Ok(Instant::now());
        }
        thread::sleep(PAUSE);
    }
    bail!("{interface} was not {wanted:?} within {} s", patience.as_secs())
}

/// Rows of `route` begin with the name, those of `dev` with the name and a colon.
fn has_row(table: &str, interface: &str) -> bool {
    table.lines().any(|row| row.split([':', '\t', ' ']).find(|cell| !cell.is_empty()) == Some(interface))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_both_tables_are_known_by_their_interface() {
        let route = "Iface\tDestination\tGateway\nnet1\t00005A0A\t00000000\n";
        let dev = "Inter-|   Receive\n face |bytes\n  eth0:    1 2\n  net1: 0 0\n";
        for table in [route, dev] {
            assert!(has_row(table, "net1") && !has_row(table, "net") && !has_row(table, "net10"), "{table}");
        }
    }

    #[tokio::test]
    async fn an_interface_that_is_not_there_is_gone_at_once() {
        let pid = i32::try_from(std::process::id()).unwrap();
        until(pid, "no-such-link", Link::Gone, Duration::from_secs(1)).await.unwrap();
    }
}
