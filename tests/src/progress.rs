//! Shows how far a long operation is: bars on a terminal, one plain line per stage elsewhere.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Where progress goes.
#[derive(Clone, Debug)]
pub struct Progress {
    bars: MultiProgress,
    lines: bool,
}

impl Progress {
    /// Bars if standard error is a terminal, else lines on it.
    pub fn auto() -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { bars: bars(terminal), lines: !terminal }
    }

    /// Nothing is shown.
    pub fn silent() -> Self {
        Self { bars: bars(false), lines: false }
    }

    /// Starts a stage that is shown until [`Stage::done`].
    pub fn stage(&self, title: impl Into<String>) -> Stage {
        let title = title.into();
        let bar = self.bars.add(ProgressBar::new_spinner());
        bar.set_style(style("{spinner} {msg} {elapsed:.dim}"));
        bar.set_message(title.clone());
        bar.enable_steady_tick(Duration::from_millis(120));
        Stage { bar, title, started: Instant::now(), lines: self.lines }
    }

    /// A stage that takes minutes: without a terminal it is announced at its start too.
    pub fn long_stage(&self, title: impl Into<String>) -> Stage {
        let stage = self.stage(title);
        if self.lines {
            eprintln!("{} ...", stage.title);
        }
        stage
    }
}

fn bars(visible: bool) -> MultiProgress {
    let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    MultiProgress::with_draw_target(target)
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// One stage; dropping it without [`Stage::done`] removes it.
#[derive(Debug)]
pub struct Stage {
    bar: ProgressBar,
    title: String,
    started: Instant,
    lines: bool,
}

impl Stage {
    /// From now on shows a bar of `total` steps.
    pub fn total(&self, total: u64) {
        self.bar.set_length(total);
        self.bar.set_style(style("{spinner} {msg} [{bar:30}] {pos}/{len} {elapsed:.dim}"));
    }

    /// One more step is done.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// Says what is being done right now.
    pub fn detail(&self, detail: &str) {
        self.bar.set_message(format!("{}: {detail}", self.title));
    }

    /// Ends the stage.
    pub fn done(self) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.bar.set_style(style("✓ {msg}"));
        self.bar.finish_with_message(format!("{} ({seconds:.1} s)", self.title));
        if self.lines {
            eprintln!("{} ({seconds:.1} s)", self.title);
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.bar.is_finished() {
            self.bar.finish_and_clear();
        }
    }
}
