//! From values to tables, and to a checkpoint that a program with the same names loads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use openfleet_core::placement::BUCKET_COUNT;
use openfleet_dist::fresh_save_id;
use openfleet_dist::storage::{Addresses, Stores};
use openfleet_table::checkpoint::{
    self, Commit, DenseCut, SparseCut, StateElements, StateValue, States, TableCuts, save_alone,
};
use openfleet_table::sparse::DEFAULT_SHARDS;
use openfleet_table::{
    Accessor, CtrFields, CtrOptions, DenseSpec, Initializer, Optimizer, Row, RowStorage, Schedule, Sgd, SparseSpec,
    SparseTable,
};

use super::PaddleArgs;
use super::collect::{Collected, Rows, quoted};
use super::value::Value;
use crate::cli::optimizer_choice::Rule;
use crate::cli::output::{bytes, count, plural, remark, result};
use crate::error::{Error, Result};

/// Adam's default decay rate of second moments, whose power tells the number of updates.
const SECOND_DECAY: f64 = 0.999;
/// The number of updates of a power that has become 0: from then on Adam's correction of young moments is none.
const MANY_UPDATES: u64 = 100_000;
/// PaddlePaddle's ends of the names of optimizer state.
const SECOND_POWER: &str = "_beta2_pow_acc_0";
const FIRST_POWER: &str = "_beta1_pow_acc_0";

/// Writes the checkpoint and says what it contains.
pub(super) fn write(arguments: &PaddleArgs, collected: Collected) -> Result<()> {
    let Collected { mut values, tables, states, embeddings, .. } = collected;
    let mut names = Names::new(arguments);
    let chosen = arguments.optimizer.map(Rule::optimizer);
    let mut dense = Vec::new();
    let mut sparse = Vec::new();
    let mut saved_states = States::new();
    let (mut skipped, mut young) = (Vec::new(), Vec::new());
    // A dump does not say how often dense parameters were updated: at least as often as the most frequent row.
    let mut rows_step = 0;
    for table in tables {
        let optimizer = chosen.unwrap_or(if table.has_moments { adam() } else { sgd() });
        rows_step =
            rows_step.max(table.rows.values().filter_map(|row| row.second_power).map(updates).max().unwrap_or(0));
        sparse.push(of_rows(names.renamed(&table.name)?, table, optimizer)?);
    }
    let parameters: Vec<String> = values.keys().filter(|name| !is_state(name, &values)).cloned().collect();
    for name in parameters {
        let found = optimizer_of(&name, &values);
        let slots: Vec<Value> = match &found {
            Some(rule) => rule.slot_names().iter().filter_map(|slot| values.remove(&slot_name(&name, slot))).collect(),
            None => Vec::new(),
        };
        let power = values.remove(&format!("{name}{SECOND_POWER}"));
        let step = power.and_then(|power| Some(updates(*floats(&power)?.first()?))).unwrap_or(rows_step);
        values.remove(&format!("{name}{FIRST_POWER}"));
        let Some(value) = values.remove(&name) else { continue };
        if states.contains(&name) {
            saved_states.insert(names.renamed(&name)?, StateValue { dims: value.dims, elements: value.elements });
            continue;
        }
        let StateElements::F32(elements) = value.elements else {
            skipped.push(name);
            continue;
        };
        if elements.is_empty() || name.starts_with("learning_rate_") {
            skipped.push(name);
            continue;
        }
        let optimizer = chosen.or(found).unwrap_or_else(sgd).for_dense();
        let mut state = vec![0.0; optimizer.state_slots() * elements.len()];
        optimizer.init_state(elements.len(), &mut state);
        let mut keeps = found.is_some_and(|found| found.slot_names() == optimizer.slot_names());
        if keeps && step == 0 && optimizer.slot_names() == adam().slot_names() {
            // Adam would take its moments for those of a first update, and make it far too large.
            young.push(name.clone());
            keeps = false;
        }
        if keeps {
            state = slots.iter().filter_map(floats).flatten().copied().collect();
        }
        let step = if keeps { step } else { 0 };
        let new_name = names.renamed(&name)?;
        if let ([rows, dim], true) = (value.dims.as_slice(), embeddings.contains(&name)) {
            sparse.push(of_matrix(new_name, *rows, *dim, &elements, &state, optimizer, step)?);
            continue;
        }
        dense.push(DenseCut {
            parameter: new_name,
            offset: 0,
            spec: DenseSpec {
                shape: value.dims,
                optimizer,
                schedule: Schedule::Constant(0.0),
                regularizer: None,
                non_finite: Default::default(),
            },
            values: elements,
            state,
            step,
        });
    }
    skipped.extend(values.into_keys());
    if !skipped.is_empty() {
        skipped.sort();
        remark(&format!("not imported, because a checkpoint has no such values: {}", quoted(&skipped)));
    }
    if !young.is_empty() {
        let names = quoted(&young);
        remark(&format!("Adam's moments are not imported, because the number of updates is not known: {names}"));
    }
    names.check()?;
    if dense.is_empty() && sparse.is_empty() && saved_states.is_empty() {
        let got = "only values of other kinds".to_owned();
        let expected = "parameters or tables".to_owned();
        return Err(Error::Foreign { file: arguments.path.clone(), offset: 0, expected, got });
    }
    save(arguments, sparse, dense, &saved_states)
}

fn save(arguments: &PaddleArgs, sparse: Vec<SparseCut>, dense: Vec<DenseCut>, states: &States) -> Result<()> {
    let failed = openfleet_dist::Error::checkpoint("saving to", &arguments.out);
    let storage = Addresses.open(&arguments.out)?;
    let counts = (sparse.len(), dense.len(), states.len());
    let commit = Commit {
        id: fresh_save_id(),
        job: "openfleet import paddle".into(),
        mode: "local".into(),
        workers: 1,
        threads: 1,
        states: checkpoint::encode_states(states)?,
        ..Commit::default()
    };
    let cuts = TableCuts {
        server: 0,
        buckets: 0..BUCKET_COUNT,
        sparse,
        dense,
        work: Default::default(),
        position: serde_json::Value::Null,
    };
    let written = save_alone(storage.as_ref(), commit, cuts, arguments.replace).map_err(failed)?;
    let size = written.files.iter().map(|file| file.bytes).sum();
    let rows: u64 = written.sparse.iter().map(|table| table.rows).sum();
    let (tables, parameters, states) = counts;
    result(&format!(
        "{}: {} with {} rows, {}, {}; {}",
        arguments.out,
        plural(tables, "sparse table"),
        count(rows),
        plural(parameters, "parameter"),
        plural(states, "running value"),
        bytes(size)
    ));
    Ok(())
}

/// The new names of parameters and tables.
struct Names<'a> {
    renames: &'a [super::Rename],
    used: BTreeSet<&'a str>,
    given: BTreeSet<String>,
}

impl<'a> Names<'a> {
    fn new(arguments: &'a PaddleArgs) -> Self {
        Names { renames: &arguments.rename, used: BTreeSet::new(), given: BTreeSet::new() }
    }

    fn renamed(&mut self, name: &str) -> Result<String> {
        let rename = self.renames.iter().find(|rename| rename.old == name);
        self.used.extend(rename.map(|rename| rename.old.as_str()));
        let new = rename.map_or(name, |rename| &rename.new).to_owned();
        match self.given.insert(new.clone()) {
            true => Ok(new),
            false => Err(Error::BadOption { option: "--rename", expected: "every name once", got: new }),
        }
    }

    /// Fails if an option names something that the files do not have.
    fn check(&self) -> Result<()> {
        match self.renames.iter().find(|rename| !self.used.contains(rename.old.as_str())) {
            Some(rename) => {
                let expected = "the name of an imported parameter or table before `=`";
                Err(Error::BadOption { option: "--rename", expected, got: rename.old.clone() })
            }
            None => Ok(()),
        }
    }
}

fn adam() -> Optimizer {
    Rule::Adam.optimizer()
}

fn sgd() -> Optimizer {
    Optimizer::Sgd(Sgd::default())
}

/// PaddlePaddle's name of an optimizer's slot of a parameter.
fn slot_name(parameter: &str, slot: &str) -> String {
    format!("{parameter}_{slot}_0")
}

/// The optimizer whose state was saved with a parameter, if there is one that is known.
fn optimizer_of(name: &str, values: &BTreeMap<String, Value>) -> Option<Optimizer> {
    let dims = &values.get(name)?.dims;
    let fits = |slot: &&str| values.get(&slot_name(name, slot)).is_some_and(|value| value.dims == *dims);
    let known = [Rule::Adam, Rule::Momentum, Rule::Adagrad].map(Rule::optimizer);
    known.into_iter().find(|optimizer| optimizer.slot_names().iter().all(fits))
}

/// Whether a value is the optimizer state of another one.
fn is_state(name: &str, values: &BTreeMap<String, Value>) -> bool {
    const ENDS: [&str; 6] = ["_moment1_0", "_moment2_0", "_moment_0", "_velocity_0", FIRST_POWER, SECOND_POWER];
    ENDS.iter().any(|end| name.strip_suffix(end).is_some_and(|parameter| values.contains_key(parameter)))
}

fn floats(value: &Value) -> Option<&Vec<f32>> {
    match &value.elements {
        StateElements::F32(floats) => Some(floats),
        StateElements::I64(_) => None,
    }
}

/// The number of updates, from the power of Adam's second decay rate, which starts at 1.
fn updates(power: f32) -> u64 {
    let power = f64::from(power);
    match power {
        0.0 => MANY_UPDATES,
        _ if power > 0.0 && power < 1.0 => ((power.ln() / SECOND_DECAY.ln()).round() - 1.0).max(0.0) as u64,
        _ => 0,
    }
}

fn spec(dim: usize, optimizer: Optimizer, accessor: Accessor) -> SparseSpec {
    SparseSpec {
        dim,
        optimizer,
        schedule: Schedule::Constant(0.0),
        regularizer: None,
        initializer: Initializer::Constant(0.0),
        seed: 0,
        shards: DEFAULT_SHARDS,
        accessor,
        admission: Default::default(),
        capacity: None,
        non_finite: Default::default(),
        salted: false,
        storage: RowStorage::Float32,
    }
}

/// The table of a dump.
fn of_rows(name: String, table: Rows, optimizer: Optimizer) -> Result<SparseCut> {
    let accessor = if table.counts { Accessor::Ctr(CtrOptions::default()) } else { Accessor::Plain };
    let spec = spec(table.dim, optimizer, accessor);
    let mut initial = vec![0.0; spec.state_len()];
    match accessor {
        // A row-wise rule has a float in either part.
        Accessor::Ctr(_) if optimizer.is_rowwise() => optimizer.init_state(1, &mut initial[..1]),
        _ if !optimizer.is_rowwise() => optimizer.init_state(table.dim, &mut initial),
        _ => {}
    }
    let keeps = table.has_moments && optimizer.slot_names() == adam().slot_names();
    let sparse = Arc::new(SparseTable::new(spec)?);
    sparse.reserve(table.rows.len() as u64);
    let mut step = 0;
    {
        let mut restorer = sparse.restorer(true);
        for (&key, row) in &table.rows {
            if keeps {
                step = step.max(row.second_power.map_or(0, updates));
            }
            let ctr = table.counts.then_some(CtrFields {
                show: row.show,
                click: row.click,
                delta_score: row.delta_score,
                unseen_days: row.unseen_days,
                has_long: row.has_long,
            });
            let state = if keeps { &row.moments } else { &initial };
            restorer.restore(&Row { key, stamp: 0, weights: &row.weights, state, ctr })?;
        }
    }
    sparse.set_step(step);
    Ok(SparseCut { name, cut: sparse.cut()?, without_state: false })
}

/// The table of a matrix: key i has row i.
fn of_matrix(
    name: String,
    rows: usize,
    dim: usize,
    weights: &[f32],
    state: &[f32],
    optimizer: Optimizer,
    step: u64,
) -> Result<SparseCut> {
    let sparse = Arc::new(SparseTable::new(spec(dim, optimizer, Accessor::Plain))?);
    sparse.reserve(rows as u64);
    {
        let (mut restorer, mut own) = (sparse.restorer(true), Vec::new());
        for (key, weights) in weights.chunks_exact(dim).enumerate() {
            own.clear();
            own.extend(state.chunks_exact(rows * dim).flat_map(|slot| &slot[key * dim..(key + 1) * dim]));
            restorer.restore(&Row { key: key as u64, stamp: 0, weights, state: &own, ctr: None })?;
        }
    }
    sparse.set_step(step);
    Ok(SparseCut { name, cut: sparse.cut()?, without_state: false })
}
