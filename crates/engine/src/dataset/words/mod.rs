//! Text for Word2Vec: a corpus in memory, read as centre words with their contexts and negative samples.
//!
//! A row of a batch is one centre word: the slot `context` has the words around it, `target` the word itself followed by the
//! negatives. A batch covers a fixed span of the corpus, and every random choice (which words subsampling drops, how wide a
//! window is, which negatives are drawn) is a function of seed, pass and position. So any thread can make any batch in any order,
//! windows reach across the borders of batches, and a run can be repeated.
//!
//! Words are numbered by frequency, most frequent first. Frequent words are dropped with the probability of Mikolov et al. 2013,
//! as the original word2vec program computes it; negatives are drawn from counts to the power 0.75.

mod corpus;
mod negatives;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use openfleet_core::key::mix;
use openfleet_core::{Batch, Column, Field, FieldKind, Schema};

use self::corpus::{Corpus, LINE_END};
use self::negatives::{NegativeSampler, SpanRandom};
use super::config::check_files;
use super::error::{Error, Result};
use super::{BatchReader, Dataset, Progress, prepare};

/// How a corpus is read.
#[derive(Debug, Clone)]
pub struct WordsConfig {
    /// Plain, gzip or zstd text: words separated by blanks, one sentence or article per line.
    pub files: Vec<PathBuf>,
    /// Words with fewer occurrences are dropped.
    pub min_count: u64,
    /// The maximum number of words to the left and to the right; the width of each window is drawn from 1 to this.
    pub window: usize,
    /// Negative samples per centre word.
    pub negatives: usize,
    /// The fraction of the corpus above which a word counts as frequent and is sometimes dropped; 0 drops none.
    pub subsample: f64,
    /// Average number of centre words per batch.
    pub batch_size: usize,
    /// Training threads.
    pub thread_num: usize,
    /// The seed of every random choice.
    pub seed: u64,
    /// Which worker this is, and how many there are. All of them read the same files and number the same words, and each trains
    /// on the batches of its part of the text. Together these are the batches of one process with the same seed.
    pub part: (usize, usize),
}

impl Default for WordsConfig {
    fn default() -> Self {
        WordsConfig {
            files: Vec::new(),
            min_count: 5,
            window: 5,
            negatives: 5,
            subsample: 1e-4,
            batch_size: 256,
            thread_num: 1,
            seed: 0,
            part: (0, 1),
        }
    }
}

/// A corpus in memory.
pub struct WordsDataset {
    config: WordsConfig,
    schema: Schema,
    words: Vec<String>,
    counts: Vec<u64>,
    /// Word numbers in the order of the text, with `LINE_END` between lines: this worker's part, and what its windows see around
    /// it.
    tokens: Vec<u32>,
    /// The position of the first token in the whole text.
    first: usize,
    /// The positions in the whole text that this worker trains on: whole batches.
    own_range: std::ops::Range<usize>,
    /// The number of tokens in the parts of all workers.
    all_tokens: usize,
    raw_words: u64,
    /// A word is kept if 32 random bits are below this.
    keep_below: Vec<u64>,
    negatives: NegativeSampler,
    /// Tokens per batch.
    span: usize,
    passes: AtomicU64,
}

/// Among this many tokens, subsampling keeps at least a few.
const TOKENS_PER_WINDOW_WORD: usize = 1000;

impl WordsDataset {
    /// Reads and numbers the words of all files. Fails if a setting is out of range or a file cannot be read.
    pub fn load(config: WordsConfig) -> Result<Self> {
        for (name, value) in [("batch_size", config.batch_size), ("window", config.window)] {
            if value == 0 {
                return Err(Error::BadSetting { name, expected: "at least 1", got: value.to_string() });
            }
        }
        if !(0.0..=1.0).contains(&config.subsample) {
            let (expected, got) = ("a fraction of the text, from 0 to 1", config.subsample.to_string());
            return Err(Error::BadSetting { name: "subsample", expected, got });
        }
        if config.files.is_empty() {
            return Err(Error::EmptyFileList);
        }
        check_files(&config.files)?;
        let corpus = Corpus::read(&config.files)?;
        let raw_words = corpus.raw_words;
        let (words, counts, mut tokens) = corpus.number_by_frequency(config.min_count);
        if words.is_empty() {
            return Err(Error::BadSetting {
                name: "min_count",
                expected: "low enough to keep some words of the corpus",
                got: config.min_count.to_string(),
            });
        }
        let total: u64 = counts.iter().sum();
        let keep_share = |count: u64| {
            if config.subsample <= 0.0 {
                return 1.0;
            }
            let threshold = config.subsample * total as f64;
            ((count as f64 / threshold).sqrt() + 1.0) * threshold / count as f64
        };
        let keep_below = counts.iter().map(|&c| (keep_share(c).min(1.0) * (1u64 << 32) as f64) as u64).collect();
        let kept: f64 = counts.iter().map(|&c| keep_share(c).min(1.0) * c as f64).sum();
        let span = (config.batch_size as f64 * tokens.len() as f64 / kept.max(1.0)).ceil().max(1.0) as usize;
        // From here on only this worker's part is needed.
        let (worker, workers) = (config.part.0, config.part.1.max(1));
        let all_tokens = tokens.len();
        let batches = all_tokens.div_ceil(span);
        let bound = |part: usize| (batches as u128 * part.min(workers) as u128 / workers as u128) as usize * span;
        let own_range = bound(worker).min(all_tokens)..bound(worker + 1).min(all_tokens);
        let words_before = |at: usize| (u128::from(raw_words) * at as u128 / all_tokens.max(1) as u128) as u64;
        let raw_words = words_before(own_range.end) - words_before(own_range.start);
        // Windows reach into the parts of other workers, up to the end of the line.
        let reach = config.window.saturating_mul(TOKENS_PER_WINDOW_WORD);
        let ends = |&&token: &&u32| token != LINE_END;
        let before = tokens[..own_range.start].iter().rev().take_while(ends).take(reach).count();
        let after = tokens[own_range.end..].iter().take_while(ends).take(reach).count();
        tokens.truncate(own_range.end + after);
        let first = own_range.start - before;
        tokens.drain(..first);
        tokens.shrink_to_fit();
        let schema = Schema::new(vec![
            Field::new("context", FieldKind::Ids),
            Field::new("target", FieldKind::FixedIds { length: 1 + config.negatives }),
        ])
        .unwrap_or_else(|_| unreachable!("the two names differ"));
        let negatives = NegativeSampler::new(&counts);
        let passes = AtomicU64::new(0);
        Ok(WordsDataset {
            config,
            schema,
            words,
            counts,
            tokens,
            first,
            own_range,
            all_tokens,
            raw_words,
            keep_below,
            negatives,
            span,
            passes,
        })
    }

    /// The vocabulary, most frequent word first: word i is key i.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// How often each word occurs.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Words in this worker's part of the text, including dropped ones. The parts add up to the whole.
    pub fn raw_words(&self) -> u64 {
        self.raw_words
    }

    /// Batches in a pass over this worker's part.
    pub fn batches(&self) -> u64 {
        self.own_range.len().div_ceil(self.span) as u64
    }

    /// Batches in a pass over the parts of all workers; the same number on every worker.
    pub fn batches_of_all(&self) -> u64 {
        self.all_tokens.div_ceil(self.span) as u64
    }
}

impl Dataset for WordsDataset {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn batch_size(&self) -> usize {
        self.config.batch_size
    }

    fn thread_num(&self) -> usize {
        self.config.thread_num
    }

    fn rows(&self) -> Option<usize> {
        None
    }

    fn describe(&self) -> String {
        let WordsConfig { batch_size, window, negatives, seed, .. } = &self.config;
        let (words, (part, parts)) = (self.raw_words, self.config.part);
        format!(
            "batches of {batch_size} from part {part} of {parts} of {words} words, window {window}, {negatives} negatives, seed {seed}"
        )
    }

    fn skip_pass(&self) {
        self.passes.fetch_add(1, Ordering::Relaxed);
    }

    fn open(&self) -> Result<Box<dyn BatchReader + '_>> {
        let pass = self.passes.fetch_add(1, Ordering::Relaxed);
        let seed = mix(self.config.seed ^ mix(pass.wrapping_add(1)));
        Ok(Box::new(WordsReader { dataset: self, seed, cursor: AtomicUsize::new(self.own_range.start) }))
    }
}

/// One pass over the corpus.
struct WordsReader<'a> {
    dataset: &'a WordsDataset,
    seed: u64,
    /// The position in the whole text at which the next batch begins.
    cursor: AtomicUsize,
}

impl BatchReader for WordsReader<'_> {
    fn next(&self, batch: &mut Batch) -> Result<bool> {
        prepare(batch, &self.dataset.schema);
        let own_range = &self.dataset.own_range;
        // A span may contain only dropped words: continue until a batch has a row.
        while batch.rows == 0 {
            let start = self.cursor.fetch_add(self.dataset.span, Ordering::Relaxed);
            if start >= own_range.end {
                return Ok(false);
            }
            self.fill(start..(start + self.dataset.span).min(own_range.end), batch);
        }
        Ok(true)
    }

    /// Counted in words of the text, as users do.
    fn progress(&self) -> Progress {
        let own_range = &self.dataset.own_range;
        let total = own_range.len().max(1);
        let done = (self.cursor.load(Ordering::Relaxed) - own_range.start).min(total);
        let rows = (done as f64 / total as f64 * self.dataset.raw_words as f64) as u64;
        Progress { rows, total_rows: Some(self.dataset.raw_words), ..Progress::default() }
    }
}

impl WordsReader<'_> {
    /// The word at a position of the whole text, or the end of a line.
    #[inline]
    fn token(&self, at: usize) -> u32 {
        self.dataset.tokens[at - self.dataset.first]
    }

    /// The word at a position, unless subsampling drops it in this pass.
    #[inline]
    fn token_if_kept(&self, at: usize) -> Option<u32> {
        let word = self.token(at);
        let keep_below = self.dataset.keep_below.get(word as usize)?;
        (mix(self.seed ^ at as u64) >> 32 < *keep_below).then_some(word)
    }

    fn fill(&self, span: std::ops::Range<usize>, batch: &mut Batch) {
        let dataset = self.dataset;
        let (window, negatives) = (dataset.config.window, dataset.config.negatives);
        let mut line = Vec::with_capacity(span.len() + 2 * window);
        let [Column::Ids { offsets, keys: contexts }, Column::Ids { offsets: target_offsets, keys: targets }] =
            batch.columns.as_mut_slice()
        else {
            unreachable!("a words batch has two slots")
        };
        let mut at = span.start;
        while at < span.end {
            // The kept words of this line within the span, and up to a window of kept words on either side.
            let end = (at..span.end).find(|&i| self.token(i) == LINE_END).unwrap_or(span.end);
            line.clear();
            let before = (dataset.first..at).rev().take_while(|&i| self.token(i) != LINE_END);
            line.extend(before.filter_map(|i| self.token_if_kept(i)).take(window));
            line.reverse();
            let first = line.len();
            line.extend((at..end).filter_map(|i| self.token_if_kept(i)));
            let last = line.len();
            let after = (end..dataset.first + dataset.tokens.len()).take_while(|&i| self.token(i) != LINE_END);
            line.extend(after.filter_map(|i| self.token_if_kept(i)).take(window));
            let mut random = SpanRandom(mix(self.seed ^ !(at as u64)));
            for centre in first..last {
                let width = 1 + random.below(window as u64) as usize;
                let around = centre.saturating_sub(width)..(centre + width + 1).min(line.len());
                if around.len() == 1 {
                    continue;
                }
                contexts.extend(around.filter(|&i| i != centre).map(|i| u64::from(line[i])));
                offsets.push(contexts.len() as u32);
                targets.push(u64::from(line[centre]));
                for _ in 0..negatives {
                    targets.push(u64::from(dataset.negatives.draw(line[centre], &mut random)));
                }
                target_offsets.push(targets.len() as u32);
                batch.rows += 1;
            }
            at = end + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(text: &str, config: WordsConfig) -> WordsDataset {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        WordsDataset::load(WordsConfig { files: vec![file.path().to_owned()], ..config }).unwrap()
    }

    fn rows(dataset: &WordsDataset) -> Vec<(Vec<u64>, Vec<u64>)> {
        let reader = dataset.open().unwrap();
        let mut batch = Batch::default();
        let mut rows = Vec::new();
        while reader.next(&mut batch).unwrap() {
            let [Column::Ids { offsets, keys }, Column::Ids { offsets: target_offsets, keys: targets }] =
                batch.columns.as_slice()
            else {
                unreachable!()
            };
            for row in 0..batch.rows {
                let context = keys[offsets[row] as usize..offsets[row + 1] as usize].to_vec();
                let target = targets[target_offsets[row] as usize..target_offsets[row + 1] as usize].to_vec();
                rows.push((context, target));
            }
        }
        rows
    }

    #[test]
    fn workers_number_the_same_words_and_share_the_text() {
        let text = "a b c a b a d a c\n".repeat(50);
        let config = WordsConfig { min_count: 1, subsample: 0.01, batch_size: 13, ..WordsConfig::default() };
        let whole = corpus(&text, config.clone());
        let parts: Vec<_> =
            (0..3).map(|part| corpus(&text, WordsConfig { part: (part, 3), ..config.clone() })).collect();
        assert!(parts.iter().all(|part| part.words == whole.words && part.counts == whole.counts));
        for pass in 0..2 {
            let joined: Vec<_> = parts.iter().flat_map(rows).collect();
            assert_eq!(joined, rows(&whole), "pass {pass}: the windows at the borders too");
        }
        assert_eq!(parts.iter().map(WordsDataset::raw_words).sum::<u64>(), 450);
        assert_eq!(parts.iter().map(WordsDataset::batches).sum::<u64>(), whole.batches());
        assert!(parts.iter().all(|part| part.batches_of_all() == whole.batches()));
    }

    #[test]
    fn a_subsample_outside_0_to_1_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a b\n").unwrap();
        for subsample in [f64::NAN, -1.0, 2.0] {
            let config = WordsConfig { files: vec![file.path().to_owned()], subsample, ..WordsConfig::default() };
            let error = WordsDataset::load(config).err().unwrap().to_string();
            assert!(error.starts_with("`subsample`: expected a fraction of the text, from 0 to 1, got"), "{error}");
        }
    }

    #[test]
    fn words_are_numbered_by_frequency_and_rare_ones_dropped() {
        let dataset = corpus("b a a\nb a c\n", WordsConfig { min_count: 2, ..WordsConfig::default() });
        assert_eq!(dataset.words(), ["a", "b"]);
        assert_eq!(dataset.counts(), [3, 2]);
        assert_eq!(dataset.raw_words(), 6);
    }

    #[test]
    fn a_window_of_one_gives_each_word_its_neighbours_and_stops_at_the_line() {
        let config = WordsConfig { min_count: 1, window: 1, negatives: 2, subsample: 0.0, ..WordsConfig::default() };
        // a: 3, b: 2, c: 1 -> numbers 0, 1, 2.
        for batch_size in [1, 2, 100] {
            let dataset = corpus("a b c\na b\na\n", WordsConfig { batch_size, ..config.clone() });
            let rows = rows(&dataset);
            let pairs: Vec<(Vec<u64>, u64)> = rows.iter().map(|(c, t)| (c.clone(), t[0])).collect();
            let expected = [(vec![1], 0), (vec![0, 2], 1), (vec![1], 2), (vec![1], 0), (vec![0], 1)]
                .map(|(c, t): (Vec<u64>, u64)| (c, t));
            assert_eq!(pairs, expected, "whatever span a batch covers");
            assert!(
                rows.iter().all(|(_, t)| t.len() == 3 && !t[1..].contains(&t[0])),
                "negatives differ from the word"
            );
        }
    }

    #[test]
    fn negatives_follow_the_counts_to_the_power_of_three_quarters() {
        let negatives = NegativeSampler::new(&[10_000, 16, 1]);
        let mut drawn = [0u32; 3];
        let mut random = SpanRandom(1);
        for _ in 0..1_000_000 {
            drawn[negatives.draw(99, &mut random) as usize] += 1;
        }
        let total = 1000.0 + 8.0 + 1.0;
        for (drawn, weight) in drawn.iter().zip([1000.0, 8.0, 1.0]) {
            let expected = 1e6 * weight / total;
            assert!((f64::from(*drawn) - expected).abs() < 5.0 * expected.sqrt(), "{drawn} against {expected}");
        }
    }

    #[test]
    fn subsampling_keeps_rare_words_and_the_right_share_of_frequent_ones() {
        let mut text = String::new();
        for i in 0..20_000 {
            text.push_str("the ");
            if i % 100 == 0 {
                text.push_str("rare ");
            }
        }
        let dataset = corpus(&text, WordsConfig { subsample: 0.01, ..WordsConfig::default() });
        let rows = rows(&dataset);
        let count = |word: u64| rows.iter().filter(|(_, t)| t[0] == word).count() as f64;
        assert_eq!(count(1), 200.0);
        let (n, t) = (20_000.0_f64, 0.01 * 20_200.0);
        let expected = ((n / t).sqrt() + 1.0) * t / n * n;
        assert!((count(0) - expected).abs() < 5.0 * expected.sqrt(), "{} against {expected}", count(0));
    }

    #[test]
    fn two_passes_draw_differently_and_a_second_corpus_of_the_same_seed_repeats_them() {
        let text = "a b c d e f g h i j k l m n o p\n".repeat(20);
        let config = WordsConfig { seed: 7, subsample: 0.0, ..WordsConfig::default() };
        let (one, two) = (corpus(&text, config.clone()), corpus(&text, config));
        let (first, second) = (rows(&one), rows(&one));
        assert_ne!(first, second);
        assert_eq!(first, rows(&two));
        assert_eq!(second, rows(&two));
    }
}
