//! `openfleet gen`: synthetic data with a known best result.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use openfleet_engine::synthetic::{self, CriteoFormat, CriteoSpec, WordsSpec};
use serde::Serialize;

use super::output::{bytes, count, result};
use crate::error::{Error, Result};

/// `openfleet gen ...`.
#[derive(Debug, Args)]
pub(crate) struct GenArgs {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// Click logs in the shape of Criteo's: DIR/train, DIR/test, and DIR/meta.json with the facts.
    Criteo(CriteoArgs),
    /// Text about topics: DIR/words.txt, DIR/pairs.tsv with the true similarities, and DIR/meta.json.
    Words(WordsArgs),
}

#[derive(Debug, Args)]
struct CriteoArgs {
    /// Training rows.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Test rows.
    #[arg(long, default_value_t = 100_000)]
    test_rows: u64,
    /// Distinct ids over all slots.
    #[arg(long, default_value_t = 1_000_000)]
    ids: u64,
    /// Random seed: equal seeds give equal files.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory to write to.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Files per split (train, test).
    #[arg(long, default_value_t = 8)]
    parts: usize,
    /// AUC of the true model: no trained model beats it, except by chance.
    #[arg(long, default_value_t = 0.80)]
    auc: f64,
    /// Share of rows with a click.
    #[arg(long, default_value_t = 0.25)]
    click_rate: f64,
    /// Formats to write: part-K.txt (multislot), part-K.tsv (criteo).
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [TextFormat::Multislot, TextFormat::Criteo])]
    formats: Vec<TextFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TextFormat {
    Multislot,
    Criteo,
}

#[derive(Debug, Args)]
struct WordsArgs {
    /// Length of the text in words.
    #[arg(long, default_value_t = 1_000_000)]
    words: u64,
    /// Distinct words.
    #[arg(long, default_value_t = 10_000)]
    vocabulary: u32,
    /// Topics of the sentences.
    #[arg(long, default_value_t = 20)]
    topics: u32,
    /// Word pairs listed with their true similarity.
    #[arg(long, default_value_t = 1000)]
    pairs: usize,
    /// Random seed: equal seeds give equal files.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory to write to.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn run(arguments: &GenArgs) -> Result<()> {
    match &arguments.kind {
        Kind::Criteo(arguments) => criteo(arguments),
        Kind::Words(arguments) => words(arguments),
    }
}

fn criteo(arguments: &CriteoArgs) -> Result<()> {
    let spec = CriteoSpec {
        rows: arguments.rows,
        test_rows: arguments.test_rows,
        ids: arguments.ids,
        seed: arguments.seed,
        parts: arguments.parts,
        formats: (arguments.formats.iter())
            .map(|format| match format {
                TextFormat::Multislot => CriteoFormat::MultiSlot,
                TextFormat::Criteo => CriteoFormat::Tsv,
            })
            .collect(),
        auc: arguments.auc,
        click_rate: arguments.click_rate,
    };
    let mut facts = synthetic::criteo::write(&spec, &arguments.out)?;
    for (name, split) in [("train", &mut facts.train), ("test", &mut facts.test)] {
        result(&format!(
            "{name}: {} rows, click rate {:.4}, {} files, {}",
            count(split.rows),
            split.click_rate,
            split.files.len(),
            bytes(split.bytes),
        ));
        // Paths in `meta.json` are relative to it, so that the directory can be moved.
        split.files.iter_mut().for_each(|file| *file = relative(file, &arguments.out));
    }
    result(&format!(
        "Bayes AUC {:.4}, Bayes logloss {:.4}: no model does better on the test rows, except by chance",
        facts.bayes_auc, facts.bayes_logloss
    ));
    write_meta(&arguments.out, &facts)
}

fn words(arguments: &WordsArgs) -> Result<()> {
    let spec = WordsSpec {
        words: arguments.words,
        vocabulary: arguments.vocabulary,
        topics: arguments.topics,
        pairs: arguments.pairs,
        seed: arguments.seed,
    };
    let mut facts = synthetic::words::write(&spec, &arguments.out)?;
    result(&format!(
        "{}: {} words in {} sentences, {} distinct, {}",
        facts.text.display(),
        count(spec.words),
        count(facts.sentences),
        count(facts.distinct_words),
        bytes(facts.bytes),
    ));
    result(&format!("{}: word pairs with their true similarity", facts.pairs.display()));
    facts.text = relative(&facts.text, &arguments.out);
    facts.pairs = relative(&facts.pairs, &arguments.out);
    write_meta(&arguments.out, &facts)
}

fn relative(file: &Path, directory: &Path) -> PathBuf {
    file.strip_prefix(directory).unwrap_or(file).to_owned()
}

fn write_meta(directory: &Path, facts: &impl Serialize) -> Result<()> {
    let path = directory.join("meta.json");
    let json = serde_json::to_string_pretty(facts).map_err(std::io::Error::from);
    json.and_then(|json| std::fs::write(&path, json + "\n")).map_err(Error::io("write", &path))
}
