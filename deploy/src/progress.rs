//! Says on standard error what is being done: a spinner on a terminal, a line per step elsewhere.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::ProgressBar;

/// Shows the steps of one command.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    terminal: bool,
}

impl Progress {
    /// Looks at what standard error is.
    pub fn auto() -> Self {
        Self { terminal: std::io::stderr().is_terminal() }
    }

    /// Begins a step, which is shown until [`Step::done`].
    pub fn step(self, title: &str) -> Step {
        let bar = if self.terminal { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        bar.set_message(title.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        Step { bar, title: title.to_owned(), started: Instant::now() }
    }

    /// Tells something that is not a step.
    pub fn note(self, text: &str) {
        eprintln!("{text}");
    }
}

/// A step that is under way.
pub struct Step {
    bar: ProgressBar,
    title: String,
    started: Instant,
}

impl Step {
    /// What the step waits for at the moment.
    pub fn detail(&self, text: &str) {
        self.bar.set_message(format!("{}: {text}", self.title));
    }

    /// Ends the step.
    pub fn done(self) {
        self.bar.finish_and_clear();
        eprintln!("{} ({:.1} s)", self.title, self.started.elapsed().as_secs_f32());
    }
}
