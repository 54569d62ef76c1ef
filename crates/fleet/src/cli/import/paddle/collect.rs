//! From files to values by name: finds out what was saved, and reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use openfleet_table::checkpoint::StateElements;

use super::bytes::Wrong;
use super::program::ProgramNames;
use super::rows::{self, Layout, Row};
use super::value::Value;
use super::{PaddleArgs, options, pickle, tensor};
use crate::cli::output::plural;
use crate::error::{Error, Result};

/// What was read, by name.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) values: BTreeMap<String, Value>,
    pub(super) tables: Vec<Rows>,
    /// Names of values that are running statistics, and of matrices that are looked up by id.
    pub(super) states: BTreeSet<String>,
    pub(super) embeddings: BTreeSet<String>,
    /// One line for each kind of thing that is not imported.
    pub(super) notes: Vec<String>,
}

/// The rows of a sparse table.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) name: String,
    pub(super) dim: usize,
    /// Whether shows and clicks are kept.
    pub(super) counts: bool,
    pub(super) has_moments: bool,
    pub(super) rows: BTreeMap<u64, Row>,
}

/// The directory of dense values in a model that a worker has saved (`fleet.save_inference_model`).
const WORKER_FILES: &str = "dnn_plugin";
/// The end of a directory of a CommonSparseTable: `NAME.shard/NAME.block0.txt`.
const SHARD: &str = ".shard";
/// The file of a program in a directory.
const MODEL: &str = "__model__";

impl Collected {
    pub(super) fn read(arguments: &PaddleArgs) -> Result<Self> {
        let mut collected = Collected::default();
        collected.states.extend(arguments.state.iter().cloned());
        collected.embeddings.extend(arguments.embedding.iter().cloned());
        let path = &arguments.path;
        if path.is_dir() {
            collected.directory(path, arguments)?;
        } else {
            let prefix = match path.extension().and_then(|end| end.to_str()) {
                Some("pdparams" | "pdopt" | "pdiparams" | "pdmodel") => path.with_extension(""),
                _ => path.clone(),
            };
            let found = collected.prefix(&prefix, arguments.program.as_deref())?;
            if !found && path.is_file() {
                collected.variables(path, std::slice::from_ref(path), arguments.program.as_deref())?;
            } else if !found {
                let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
                return Err(Error::io("read", path)(missing));
            }
        }
        if collected.values.is_empty() && collected.tables.is_empty() {
            return Err(foreign(path, 0, "saved parameters or tables of PaddlePaddle", "none"));
        }
        Ok(collected)
    }

    fn directory(&mut self, directory: &Path, arguments: &PaddleArgs) -> Result<()> {
        let (mut files, mut prefixes, mut unnamed) = (Vec::new(), BTreeSet::new(), Vec::new());
        for path in listed(directory)? {
            let name = file_name(&path);
            let end = path.extension().and_then(|end| end.to_str());
            if path.is_dir() {
                match (name.parse::<u32>().ok().filter(|_| name.len() >= 3), name.strip_suffix(SHARD)) {
                    (Some(id), _) => unnamed.extend(self.table(id, &path, arguments)?),
                    (None, Some(table)) => self.older_table(table, &path)?,
                    (None, None) if name == WORKER_FILES => self.worker_files(&path, arguments)?,
                    (None, None) => self.notes.push(format!("`{}` is a directory that is not read", path.display())),
                }
            } else if matches!(end, Some("pdparams" | "pdopt" | "pdiparams")) {
                prefixes.insert(path.with_extension(""));
            } else if end != Some("pdmodel") && end != Some("info") && end != Some("npz") {
                files.push(path);
            }
        }
        for prefix in &prefixes {
            self.prefix(prefix, arguments.program.as_deref())?;
        }
        // Beside other files, files without an extension are not variables.
        if prefixes.is_empty() && !files.is_empty() && (self.tables.is_empty() || arguments.program.is_some()) {
            self.files(directory, files, arguments)?;
        }
        match unnamed.is_empty() {
            true => Ok(()),
            false if self.values.is_empty() && self.tables.is_empty() => Err(Error::MissingOption {
                option: "--table",
                owner: format!("the dump `{}`, which has {},", directory.display(), unnamed.join(" and ")),
                remedy: "a dump has numbers instead of names: say what they are called and how many weights a row has, as in \
                         `--table 0=embedding_0.w_0:10`, and for dense tables `--dense 1=fc_0.w_0:13x5,fc_0.b_0:5`",
            }),
            false => {
                let what = unnamed.join(" and ");
                self.notes.push(format!("not imported, because no `--table` or `--dense` names it: {what}"));
                Ok(())
            }
        }
    }

    fn worker_files(&mut self, directory: &Path, arguments: &PaddleArgs) -> Result<()> {
        let files = listed(directory)?.into_iter().filter(|path| path.is_file()).collect();
        self.files(directory, files, arguments)
    }

    fn files(&mut self, directory: &Path, mut files: Vec<PathBuf>, arguments: &PaddleArgs) -> Result<()> {
        let own = files.iter().position(|path| file_name(path) == MODEL).map(|at| files.remove(at));
        let program = arguments.program.clone().or(own);
        files.retain(|path| Some(path) != program.as_ref());
        self.variables(directory, &files, program.as_deref())
    }

    /// Files of tensors: one per variable, or one with all variables of a program.
    fn variables(&mut self, place: &Path, files: &[PathBuf], program: Option<&Path>) -> Result<()> {
        let names = program.map(|program| self.program(program)).transpose()?;
        if let ([file], Some(names)) = (files, &names)
            && !names.saved.contains(&file_name(file))
        {
            return self.combined(file, &names.saved);
        }
        for file in files {
            let bytes = read(file)?;
            let name = file_name(file);
            let values = tensor::read_all(&bytes, std::slice::from_ref(&name));
            let mut values = values.map_err(|wrong| located(file, wrong))?;
            if let Some(value) = values.pop() {
                self.values.insert(name, value);
            }
        }
        match files.is_empty() {
            true => Err(foreign(place, 0, "files of variables", "none")),
            false => Ok(()),
        }
    }

    fn combined(&mut self, file: &Path, names: &[String]) -> Result<()> {
        let values = tensor::read_all(&read(file)?, names).map_err(|wrong| located(file, wrong))?;
        self.values.extend(names.iter().cloned().zip(values));
        Ok(())
    }

    fn program(&mut self, file: &Path) -> Result<ProgramNames> {
        let names = ProgramNames::read(&read(file)?).map_err(|wrong| located(file, wrong))?;
        self.states.extend(names.states.iter().cloned());
        self.embeddings.extend(names.embeddings.iter().cloned());
        Ok(names)
    }

    /// The files `PREFIX.pdparams`, `.pdopt`, `.pdiparams` and `.pdmodel`. Returns whether there are values.
    fn prefix(&mut self, prefix: &Path, program: Option<&Path>) -> Result<bool> {
        let file = |end: &str| {
            let mut path = prefix.as_os_str().to_owned();
            path.push(end);
            PathBuf::from(path)
        };
        let (parameters, combined, model) = (file(".pdparams"), file(".pdiparams"), file(".pdmodel"));
        let model = program.map(Path::to_owned).or(Some(model).filter(|model| model.is_file()));
        let names = match parameters.is_file() || combined.is_file() {
            true => model.map(|model| self.program(&model)).transpose()?,
            false => None,
        };
        for (path, is_optimizer) in [(&parameters, false), (&file(".pdopt"), true)] {
            if !path.is_file() {
                continue;
            }
            let bytes = read(path)?;
            let arrays = pickle::read(&bytes).map_err(|wrong| located(path, wrong))?;
            if !arrays.others.is_empty() && !is_optimizer {
                self.notes.push(format!("not imported, because they are no arrays: {}", quoted(&arrays.others)));
            }
            self.values.extend(arrays.values);
        }
        if combined.is_file() {
            let Some(names) = names else {
                return Err(Error::MissingOption {
                    option: "--program",
                    owner: format!("`{}`", combined.display()),
                    remedy: "the file has no names: give the `.pdmodel` that was saved with it",
                });
            };
            self.combined(&combined, &names.saved)?;
        }
        Ok(parameters.is_file() || combined.is_file())
    }

    /// A table in a dump of servers. Returns its description if no option names it.
    fn table(&mut self, id: u32, directory: &Path, arguments: &PaddleArgs) -> Result<Option<String>> {
        let is_part = |path: &PathBuf| path.is_file() && file_name(path).starts_with("part-");
        let parts: Vec<_> = listed(directory)?.into_iter().filter(is_part).collect();
        if let Some(table) = arguments.table.iter().find(|table| table.id == id) {
            return self.sparse(table, &parts).map(|()| None);
        }
        if let Some(table) = arguments.dense.iter().find(|table| table.id == id) {
            return self.dense(table, &parts, directory).map(|()| None);
        }
        // `part-SERVER-SHARD` has rows, `part-SERVER` the elements of dense parameters.
        let is_sparse = parts.iter().any(|path| file_name(path).matches('-').count() > 1);
        Ok((!parts.is_empty()).then(|| format!("{} table {id}", if is_sparse { "sparse" } else { "dense" })))
    }

    fn sparse(&mut self, table: &options::SparseTable, parts: &[PathBuf]) -> Result<()> {
        // The longest row tells the update rule, so floats are kept until all files have been read.
        let mut found: Vec<(usize, usize, u64, Vec<f32>)> = Vec::new();
        for (number, path) in parts.iter().enumerate() {
            let keep = |at, key, floats: &[f32]| {
                found.push((number, at, key, floats.to_vec()));
                Ok(())
            };
            rows::each_row(&read(path)?, table.accessor, keep).map_err(|wrong| located(path, wrong))?;
        }
        let longest = found.iter().map(|(.., floats)| floats.len()).max();
        let Some(longest) = longest else {
            self.notes.push(format!("table {} (`{}`) has no rows", table.id, table.name));
            return Ok(());
        };
        let layout = match table.rule {
            Some(rule) => Some(Layout::new(table.accessor, rule, table.dim)),
            None => Layout::found(table.accessor, table.dim, longest),
        };
        let wrong = |part: usize, at, floats: usize| {
            let expected = format!("rows of {} weights with the state of one update rule (`--table`)", table.dim);
            foreign(&parts[part], at, expected, format!("{floats} floats"))
        };
        let first = || found.iter().find(|(.., floats)| floats.len() == longest).map_or((0, 0), |row| (row.0, row.1));
        let layout = layout.ok_or_else(|| wrong(first().0, first().1, longest))?;
        let mut kept = BTreeMap::new();
        for (part, at, key, floats) in found {
            kept.insert(key, layout.row(&floats).ok_or_else(|| wrong(part, at, floats.len()))?);
        }
        if layout.has_state() && !layout.has_moments() {
            self.notes.push(format!("the optimizer state of table `{}` is not imported: only Adam's is", table.name));
        }
        if !table.accessor.counts() {
            self.notes.push(format!(
                "shows and clicks of table `{}` are not imported: name a ctr accessor in `--table` to keep them",
                table.name
            ));
        }
        self.tables.push(Rows {
            name: table.name.clone(),
            dim: table.dim,
            counts: table.accessor.counts(),
            has_moments: layout.has_moments(),
            rows: kept,
        });
        Ok(())
    }

    /// A table of dense parameters: a line per element, with the value and Adam's moments.
    fn dense(&mut self, table: &options::DenseTable, parts: &[PathBuf], directory: &Path) -> Result<()> {
        let mut columns: Vec<Vec<f32>> = Vec::new();
        for path in parts {
            let bytes = read(path)?;
            let text = String::from_utf8_lossy(&bytes);
            let mut at = 0;
            for line in text.split_inclusive('\n') {
                let floats =
                    line.split_ascii_whitespace().map(|float| float.parse().ok()).collect::<Option<Vec<f32>>>();
                let floats = floats.filter(|floats| columns.is_empty() || floats.len() == columns.len());
                let Some(floats) = floats.filter(|floats| !floats.is_empty()) else {
                    let got: String = line.chars().take(40).collect();
                    return Err(foreign(path, at, "the floats of a dense parameter", format!("`{}`", got.trim_end())));
                };
                columns.resize(floats.len(), Vec::new());
                columns.iter_mut().zip(floats).for_each(|(column, float)| column.push(float));
                at += line.len();
            }
        }
        let lengths = table.parameters.iter().map(|(_, dims)| dims.iter().product::<usize>());
        let (expected, got) = (lengths.clone().sum::<usize>(), columns.first().map_or(0, Vec::len));
        if expected != got {
            let expected = format!("{expected} elements (`--dense`)");
            return Err(foreign(directory, 0, expected, format!("{got} elements")));
        }
        let suffixes: &[&str] = match columns.len() {
            3 => &["", "_moment1_0", "_moment2_0"],
            _ => &[""],
        };
        for (suffix, column) in suffixes.iter().zip(&columns) {
            let mut from = 0;
            for ((name, dims), length) in table.parameters.iter().zip(lengths.clone()) {
                let elements = StateElements::F32(column[from..from + length].to_vec());
                self.values.insert(format!("{name}{suffix}"), Value { dims: dims.clone(), elements });
                from += length;
            }
        }
        Ok(())
    }

    /// The files of a CommonSparseTable, which has its name, and its columns in a file next to the rows.
    fn older_table(&mut self, name: &str, directory: &Path) -> Result<()> {
        let (mut kept, mut dim, mut has_moments) = (BTreeMap::new(), 0, false);
        for path in listed(directory)?.into_iter().filter(|path| path.extension().is_some_and(|end| end == "txt")) {
            let meta = path.with_extension("meta");
            let columns = rows::columns_of_meta(&String::from_utf8_lossy(&read(&meta)?));
            let columns = columns.ok_or_else(|| foreign(&meta, 0, "`row_names` and `row_dims`", "neither"))?;
            let range = |wanted: &str| {
                let at = columns.iter().position(|(name, _)| name == wanted)?;
                let start = columns[..at].iter().try_fold(0usize, |sum, (_, dim)| sum.checked_add(*dim))?;
                Some(start..start.checked_add(columns[at].1)?)
            };
            let weights = range("Param").filter(|range| !range.is_empty());
            let weights = weights.ok_or_else(|| foreign(&meta, 0, "a column `Param`", "none"))?;
            let moments = range("Moment1").zip(range("Moment2"));
            let moments = moments.filter(|(one, two)| one.len() == weights.len() && two.len() == weights.len());
            let power = range("Beta2Pow").map(|range| range.start);
            if dim != 0 && (dim, has_moments) != (weights.len(), moments.is_some()) {
                return Err(foreign(&meta, 0, "the columns of the other files", "others"));
            }
            (dim, has_moments) = (weights.len(), moments.is_some());
            let each = |at, key, floats: &[f32]| {
                let wrong = || Wrong::at(at, format!("a row of {columns:?}"), format!("{} floats", floats.len()));
                let part = |range: &std::ops::Range<usize>| floats.get(range.clone()).ok_or_else(wrong);
                let mut state = Vec::new();
                if let Some((first, second)) = &moments {
                    state = [part(first)?, part(second)?].concat();
                }
                let row = Row {
                    weights: part(&weights)?.to_vec(),
                    moments: state,
                    second_power: power.and_then(|power| floats.get(power).copied()),
                    show: 0.0,
                    click: 0.0,
                    delta_score: 0.0,
                    unseen_days: 0,
                    has_long: false,
                };
                kept.insert(key, row);
                Ok(())
            };
            rows::each_row(&read(&path)?, rows::Accessor::Sparse, each).map_err(|wrong| located(&path, wrong))?;
        }
        if dim == 0 {
            return Err(foreign(directory, 0, "files `NAME.block0.txt` and `NAME.block0.meta`", "none"));
        }
        self.tables.push(Rows { name: name.to_owned(), dim, counts: false, has_moments, rows: kept });
        Ok(())
    }
}

/// The names, for a line: the first few of them.
pub(super) fn quoted(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    let rest = names.len().saturating_sub(SHOWN);
    let rest = if rest == 0 { String::new() } else { format!(" and {}", plural(rest, "other")) };
    shown.join(", ") + &rest
}

/// The bytes of a file, decompressed if it is gzip.
fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut whole = Vec::new();
    let read = flate2::read::MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut whole);
    read.map_err(|error| foreign(path, 0, "a complete gzip file", error.to_string()))?;
    Ok(whole)
}

/// The entries of a directory, sorted; hidden ones are left out.
fn listed(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).map_err(Error::io("list", directory))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>();
    let mut paths = paths.map_err(Error::io("list", directory))?;
    paths.retain(|path| !file_name(path).starts_with('.'));
    paths.sort();
    Ok(paths)
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn located(file: &Path, wrong: Wrong) -> Error {
    foreign(file, wrong.offset, wrong.expected, wrong.got)
}

fn foreign(file: &Path, offset: usize, expected: impl Into<String>, got: impl Into<String>) -> Error {
    Error::Foreign { file: file.to_owned(), offset, expected: expected.into(), got: got.into() }
}
