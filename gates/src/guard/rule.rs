//! Which pods the guard looks at, and what it says. Pure.

use std::path::Path;

use fairlead_crds::names;
use fairlead_nri::PodSandbox;

use crate::marker::{Verdict, Wait};

/// Where the marker of a held pod is, and whose it has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held<'a> {
    /// The pod's network namespace.
    pub namespace: &'a Path,
    /// The pod's UID.
    pub uid: &'a str,
}

/// The pod, if it is held by the runtime; none for all other pods.
///
/// # Errors
/// A sentence: such a pod cannot have a marker.
pub fn held(pod: &PodSandbox) -> Result<Option<Held<'_>>, String> {
    if pod.annotations.get(names::HOLD_ANNOTATION).is_none_or(|hold| hold != names::HOLD_NRI) {
        return Ok(None);
    }
    match &pod.network_namespace {
        _ if pod.uid.is_empty() => {
            Err("the runtime does not say the pod's UID, so no marker can be told to be its own".to_owned())
        }
        None => Err(format!(
            "the pod has the annotation {}: {}, but no network namespace of its own",
            names::HOLD_ANNOTATION,
            names::HOLD_NRI
        )),
        Some(namespace) => Ok(Some(Held { namespace, uid: &pod.uid })),
    }
}

/// What the verdict about a held pod means for a container of it.
///
/// # Errors
/// The sentence by which the container is refused.
pub fn decide(verdict: &Verdict) -> Result<(), String> {
    match verdict {
        Verdict::Open => Ok(()),
        Verdict::Wait(Wait::CannotRead(error)) => {
            Err(format!("cannot tell whether the pod's networks are attached: {error}"))
        }
        Verdict::Wait(why) => Err(format!("the pod's networks are not attached: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(hold: Option<&str>, namespace: Option<&str>) -> PodSandbox {
        let hold = hold.map(|hold| (names::HOLD_ANNOTATION.to_owned(), hold.to_owned()));
        PodSandbox {
            uid: "u1".into(),
            annotations: hold.into_iter().collect(),
            network_namespace: namespace.map(Into::into),
            ..PodSandbox::default()
        }
    }

    #[test]
    fn only_pods_with_the_annotation_are_looked_at() {
        for hold in [None, Some(""), Some("gate"), Some("Nri")] {
            assert_eq!(held(&pod(hold, Some("/run/netns/a"))), Ok(None), "{hold:?}");
        }
        let ours = pod(Some("nri"), Some("/run/netns/a"));
        assert_eq!(held(&ours), Ok(Some(Held { namespace: Path::new("/run/netns/a"), uid: "u1" })));
    }

    #[test]
    fn a_held_pod_that_cannot_have_a_marker_is_refused() {
        let host = held(&pod(Some("nri"), None)).unwrap_err();
        assert!(host.contains("fairlead.dev/hold: nri, but no network namespace"), "{host}");
        let nobody = PodSandbox { uid: String::new(), ..pod(Some("nri"), Some("/run/netns/a")) };
        assert!(held(&nobody).unwrap_err().contains("UID"));
    }

    #[test]
    fn a_refusal_is_one_sentence_with_the_reason() {
        assert_eq!(decide(&Verdict::Open), Ok(()));
        for (why, sentence) in [
            (
                Wait::Reason("no address is free".into()),
                "the pod's networks are not attached: no address is free",
            ),
            (
                Wait::NoMarker,
                "the pod's networks are not attached: the agent of this node has not seen this pod",
            ),
            (
                Wait::CannotRead("too slow".into()),
                "cannot tell whether the pod's networks are attached: too slow",
            ),
        ] {
            assert_eq!(decide(&Verdict::Wait(why)), Err(sentence.to_owned()));
        }
    }
}
