//! Whether an alias lets a pod go on. Pure: the alias, the pod's uid and the namespace's cookie are arguments.

use std::fmt;

use fairlead_crds::marker::{Marker, MarkerError};

/// What follows for the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Open,
    /// Wait.
    Wait(Wait),
}

/// Why the pod waits; `Display` is half a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// No alias, or one that is not ours.
    NoMarker,
    /// The agent's reason.
    Reason(String),
    /// A marker for this other pod.
    OtherPod(String),
    /// A ready marker for another network namespace.
    OtherNamespace,
    /// Ours, but this field is bad.
    Damaged(&'static str),
    /// The pod's uid is not in the environment.
    NoUid,
    /// The alias could not be read.
    CannotRead(String),
}

/// Open only for a ready marker with exactly this uid and this cookie.
pub fn judge(alias: Option<&str>, uid: &str, cookie: u64) -> Verdict {
    if uid.is_empty() {
        return Verdict::Wait(Wait::NoUid);
    }
    Verdict::Wait(match alias.map(str::parse) {
        None | Some(Err(MarkerError::NotOurs)) => Wait::NoMarker,
        Some(Err(MarkerError::Field(field))) => Wait::Damaged(field),
        Some(Ok(marker)) if marker.uid() != uid => Wait::OtherPod(marker.uid().to_owned()),
        Some(Ok(Marker::Waiting { reason, .. })) => Wait::Reason(reason),
        Some(Ok(Marker::Ready { cookie: Some(written), .. })) if written == cookie => return Verdict::Open,
        Some(Ok(Marker::Ready { cookie: Some(_), .. })) => Wait::OtherNamespace,
        Some(Ok(Marker::Ready { cookie: None, .. })) => Wait::Damaged("cookie"),
    })
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMarker => f.write_str("the agent of this node has not seen this pod"),
            Self::Reason(reason) => f.write_str(reason),
            Self::OtherPod(uid) => write!(f, "the marker on lo is for another pod, uid {uid}"),
            Self::OtherNamespace => f.write_str("the marker on lo is for another network namespace"),
            Self::Damaged(field) => write!(f, "the marker on lo has a bad or missing {field}"),
            Self::NoUid => {
                f.write_str("FAIRLEAD_POD_UID is not set, so no marker can be told to be this pod's")
            }
            Self::CannotRead(error) => write!(f, "cannot read the marker on lo: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ready(uid: &str, cookie: Option<u64>) -> String {
        Marker::Ready { uid: uid.into(), cookie, hash: "0123abcd".into() }.to_string()
    }

    #[test]
    fn a_ready_marker_with_our_uid_and_cookie_opens() {
        assert_eq!(judge(Some(&ready("u1", Some(7))), "u1", 7), Verdict::Open);
    }

    #[test]
    fn everything_else_waits_and_says_why() {
        let waiting = Marker::Waiting { uid: "u1".into(), reason: "no address; wait".into() }.to_string();
        for (alias, uid, why) in [
            (None, "u1", Wait::NoMarker),
            (Some("someone's alias".into()), "u1", Wait::NoMarker),
            (Some(ready("u1", Some(7)).replace("/v1", "/v2")), "u1", Wait::NoMarker),
            (Some(waiting), "u1", Wait::Reason("no address; wait".into())),
            (Some(ready("u2", Some(7))), "u1", Wait::OtherPod("u2".into())),
            (Some(ready("u1", Some(8))), "u1", Wait::OtherNamespace),
            (Some(ready("u1", None)), "u1", Wait::Damaged("cookie")),
            (Some(ready("u1", Some(7)).replace("hash", "hush")), "u1", Wait::Damaged("hash")),
            (Some(ready("", Some(7))), "", Wait::NoUid),
        ] {
            assert_eq!(judge(alias.as_deref(), uid, 7), Verdict::Wait(why), "{alias:?}");
        }
    }

    proptest! {
        #[test]
        fn a_ready_marker_opens_only_its_own_pod_and_namespace(uid in "u[12]", cookie in 6u64..9) {
            let opens = judge(Some(&ready(&uid, Some(cookie))), "u1", 7) == Verdict::Open;
            prop_assert_eq!(opens, uid == "u1" && cookie == 7);
        }

        #[test]
        fn a_cut_marker_never_opens(length in 0usize..200) {
            let whole = ready("u1", Some(7));
            let cut: String = whole.chars().take(length).collect();
            let opens = judge(Some(&cut), "u1", 7) == Verdict::Open;
            prop_assert_eq!(opens, cut == whole);
        }
    }
}
