//! What comes back on a netlink socket: which request it answers, and what it says.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NlasIterator,
    ParseableParametrized,
};
use netlink_packet_route::RouteNetlinkMessage;

use super::{HEADER, Outcome, Refusal, unreadable};

/// `NLMSGERR_ATTR_MSG`, linux/netlink.h.
const ERROR_TEXT: u16 = 1;

/// What came back to a batch so far, by the requests' order.
pub(super) struct Answers {
    first: u32,
    outcomes: Vec<Option<Outcome>>,
}

impl Answers {
    /// Nothing yet, to so many requests. `first` is the sequence number of the first; the others follow.
    pub fn to(first: u32, count: usize) -> Self {
        Self { first, outcomes: std::iter::repeat_with(|| None).take(count).collect() }
    }

    pub fn are_complete(&self) -> bool {
        self.outcomes.iter().all(Option::is_some)
    }

    pub fn into_outcomes(self) -> Vec<Outcome> {
        self.outcomes.into_iter().flatten().collect()
    }

    /// Takes in what was received.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        for frame in frames(bytes) {
            let frame = frame?;
            let at = frame.sequence_number().wrapping_sub(self.first);
            // Otherwise it is the answer to an earlier request that was given up.
            if let Some(outcome) = usize::try_from(at).ok().and_then(|at| self.outcomes.get_mut(at)) {
                *outcome = Some(outcome_of(&frame));
            }
        }
        Ok(())
    }
}

fn outcome_of(frame: &NetlinkBuffer<&[u8]>) -> Outcome {
    match frame.message_type() {
        NLMSG_ERROR => acknowledged(frame.payload(), frame.flags()).map(|()| None),
        kind => {
            let message = RouteNetlinkMessage::parse_with_param(frame.payload(), kind);
            Ok(Some(message.map_err(|_| unreadable())?))
        }
    }
}

/// What was kept of what came back to a dump so far.
pub(super) struct Dumped<T, F> {
    keep: F,
    pub kept: Vec<T>,
    /// The objects changed meanwhile.
    pub interrupted: bool,
}

impl<T, F: FnMut(RouteNetlinkMessage) -> Option<T>> Dumped<T, F> {
    /// Nothing yet. Each object is reduced as it comes.
    pub fn to(keep: F) -> Self {
        Self { keep, kept: Vec::new(), interrupted: false }
    }

    /// Takes in what was received; true when the kernel says that this was all.
    pub fn add(&mut self, bytes: &[u8], sequence: u32) -> Result<bool, Refusal> {
        for frame in frames(bytes) {
            let frame = frame?;
            // The answer to an earlier request that was given up.
            if frame.sequence_number() == sequence && self.take(&frame)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn take(&mut self, frame: &NetlinkBuffer<&[u8]>) -> Result<bool, Refusal> {
        self.interrupted |= frame.flags() & NLM_F_DUMP_INTR != 0;
        match frame.message_type() {
            NLMSG_ERROR => acknowledged(frame.payload(), frame.flags()).map(|()| true),
            NLMSG_DONE => done(frame.payload()).map(|()| true),
            kind => {
                let message = RouteNetlinkMessage::parse_with_param(frame.payload(), kind);
                self.kept.extend(message.ok().and_then(&mut self.keep));
                Ok(false)
            }
        }
    }
}

/// The messages in what was received; ends after one that is cut short.
pub(in super::super) fn frames(
    mut bytes: &[u8],
) -> impl Iterator<Item = Result<NetlinkBuffer<&[u8]>, Refusal>> {
    std::iter::from_fn(move || {
        if bytes.len() < HEADER {
            return None;
        }
        let frame = NetlinkBuffer::new_checked(bytes).map_err(|_| unreadable().into());
        let length = frame.as_ref().ok().and_then(|frame| usize::try_from(frame.length()).ok());
        bytes = length.and_then(|length| bytes.get(length.next_multiple_of(4)..)).unwrap_or_default();
        Some(frame)
    })
}

pub(in super::super) fn acknowledged(payload: &[u8], flags: u16) -> Result<(), Refusal> {
    match code(payload).ok_or_else(unreadable)? {
        0 => Ok(()),
        code => {
            let text = error_text(payload.get(4..).unwrap_or_default(), flags);
            Err(Refusal { source: io::Error::from_raw_os_error(code.saturating_neg()), text })
        }
    }
}

/// A dump that fails says so in its last message.
pub(in super::super) fn done(payload: &[u8]) -> Result<(), Refusal> {
    match code(payload) {
        Some(code) if code < 0 => Err(io::Error::from_raw_os_error(code.saturating_neg()).into()),
        _ => Ok(()),
    }
}

/// The negative error number that an acknowledgement starts with.
fn code(payload: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(payload.get(..4)?.try_into().ok()?))
}

/// The kernel's extended message: attributes after the header of the request that is being answered.
fn error_text(echoed: &[u8], flags: u16) -> Option<String> {
    if flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let request = u32::from_ne_bytes(echoed.get(..4)?.try_into().ok()?);
    let skip = if flags & NLM_F_CAPPED == 0 { usize::try_from(request).ok()? } else { HEADER };
    let attributes = echoed.get(skip.next_multiple_of(4)..)?;
    let text = NlasIterator::new(attributes).flatten().find(|nla| nla.kind() == ERROR_TEXT)?;
    let text = String::from_utf8_lossy(text.value()).trim_end_matches('\0').to_owned();
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{DefaultNla, Emitable};

    use super::super::nested;
    use super::*;

    fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER + payload.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(payload);
        bytes
    }

    fn refusal(request: &[u8], flags: u16, text: &str) -> Vec<u8> {
        let mut payload = (-22_i32).to_ne_bytes().to_vec();
        payload.extend(request);
        let nla = nested(ERROR_TEXT, &[]);
        let mut attribute = vec![0; nla.buffer_len()];
        DefaultNla::new(ERROR_TEXT, format!("{text}\0").into_bytes()).emit({
            attribute.resize(4 + (text.len() + 1).next_multiple_of(4), 0);
            &mut attribute
        });
        payload.extend(attribute);
        message(NLMSG_ERROR, flags, 7, &payload)
    }

    #[test]
    fn the_kernels_own_words_come_with_the_error() {
        let request = message(16, 5, 7, &[1; 20]);
        for (echoed, flags) in
            [(&request[..HEADER], NLM_F_CAPPED | NLM_F_ACK_TLVS), (&request[..], NLM_F_ACK_TLVS)]
        {
            let bytes = refusal(echoed, flags, "mtu less than device minimum");
            let error = Dumped::to(Some).add(&bytes, 7).unwrap_err();
            assert_eq!(error.source.raw_os_error(), Some(22));
            assert_eq!(error.text.as_deref(), Some("mtu less than device minimum"));
        }
    }

    #[test]
    fn an_error_without_words_has_none() {
        let error =
            Dumped::to(Some).add(&refusal(&[0; HEADER], NLM_F_CAPPED, "not announced"), 7).unwrap_err();
        assert_eq!(error.text, None);
    }

    #[test]
    fn an_acknowledgement_ends_the_answer() {
        let mut payload = 0_i32.to_ne_bytes().to_vec();
        payload.extend([0; HEADER]);
        assert!(Dumped::to(Some).add(&message(NLMSG_ERROR, 0, 7, &payload), 7).unwrap());
    }

    #[test]
    fn a_late_answer_to_another_request_is_passed_over() {
        let mut payload = (-1_i32).to_ne_bytes().to_vec();
        payload.extend([0; HEADER]);
        assert!(!Dumped::to(Some).add(&message(NLMSG_ERROR, 0, 6, &payload), 7).unwrap());
    }

    #[test]
    fn answers_to_a_batch_are_told_apart_in_any_order() {
        let ack = |code: i32| [&code.to_ne_bytes()[..], &[0; HEADER]].concat();
        let mut answers = Answers::to(u32::MAX, 2);
        answers.add(&message(NLMSG_ERROR, 0, 0, &ack(-17))).unwrap();
        assert!(!answers.are_complete());
        answers.add(&message(NLMSG_ERROR, 0, 5, &ack(-1))).unwrap();
        answers.add(&message(NLMSG_ERROR, 0, u32::MAX, &ack(0))).unwrap();
        assert!(answers.are_complete());
        let outcomes = answers.into_outcomes();
        assert!(matches!(outcomes[0], Ok(None)));
        assert!(matches!(&outcomes[1], Err(refusal) if refusal.source.raw_os_error() == Some(17)));
    }

    #[test]
    fn a_dump_says_that_it_was_overtaken_or_failed() {
        let mut answer = Dumped::to(Some);
        assert!(answer.add(&message(NLMSG_DONE, NLM_F_DUMP_INTR, 7, &0_i32.to_ne_bytes()), 7).unwrap());
        assert!(answer.interrupted);
        let failed = message(NLMSG_DONE, 0, 7, &(-22_i32).to_ne_bytes());
        assert_eq!(Dumped::to(Some).add(&failed, 7).unwrap_err().source.raw_os_error(), Some(22));
    }

    #[test]
    fn a_message_cut_short_is_an_error_and_not_a_loop() {
        let mut bytes = message(16, 0, 7, &[0; 8]);
        bytes[0] = 200;
        assert!(Dumped::to(Some).add(&bytes, 7).is_err());
        bytes[0] = 0;
        assert!(Dumped::to(Some).add(&bytes, 7).is_err());
    }
}
