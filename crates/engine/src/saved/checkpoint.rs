//! Saves and loads checkpoints: the same calls whether tables are on servers or in this process.
//!
//! On a cluster the servers write and read. In one process this file does it for the tables of the scope, in the same format.
//! Besides tables and parameters a checkpoint contains the program's states (running statistics, counters of metrics), which the
//! worker provides in both cases.

use openfleet_core::WorkId;
use openfleet_core::placement::BUCKET_COUNT;
use openfleet_dist::storage::{Addresses, Opened, Stores};
use openfleet_dist::threads::Threads;
use openfleet_dist::{LoadOptions, SaveOptions, fresh_save_id};
use openfleet_table::checkpoint::{
    self, Commit, DenseCut, Loaded, Manifest, Replaces, SparseCut, StateElements, States, Storage, TableCuts, Work,
};
use openfleet_table::{DenseSpec, DenseTable, Optimizer, SparseSpec, SparseTable};

use crate::error::{Error, Result};
use crate::graph::Program;
use crate::graph::table_spec::{dense_spec, sparse_spec, trains};
use crate::memory::Scope;
use crate::run::{Executor, Pause, states};
use crate::value::Tensor;

impl Executor {
    /// Saves every parameter, table and state of a program, with optimizer state. On a cluster it saves every table of the job.
    /// An existing checkpoint is replaced, unless the options say otherwise, and stays intact if this fails.
    pub fn save(&mut self, program: &Program, address: &str, options: &SaveOptions) -> Result<Manifest> {
        let cluster = self.cluster();
        let positions = match &cluster {
            Some(_) => Vec::new(),
            // Compiling turns parameters and tables into what the program trains.
            None => self.compile(program)?,
        };
        let ranks = self.ranks();
        let pause = Pause { program, scope: self.scope(), cluster: cluster.clone(), positions, ranks };
        pause.check(options)?;
        match cluster {
            Some(cluster) => Ok(cluster.save_once(address, &pause.with_states(options))?),
            None => pause.save(address, options),
        }
    }

    /// Loads every parameter, table and state of a program from a checkpoint, whether a job or a single process wrote it.
    /// Parameters need no startup program first.
    ///
    /// # Errors
    ///
    /// For a program that trains: if a parameter or table is missing in the checkpoint, is missing in the program, or has another
    /// shape or rule. With `partial` such parts are skipped. A program that does not train loads what it needs and ignores the
    /// rest. After an error nothing has changed.
    pub fn load(&mut self, program: &Program, address: &str, options: LoadOptions) -> Result<()> {
        if let Some(cluster) = self.cluster() {
            let Some(saved) = cluster.load_once(address, options)? else { return Ok(()) };
            return match options.tables_only {
                true => Ok(()),
                false => {
                    states::check(program, self.scope(), &saved, options.partial)?;
                    states::set(program, self.scope(), saved)
                }
            };
        }
        let opened = Opened::new(&Addresses, address, "loading")?;
        let manifest = &opened.manifest;
        let expected = ExpectedTables::of(program, self.scope(), manifest);
        let tables = opened.read(|storage, manifest| expected.read(storage, manifest, options.partial))?;
        let mut saved = States::new();
        if !options.tables_only {
            saved = opened.read(checkpoint::read_states)?;
            states::check(program, self.scope(), &saved, options.partial)?;
        }
        let streams = match self.ranks() {
            None if manifest.mode == SINGLE_PROCESS_MODE => Some(manifest.threads),
            Some(_) if manifest.mode == COLLECTIVE_MODE => Some(manifest.workers),
            _ => None,
        };
        if let Some(streams) = streams {
            self.resumed = false;
            let positions = manifest.work.positions();
            let of = |stream: u32| positions.get(&stream).copied().unwrap_or(0);
            self.loaded_positions = (0..streams).map(of).collect();
        }
        if self.ranks().is_some_and(|(rank, _)| rank > 0) {
            // Counters belong to one rank.
            saved.retain(|_, state| matches!(state.elements, StateElements::F32(_)));
        }
        let scope = self.scope();
        tables.sparse.into_iter().for_each(|(name, table)| scope.put_sparse(&name, table));
        tables.dense.into_iter().for_each(|(name, table)| scope.put_dense(&name, table));
        tables.plain.into_iter().for_each(|(name, tensor)| scope.replace(&name, tensor));
        states::set(program, scope, saved)
    }
}

/// The mode in the manifest of a checkpoint that was written without servers.
const SINGLE_PROCESS_MODE: &str = "local";
/// The mode in the manifest of a checkpoint of a collective job: the first rank writes it for all.
const COLLECTIVE_MODE: &str = "collective";

impl Pause<'_> {
    /// [`Executor::save`] during a pause of a pass over a dataset.
    pub fn save(&self, address: &str, options: &SaveOptions) -> Result<Manifest> {
        if let Some(save) = self.save_later(address, options) {
            return save();
        }
        let options = self.with_states(options);
        let failed = |source| Error::checkpoint("saving to", address, source);
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
            run: options.run,
            mode: if self.ranks.is_some() { COLLECTIVE_MODE } else { SINGLE_PROCESS_MODE }.into(),
            workers: self.ranks.map_or(1, |(_, size)| size as u32),
            threads: if self.ranks.is_some() { 1 } else { self.positions.len().max(1) as u32 },
            data: options.data,
            states: checkpoint::encode_states(&options.states).map_err(failed)?,
            replaces: standing.map_or(Replaces::Anything, |standing| Replaces::Changes(standing.id)),
            ..Commit::default()
        };
        checkpoint::save_alone(storage.as_ref(), save, cuts, options.replace || options.delta).map_err(failed)
    }

    /// If servers write the checkpoint: a function that saves, which can run on another thread and after the pause.
    pub fn save_later(
        &self,
        address: &str,
        options: &SaveOptions,
    ) -> Option<impl FnOnce() -> Result<Manifest> + Send + 'static> {
        let cluster = self.cluster.clone()?;
        let (address, options) = (address.to_owned(), self.with_states(options));
        Some(move || Ok(cluster.save(&address, &options)?))
    }

    /// Fails if `only` names something that the program does not have.
    fn check(&self, options: &SaveOptions) -> Result<()> {
        let known: Vec<_> = self.program.persistables().map(|(_, variable)| variable.name.clone()).collect();
        match options.only.iter().find(|name| !known.contains(name)) {
            Some(name) => Err(Error::UnknownVariable { name: name.clone(), known }),
            None => Ok(()),
        }
    }

    fn with_states(&self, options: &SaveOptions) -> SaveOptions {
        let mut options = options.clone();
        options.states.extend(states::of(self.program, self.scope, &options.only));
        options
    }
}

/// A snapshot of a program's parameters and tables in the scope. With `since`, tables contribute only what has changed since that
/// save.
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
            // No op reads it, so no plan has turned it into a table.
            let (spec, values) = (spec.without_state(), value.f32s().unwrap_or_default().to_vec());
            cuts.dense.push(DenseCut { parameter: name, offset: 0, spec, values, state: Vec::new(), step: 0 });
        }
    }
    Ok(cuts)
}

/// The tables that a program expects in a checkpoint.
struct ExpectedTables {
    sparse: Vec<ExpectedSparse>,
    dense: Vec<ExpectedDense>,
    /// Whether tables in the checkpoint that the program does not have are an error.
    all: bool,
}

struct ExpectedSparse {
    name: String,
    spec: SparseSpec,
    /// The optimizer that the checkpoint must have; if the program does not train, the one that it has.
    rule: Optimizer,
}

struct ExpectedDense {
    name: String,
    spec: DenseSpec,
    rule: Optimizer,
    /// Nothing has trained it in this process: it stays a tensor until something does.
    plain: bool,
}

/// Tables read from a checkpoint, not yet in the scope.
#[derive(Default)]
struct LoadedTables {
    sparse: Vec<(String, SparseTable)>,
    dense: Vec<(String, DenseTable)>,
    plain: Vec<(String, Tensor)>,
}

impl ExpectedTables {
    fn of(program: &Program, scope: &Scope, manifest: &Manifest) -> Self {
        let mut expected = ExpectedTables { sparse: Vec::new(), dense: Vec::new(), all: program.minimize.is_some() };
        for (var, variable) in program.persistables() {
            let (name, trains) = (variable.name.clone(), trains(program, var));
            if let Some(spec) = sparse_spec(program, var) {
                let salted = spec.salted;
                let existing = scope.sparse(&name).filter(|table| !trains && table.dim() == spec.dim);
                let saved = manifest.sparse.iter().find(|saved| saved.name == name).filter(|_| !trains);
                let spec = match (existing, saved) {
                    (Some(table), _) => table.spec().clone(),
                    // Keys that were never seen get the first values that training would have given them.
                    (None, Some(saved)) if saved.spec.dim == spec.dim => saved.spec.without_state(),
                    (None, _) => spec,
                };
                let rule = saved.map_or(spec.optimizer, |saved| saved.spec.optimizer);
                let spec = SparseSpec { salted, ..spec };
                expected.sparse.push(ExpectedSparse { name, spec, rule });
            } else if let Some(spec) = dense_spec(program, var) {
                let existing = scope.dense(&name).filter(|table| !trains && table.shape() == spec.shape);
                let plain = existing.is_none() && !trains;
                let spec = existing.map_or(spec, |table| table.spec().clone());
                let saved = manifest.dense.iter().find(|saved| saved.name == name).filter(|_| !trains);
                let rule = saved.map_or(spec.optimizer, |saved| saved.spec.optimizer);
                expected.dense.push(ExpectedDense { name, spec, rule, plain });
            }
        }
        expected
    }

    /// Which parts of the checkpoint are loaded. A mismatch is an error unless `partial`.
    fn compare(&self, manifest: &Manifest, partial: bool) -> Result<Loaded, openfleet_table::Error> {
        let mut found = manifest.clone();
        if !self.all {
            found.sparse.retain(|saved| self.sparse.iter().any(|sparse| sparse.name == saved.name));
            found.dense.retain(|saved| self.dense.iter().any(|dense| dense.name == saved.name));
        }
        let sparse = self
            .sparse
            .iter()
            .map(|ExpectedSparse { name, spec, rule }| (name.clone(), SparseSpec { optimizer: *rule, ..spec.clone() }));
        let dense = self.dense.iter().map(|ExpectedDense { name, spec, rule, .. }| {
            (name.clone(), DenseSpec { optimizer: *rule, ..spec.clone() })
        });
        Loaded::compare(&found, &sparse.collect::<Vec<_>>(), &dense.collect::<Vec<_>>(), partial)
    }

    fn read(
        self,
        storage: &dyn Storage,
        manifest: &Manifest,
        partial: bool,
    ) -> Result<LoadedTables, openfleet_table::Error> {
        let loaded = self.compare(manifest, partial)?;
        let fits = |here: &Optimizer, saved: &Optimizer| here.name() == saved.name();
        let mut tables = LoadedTables::default();
        for ExpectedSparse { name, spec, .. } in self.sparse {
            let saved = manifest.sparse.iter().find(|saved| saved.name == name);
            let Some(saved) = saved.filter(|_| loaded.takes_values(&name)) else { continue };
            let with_state = loaded.takes_state(&name) && fits(&spec.optimizer, &saved.spec.optimizer);
            let table = SparseTable::new(spec)?;
            let threads = Threads::of_this_machine();
            checkpoint::read_sparse(storage, manifest, saved, 0..BUCKET_COUNT, &table, with_state, &threads)?;
            tables.sparse.push((name, table));
        }
        let mut values = checkpoint::read_dense(storage, manifest)?;
        for ExpectedDense { name, spec, plain, .. } in self.dense {
            let saved = manifest.dense.iter().find(|saved| saved.name == name);
            let Some(saved) = saved.filter(|_| loaded.takes_values(&name)) else { continue };
            let Some(parameter) = values.remove(&name) else { continue };
            if plain {
                // The shapes were compared before.
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

/// Fails if a checkpoint does not have what a program reads.
pub(crate) fn check(program: &Program, manifest: &Manifest) -> Result<(), openfleet_table::Error> {
    ExpectedTables::of(program, &Scope::new(), manifest).compare(manifest, false).map(drop)
}
