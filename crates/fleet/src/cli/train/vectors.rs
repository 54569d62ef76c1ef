//! `openfleet train --vectors`: the word vectors of word2vec as a text file.

use std::io::{BufWriter, Write};
use std::path::Path;

use openfleet_engine::models::INPUT_TABLE;
use openfleet_engine::op::EmbeddingOptions;
use openfleet_engine::{Executor, Feed, Net, ParamAttr, Tensor};

use crate::error::{Error, Result};
use crate::model::ModelShape;

/// Words looked up per batch.
const BATCH: usize = 1024;

/// Fails before training if the file could not be written after it: the directory is missing, or the path is a directory.
pub(super) fn check_file(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::read_dir(directory).map_err(Error::io("write into", directory))?;
    match path.is_dir() {
        true => Err(Error::io("create", path)(std::io::ErrorKind::IsADirectory.into())),
        false => Ok(()),
    }
}

/// Writes word2vec's text format: one line with both sizes, then one word and its vector per line, most frequent word first.
///
/// A separate program looks the vectors up, so it works wherever the tables are and includes all updates that workers have sent.
pub(super) fn write_vectors(path: &Path, shape: &ModelShape, executor: &mut Executor, words: &[String]) -> Result<()> {
    let ModelShape::Word2vec { dim, .. } = *shape else { return Ok(()) };
    let mut net = Net::new();
    let word = net.slot("word")?;
    let table = ParamAttr::named(INPUT_TABLE);
    let vector = net.embedding(word, dim, &EmbeddingOptions { table, ..EmbeddingOptions::default() })?;
    let file = std::fs::File::create(path).map_err(Error::io("create", path))?;
    let mut file = BufWriter::new(file);
    let mut lines = format!("{} {dim}\n", words.len());
    for (chunk, words) in words.chunks(BATCH).enumerate() {
        let keys: Vec<u64> = (0..words.len()).map(|at| (chunk * BATCH + at) as u64).collect();
        let ids: Vec<&[u64]> = keys.chunks(1).collect();
        let rows = executor.run(&net.main, Feed::new().slot("word", &ids)?, &[vector])?;
        let rows = rows.first().and_then(Tensor::f32s).unwrap_or_default();
        for (word, row) in words.iter().zip(rows.chunks_exact(dim)) {
            lines.push_str(word);
            row.iter().for_each(|value| lines.push_str(&format!(" {value}")));
            lines.push('\n');
        }
        file.write_all(lines.as_bytes()).map_err(Error::io("write", path))?;
        lines.clear();
    }
    file.flush().map_err(Error::io("write", path))
}
