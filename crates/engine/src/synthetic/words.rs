//! Text with known word similarities: sentences about topics, with word frequencies by Zipf's law.
//!
//! Words are numbered by frequency, `w0` being the most frequent. The first few can occur in every sentence (function words); the
//! others come in blocks of one word per topic. Every word of a block has a main topic and, with a smaller share, a second one;
//! within a block both are permutations of the topics. A sentence has one topic. Each of its words draws a rank by Zipf's law:
//! the rank chooses a function word or a block, and the topic chooses the word of the block. So frequency and meaning are
//! independent, and the similarity of two words is the cosine of their topic shares. Word vectors trained on this text should
//! rank pairs by it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::random::{Random, Zipf};
use super::{Result, TextFile, count_from, make_directory, push_decimal};

/// What to generate. `WordsSpec::default()` is a million words of text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WordsSpec {
    /// Length of the text in words.
    pub words: u64,
    /// The number of different words, rounded down to whole blocks; a short text does not use the rarest.
    pub vocabulary: u32,
    /// The number of topics.
    pub topics: u32,
    /// The number of word pairs that are listed with their similarity.
    pub pairs: usize,
    /// The seed that determines all of the data.
    pub seed: u64,
}

impl Default for WordsSpec {
    fn default() -> Self {
        WordsSpec { words: 1_000_000, vocabulary: 10_000, topics: 20, pairs: 1000, seed: 1 }
    }
}

/// What was generated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WordsSummary {
    /// The specification.
    pub spec: WordsSpec,
    /// The number of sentences in the text.
    pub sentences: u64,
    /// The number of words of the vocabulary that occur in the text.
    pub distinct_words: u64,
    /// `words.txt`: one sentence per line, words separated by blanks.
    pub text: PathBuf,
    /// The size of the text in bytes.
    pub bytes: u64,
    /// `pairs.tsv`: two words and their similarity from 0 to 1, the most similar first.
    pub pairs: PathBuf,
}

/// Writes `DIR/words.txt` and `DIR/pairs.tsv`, replacing files of these names, and returns a summary.
pub fn write(spec: &WordsSpec, directory: &Path) -> Result<WordsSummary> {
    let generator = WordsGenerator::new(spec)?;
    make_directory(directory)?;
    let mut file = TextFile::create(directory.join("words.txt"))?;
    let mut seen = vec![false; spec.vocabulary as usize];
    let (mut sentence, mut left, mut sentences) = (Vec::new(), spec.words, 0);
    while left > 0 {
        generator.sentence(sentences, &mut sentence);
        // The last sentence is cut at the end of the text.
        sentence.truncate(left.min(sentence.len() as u64) as usize);
        for (at, &word) in sentence.iter().enumerate() {
            if at > 0 {
                file.text.push(b' ');
            }
            push_word(&mut file.text, word);
            seen[word as usize] = true;
        }
        file.text.push(b'\n');
        file.line_done()?;
        left -= sentence.len() as u64;
        sentences += 1;
    }
    let (text, bytes) = file.finish()?;
    let mut file = TextFile::create(directory.join("pairs.tsv"))?;
    for (a, b, similarity) in generator.pairs() {
        push_word(&mut file.text, a);
        file.text.push(b'\t');
        push_word(&mut file.text, b);
        file.text.extend_from_slice(format!("\t{similarity:.4}\n").as_bytes());
        file.line_done()?;
    }
    let (pairs, _) = file.finish()?;
    let distinct_words = seen.iter().filter(|&&seen| seen).count() as u64;
    Ok(WordsSummary { spec: spec.clone(), sentences, distinct_words, text, bytes, pairs })
}

/// The topics of words: generates any sentence of the text, and knows the similarity of any two words.
#[derive(Debug, Clone)]
pub struct WordsGenerator {
    spec: WordsSpec,
    zipf: Zipf,
    /// One entry per content word.
    topic_mixtures: Vec<TopicMixture>,
    /// For each block and topic, the content word that has it as main topic.
    main: Vec<u32>,
    /// For each block and topic, the content word that has it as second topic.
    second: Vec<u32>,
}

/// The topics of a content word.
#[derive(Debug, Clone, Copy)]
struct TopicMixture {
    main_topic: u32,
    second_topic: u32,
    /// The main topic's share, from 0.5 to 1; the second has the rest.
    share: f64,
}

/// The most frequent words have no topic; with Zipf's law they are about a third of the text, as in English.
const FUNCTION_WORDS: u32 = 20;
/// The fraction of content words that ignore the topic of their sentence.
const NOISE: f64 = 0.1;
const ZIPF_EXPONENT: f64 = 1.05;
const ZIPF_SHIFT: f64 = 2.7;
const SHORTEST_SENTENCE: u64 = 6;
const LONGEST_SENTENCE: u64 = 30;
/// Pairs are drawn from this many of the most frequent content words, whose vectors see enough text to converge.
const PAIR_WORDS: u64 = 1000;

mod stream {
    pub(super) const MEANINGS: u64 = 101;
    pub(super) const SENTENCES: u64 = 102;
    pub(super) const PAIRS: u64 = 103;
}

impl WordsGenerator {
    /// Assigns topics to every word.
    pub fn new(spec: &WordsSpec) -> Result<Self> {
        count_from("words", 1, u64::MAX, spec.words)?;
        count_from("topics", 2, 10_000, spec.topics.into())?;
        let smallest = u64::from(FUNCTION_WORDS) + 4 * u64::from(spec.topics);
        count_from("vocabulary", smallest, 1 << 30, spec.vocabulary.into())?;
        count_from("pairs", 1, 100_000, spec.pairs as u64)?;
        let topics = spec.topics as usize;
        let blocks = ((spec.vocabulary - FUNCTION_WORDS) / spec.topics) as usize;
        let mut topic_mixtures = Vec::with_capacity(blocks * topics);
        let (mut main, mut second) = (vec![0; blocks * topics], vec![0; blocks * topics]);
        let mut order: Vec<u32> = (0..spec.topics).collect();
        for block in 0..blocks {
            let mut random = Random::at(spec.seed, stream::MEANINGS, block as u64);
            random.shuffle(&mut order);
            // The second topic is the main topic of another word, some positions further, and so never the word's own.
            let step = 1 + random.below(u64::from(spec.topics) - 1) as usize;
            for place in 0..topics {
                let word = FUNCTION_WORDS + (block * topics + place) as u32;
                let (main_topic, second_topic) = (order[place], order[(place + step) % topics]);
                main[block * topics + main_topic as usize] = word;
                second[block * topics + second_topic as usize] = word;
                topic_mixtures.push(TopicMixture { main_topic, second_topic, share: 0.5 + 0.5 * random.uniform() });
            }
        }
        let ranks = u64::from(FUNCTION_WORDS) + topic_mixtures.len() as u64;
        let zipf = Zipf::new(ranks, ZIPF_EXPONENT, ZIPF_SHIFT);
        Ok(WordsGenerator { spec: spec.clone(), zipf, topic_mixtures, main, second })
    }

    /// Writes the words of sentence `index` into `words` and returns its topic.
    pub fn sentence(&self, index: u64, words: &mut Vec<u32>) -> u32 {
        let mut random = Random::at(self.spec.seed, stream::SENTENCES, index);
        let topic = random.below(self.spec.topics.into()) as u32;
        let length = SHORTEST_SENTENCE + random.below(LONGEST_SENTENCE - SHORTEST_SENTENCE + 1);
        words.clear();
        words.extend((0..length).map(|_| {
            let rank = self.zipf.draw(&mut random) as u32;
            // A rank is itself a word whose topic is random within its block.
            if rank < FUNCTION_WORDS || random.uniform() < NOISE {
                rank
            } else {
                self.word_of_topic(topic, rank, &mut random)
            }
        }));
        topic
    }

    /// The cosine of two words' topic shares, from 0 to 1. A function word is similar only to itself.
    pub fn similarity(&self, a: u32, b: u32) -> f64 {
        match (self.topic_mixture(a), self.topic_mixture(b)) {
            _ if a == b => 1.0,
            (Some(a), Some(b)) => {
                let shares = |m: &TopicMixture| [(m.main_topic, m.share), (m.second_topic, 1.0 - m.share)];
                let mut product = 0.0;
                for (topic, share) in shares(a) {
                    product +=
                        shares(b).iter().filter(|other| other.0 == topic).map(|other| other.1 * share).sum::<f64>();
                }
                let square = |m: &TopicMixture| m.share * m.share + (1.0 - m.share) * (1.0 - m.share);
                product / (square(a) * square(b)).sqrt()
            }
            _ => 0.0,
        }
    }

    /// The listed pairs, most similar first. Half of them share a topic, because words drawn at random almost never do. A small
    /// vocabulary may have fewer pairs than requested.
    pub fn pairs(&self) -> Vec<(u32, u32, f64)> {
        let candidates = PAIR_WORDS.min(self.topic_mixtures.len() as u64);
        let (mut seen, mut pairs, mut alike) = (HashSet::new(), Vec::with_capacity(self.spec.pairs), 0);
        let mut random = Random::at(self.spec.seed, stream::PAIRS, 0);
        // Bounded, because a vocabulary may not have enough pairs, and some topics have few.
        for _ in 0..self.spec.pairs * 200 {
            if pairs.len() == self.spec.pairs {
                break;
            }
            let mut draw = || FUNCTION_WORDS + random.below(candidates) as u32;
            let (a, b) = (draw(), draw());
            let similarity = self.similarity(a, b);
            let wanted = similarity > 0.0 || pairs.len() - alike < self.spec.pairs / 2;
            if a != b && wanted && seen.insert((a.min(b), a.max(b))) {
                alike += usize::from(similarity > 0.0);
                pairs.push((a, b, similarity));
            }
        }
        pairs.sort_by(|left, right| right.2.total_cmp(&left.2));
        pairs
    }

    /// The specification of this generator.
    pub fn spec(&self) -> &WordsSpec {
        &self.spec
    }

    /// The word that a topic uses at a rank: in the rank's block, the word with this main topic or the one with this second
    /// topic, in proportion to their shares.
    fn word_of_topic(&self, topic: u32, rank: u32, random: &mut Random) -> u32 {
        let topics = self.spec.topics;
        let at = ((rank - FUNCTION_WORDS) / topics * topics + topic) as usize;
        let (main, second) = (self.main[at], self.second[at]);
        let share = |word: u32| self.topic_mixtures[(word - FUNCTION_WORDS) as usize].share;
        let (main_share, second_share) = (share(main), 1.0 - share(second));
        if random.uniform() * (main_share + second_share) < main_share { main } else { second }
    }

    fn topic_mixture(&self, word: u32) -> Option<&TopicMixture> {
        self.topic_mixtures.get(word.checked_sub(FUNCTION_WORDS)? as usize)
    }
}

fn push_word(text: &mut Vec<u8>, word: u32) {
    text.push(b'w');
    push_decimal(text, word.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use openfleet_core::Hinted;
    use std::collections::HashMap;

    fn small(seed: u64) -> WordsSpec {
        WordsSpec { words: 20_001, vocabulary: 520, topics: 10, pairs: 100, seed }
    }

    fn written(spec: &WordsSpec) -> (String, String, WordsSummary) {
        let directory = tempfile::tempdir().unwrap();
        let facts = write(spec, directory.path()).unwrap();
        (std::fs::read_to_string(&facts.text).unwrap(), std::fs::read_to_string(&facts.pairs).unwrap(), facts)
    }

    #[test]
    fn one_seed_is_always_the_same_text_and_another_seed_is_not() {
        let (text, pairs, _) = written(&small(1));
        assert!((text.as_str(), pairs.as_str()) == (&written(&small(1)).0, &written(&small(1)).1));
        let (other_text, other_pairs, _) = written(&small(2));
        assert!(text != other_text && pairs != other_pairs);
    }

    #[test]
    fn the_text_has_the_specified_number_of_words() {
        let (text, _, facts) = written(&small(3));
        let numbers: Vec<u32> =
            text.split_whitespace().map(|word| word.strip_prefix('w').unwrap().parse().unwrap()).collect();
        assert_eq!(numbers.len(), 20_001);
        assert!(numbers.iter().all(|&number| number < 520));
        assert_eq!(text.lines().count() as u64, facts.sentences);
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len() as u64, facts.distinct_words);
        assert_eq!(text.len() as u64, facts.bytes);
        assert!(text.lines().all(|line| line.split(' ').count() <= 30));
    }

    #[test]
    fn frequency_falls_with_the_number_of_a_word() {
        let (text, _, _) = written(&small(4));
        let mut counts = [0_u32; 520];
        text.split_whitespace().for_each(|word| counts[word[1..].parse::<usize>().unwrap()] += 1);
        let total = |range: std::ops::Range<usize>| counts[range].iter().sum::<u32>();
        assert!(counts[0] > counts[5] && counts[5] > counts[19]);
        assert!(total(20..30) > total(100..110) && total(100..110) > total(500..510));
        let function_share = f64::from(total(0..20)) / 20_001.0;
        assert!((0.25..0.6).contains(&function_share), "{function_share}");
    }

    #[test]
    fn words_of_one_topic_co_occur_more_often_than_words_of_two() {
        let spec = WordsSpec { words: 200_000, ..small(5) };
        let generator = WordsGenerator::new(&spec).unwrap();
        // How often two words share a sentence, relative to what their frequencies alone would give.
        let (mut together, mut alone) = (HashMap::<(u32, u32), f64>::new(), HashMap::<u32, f64>::new());
        let (mut sentence, sentences) = (Vec::new(), 10_000);
        for index in 0..sentences {
            generator.sentence(index, &mut sentence);
            let mut words: Vec<u32> = sentence.iter().copied().filter(|word| (20..120).contains(word)).collect();
            words.sort_unstable();
            words.dedup();
            for (at, &a) in words.iter().enumerate() {
                *alone.entry(a).or_default() += 1.0;
                words[at + 1..].iter().for_each(|&b| *together.entry((a, b)).or_default() += 1.0);
            }
        }
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for a in 20..120 {
            for b in a + 1..120 {
                let expected = alone[&a] * alone[&b] / sentences as f64;
                let lift = together.get(&(a, b)).copied().unwrap_or_default() / expected;
                let similarity = generator.similarity(a, b);
                if similarity > 0.8 {
                    near.push(lift);
                } else if similarity == 0.0 {
                    far.push(lift);
                }
            }
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        assert!(near.len() > 50 && far.len() > 50);
        assert!(mean(&near) > 4.0 * mean(&far), "near {}, far {}", mean(&near), mean(&far));
    }

    #[test]
    fn words_with_similar_contexts_have_a_high_true_similarity() {
        // Count-based vectors: positive pointwise mutual information within 5 words, the matrix that skip-gram with negative
        // sampling factorises (Levy and Goldberg 2014). Their cosines should rank pairs as the true similarity does.
        let generator = WordsGenerator::new(&WordsSpec { pairs: 400, ..small(8) }).unwrap();
        let n = 520;
        let (mut counts, mut sentence) = (vec![0.0_f64; n * n], Vec::new());
        for index in 0..15_000 {
            generator.sentence(index, &mut sentence);
            for (at, &a) in sentence.iter().enumerate() {
                for &b in &sentence[at.saturating_sub(5)..at] {
                    counts[a as usize * n + b as usize] += 1.0;
                    counts[b as usize * n + a as usize] += 1.0;
                }
            }
        }
        let rows: Vec<f64> = counts.chunks(n).map(|row| row.iter().sum()).collect();
        let total: f64 = rows.iter().sum();
        let vector = |a: u32| -> Vec<f64> {
            let row = &counts[a as usize * n..(a as usize + 1) * n];
            let lift = |b: usize| row[b] * total / (rows[a as usize] * rows[b]);
            (0..n).map(|b| if row[b] > 0.0 { lift(b).ln().max(0.0) } else { 0.0 }).collect()
        };
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let pairs = generator.pairs();
        let found = pairs.iter().map(|&(a, b, _)| (vector(a), vector(b)));
        let found: Vec<f64> = found.map(|(a, b)| dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt()).collect();
        let truth: Vec<f64> = pairs.iter().map(|pair| pair.2).collect();
        let spearman = correlation(&ranks(&found), &ranks(&truth));
        assert!(spearman > 0.8, "{spearman}");
    }

    /// Ranks from 0; ties share their mean rank.
    fn ranks(values: &[f64]) -> Vec<f64> {
        let below = |value: f64| values.iter().filter(|&&other| other < value).count() as f64;
        let equal = |value: f64| values.iter().filter(|&&other| other == value).count() as f64;
        values.iter().map(|&value| below(value) + (equal(value) - 1.0) / 2.0).collect()
    }

    fn correlation(x: &[f64], y: &[f64]) -> f64 {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (mx, my) = (mean(x), mean(y));
        let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
        for (x, y) in x.iter().zip(y) {
            xy += (x - mx) * (y - my);
            xx += (x - mx) * (x - mx);
            yy += (y - my) * (y - my);
        }
        xy / (xx * yy).sqrt()
    }

    #[test]
    fn similarity_is_reflexive_symmetric_and_zero_without_a_common_topic() {
        let generator = WordsGenerator::new(&small(6)).unwrap();
        for a in 0..520 {
            assert_eq!(generator.similarity(a, a), 1.0);
            for b in (0..520).step_by(7) {
                let similarity = generator.similarity(a, b);
                assert!((0.0..=1.0 + 1e-12).contains(&similarity));
                assert!((similarity - generator.similarity(b, a)).abs() < 1e-12);
            }
        }
        assert_eq!(generator.similarity(0, 1), 0.0);
        let (first, second) = (generator.topic_mixtures[0], generator.topic_mixtures[1]);
        let share = first.main_topic == second.second_topic || first.second_topic == second.main_topic;
        assert_eq!(generator.similarity(FUNCTION_WORDS, FUNCTION_WORDS + 1) > 0.0, share);
    }

    #[test]
    fn half_the_pairs_share_a_topic_and_they_come_most_similar_first() {
        let (_, pairs, _) = written(&small(7));
        let lines: Vec<Vec<&str>> = pairs.lines().map(|line| line.split('\t').collect()).collect();
        let similarities: Vec<f64> = lines.iter().map(|line| line[2].parse().unwrap()).collect();
        assert_eq!(lines.len(), 100);
        assert!(similarities.is_sorted_by(|left, right| left >= right));
        assert!((40..=60).contains(&similarities.iter().filter(|&&similarity| similarity == 0.0).count()));
        assert!(lines.iter().all(|line| line[0] != line[1] && line[0].starts_with('w')));
    }

    #[test]
    fn impossible_specifications_are_refused_with_a_hint() {
        for spec in [
            WordsSpec { words: 0, ..small(1) },
            WordsSpec { topics: 1, ..small(1) },
            WordsSpec { vocabulary: 59, ..small(1) },
            WordsSpec { pairs: 0, ..small(1) },
        ] {
            assert!(WordsGenerator::new(&spec).unwrap_err().hint().is_some());
        }
        WordsGenerator::new(&WordsSpec { vocabulary: 60, ..small(1) }).unwrap();
    }
}
