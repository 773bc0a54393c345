//! What the runtime asks the guard, and what it answers.

use fairlead_crds::guard_report::Sight;
use fairlead_nri::{Container, EventMask, Identity, Plugin, PodSandbox};

use super::{folder, look::Looks, report::Reporter, rule, say};

/// Name of the runtimes' default validator among the plugins of a call (containerd/nri, plugins/default-validator).
const DEFAULT_VALIDATOR: &str = "default-validator";

/// The plugin.
#[derive(Debug)]
pub struct Guard {
    looks: Looks,
    report: Reporter,
}

impl Guard {
    /// A guard that reports there.
    pub fn new(report: Reporter) -> Self {
        Self { looks: Looks::default(), report }
    }

    /// The connection ended. Whether it had been in use.
    pub fn disconnected(&self) -> bool {
        self.report.change(|report| std::mem::replace(&mut report.connected, false))
    }

    fn check(&self, pod: &PodSandbox, container: &Container) -> Result<(), String> {
        let checked = match rule::held(pod) {
            Ok(None) => return Ok(()),
            Ok(Some(held)) => rule::decide(&self.looks.at(held)),
            Err(sentence) => Err(sentence),
        };
        if let Err(sentence) = &checked {
            let PodSandbox { namespace, name, .. } = pod;
            say(&format!("refused container {} of pod {namespace}/{name}: {sentence}", container.name));
        }
        checked
    }
}

impl Plugin for Guard {
    fn configure(&self, runtime: &str, version: &str) -> EventMask {
        self.report.change(|report| report.runtime = format!("{runtime} {version}"));
        if has_last_word(runtime, version) {
            EventMask::VALIDATE_CONTAINER
        } else {
            EventMask::CREATE_CONTAINER
        }
    }

    fn synchronize(&self, _: Vec<PodSandbox>, _: Vec<Container>) {
        self.report.change(|report| report.connected = true);
        say("connected");
    }

    fn create_container(&self, pod: &PodSandbox, container: &Container) -> Result<(), String> {
        self.check(pod, container)
    }

    fn validate_container(
        &self,
        pod: &PodSandbox,
        container: &Container,
        plugins: &[Identity],
    ) -> Result<(), String> {
        let (validator, preinstalled) = (sight_of_validator(plugins), sight_of_folder(plugins));
        self.report.change(|report| (report.validator, report.preinstalled) = (validator, preinstalled));
        self.check(pod, container)
    }
}

/// Whether the runtime asks for the last word about a container: NRI 0.10 or later, which came with containerd 2.2
/// and CRI-O 1.34. To older ones the event is an error.
fn has_last_word(runtime: &str, version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+']).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return false };
    match runtime {
        "containerd" => (major, minor) >= (2, 2),
        "cri-o" => (major, minor) >= (1, 34),
        _ => false,
    }
}

fn sight_of_validator(plugins: &[Identity]) -> Sight {
    plugins.iter().any(|plugin| plugin.name == DEFAULT_VALIDATOR).into()
}

fn sight_of_folder(plugins: &[Identity]) -> Sight {
    plugins.iter().any(|plugin| *plugin == folder::identity()).into()
}

#[cfg(test)]
mod tests {
    use fairlead_crds::names;

    use super::*;

    fn identity(index: u8, name: &str) -> Identity {
        Identity { name: name.into(), index }
    }

    #[test]
    fn runtimes_that_ask_for_the_last_word_are_known() {
        for (runtime, version) in [
            ("containerd", "v2.4.2"),
            ("containerd", "2.2.0-rc.1"),
            ("cri-o", "1.34.0"),
            ("containerd", "3.0"),
        ] {
            assert!(has_last_word(runtime, version), "{runtime} {version}");
        }
        for (runtime, version) in
            [("containerd", "v2.1.4"), ("cri-o", "1.33.9"), ("containerd", "unknown"), ("other", "9.9.9")]
        {
            assert!(!has_last_word(runtime, version), "{runtime} {version}");
        }
    }

    #[test]
    fn what_makes_the_node_strict_is_seen_among_the_plugins() {
        let ours = identity(INDEX_OF_ANOTHER, names::GUARD_PLUGIN);
        let only_ours = [ours.clone(), identity(10, "fairlead")];
        assert_eq!(
            (sight_of_validator(&only_ours), sight_of_folder(&only_ours)),
            (Sight::Missing, Sight::Missing)
        );
        let strict = [identity(0, "default-validator"), ours.clone()];
        assert_eq!((sight_of_validator(&strict), sight_of_folder(&strict)), (Sight::Seen, Sight::Missing));
        let installed = [folder::identity(), ours];
        assert_eq!(
            (sight_of_validator(&installed), sight_of_folder(&installed)),
            (Sight::Missing, Sight::Seen)
        );
    }

    const INDEX_OF_ANOTHER: u8 = super::super::INDEX;

    #[test]
    fn other_pods_are_never_looked_at() {
        let guard = Guard::new(Reporter::open(None).unwrap());
        let pod = PodSandbox { network_namespace: Some("/nonexistent".into()), ..PodSandbox::default() };
        assert_eq!(guard.validate_container(&pod, &Container::default(), &[]), Ok(()));
    }
}
