//! Which of the node's devices the agent may use: globs of `*` and `?` against interface names.

/// The admin's patterns; none allows nothing.
#[derive(Debug, Clone, Default)]
pub struct Devices(Vec<String>);

impl Devices {
    /// From the patterns of a flag.
    pub fn new(patterns: impl IntoIterator<Item = String>) -> Self {
        Self(patterns.into_iter().collect())
    }

    /// Whether one of the patterns matches the whole name.
    pub fn allow(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| matches(pattern.as_bytes(), name.as_bytes()))
    }
}

/// Interface names have at most 15 bytes, so trying all lengths for a star costs nothing.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', b'*', ..], _) => matches(&pattern[1..], name),
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|taken| matches(rest, &name[taken..])),
        ([b'?', rest @ ..], [_, name @ ..]) => matches(rest, name),
        ([want, rest @ ..], [is, name @ ..]) => want == is && matches(rest, name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_matches_the_whole_name() {
        for (pattern, name, expected) in [
            ("eth1", "eth1", true),
            ("eth1", "eth10", false),
            ("eth?", "eth1", true),
            ("eth?", "eth", false),
            ("eth*", "eth", true),
            ("*1", "eth11", true),
            ("en*s?", "enp3s0", true),
            ("en**s?", "enp3s0", true),
            ("*", "x", true),
            ("", "x", false),
        ] {
            assert_eq!(Devices::new([pattern.to_owned()]).allow(name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn no_pattern_allows_nothing() {
        assert!(!Devices::default().allow("eth1"));
    }

    #[test]
    fn a_pattern_of_many_stars_ends() {
        assert!(!Devices::new(["*a".repeat(40)]).allow("aaaaaaaaaaaaaa"));
    }
}
