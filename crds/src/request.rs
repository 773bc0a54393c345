//! The grammar of a pod's request: the annotations `fairlead.dev/networks` and `fairlead.dev/selected`.
//!
//! ```text
//! value = json | text
//! json  : a list of objects, chosen if the value contains any of [ { "
//! text  = item *("," item)
//! item  = name ["@" interface]
//! ```
//! The grammar is that of `k8s.v1.cni.cncf.io/networks` (Multi-Network specification 1.3), but a
//! name is that of a Network, which has no namespace. Errors point at the character or the field.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::address::{Cidr, IfName, Mac};
use crate::names::{NETWORK_NAME_MAX, NETWORKS_ANNOTATION, SELECTED_ANNOTATION};

/// Most networks a pod may ask for.
pub const MAX_ATTACHMENTS: usize = 32;

/// One network a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    /// Name of the Network.
    pub network: String,
    /// The interface's name, if the pod wants a particular one.
    pub interface: Option<IfName>,
    /// Addresses asked for by value.
    pub ips: Vec<String>,
    /// Hardware address asked for by value.
    pub mac: Option<Mac>,
}

/// Why a request cannot be read; the message points at the place and names the way out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A problem at a character of the text form (counted from 1).
    #[error("character {at}: {problem}")]
    Text {
        /// Position of the item, counted in characters from 1.
        at: usize,
        /// What is wrong, and what is expected.
        problem: String,
    },
    /// The JSON form is not JSON or not a list of objects.
    #[error("not valid JSON: {0}")]
    Json(String),
    /// A problem in a field of the JSON form.
    #[error("[{index}].{field}: {problem}")]
    Field {
        /// Index of the element, from 0.
        index: usize,
        /// The field.
        field: &'static str,
        /// What is wrong, and what is expected.
        problem: String,
    },
    /// Two requests want one interface name.
    #[error("interface {0} is asked for twice; give one of them another name")]
    DuplicateInterface(IfName),
    /// Two requests want one address of one network.
    #[error("address {ip} of network {network} is asked for twice; ask for it once")]
    DuplicateAddress {
        /// The network.
        network: String,
        /// The address as it is written the second time.
        ip: String,
    },
    /// Two requests want one hardware address on one network.
    #[error("mac {mac} is asked for twice on network {network}; give one of them another")]
    DuplicateMac {
        /// The network.
        network: String,
        /// The hardware address.
        mac: Mac,
    },
    /// More networks than a pod may have.
    #[error("{0} networks are asked for, at most {MAX_ATTACHMENTS} are possible")]
    TooMany(usize),
}

/// Reads a request. Absent, empty and `[]` mean no network.
///
/// # Errors
/// [`RequestError`] for the first problem; nothing of a request with a problem is used.
pub fn parse(value: &str) -> Result<Vec<Request>, RequestError> {
    let requests = if value.trim().is_empty() {
        Vec::new()
    } else if value.contains(['[', '{', '"']) {
        parse_json(value)?
    } else {
        parse_text(value)?
    };
    check_set(&requests)?;
    Ok(requests)
}

/// Writes requests in the form of the snapshot: a JSON list, `[]` if empty.
pub fn to_json(requests: &[Request]) -> String {
    let elements: Vec<Element> = requests.iter().map(Element::from).collect();
    serde_json::to_string(&elements).unwrap_or_else(|_| "[]".to_owned())
}

fn check_set(requests: &[Request]) -> Result<(), RequestError> {
    if requests.len() > MAX_ATTACHMENTS {
        return Err(RequestError::TooMany(requests.len()));
    }
    let mut names = BTreeSet::new();
    match requests.iter().filter_map(|request| request.interface.as_ref()).find(|name| !names.insert(*name)) {
        Some(name) => Err(RequestError::DuplicateInterface(name.clone())),
        None => check_values(requests),
    }
}

fn check_values(requests: &[Request]) -> Result<(), RequestError> {
    let (mut ips, mut macs) = (BTreeSet::new(), BTreeSet::new());
    for request in requests {
        let network = &request.network;
        if let Some(ip) = request.ips.iter().find(|ip| !ips.insert((network, address_of(ip)))) {
            return Err(RequestError::DuplicateAddress { network: network.clone(), ip: ip.clone() });
        }
        if let Some(mac) = request.mac.filter(|mac| !macs.insert((network, *mac))) {
            return Err(RequestError::DuplicateMac { network: network.clone(), mac });
        }
    }
    Ok(())
}

/// The address without its prefix length; a text that is no address was refused before.
fn address_of(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().or_else(|| text.parse::<Cidr>().ok().map(|cidr| cidr.addr()))
}

/// What a pod asks for and what the snapshot of its selectors adds: a network that is asked for is not selected again.
///
/// # Errors
/// The annotation that cannot be read, with its problem.
pub fn merge(
    requested: Option<&str>,
    selected: Option<&str>,
) -> Result<Vec<Request>, (&'static str, RequestError)> {
    let read = |name, value: Option<&str>| parse(value.unwrap_or_default()).map_err(|error| (name, error));
    let mut requests = read(NETWORKS_ANNOTATION, requested)?;
    let selected = read(SELECTED_ANNOTATION, selected)?;
    add_selected(&mut requests, selected);
    Ok(requests)
}

/// Adds what selectors give to what is asked for.
pub(crate) fn add_selected(requests: &mut Vec<Request>, selected: Vec<Request>) {
    let asked: BTreeSet<String> = requests.iter().map(|request| request.network.clone()).collect();
    requests.extend(selected.into_iter().filter(|request| !asked.contains(&request.network)));
}

fn parse_text(value: &str) -> Result<Vec<Request>, RequestError> {
    let mut at = 1;
    let mut requests = Vec::new();
    for item in value.split(',') {
        let start = at + item.chars().take_while(|c| c.is_whitespace()).count();
        requests.push(parse_item(item.trim()).map_err(|problem| RequestError::Text { at: start, problem })?);
        at += item.chars().count() + 1;
    }
    Ok(requests)
}

fn parse_item(item: &str) -> Result<Request, String> {
    let (name, interface) = match item.split_once('@') {
        Some((_, interface)) if interface.contains('@') => {
            return Err(format!("{item:?} has more than one '@'; expected name@interface"));
        }
        Some((name, interface)) => (name.trim(), Some(interface_name(interface.trim())?)),
        None => (item, None),
    };
    Ok(Request { network: network_name(name)?, interface, ips: Vec::new(), mac: None })
}

/// An element of the JSON form. Unknown keys are ignored, as by every reader of this grammar.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Element {
    #[serde(default)]
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(default, alias = "interfaceRequest", skip_serializing_if = "Option::is_none")]
    interface: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ips: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    #[serde(flatten, skip_serializing)]
    other: serde_json::Map<String, serde_json::Value>,
}

/// Keys of the Multi-Network specification that change what an attachment is; refused, since ignoring them would lie.
const UNSUPPORTED: [&str; 6] =
    ["portMappings", "bandwidth", "cni-args", "default-route", "infiniband-guid", "ipam-claim-reference"];

impl From<&Request> for Element {
    fn from(request: &Request) -> Self {
        Self {
            name: request.network.clone(),
            interface: request.interface.as_ref().map(ToString::to_string),
            ips: request.ips.clone(),
            mac: request.mac.map(|mac| mac.to_string()),
            ..Self::default()
        }
    }
}

fn parse_json(value: &str) -> Result<Vec<Request>, RequestError> {
    let elements: Vec<Element> =
        serde_json::from_str(value).map_err(|error| RequestError::Json(error.to_string()))?;
    elements.into_iter().enumerate().map(|(index, element)| element.into_request(index)).collect()
}

impl Element {
    fn into_request(self, index: usize) -> Result<Request, RequestError> {
        let field = |field, problem| RequestError::Field { index, field, problem };
        if self.namespace.as_deref().is_some_and(|namespace| !namespace.is_empty()) {
            return Err(field("namespace", NO_NAMESPACE.to_owned()));
        }
        if let Some(key) = UNSUPPORTED.into_iter().find(|key| self.other.contains_key(*key)) {
            return Err(field(key, "is not supported yet; remove it".to_owned()));
        }
        let network = network_name(&self.name).map_err(|problem| field("name", problem))?;
        let interface = self.interface.filter(|name| !name.is_empty());
        let interface = interface
            .map(|name| interface_name(&name))
            .transpose()
            .map_err(|problem| field("interface", problem))?;
        let mac = self.mac.map(|mac| mac.parse()).transpose();
        let mac = mac.map_err(|error: crate::address::ParseError| field("mac", error.to_string()))?;
        if let Some(bad) = self.ips.iter().find(|ip| !is_address(ip)) {
            return Err(field("ips", format!("{bad:?} is not an IP address or CIDR")));
        }
        Ok(Request { network, interface, ips: self.ips, mac })
    }
}

const NO_NAMESPACE: &str = "a Network has no namespace; write only its name";

fn is_address(text: &str) -> bool {
    address_of(text).is_some()
}

fn network_name(name: &str) -> Result<String, String> {
    if name.is_empty() {
        return Err("the name of a Network is missing".to_owned());
    }
    if name.contains('/') {
        return Err(format!("{name:?}: {NO_NAMESPACE}"));
    }
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.len() > NETWORK_NAME_MAX
        || !name.chars().all(allowed)
        || name.starts_with('-')
        || name.ends_with('-')
    {
        return Err(format!(
            "{name:?} is not the name of a Network: at most {NETWORK_NAME_MAX} lower-case letters, digits and inner '-'"
        ));
    }
    Ok(name.to_owned())
}

fn interface_name(name: &str) -> Result<IfName, String> {
    if matches!(name, "eth0" | "lo") {
        return Err(format!("{name:?} is the pod's own interface; ask for another name"));
    }
    name.parse().map_err(|error: crate::address::ParseError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(value: &str) -> Vec<(String, Option<String>)> {
        let requests = parse(value).unwrap();
        requests.into_iter().map(|r| (r.network, r.interface.map(|name| name.to_string()))).collect()
    }

    fn error(value: &str) -> String {
        parse(value).unwrap_err().to_string()
    }

    #[test]
    fn nothing_means_no_network() {
        for value in ["", "  ", "[]"] {
            assert_eq!(parse(value), Ok(Vec::new()), "{value:?}");
        }
    }

    #[test]
    fn the_text_form_takes_names_and_interfaces() {
        assert_eq!(
            names("blue, storage@Net_1"),
            [("blue".into(), None), ("storage".into(), Some("Net_1".into()))]
        );
        assert_eq!(names("blue,blue"), [("blue".into(), None), ("blue".into(), None)]);
    }

    #[test]
    fn the_json_form_takes_the_same_and_ignores_unknown_keys() {
        let value = r#"[{"name":"blue","interface":"net7","later":1},{"name":"red","interface":""}]"#;
        assert_eq!(names(value), [("blue".into(), Some("net7".into())), ("red".into(), None)]);
    }

    #[test]
    fn errors_of_the_text_form_point_at_the_character() {
        assert_eq!(
            error("blue, ns/red"),
            "character 7: \"ns/red\": a Network has no namespace; write only its name"
        );
        assert_eq!(error("blue,"), "character 6: the name of a Network is missing");
        assert_eq!(
            error("red,blue@net1@net2"),
            "character 5: \"blue@net1@net2\" has more than one '@'; expected name@interface"
        );
        assert_eq!(
            error("blue@eth0"),
            "character 1: \"eth0\" is the pod's own interface; ask for another name"
        );
        assert!(error("Blue").starts_with("character 1: \"Blue\" is not the name of a Network"));
    }

    #[test]
    fn errors_of_the_json_form_name_the_field() {
        assert_eq!(
            error(r#"[{"name":"a"},{"name":"a","mac":"x"}]"#),
            "[1].mac: \"x\" is not a MAC address such as 02:00:5e:10:00:01"
        );
        assert_eq!(
            error(r#"[{"name":"a","namespace":"b"}]"#),
            "[0].namespace: a Network has no namespace; write only its name"
        );
        assert_eq!(
            error(r#"[{"name":"a","bandwidth":{}}]"#),
            "[0].bandwidth: is not supported yet; remove it"
        );
        assert_eq!(
            error(r#"[{"name":"a","ips":["10.0.0.300"]}]"#),
            "[0].ips: \"10.0.0.300\" is not an IP address or CIDR"
        );
        assert!(error(r#"{"name":"a"}"#).starts_with("not valid JSON"));
    }

    #[test]
    fn one_interface_name_cannot_be_asked_for_twice() {
        assert_eq!(
            error("a@net1,b@net1"),
            "interface net1 is asked for twice; give one of them another name"
        );
    }

    #[test]
    fn one_address_cannot_be_asked_for_twice_on_one_network() {
        assert_eq!(
            error(r#"[{"name":"a","ips":["10.0.0.7"]},{"name":"a","ips":["10.0.0.7/24"]}]"#),
            "address 10.0.0.7/24 of network a is asked for twice; ask for it once"
        );
        let mac = r#"[{"name":"a","mac":"02:00:00:00:00:01"},{"name":"a","mac":"02:00:00:00:00:01"}]"#;
        assert_eq!(
            error(mac),
            "mac 02:00:00:00:00:01 is asked for twice on network a; give one of them another"
        );
        assert!(parse(r#"[{"name":"a","ips":["10.0.0.7"]},{"name":"b","ips":["10.0.0.7"]}]"#).is_ok());
    }

    #[test]
    fn a_network_that_is_asked_for_is_not_selected_again() {
        let merged = merge(Some("b"), Some(r#"[{"name":"a"},{"name":"b"}]"#)).unwrap();
        assert_eq!(merged.into_iter().map(|request| request.network).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(merge(None, Some("?")).unwrap_err().0, "fairlead.dev/selected");
    }

    #[test]
    fn what_is_written_is_read_back() {
        let requests = parse("blue@net1,red").unwrap();
        assert_eq!(to_json(&requests), r#"[{"name":"blue","interface":"net1"},{"name":"red"}]"#);
        assert_eq!(parse(&to_json(&requests)), Ok(requests));
    }

    proptest::proptest! {
        #[test]
        fn no_value_makes_the_parser_fail_otherwise_than_with_an_error(value in ".{0,200}") {
            drop(parse(&value));
        }
    }
}
