//! Unique names: `fc_0`, `fc_1`, ..., one counter a word.
//!
//! A second network built the same way under a fresh generator gets the same names, which is how a test program finds
//! the parameters that a training program left in the scope.

use std::collections::HashMap;

/// Counts how often each word was asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct NameGenerator {
    counters: HashMap<String, usize>,
}

impl NameGenerator {
    /// `word_N`, where N counts from 0 for each word.
    pub(crate) fn generate(&mut self, word: &str) -> String {
        let counter = self.counters.entry(word.to_owned()).or_insert(0);
        let name = format!("{word}_{counter}");
        *counter += 1;
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_counts_for_itself() {
        let mut names = NameGenerator::default();
        assert_eq!(names.generate("fc"), "fc_0");
        assert_eq!(names.generate("fc.w"), "fc.w_0");
        assert_eq!(names.generate("fc"), "fc_1");
    }
}
