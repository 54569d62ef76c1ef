//! A trained model in a directory: enough to predict with it, not to go on training.
//!
//! ```text
//! model.json             what it is: version, shape, seed, how its data is read, the tables below
//! dense.safetensors      every dense parameter under its name
//! TABLE.keys.u64         the keys of a sparse table, 8 bytes each, little-endian
//! TABLE.rows.f32         its rows in the same order, dim floats of 4 bytes each, little-endian
//! vocabulary.txt         Word2Vec only: the word of key 0, 1, 2 ... a line
//! ```
//!
//! `numpy.fromfile(path, "<u8")` and `numpy.fromfile(path, "<f4").reshape(-1, dim)` read the tables. The directory is
//! written under another name beside its place and then renamed, so it is there whole or not at all.
//!
//! This is a small format on purpose: optimizer state, deltas and many servers are the business of checkpoints, which
//! will take its place when they exist.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openfleet_engine::plan::Plan;
use openfleet_engine::program::VariableKind;
use openfleet_engine::{DType, Executor, Program, Scope, Tensor};
use openfleet_table::SparseTable;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use crate::columns::DataDescription;
use crate::error::{Error, Result};
use crate::model::{ModelShape, Network};

/// The version of the layout described above.
pub const FORMAT_VERSION: u32 = 1;

const DESCRIPTION: &str = "model.json";
const DENSE: &str = "dense.safetensors";
const VOCABULARY: &str = "vocabulary.txt";

/// What `model.json` says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelDescription {
    /// [`FORMAT_VERSION`] when it was written.
    pub format_version: u32,
    /// Kind and shape.
    pub model: ModelShape,
    /// Decides the rows of ids that were never seen.
    pub seed: u64,
    /// How its data is read.
    pub data: DataDescription,
    /// Whether training ran to its end.
    pub complete: bool,
    /// The sparse tables.
    pub tables: Vec<TableDescription>,
}

/// A sparse table of a saved model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableDescription {
    /// Its name in the program.
    pub name: String,
    /// Floats in a row.
    pub dim: usize,
    /// Rows.
    pub rows: u64,
    /// The file of its keys.
    pub keys_file: String,
    /// The file of its rows.
    pub rows_file: String,
}

/// What is to be saved.
pub struct Trained<'a> {
    /// Kind and shape.
    pub model: &'a ModelShape,
    /// The network built of them.
    pub network: &'a Network,
    /// Its seed.
    pub seed: u64,
    /// How its data is read.
    pub data: &'a DataDescription,
    /// Whether training ran to its end.
    pub complete: bool,
    /// Word2Vec only: the words by key.
    pub vocabulary: Option<&'a [String]>,
}

/// A saved model, ready to predict.
pub struct Loaded {
    /// What it is.
    pub description: ModelDescription,
    /// The network, built anew.
    pub network: Network,
    /// An executor on its values.
    pub executor: Executor,
}

/// Whether `directory` can be saved to: it does not exist, is empty, or holds an older model, which is replaced. Worth
/// asking before an hour of training.
pub fn check_place(directory: &Path) -> Result<()> {
    let mut entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("save to", directory)(error)),
    };
    if entries.next().is_none() || directory.join(DESCRIPTION).is_file() {
        return Ok(());
    }
    Err(Error::NotOurs { path: directory.to_owned() })
}

/// Writes a model. After an error `directory` is as it was.
pub fn save(directory: &Path, scope: &Scope, trained: &Trained<'_>) -> Result<ModelDescription> {
    check_place(directory)?;
    let temporary = beside(directory, "writing")?;
    remove_if_there(&temporary)?;
    fs::create_dir_all(&temporary).map_err(Error::io("create the directory", &temporary))?;
    let written = write_files(&temporary, scope, trained).and_then(|description| {
        put_in_place(&temporary, directory)?;
        Ok(description)
    });
    if written.is_err() {
        // The error that is reported is the first one.
        let _ = remove_if_there(&temporary);
    }
    written
}

/// Reads a model: builds its network anew and gives it the saved values.
pub fn load(directory: &Path) -> Result<Loaded> {
    let path = directory.join(DESCRIPTION);
    let text = fs::read_to_string(&path).map_err(Error::io("read the model", &path))?;
    // Read the version alone first: another version may have other fields.
    let damaged = |error: serde_json::Error| Error::Damaged {
        path: path.clone(),
        expected: "the description of a model".into(),
        got: format!("JSON that is not one ({error})"),
    };
    let VersionOnly { format_version } = serde_json::from_str(&text).map_err(damaged)?;
    if format_version != FORMAT_VERSION {
        return Err(Error::Version { path, expected: FORMAT_VERSION, got: format_version });
    }
    let description: ModelDescription = serde_json::from_str(&text).map_err(damaged)?;
    let network = description.model.build(&description.data.schema, description.seed)?;
    let scope = Arc::new(Scope::new());
    let mut executor = Executor::new(scope.clone());
    executor.run_startup(&network.net.startup)?;
    read_dense(&directory.join(DENSE), &network.net.main, &scope)?;
    // Compiling a program is what puts its tables, still empty, into the scope.
    Plan::compile(&network.net.main.clone_for_test(), &scope)?;
    for (_, variable) in network.net.main.tables() {
        let table = description.tables.iter().find(|table| table.name == variable.name);
        let (Some(table), Some(rows)) = (table, scope.sparse(&variable.name)) else {
            return Err(Error::Damaged {
                path: directory.join(DESCRIPTION),
                expected: format!("a table `{}`", variable.name),
                got: "none".into(),
            });
        };
        read_table(directory, table, &rows)?;
    }
    Ok(Loaded { description, network, executor })
}

#[derive(Deserialize)]
struct VersionOnly {
    format_version: u32,
}

fn write_files(directory: &Path, scope: &Scope, trained: &Trained<'_>) -> Result<ModelDescription> {
    let program = &trained.network.net.main;
    write_dense(&directory.join(DENSE), program, scope)?;
    let mut tables = Vec::new();
    for (_, variable) in program.tables() {
        if let Some(table) = scope.sparse(&variable.name) {
            tables.push(write_table(directory, &variable.name, &table)?);
        }
    }
    if let Some(words) = trained.vocabulary {
        let path = directory.join(VOCABULARY);
        fs::write(&path, words.join("\n") + "\n").map_err(Error::io("write", &path))?;
    }
    let description = ModelDescription {
        format_version: FORMAT_VERSION,
        model: trained.model.clone(),
        seed: trained.seed,
        data: trained.data.clone(),
        complete: trained.complete,
        tables,
    };
    let path = directory.join(DESCRIPTION);
    let json = serde_json::to_string_pretty(&description).map_err(std::io::Error::from);
    json.and_then(|json| fs::write(&path, json + "\n")).map_err(Error::io("write", &path))?;
    Ok(description)
}

/// Parameters, and states that are floats (running statistics). Integer states are counters of metrics.
fn dense_names(program: &Program) -> impl Iterator<Item = (&str, Vec<usize>)> {
    program.persistables().filter_map(|(_, variable)| {
        let kept = match variable.kind {
            VariableKind::Parameter(_) => true,
            VariableKind::State => variable.dtype == DType::F32,
            _ => false,
        };
        kept.then(|| (variable.name.as_str(), variable.shape.sizes(0)))
    })
}

fn write_dense(path: &Path, program: &Program, scope: &Scope) -> Result<()> {
    let mut bytes: BTreeMap<&str, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for (name, shape) in dense_names(program) {
        let Some(tensor) = scope.get(name) else { continue };
        let values = tensor.f32s().unwrap_or_default().iter().flat_map(|value| value.to_le_bytes()).collect();
        bytes.insert(name, (shape, values));
    }
    let refused = |error: safetensors::SafeTensorError| Error::io("write", path)(std::io::Error::other(error));
    let views = bytes
        .iter()
        .map(|(name, (shape, values))| Ok((*name, TensorView::new(Dtype::F32, shape.clone(), values)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(refused)?;
    safetensors::serialize_to_file(views, None, path).map_err(refused)
}

fn read_dense(path: &Path, program: &Program, scope: &Scope) -> Result<()> {
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    let damaged = |expected: String, got: String| Error::Damaged { path: path.to_owned(), expected, got };
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|error| damaged("safetensors".into(), format!("something else ({error})")))?;
    for (name, shape) in dense_names(program) {
        let view = file.tensor(name).map_err(|_| damaged(format!("a parameter `{name}`"), "none".into()))?;
        if view.dtype() != Dtype::F32 || view.shape() != shape {
            return Err(damaged(
                format!("`{name}` as 32-bit floats of dimensions {shape:?}"),
                format!("{:?} of {:?}", view.dtype(), view.shape()),
            ));
        }
        scope.set(name, Tensor::from_f32(&shape, floats(view.data()))?)?;
    }
    Ok(())
}

fn write_table(directory: &Path, name: &str, table: &SparseTable) -> Result<TableDescription> {
    let file_name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
    let (keys_file, rows_file) = (format!("{file_name}.keys.u64"), format!("{file_name}.rows.f32"));
    let (keys_path, rows_path) = (directory.join(&keys_file), directory.join(&rows_file));
    let create = |path: &Path| File::create(path).map(BufWriter::new).map_err(Error::io("create", path));
    let (mut keys, mut values) = (create(&keys_path)?, create(&rows_path)?);
    let (mut rows, mut result, mut bytes) = (0, Ok(()), Vec::new());
    table.for_each(|key, weights, _| {
        if result.is_ok() {
            rows += 1;
            bytes.clear();
            bytes.extend(weights.iter().flat_map(|weight| weight.to_le_bytes()));
            result = keys
                .write_all(&key.to_le_bytes())
                .map_err(Error::io("write", &keys_path))
                .and_then(|()| values.write_all(&bytes).map_err(Error::io("write", &rows_path)));
        }
    });
    result?;
    keys.flush().map_err(Error::io("write", &keys_path))?;
    values.flush().map_err(Error::io("write", &rows_path))?;
    Ok(TableDescription { name: name.to_owned(), dim: table.dim(), rows, keys_file, rows_file })
}

fn read_table(directory: &Path, description: &TableDescription, table: &SparseTable) -> Result<()> {
    let (keys_path, rows_path) = (directory.join(&description.keys_file), directory.join(&description.rows_file));
    if description.dim != table.dim() {
        return Err(Error::Damaged {
            path: directory.join(DESCRIPTION),
            expected: format!("a table `{}` of dim {}", description.name, table.dim()),
            got: format!("dim {}", description.dim),
        });
    }
    let row_bytes = 4 * description.dim;
    let mut keys = open_sized(&keys_path, description.rows, 8)?;
    let mut rows = open_sized(&rows_path, description.rows, row_bytes as u64)?;
    let (mut key, mut row) = ([0; 8], vec![0; row_bytes]);
    for _ in 0..description.rows {
        keys.read_exact(&mut key).map_err(Error::io("read", &keys_path))?;
        rows.read_exact(&mut row).map_err(Error::io("read", &rows_path))?;
        table.assign(u64::from_le_bytes(key), &floats(&row), None)?;
    }
    Ok(())
}

/// A file of so many rows of so many bytes, no more and no fewer.
fn open_sized(path: &Path, rows: u64, row_bytes: u64) -> Result<BufReader<File>> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let got = file.metadata().map_err(Error::io("open", path))?.len();
    if rows.checked_mul(row_bytes) != Some(got) {
        return Err(Error::Damaged {
            path: path.to_owned(),
            expected: format!("{rows} rows of {row_bytes} bytes"),
            got: format!("{got} bytes"),
        });
    }
    Ok(BufReader::new(file))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Puts the new directory where an older model may stand. Between the two renames nothing stands there, but the older
/// model is still whole under its other name.
fn put_in_place(temporary: &Path, directory: &Path) -> Result<()> {
    let old = beside(directory, "old")?;
    remove_if_there(&old)?;
    let replaces = directory.exists();
    if replaces {
        fs::rename(directory, &old).map_err(Error::io("move aside", directory))?;
    }
    fs::rename(temporary, directory).map_err(Error::io("move the model to", directory))?;
    if replaces { remove_if_there(&old) } else { Ok(()) }
}

/// `.NAME.WORD` in the same parent, so that a rename stays within one file system.
fn beside(directory: &Path, word: &str) -> Result<PathBuf> {
    let name = directory.file_name().ok_or_else(|| Error::NotOurs { path: directory.to_owned() })?;
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(parent.join(format!(".{}.{word}", name.display())))
}

fn remove_if_there(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove the directory", directory)(error))
        }
        _ => Ok(()),
    }
}
