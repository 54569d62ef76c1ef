//! The progress of the run and its newest checkpoint, as servers report them: what a restarted server loads, and how much work
//! is repeated.
//!
//! The launcher does not read checkpoints; it only passes on an address.

use crate::cli::output::count;
use crate::progress::Progress;

/// The progress of the run and its newest checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Position {
    /// The newest checkpoint that the run has committed. Kept across restarts.
    checkpoint: Option<Checkpoint>,
    /// The step that the servers have reached since they started.
    step: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Checkpoint {
    address: String,
    step: Option<u64>,
}

impl Position {
    /// Takes in a server's report. The checkpoint with the largest step is kept; for equal steps, the later report.
    pub(crate) fn note(&mut self, progress: &Progress) {
        self.step = self.step.max(progress.step);
        let Some(address) = progress.checkpoint.clone().filter(|address| !address.is_empty()) else { return };
        let reported = Checkpoint { address, step: progress.checkpoint_step };
        if self.checkpoint.as_ref().is_none_or(|known| reported.step >= known.step) {
            self.checkpoint = Some(reported);
        }
    }

    /// The checkpoint that a restarted server loads.
    pub(crate) fn resume(&self) -> Option<&str> {
        self.checkpoint.as_ref().map(|checkpoint| checkpoint.address.as_str())
    }

    /// Servers restart: their step is unknown until they report it.
    pub(crate) fn return_to_checkpoint(&mut self) {
        self.step = None;
    }

    /// Where a job that restarts now resumes, and how much it repeats: "from checkpoint `model` of step 120; 35 steps are
    /// repeated".
    pub(crate) fn describe(&self) -> String {
        let (from, at) = match &self.checkpoint {
            Some(Checkpoint { address, step: Some(step) }) => {
                (format!("from checkpoint `{address}` of step {}", count(*step)), Some(*step))
            }
            Some(Checkpoint { address, step: None }) => (format!("from checkpoint `{address}`"), None),
            None => ("from the beginning: this run has no checkpoint".to_owned(), Some(0)),
        };
        let repeated = match self.step.zip(at).map(|(reached, at)| reached.saturating_sub(at)) {
            None => String::new(),
            Some(0) => "; nothing is repeated".to_owned(),
            Some(1) => "; 1 step is repeated".to_owned(),
            Some(steps) => format!("; {} steps are repeated", count(steps)),
        };
        from + &repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(checkpoint: Option<(&str, u64)>, step: u64) -> Progress {
        let address = checkpoint.map(|(address, _)| address.to_owned());
        let checkpoint_step = checkpoint.map(|(_, step)| step);
        Progress { checkpoint: address, checkpoint_step, step: Some(step), ..Progress::default() }
    }

    #[test]
    fn a_return_says_from_where_and_how_much_is_repeated() {
        let mut position = Position::default();
        assert_eq!(position.describe(), "from the beginning: this run has no checkpoint");
        position.note(&report(None, 155));
        assert_eq!(position.describe(), "from the beginning: this run has no checkpoint; 155 steps are repeated");
        position.note(&report(Some(("model", 120)), 150));
        assert_eq!(position.describe(), "from checkpoint `model` of step 120; 35 steps are repeated");
        position.note(&report(Some(("model", 154)), 155));
        assert_eq!(position.describe(), "from checkpoint `model` of step 154; 1 step is repeated");
        position.note(&report(Some(("model", 155)), 155));
        assert_eq!(position.describe(), "from checkpoint `model` of step 155; nothing is repeated");
        position.return_to_checkpoint();
        assert_eq!(
            position.describe(),
            "from checkpoint `model` of step 155",
            "how far the servers are is not known yet"
        );
    }

    #[test]
    fn the_checkpoint_of_the_largest_step_is_kept_over_restarts() {
        let mut position = Position::default();
        assert_eq!(position.resume(), None);
        position.note(&report(Some(("late", 20)), 25));
        position.note(&report(Some(("early", 10)), 26));
        assert_eq!(position.resume(), Some("late"), "a server that reports late");
        position.return_to_checkpoint();
        position.note(&Progress::default());
        position.note(&report(None, 3));
        assert_eq!(position.resume(), Some("late"), "restarted servers have not saved yet");
        position.note(&report(Some(("later", 20)), 20));
        assert_eq!(position.resume(), Some("later"));
    }

    #[test]
    fn a_checkpoint_without_a_step_is_better_than_none() {
        let mut position = Position::default();
        let unnumbered = Progress { checkpoint: Some("model".into()), step: Some(7), ..Progress::default() };
        position.note(&unnumbered);
        assert_eq!(position.describe(), "from checkpoint `model`");
        position.note(&report(Some(("numbered", 1)), 7));
        position.note(&unnumbered);
        assert_eq!(position.resume(), Some("numbered"));
        position.note(&Progress { checkpoint: Some(String::new()), checkpoint_step: Some(9), ..Progress::default() });
        assert_eq!(position.resume(), Some("numbered"), "an empty address is none");
    }
}
