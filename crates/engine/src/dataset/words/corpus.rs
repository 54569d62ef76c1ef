//! Reads a corpus and numbers its words by frequency.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::super::error::Result;
use super::super::pipe::StopSignal;
use super::super::source::Source;

/// The token that ends a line of text.
pub(super) const LINE_END: u32 = u32::MAX;

/// Words numbered in order of appearance, before they are renumbered by frequency.
pub(super) struct Corpus {
    numbers: HashMap<Box<[u8]>, u32>,
    counts: Vec<u64>,
    tokens: Vec<u32>,
    pub(super) raw_words: u64,
}

impl Corpus {
    pub(super) fn read(files: &[PathBuf]) -> Result<Self> {
        let mut corpus = Corpus { numbers: HashMap::new(), counts: Vec::new(), tokens: Vec::new(), raw_words: 0 };
        let (bytes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(StopSignal::default()));
        for file in files {
            let mut source = Source::open(file, None, &bytes, &stop)?;
            while let Some(lines) = source.next_lines()? {
                for line in lines.split_inclusive(|&b| b == b'\n') {
                    corpus.add_line(line);
                }
            }
        }
        Ok(corpus)
    }

    fn add_line(&mut self, line: &[u8]) {
        for word in line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
            let number = match self.numbers.get(word) {
                Some(&number) => number,
                None => {
                    let number = self.counts.len() as u32;
                    self.numbers.insert(word.into(), number);
                    self.counts.push(0);
                    number
                }
            };
            self.counts[number as usize] += 1;
            self.tokens.push(number);
            self.raw_words += 1;
        }
        self.tokens.push(LINE_END);
    }

    /// The words that occur at least `min_count` times, most frequent first (ties by spelling), their counts, and the text as
    /// word numbers.
    pub(super) fn number_by_frequency(mut self, min_count: u64) -> (Vec<String>, Vec<u64>, Vec<u32>) {
        let mut frequent: Vec<(Box<[u8]>, u32)> =
            self.numbers.drain().filter(|&(_, number)| self.counts[number as usize] >= min_count).collect();
        frequent.sort_by(|a, b| self.counts[b.1 as usize].cmp(&self.counts[a.1 as usize]).then_with(|| a.0.cmp(&b.0)));
        let mut renumbered = vec![None; self.counts.len()];
        for (rank, &(_, number)) in frequent.iter().enumerate() {
            renumbered[number as usize] = Some(rank as u32);
        }
        let counts = frequent.iter().map(|&(_, number)| self.counts[number as usize]).collect();
        self.tokens.retain_mut(|token| {
            if *token == LINE_END {
                return true;
            }
            match renumbered[*token as usize] {
                Some(rank) => {
                    *token = rank;
                    true
                }
                None => false,
            }
        });
        self.tokens.shrink_to_fit();
        let words = frequent.into_iter().map(|(word, _)| String::from_utf8_lossy(&word).into_owned()).collect();
        (words, counts, self.tokens)
    }
}
