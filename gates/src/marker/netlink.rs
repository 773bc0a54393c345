//! The two netlink messages that are needed: the question for `lo` and its answer (linux/netlink.h,
//! linux/rtnetlink.h). Bytes only; no socket.

use nix::{errno::Errno, libc};

/// `lo` is made with its namespace, before anything else (`LOOPBACK_IFINDEX`, net/flow.h).
const LO_INDEX: u32 = 1;
const MESSAGE_HEADER: usize = 16;
const LINK_HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
const REQUEST_LEN: usize = MESSAGE_HEADER + LINK_HEADER;

/// What is wrong with the kernel's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The kernel said no.
    #[error("the kernel refuses to show lo: {0}")]
    Refused(Errno),
    /// Not an answer to our question.
    #[error("the kernel's answer about lo cannot be read")]
    Malformed,
}

/// `RTM_GETLINK` for `lo`: one `nlmsghdr`, one `ifinfomsg`.
pub fn get_lo() -> [u8; REQUEST_LEN] {
    let mut message = [0; REQUEST_LEN];
    let mut put = |at: usize, bytes: &[u8]| message[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &u32::try_from(REQUEST_LEN).unwrap_or_default().to_ne_bytes());
    put(4, &libc::RTM_GETLINK.to_ne_bytes());
    put(6, &u16::try_from(libc::NLM_F_REQUEST).unwrap_or_default().to_ne_bytes());
    put(20, &LO_INDEX.to_ne_bytes());
    message
}

/// The alias in the answer to [`get_lo`]; none if it is absent or empty.
pub fn alias(answer: &[u8]) -> Result<Option<String>, AnswerError> {
    let length = usize::try_from(u32_at(answer, 0)?).map_err(|_| AnswerError::Malformed)?;
    let body = slice(answer, MESSAGE_HEADER, length)?;
    let kind = u16_at(answer, 4)?;
    if i32::from(kind) == libc::NLMSG_ERROR {
        let code = i32::from_ne_bytes(u32_at(body, 0)?.to_ne_bytes());
        return Err(AnswerError::Refused(Errno::from_raw(code.wrapping_neg())));
    }
    if kind != libc::RTM_NEWLINK || u32_at(body, 4)? != LO_INDEX {
        return Err(AnswerError::Malformed);
    }
    find_alias(slice(body, LINK_HEADER, body.len())?)
}

fn find_alias(mut attributes: &[u8]) -> Result<Option<String>, AnswerError> {
    while !attributes.is_empty() {
        let length = usize::from(u16_at(attributes, 0)?);
        let value = slice(attributes, ATTRIBUTE_HEADER, length)?;
        if u16_at(attributes, 2)? == libc::IFLA_IFALIAS {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return Ok(Some(String::from_utf8_lossy(text).into_owned()).filter(|text| !text.is_empty()));
        }
        // The last one may come without its padding.
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(None)
}

fn slice(bytes: &[u8], from: usize, to: usize) -> Result<&[u8], AnswerError> {
    bytes.get(from..to).ok_or(AnswerError::Malformed)
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, AnswerError> {
    let bytes = slice(bytes, at, at + 2)?.try_into().map_err(|_| AnswerError::Malformed)?;
    Ok(u16::from_ne_bytes(bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, AnswerError> {
    let bytes = slice(bytes, at, at + 4)?.try_into().map_err(|_| AnswerError::Malformed)?;
    Ok(u32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IFLA_IFNAME: u16 = 3;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(MESSAGE_HEADER + body.len()).unwrap();
        let mut out = length.to_ne_bytes().to_vec();
        out.extend(kind.to_ne_bytes());
        out.extend([0; 10]);
        out.extend(body);
        out
    }

    fn link(index: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = [0; LINK_HEADER].to_vec();
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        for (kind, value) in attributes {
            let length = u16::try_from(ATTRIBUTE_HEADER + value.len()).unwrap();
            body.extend(length.to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        message(libc::RTM_NEWLINK, &body)
    }

    #[test]
    fn the_question_is_for_the_link_with_index_one() {
        let request = get_lo();
        assert_eq!(u32_at(&request, 0), Ok(32));
        assert_eq!(u16_at(&request, 4), Ok(18), "RTM_GETLINK");
        assert_eq!(u16_at(&request, 6), Ok(1), "NLM_F_REQUEST and no dump");
        assert_eq!(u32_at(&request, 20), Ok(1));
    }

    #[test]
    fn the_alias_is_found_among_other_attributes() {
        let answer = link(1, &[(IFLA_IFNAME, b"lo\0"), (libc::IFLA_IFALIAS, b"hello\0"), (99, b"x")]);
        assert_eq!(alias(&answer), Ok(Some("hello".into())));
    }

    #[test]
    fn an_absent_and_an_empty_alias_are_none() {
        assert_eq!(alias(&link(1, &[(IFLA_IFNAME, b"lo\0")])), Ok(None));
        assert_eq!(alias(&link(1, &[(libc::IFLA_IFALIAS, b"\0")])), Ok(None));
    }

    #[test]
    fn another_link_is_not_lo() {
        assert_eq!(alias(&link(2, &[(libc::IFLA_IFALIAS, b"x\0")])), Err(AnswerError::Malformed));
    }

    #[test]
    fn the_kernels_refusal_is_told() {
        let kind = u16::try_from(libc::NLMSG_ERROR).unwrap();
        let answer = message(kind, &(-libc::EPERM).to_ne_bytes());
        assert_eq!(alias(&answer), Err(AnswerError::Refused(Errno::EPERM)));
    }

    #[test]
    fn a_cut_answer_is_malformed() {
        let answer = link(1, &[(IFLA_IFNAME, b"lo\0"), (libc::IFLA_IFALIAS, b"hello, world\0")]);
        for length in 0..answer.len() {
            assert_eq!(alias(&answer[..length]), Err(AnswerError::Malformed), "{length} bytes");
        }
    }

    #[test]
    fn an_attribute_of_no_length_ends_the_search() {
        let mut answer = link(1, &[(IFLA_IFNAME, b"lo\0")]);
        answer[32..34].copy_from_slice(&0_u16.to_ne_bytes());
        assert_eq!(alias(&answer), Err(AnswerError::Malformed));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_hang_or_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut body = body;
            if let Some(index) = body.get_mut(4..8) {
                index.copy_from_slice(&1_u32.to_ne_bytes());
            }
            alias(&body).ok();
            alias(&message(libc::RTM_NEWLINK, &body)).ok();
        }
    }
}
