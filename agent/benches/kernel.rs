//! What it costs to attach one dual-stack interface: open, enter, observe, plan, apply, look again, marker.
//! In a network namespace of its own; needs root.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "what fails here ends the measurement")]

#[path = "../tests/kernel/world.rs"]
#[expect(dead_code, reason = "the tests use the rest of it")]
mod world;

use std::io::{self, Write};
use std::time::{Duration, Instant};

use fairlead_agent::net::kernel::Kernel;
use fairlead_agent::net::{Namespace, Net, Place, Session};
use fairlead_agent::plan::{self, Step, WantedInterface};

use crate::world::{Pod, kernel, on_a_node, wanted, wanted_bridge};

const ROUNDS: u8 = 200;

fn main() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).expect("a bridge");
        let pods: Vec<Pod> = (0..ROUNDS).map(|_| Pod::new()).collect();
        let wanted: Vec<_> =
            (1..=ROUNDS).map(|number| [wanted(&format!("u{number}"), number, bridge)]).collect();

        let before = kernel.counters();
        let attach = time(&pods, &wanted, |pod, wanted| attach(&kernel, pod, wanted));
        let after = kernel.counters();
        report("attach", attach);
        line(&format!(
            "per attach: {} netlink messages that read, {} that change, {} sysctls",
            (after.observe - before.observe) / u64::from(ROUNDS),
            (after.change - before.change) / u64::from(ROUNDS),
            (after.sysctl - before.sysctl) / u64::from(ROUNDS),
        ));
        report("look again, in place", time(&pods, &wanted, |pod, wanted| look(&kernel, pod, wanted)));
        assert_eq!(kernel.counters().change, after.change, "nothing changes when everything is in place");

        let hosts: Vec<String> = wanted.iter().map(|[wanted]| wanted.host.clone()).collect();
        let (one, rest) = hosts.split_at(20);
        let start = Instant::now();
        for host in one {
            kernel.delete_host_links(std::slice::from_ref(host)).expect("deleted");
        }
        line(&format!("delete one by one: {:.2} ms each", milliseconds(start.elapsed()) / 20.0));
        let start = Instant::now();
        kernel.delete_host_links(rest).expect("deleted");
        line(&format!("delete {} in one pass: {:.2} ms", rest.len(), milliseconds(start.elapsed())));
    });
}

fn attach(kernel: &Kernel, pod: &Pod, wanted: &[WantedInterface]) {
    let places: Vec<Place<'_>> = wanted.iter().map(Place::from).collect();
    let work = &mut |namespace: Namespace, session: &mut dyn Session| {
        let marker = format!("fairlead/v1;state=ready;uid=u;cookie={};hash=00000000", namespace.cookie);
        let steps = plan::attach(wanted, &session.observe(&places).expect("observe")).expect("no conflict");
        assert!(session.apply(&steps).failed.is_none());
        let rest = plan::attach(wanted, &session.observe(&places).expect("observe")).expect("no conflict");
        assert_eq!(rest, []);
        assert!(session.apply(&[Step::SetMarker { marker }]).failed.is_none());
    };
    kernel.visit(&pod.path, work).expect("visit");
}

fn look(kernel: &Kernel, pod: &Pod, wanted: &[WantedInterface]) {
    let places: Vec<Place<'_>> = wanted.iter().map(Place::from).collect();
    let work = &mut |_, session: &mut dyn Session| {
        assert_eq!(plan::attach(wanted, &session.observe(&places).expect("observe")), Ok(vec![]));
    };
    kernel.visit(&pod.path, work).expect("visit");
}

fn time<'a, const N: usize>(
    pods: &'a [Pod],
    wanted: &'a [[WantedInterface; N]],
    work: impl Fn(&'a Pod, &'a [WantedInterface]),
) -> Vec<Duration> {
    let one = |(pod, wanted): (&'a Pod, &'a [WantedInterface; N])| {
        let start = Instant::now();
        work(pod, wanted);
        start.elapsed()
    };
    pods.iter().zip(wanted).map(one).collect()
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |percent: usize| milliseconds(times[(times.len() * percent / 100).min(times.len() - 1)]);
    line(&format!(
        "{what}: p50 {:.2} ms, p90 {:.2} ms, p99 {:.2} ms ({})",
        at(50),
        at(90),
        at(99),
        times.len()
    ));
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn line(text: &str) {
    writeln!(io::stdout(), "{text}").expect("stdout");
}
