//! The guard's command line. By hand: a parser's library would be most of the program.

use std::path::PathBuf;

/// What the program is for, as it says when it was called in another way.
pub const USAGE: &str = "\
fairlead-guard [--socket PATH] [--report PATH]   refuse containers of pods whose networks are not attached
fairlead-guard wait --report PATH                wait until such a guard is connected, 5 s at most
fairlead-guard install --to FOLDER               copy this program into the runtime's plugin folder
fairlead-guard uninstall --from FOLDER           remove it from there";

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Connect to the runtime's socket, and report to a file.
    Serve {
        /// The runtime's socket for plugins.
        socket: PathBuf,
        /// The file that the agent reads.
        report: Option<PathBuf>,
    },
    /// Serve on the connection that the runtime gave.
    Started,
    /// Wait until the guard that reports there is connected.
    Wait {
        /// The file that the agent reads.
        report: PathBuf,
    },
    /// Put this program into a folder.
    Install {
        /// The runtime's plugin folder.
        folder: PathBuf,
    },
    /// Remove it from a folder.
    Uninstall {
        /// The runtime's plugin folder.
        folder: PathBuf,
    },
}

impl Command {
    /// From the arguments after the program's name; `started` says that a runtime started the program.
    ///
    /// # Errors
    /// A sentence with the argument that is not understood.
    pub fn parse(arguments: impl IntoIterator<Item = String>, started: bool) -> Result<Self, String> {
        let arguments: Vec<String> = arguments.into_iter().collect();
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        match words.as_slice() {
            [] if started => Ok(Self::Started),
            ["wait", "--report", path] => Ok(Self::Wait { report: path.into() }),
            ["install", "--to", folder] => Ok(Self::Install { folder: folder.into() }),
            ["uninstall", "--from", folder] => Ok(Self::Uninstall { folder: folder.into() }),
            flags => serve(flags),
        }
    }
}

fn serve(flags: &[&str]) -> Result<Command, String> {
    let (mut socket, mut report) = (PathBuf::from(fairlead_nri::DEFAULT_SOCKET), None);
    for pair in flags.chunks(2) {
        match pair {
            ["--socket", path] => socket = path.into(),
            ["--report", path] => report = Some(path.into()),
            other => return Err(format!("{:?} is not understood\n{USAGE}", other.join(" "))),
        }
    }
    Ok(Command::Serve { socket, report })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str, started: bool) -> Result<Command, String> {
        Command::parse(line.split_whitespace().map(str::to_owned), started)
    }

    #[test]
    fn without_arguments_it_serves_where_plugins_connect() {
        let socket = fairlead_nri::DEFAULT_SOCKET.into();
        assert_eq!(parse("", false), Ok(Command::Serve { socket, report: None }));
    }

    #[test]
    fn started_by_the_runtime_it_serves_what_it_was_given() {
        assert_eq!(parse("", true), Ok(Command::Started));
    }

    #[test]
    fn the_manifests_flags_are_understood() {
        let wanted = Command::Serve { socket: "/s".into(), report: Some("/r".into()) };
        assert_eq!(parse("--socket /s --report /r", false), Ok(wanted));
        assert_eq!(parse("wait --report /r", false), Ok(Command::Wait { report: "/r".into() }));
        assert_eq!(parse("install --to /p", false), Ok(Command::Install { folder: "/p".into() }));
        assert_eq!(parse("uninstall --from /p", false), Ok(Command::Uninstall { folder: "/p".into() }));
    }

    #[test]
    fn anything_else_is_named_in_the_answer() {
        for line in ["--help", "install", "install --from /p", "--socket", "serve"] {
            let answer = parse(line, false).unwrap_err();
            assert!(answer.contains("is not understood") && answer.contains("install --to"), "{answer}");
        }
    }
}
