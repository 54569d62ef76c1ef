//! Saving what a program has learnt, and taking it up again: one call, wherever the tables are.
//!
//! On a cluster the servers write and read; in one process this does it for the tables of the scope, in the same format.
//! Beside tables and parameters a checkpoint keeps the program's states (running statistics, the counters of metrics),
//! which are the worker's in either case.

use openfleet_core::WorkId;
use openfleet_core::placement::BUCKET_COUNT;
use openfleet_dist::storage::{Addresses, Opened, Stores};
use openfleet_dist::threads::Threads;
use openfleet_dist::{LoadOptions, SaveOptions, fresh_save_id};
use openfleet_table::checkpoint::{
    self, Commit, DenseCut, Loaded, Manifest, Replaces, SparseCut, StateElements, StateValue, States, Storage,
    TableCuts, Work,
};
use openfleet_table::{DenseSpec, DenseTable, Optimizer, SparseSpec, SparseTable};

use crate::error::{Error, Result};
use crate::executor::{Executor, Pause};
use crate::plan::{dense_spec, sparse_spec, trains};
use crate::program::{Program, VariableKind};
use crate::scope::Scope;
use crate::tensor::{Elements, Tensor};

impl Executor {
    /// Saves every parameter, table and state of a program with the optimizer's state. On a cluster it is every table of
    /// the job. A checkpoint that stands there is replaced, unless the options say otherwise, and stays as it was if this
    /// fails.
    pub fn save(&mut self, program: &Program, address: &str, options: &SaveOptions) -> Result<Manifest> {
        let cluster = self.cluster();
        let positions = match &cluster {
            Some(_) => Vec::new(),
            // Parameters and tables become what the program trains them as.
            None => self.compile(program)?,
        };
        let pause = Pause { program, scope: self.scope(), cluster: cluster.clone(), positions };
        pause.check(options)?;
        match cluster {
            Some(cluster) => Ok(cluster.save_once(address, &pause.with_states(options))?),
            None => pause.save(address, options),
        }
    }

    /// Takes every parameter, table and state of a program from a checkpoint, whoever wrote it. Parameters need no startup
    /// program before it. What a program that trains expects and does not find, finds and does not expect, or finds with
    /// another shape or rule, is an error that names it, unless `partial` leaves it out; a program that does not train
    /// takes what it needs. After an error everything is as it was.
    pub fn load(&mut self, program: &Program, address: &str, options: LoadOptions) -> Result<()> {
        if let Some(cluster) = self.cluster() {
            let Some(saved) = cluster.load_once(address, options)? else { return Ok(()) };
            return match options.tables_only {
                true => Ok(()),
                false => {
                    check_states(program, self.scope(), &saved, options.partial)?;
                    set_states(program, self.scope(), saved)
                }
            };
        }
        let opened = Opened::new(&Addresses, address, "loading")?;
        let manifest = &opened.manifest;
        let wanted = Wanted::of(program, self.scope(), manifest);
        let tables = opened.read(|storage, manifest| wanted.read(storage, manifest, options.partial))?;
        let mut saved = States::new();
        if !options.tables_only {
            saved = opened.read(checkpoint::read_states)?;
            check_states(program, self.scope(), &saved, options.partial)?;
        }
        if manifest.mode == ALONE {
            self.resumed = false;
            let positions = manifest.work.positions();
            let of = |stream: u32| positions.get(&stream).copied().unwrap_or(0);
            self.loaded_positions = (0..manifest.threads).map(of).collect();
        }
        let scope = self.scope();
        tables.sparse.into_iter().for_each(|(name, table)| scope.put_sparse(&name, table));
        tables.dense.into_iter().for_each(|(name, table)| scope.put_dense(&name, table));
        tables.plain.into_iter().for_each(|(name, tensor)| scope.replace(&name, tensor));
        set_states(program, scope, saved)
    }
}

/// The mode of a checkpoint that no job wrote.
const ALONE: &str = "local";

impl Pause<'_> {
    /// [`Executor::save`], while a pass over a dataset pauses.
    pub fn save(&self, address: &str, options: &SaveOptions) -> Result<Manifest> {
        if let Some(save) = self.save_later(address, options) {
            return save();
        }
        let options = self.with_states(options);
        let failed = |source| at("saving to", address, source);
        let storage = Addresses.open(address)?;
        let standing = if options.delta { checkpoint::find_manifest(storage.as_ref()).map_err(failed)? } else { None };
        let since = standing.as_ref().map(Manifest::moment);
        let mut cuts = cuts(self.program, self.scope, since).map_err(failed)?;
        cuts.keep_only(&options.only);
        if options.without_state {
            cuts.drop_state();
        }
        for (stream, &steps) in (0..).zip(&self.positions).filter(|(_, steps)| **steps > 0) {
            let done = WorkId { stream, first_step: 0, last_step: steps - 1 };
            let _ = cuts.work.streams.apply_once(done, || ());
        }
        let save = Commit {
            id: fresh_save_id(),
            job: options.job,
            mode: ALONE.into(),
            workers: 1,
            threads: self.positions.len().max(1) as u32,
            data: options.data,
            states: checkpoint::encode_states(&options.states).map_err(failed)?,
            replaces: standing.map_or(Replaces::Anything, |standing| Replaces::Changes(standing.id)),
            ..Commit::default()
        };
        checkpoint::save_alone(storage.as_ref(), save, cuts, options.replace || options.delta).map_err(failed)
    }

    /// Where servers write: what has to be done, which need not be done here, nor while training pauses.
    pub fn save_later(
        &self,
        address: &str,
        options: &SaveOptions,
    ) -> Option<impl FnOnce() -> Result<Manifest> + Send + 'static> {
        let cluster = self.cluster.clone()?;
        let (address, options) = (address.to_owned(), self.with_states(options));
        Some(move || Ok(cluster.save(&address, &options)?))
    }

    /// Fails where something is to be saved that the program does not have.
    fn check(&self, options: &SaveOptions) -> Result<()> {
        let known: Vec<_> = self.program.persistables().map(|(_, variable)| variable.name.clone()).collect();
        match options.only.iter().find(|name| !known.contains(name)) {
            Some(name) => Err(Error::UnknownVariable { name: name.clone(), known }),
            None => Ok(()),
        }
    }

    fn with_states(&self, options: &SaveOptions) -> SaveOptions {
        let mut options = options.clone();
        options.states.extend(states(self.program, self.scope, &options.only));
        options
    }
}

pub(crate) fn at(action: &'static str, address: &str, source: openfleet_table::Error) -> Error {
    openfleet_dist::Error::checkpoint(action, address)(source).into()
}

/// What stands in the scope of a program's parameters and tables; of tables what has changed since a save, if one is named.
fn cuts(program: &Program, scope: &Scope, since: Option<&str>) -> Result<TableCuts, openfleet_table::Error> {
    let mut cuts = TableCuts {
        server: 0,
        buckets: 0..BUCKET_COUNT,
        sparse: Vec::new(),
        dense: Vec::new(),
        work: Work::default(),
        position: serde_json::Value::Null,
    };
    for (var, variable) in program.persistables() {
        let name = variable.name.clone();
        if let Some(table) = scope.sparse(&name) {
            cuts.sparse.push(SparseCut { name, cut: table.cut_since(since)?, without_state: false });
        } else if let Some(table) = scope.dense(&name) {
            let spec = table.spec().clone();
            cuts.dense.push(table.read_all(|values, state, step| DenseCut {
                parameter: name,
                offset: 0,
                spec,
                values: values.to_vec(),
                state: state.to_vec(),
                step,
            }));
        } else if let (Some(spec), Some(value)) = (dense_spec(program, var), scope.get(&name)) {
            // No op reads it, so no plan has made it a table.
            let (spec, values) = (spec.without_state(), value.f32s().unwrap_or_default().to_vec());
            cuts.dense.push(DenseCut { parameter: name, offset: 0, spec, values, state: Vec::new(), step: 0 });
        }
    }
    Ok(cuts)
}

/// What a program wants of a checkpoint.
struct Wanted {
    sparse: Vec<Sparse>,
    dense: Vec<Dense>,
    /// Whether things in the checkpoint that the program does not have are an error.
    all: bool,
}

struct Sparse {
    name: String,
    spec: SparseSpec,
    /// The rule that must have been saved: where a program does not train, whatever was.
    rule: Optimizer,
}

struct Dense {
    name: String,
    spec: DenseSpec,
    rule: Optimizer,
    /// Nothing has trained it here: it stays a plain value until something does.
    plain: bool,
}

/// Tables as they were saved, not in the scope yet.
#[derive(Default)]
struct Tables {
    sparse: Vec<(String, SparseTable)>,
    dense: Vec<(String, DenseTable)>,
    plain: Vec<(String, Tensor)>,
}

impl Wanted {
    fn of(program: &Program, scope: &Scope, manifest: &Manifest) -> Self {
        let mut wanted = Wanted { sparse: Vec::new(), dense: Vec::new(), all: program.minimize.is_some() };
        for (var, variable) in program.persistables() {
            let (name, trains) = (variable.name.clone(), trains(program, var));
            if let Some(spec) = sparse_spec(program, var) {
                let salted = spec.salted;
                let existing = scope.sparse(&name).filter(|table| !trains && table.dim() == spec.dim);
                let saved = manifest.sparse.iter().find(|saved| saved.name == name).filter(|_| !trains);
                let spec = match (existing, saved) {
                    (Some(table), _) => table.spec().clone(),
                    // Keys that were never seen get the row that training would have given them.
                    (None, Some(saved)) if saved.spec.dim == spec.dim => saved.spec.without_state(),
                    (None, _) => spec,
                };
                let rule = saved.map_or(spec.optimizer, |saved| saved.spec.optimizer);
                let spec = SparseSpec { salted, ..spec };
                wanted.sparse.push(Sparse { name, spec, rule });
            } else if let Some(spec) = dense_spec(program, var) {
                let existing = scope.dense(&name).filter(|table| !trains && table.shape() == spec.shape);
                let plain = existing.is_none() && !trains;
                let spec = existing.map_or(spec, |table| table.spec().clone());
                let saved = manifest.dense.iter().find(|saved| saved.name == name).filter(|_| !trains);
                let rule = saved.map_or(spec.optimizer, |saved| saved.spec.optimizer);
                wanted.dense.push(Dense { name, spec, rule, plain });
            }
        }
        wanted
    }

    /// What of it there is; a difference is an error unless `partial`.
    fn compare(&self, manifest: &Manifest, partial: bool) -> Result<Loaded, openfleet_table::Error> {
        let mut found = manifest.clone();
        if !self.all {
            found.sparse.retain(|saved| self.sparse.iter().any(|sparse| sparse.name == saved.name));
            found.dense.retain(|saved| self.dense.iter().any(|dense| dense.name == saved.name));
        }
        let sparse = self
            .sparse
            .iter()
            .map(|Sparse { name, spec, rule }| (name.clone(), SparseSpec { optimizer: *rule, ..spec.clone() }));
        let dense = self
            .dense
            .iter()
            .map(|Dense { name, spec, rule, .. }| (name.clone(), DenseSpec { optimizer: *rule, ..spec.clone() }));
        Loaded::compare(&found, &sparse.collect::<Vec<_>>(), &dense.collect::<Vec<_>>(), partial)
    }

    fn read(self, storage: &dyn Storage, manifest: &Manifest, partial: bool) -> Result<Tables, openfleet_table::Error> {
        let loaded = self.compare(manifest, partial)?;
        let fits = |here: &Optimizer, saved: &Optimizer| here.name() == saved.name();
        let mut tables = Tables::default();
        for Sparse { name, spec, .. } in self.sparse {
            let saved = manifest.sparse.iter().find(|saved| saved.name == name);
            let Some(saved) = saved.filter(|_| loaded.takes_values(&name)) else { continue };
            let with_state = loaded.takes_state(&name) && fits(&spec.optimizer, &saved.spec.optimizer);
            let table = SparseTable::new(spec)?;
            let threads = Threads::of_this_machine();
            checkpoint::read_sparse(storage, manifest, saved, 0..BUCKET_COUNT, &table, with_state, &threads)?;
            tables.sparse.push((name, table));
        }
        let mut values = checkpoint::read_dense(storage, manifest)?;
        for Dense { name, spec, plain, .. } in self.dense {
            let saved = manifest.dense.iter().find(|saved| saved.name == name);
            let Some(saved) = saved.filter(|_| loaded.takes_values(&name)) else { continue };
            let Some(parameter) = values.remove(&name) else { continue };
            if plain {
                // The shapes were compared.
                if let Ok(tensor) = Tensor::from_f32(&spec.shape, parameter.values) {
                    tables.plain.push((name, tensor));
                }
                continue;
            }
            let with_state = loaded.takes_state(&name) && fits(&spec.optimizer, &saved.spec.optimizer);
            let table = DenseTable::new(spec)?;
            match with_state {
                true => table.restore(&parameter.values, &parameter.state, parameter.step)?,
                false => table.assign(&parameter.values)?,
            }
            tables.dense.push((name, table));
        }
        Ok(tables)
    }
}

/// Fails where a checkpoint does not have what a program reads.
pub(crate) fn check(program: &Program, manifest: &Manifest) -> Result<(), openfleet_table::Error> {
    Wanted::of(program, &Scope::new(), manifest).compare(manifest, false).map(drop)
}

/// Puts the states of a program into a scope that has none.
pub(crate) fn take_states(program: &Program, scope: &Scope, saved: States) -> Result<()> {
    check_states(program, scope, &saved, false)?;
    set_states(program, scope, saved)
}

/// The states of a program that have a value.
pub(crate) fn states(program: &Program, scope: &Scope, only: &[String]) -> States {
    if !program.is_for_test() {
        scope.begin_training(program);
    }
    let names = program.persistables().filter(|(_, variable)| variable.kind == VariableKind::State);
    let names = names.map(|(_, variable)| &variable.name).filter(|name| only.is_empty() || only.contains(name));
    let value = |name: &String| {
        let tensor = scope.get(name)?;
        let elements = match tensor.elements() {
            Elements::F32(floats) => StateElements::F32(floats.clone()),
            Elements::I64(counts) => StateElements::I64(counts.clone()),
        };
        Some((name.clone(), StateValue { dims: tensor.dims().to_vec(), elements }))
    };
    names.filter_map(value).collect()
}

/// Fails where a state has no value in the checkpoint, nor one in the scope to go on with, or another shape.
fn check_states(program: &Program, scope: &Scope, saved: &States, partial: bool) -> Result<()> {
    for (_, variable) in program.persistables().filter(|(_, variable)| variable.kind == VariableKind::State) {
        match saved.get(&variable.name) {
            None if scope.get(&variable.name).is_none() && !partial => {
                return Err(Error::NotInitialized { name: variable.name.clone() });
            }
            Some(value) if value.dims != variable.shape.sizes(0) && !partial => {
                return Err(Error::ScopeMismatch {
                    name: variable.name.clone(),
                    expected: format!("a tensor of dimensions {:?}", variable.shape.sizes(0)),
                    got: format!("a tensor of dimensions {:?}", value.dims),
                });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Takes those states of a program that fit; the others stay.
pub(crate) fn set_states(program: &Program, scope: &Scope, mut saved: States) -> Result<()> {
    for (_, variable) in program.persistables().filter(|(_, variable)| variable.kind == VariableKind::State) {
        let fitting = saved.remove(&variable.name).filter(|value| value.dims == variable.shape.sizes(0));
        if let Some(StateValue { dims, elements }) = fitting {
            let tensor = match elements {
                StateElements::F32(floats) => Tensor::from_f32(&dims, floats)?,
                StateElements::I64(counts) => Tensor::from_i64(&dims, counts)?,
            };
            scope.replace(&variable.name, tensor);
        }
    }
    Ok(())
}
