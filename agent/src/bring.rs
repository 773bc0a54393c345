//! One visit to a pod's namespace: observe, plan, apply, verify, mark. Blocking; knows no API.

use std::path::{Path, PathBuf};
use std::time::Instant;

use fairlead_crds::marker::Marker;
use fairlead_crds::{IfName, Reason};
use tracing::debug;

use crate::intent::Problem;
use crate::net::{Net, NetError, Place, Session};
use crate::plan::{self, Observed, Step, WantedInterface};

/// What is to be brought about in a pod's namespace.
#[derive(Debug, Clone)]
pub struct Order {
    /// UID of the pod.
    pub uid: String,
    /// Path of the namespace.
    pub path: PathBuf,
    /// The interfaces.
    pub wanted: Vec<WantedInterface>,
    /// Why the pod has to wait even when they are there.
    pub waits_for: Option<Problem>,
    /// Hash of what is promised, for the marker.
    pub hash: String,
    /// Cookie of the namespace in which everything was up already: a difference there is someone else's doing.
    pub was_up_in: Option<u64>,
    /// Whether such a difference is put right, or left alone for a while.
    pub may_repair: bool,
}

/// What was found and done.
#[derive(Debug, Default)]
pub struct Brought {
    /// Cookie of the namespace.
    pub cookie: u64,
    /// Its id as seen from the node.
    pub nsid: i32,
    /// The interfaces that are there in full.
    pub up: Vec<IfName>,
    /// What stands in the way of the rest.
    pub problems: Vec<Problem>,
    /// Whether an interface was made.
    pub created: bool,
    /// When the ready marker was set, if it was set just now.
    pub marked: Option<Instant>,
    /// Whether the ready marker is there.
    pub ready: bool,
    /// What was put right after someone else had changed it.
    pub repaired: Option<String>,
    /// The sandbox is not the pod's newest any more, or the agent may not act any more: nothing was marked.
    pub superseded: bool,
}

/// Who ordered a visit. Asked and told on the thread that is in the namespace, which need not wait for a processor to be
/// free for a task first.
pub trait Caller: Sync {
    /// Whether the sandbox is the one to mark; asked right before.
    fn may_mark(&self) -> bool;

    /// The ready marker is there.
    fn ready(&self);
}

/// The alias of a host link, by which an orphan is recognised.
pub fn alias(uid: &str, interface: &IfName) -> String {
    format!("fairlead/v1;uid={uid};if={interface}")
}

/// The UID in a host link's alias.
pub fn alias_uid(alias: &str) -> Option<&str> {
    alias.strip_prefix("fairlead/v1;")?.split(';').find_map(|part| part.strip_prefix("uid="))
}

/// Carries out an order.
///
/// # Errors
/// If the namespace cannot be opened, entered or looked at. What the kernel refuses otherwise is a problem in the result.
pub fn run(net: &dyn Net, order: &Order, caller: &dyn Caller) -> Result<Brought, NetError> {
    let mut done = Ok(Brought::default());
    net.visit(&order.path, &mut |namespace, session| {
        let mut brought = Brought { cookie: namespace.cookie, nsid: namespace.nsid, ..Brought::default() };
        done = visit(session, order, caller, &mut brought).map(|()| brought);
    })?;
    done
}

fn visit(
    session: &mut dyn Session,
    order: &Order,
    caller: &dyn Caller,
    brought: &mut Brought,
) -> Result<(), NetError> {
    let places: Vec<Place<'_>> = order.wanted.iter().map(Place::from).collect();
    let observed = session.observe(&places)?;
    let steps = plan_all(order, &observed, brought);
    let observed =
        if steps.is_empty() { observed } else { change(session, order, &steps, &places, brought)? };
    let there = |interface: &&WantedInterface| {
        plan::attach(std::slice::from_ref(*interface), &observed).is_ok_and(|steps| steps.is_empty())
    };
    brought.up = order.wanted.iter().filter(there).map(|interface| interface.name.clone()).collect();
    if brought.up.len() < order.wanted.len() && brought.problems.is_empty() {
        brought.problems.push(Problem::new(
            Reason::AttachFailed,
            "the interfaces changed while they were being attached",
        ));
    }
    mark(session, order, observed.marker.as_deref(), caller, brought);
    if brought.ready {
        caller.ready();
    }
    Ok(())
}

/// The steps of all interfaces; a conflict of one does not hold back the others.
fn plan_all(order: &Order, observed: &Observed, brought: &mut Brought) -> Vec<Step> {
    let (steps, conflicts) = plan::attach_free(&order.wanted, observed);
    brought
        .problems
        .extend(conflicts.iter().map(|conflict| Problem::new(conflict.reason(), conflict.to_string())));
    steps
}

/// Applies the steps and looks again.
fn change(
    session: &mut dyn Session,
    order: &Order,
    steps: &[Step],
    places: &[Place<'_>],
    brought: &mut Brought,
) -> Result<Observed, NetError> {
    let repair = order.was_up_in == Some(brought.cookie);
    let first = steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if repair && !order.may_repair {
        let message = format!("something keeps changing the interfaces; left alone for a while: {first}");
        brought.problems.push(Problem::new(Reason::Contested, message));
        return session.observe(places);
    }
    debug!(steps = %first, "changing the pod's interfaces");
    let report = session.apply(steps);
    brought.created = steps.iter().take(report.done).any(|step| matches!(step, Step::CreateVeth { .. }));
    if let Some((_, error)) = report.failed {
        brought.problems.push(Problem::new(Reason::AttachFailed, error.to_string()));
    } else if repair {
        brought.repaired = Some(first);
    }
    session.observe(places)
}

/// Sets the marker if everything promised is there; otherwise says why not. A ready marker is never taken back:
/// the pod's containers have gone on.
fn mark(
    session: &mut dyn Session,
    order: &Order,
    present: Option<&str>,
    caller: &dyn Caller,
    brought: &mut Brought,
) {
    let problem = order.waits_for.as_ref().or(brought.problems.first());
    let ready =
        Marker::Ready { uid: order.uid.clone(), cookie: Some(brought.cookie), hash: order.hash.clone() };
    let marker = match problem {
        None => ready.to_string(),
        Some(problem) => Marker::Waiting {
            uid: order.uid.clone(),
            reason: format!("{}: {}", problem.reason, problem.message),
        }
        .to_string(),
    };
    let is_ready = present.is_some_and(|present| opens(present, &order.uid, brought.cookie));
    brought.ready = is_ready;
    if present == Some(marker.as_str()) || (is_ready && problem.is_some()) {
        return;
    }
    if problem.is_none() && !caller.may_mark() {
        brought.superseded = true;
        return;
    }
    let report = session.apply(&[Step::SetMarker { marker }]);
    match report.failed {
        Some((_, error)) => brought.problems.push(Problem::new(Reason::AttachFailed, error.to_string())),
        None if problem.is_none() && !is_ready => {
            brought.ready = true;
            brought.marked = Some(Instant::now());
        }
        None => {}
    }
}

/// Cookie and id of a namespace, and whether the ready marker of a pod is in it. Changes nothing but gives it an id.
///
/// # Errors
/// If the namespace cannot be opened, entered or looked at.
pub fn look(net: &dyn Net, path: &Path, uid: &str) -> Result<(u64, i32, bool), NetError> {
    let mut seen = Ok((0, 0, false));
    net.visit(path, &mut |namespace, session| {
        let marked =
            |observed: Observed| observed.marker.is_some_and(|marker| opens(&marker, uid, namespace.cookie));
        seen = session.observe(&[]).map(|observed| (namespace.cookie, namespace.nsid, marked(observed)));
    })?;
    seen
}

fn opens(marker: &str, uid: &str, cookie: u64) -> bool {
    matches!(marker.parse(), Ok(Marker::Ready { uid: whose, cookie: Some(of), .. }) if whose == uid && of == cookie)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::net::fake::Fake;

    const PATH: &str = "/run/netns/one";

    /// Notes what is asked and told, and looks whether the marker is there meanwhile.
    struct Noting<'a> {
        fake: &'a Fake,
        may: AtomicBool,
        told: AtomicUsize,
    }

    impl Caller for Noting<'_> {
        fn may_mark(&self) -> bool {
            assert_eq!(marker(self.fake), None, "asked before the marker");
            self.may.load(Ordering::Relaxed)
        }

        fn ready(&self) {
            assert!(marker(self.fake).is_some_and(|marker| marker.contains("state=ready")), "told after it");
            self.told.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn marker(fake: &Fake) -> Option<String> {
        fake.look(Path::new(PATH)).and_then(|observed| observed.marker)
    }

    fn order(waits_for: Option<Problem>) -> Order {
        Order {
            uid: "uid-1".into(),
            path: PATH.into(),
            wanted: vec![],
            waits_for,
            hash: "0000beef".into(),
            was_up_in: None,
            may_repair: true,
        }
    }

    #[test]
    fn the_caller_hears_of_a_ready_marker_every_time_and_of_nothing_else() {
        let fake = Fake::new(&[]);
        fake.add_namespace(PATH);
        let noting = Noting { fake: &fake, may: false.into(), told: 0.into() };
        let told = || noting.told.load(Ordering::Relaxed);

        let superseded = run(&fake, &order(None), &noting).unwrap();
        assert!(superseded.superseded && superseded.marked.is_none() && told() == 0);

        noting.may.store(true, Ordering::Relaxed);
        let marked = run(&fake, &order(None), &noting).unwrap();
        assert!(marked.ready && marked.marked.is_some() && told() == 1);

        let again = run(&fake, &order(None), &noting).unwrap();
        assert!(again.ready && again.marked.is_none() && told() == 2);
    }

    #[test]
    fn a_pod_that_waits_for_something_else_is_not_told_ready() {
        let fake = Fake::new(&[]);
        fake.add_namespace(PATH);
        let noting = Noting { fake: &fake, may: true.into(), told: 0.into() };
        let waits = Problem::new(Reason::Waiting, "for another");
        let brought = run(&fake, &order(Some(waits)), &noting).unwrap();
        assert!(!brought.ready && brought.marked.is_none());
        assert_eq!(noting.told.load(Ordering::Relaxed), 0);
        assert!(marker(&fake).is_some_and(|marker| marker.contains("for another")));
    }

    #[test]
    fn the_owner_of_a_host_link_is_read_from_its_alias() {
        let alias = alias("0f3c2a11-9d1e", &"net1".parse().unwrap());
        assert_eq!(alias_uid(&alias), Some("0f3c2a11-9d1e"));
        assert_eq!(alias_uid("someone else's"), None);
    }
}
