//! Unique names: `fc_0`, `fc_1`, ..., with one counter per word.
//!
//! A second network that is built the same way with a new generator gets the same names. That is how a test program finds the
//! parameters of a training program in the scope.

use std::collections::HashMap;

/// Counts the names generated per word.
#[derive(Debug, Clone, Default)]
pub(crate) struct NameGenerator {
    counters: HashMap<String, usize>,
}

impl NameGenerator {
    /// Returns `word_N`, where N counts from 0 per word.
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
    fn each_word_has_its_own_counter() {
        let mut names = NameGenerator::default();
        assert_eq!(names.generate("fc"), "fc_0");
        assert_eq!(names.generate("fc.w"), "fc.w_0");
        assert_eq!(names.generate("fc"), "fc_1");
    }
}
