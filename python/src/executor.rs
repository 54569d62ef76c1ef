//! Runs programs on one batch of arrays, or on a whole dataset.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use openfleet::{LoadOptions, Manifest, SaveOptions};
use openfleet_engine::{
    Executor as Runner, Feed, LookedUp, Observation, OutsideGradients, Program as Graph, Result, Returned, RunOptions,
    Var,
};
use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::dataset::Dataset;
use crate::error::raise;
use crate::interrupt;
use crate::program::Program;
use crate::scope::Scope;
use crate::tensor::to_array;

/// A name and its values as a flat array.
pub(crate) type Arrays<'py, T> = (String, PyReadonlyArray1<'py, T>, Vec<usize>);
/// A slot's name, the number of ids per row, and the ids of all rows.
pub(crate) type SlotArrays<'py> = (String, PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, i64>);

/// A parameter and its values.
type ParameterArray<'py> = (String, Bound<'py, PyArray1<f32>>);
/// A table, and the ids that are wanted of it.
type WantedArray<'py> = (String, PyReadonlyArray1<'py, i64>);
/// Distinct ids, the position of each id among them, and the rows of the distinct ids.
type RowArrays<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>, Bound<'py, PyArray2<f32>>);

/// Runs programs on the values of one scope.
#[pyclass(frozen, module = "openfleet._native")]
pub(crate) struct Executor {
    runner: Arc<Mutex<Runner>>,
    /// The job whose tables it trains. Saving and loading are for the whole job then.
    job: Option<Arc<openfleet::Fleet>>,
    /// Whether a step may wait for servers and for other workers.
    remote: bool,
}

impl Executor {
    pub(crate) fn of_job(runner: Runner, job: Arc<openfleet::Fleet>, remote: bool) -> Self {
        Executor { runner: Arc::new(Mutex::new(runner)), job: Some(job), remote }
    }
}

#[pymethods]
impl Executor {
    #[new]
    fn new(scope: &Scope) -> Self {
        Executor { runner: Arc::new(Mutex::new(Runner::new(scope.0.clone()))), job: None, remote: false }
    }

    /// Sets how many threads share the matrix products of a batch in `run`.
    fn set_batch_threads(&self, py: Python<'_>, threads: usize) -> PyResult<()> {
        py.detach(|| self.lock().map(|mut runner| runner.set_batch_threads(threads)))
    }

    /// Gives every variable of a startup program its first value.
    fn run_startup(&self, py: Python<'_>, startup: &Program) -> PyResult<()> {
        py.detach(|| self.lock()?.run_startup(&startup.0.lock()).map_err(raise))
    }

    /// Runs one step. Floats and integers are flat arrays; a slot is the number of ids per row and the ids of all rows.
    fn run<'py>(
        &self,
        py: Python<'py>,
        program: &Program,
        floats: Vec<Arrays<'py, f32>>,
        ints: Vec<Arrays<'py, i64>>,
        slots: Vec<SlotArrays<'py>>,
        fetch: Vec<String>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let feed = feed_of(&program.0.lock(), floats, ints, slots)?;
        let (graph, runner) = (program.0.clone(), self.runner.clone());
        let step = move || {
            let graph = graph.lock();
            let fetch = find(&graph, &fetch).map_err(raise)?;
            lock(&runner)?.run(&graph, feed, &fetch).map_err(raise)
        };
        // A local step takes milliseconds and needs no thread of its own.
        let values = if self.remote { interrupt::run(py, || {}, step)?? } else { py.detach(step)? };
        values.into_iter().map(|tensor| to_array(py, tensor)).collect()
    }

    /// Looks ids up in some tables of a program. Returns for each table the distinct ids, the position of each id among them, and
    /// the rows of the distinct ids.
    fn look_up<'py>(
        &self,
        py: Python<'py>,
        program: &Program,
        wanted: Vec<WantedArray<'py>>,
        for_training: bool,
    ) -> PyResult<Vec<RowArrays<'py>>> {
        let wanted = wanted_ids(wanted)?;
        let found = self.outside(py, program, move |runner, graph| {
            runner.look_up(graph, &found_in(graph, &wanted)?, for_training)
        })?;
        let arrays = found.into_iter().map(|LookedUp { keys, positions, rows, dim }| {
            let positions: Vec<i64> = positions.into_iter().map(i64::from).collect();
            let rows = rows.into_pyarray(py).reshape([keys.len(), dim])?;
            Ok((signed(keys).into_pyarray(py), positions.into_pyarray(py), rows))
        });
        arrays.collect()
    }

    /// Says what a later batch will look up, so that its rows are on their way while this one is computed.
    fn look_ahead<'py>(&self, py: Python<'py>, program: &Program, wanted: Vec<WantedArray<'py>>) -> PyResult<()> {
        let wanted = wanted_ids(wanted)?;
        self.outside(py, program, move |runner, graph| runner.look_ahead(graph, &found_in(graph, &wanted)?))
    }

    /// Sets the weights of ids that have no row yet.
    fn put_rows<'py>(
        &self,
        py: Python<'py>,
        program: &Program,
        table: String,
        ids: PyReadonlyArray1<'py, i64>,
        rows: PyReadonlyArray2<'py, f32>,
    ) -> PyResult<()> {
        let (ids, rows) = (keys_of(&ids)?, rows.as_slice()?.to_vec());
        self.outside(py, program, move |runner, graph| runner.put_rows(graph, graph.find(&table)?, &ids, &rows))
    }

    /// Returns the ids of a table that have a row.
    fn ids<'py>(&self, py: Python<'py>, program: &Program, table: String) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let ids = self.outside(py, program, move |runner, graph| runner.ids(graph, graph.find(&table)?))?;
        Ok(signed(ids).into_pyarray(py))
    }

    /// Runs one training step with gradients that were computed elsewhere: of rows, by table and id, and of parameters. Returns the
    /// parameters that may have changed.
    fn push_gradients<'py>(
        &self,
        py: Python<'py>,
        program: &Program,
        rows: Vec<(String, PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, f32>)>,
        dense: Vec<(String, PyReadonlyArray1<'py, f32>)>,
        rate_factor: f32,
    ) -> PyResult<Vec<ParameterArray<'py>>> {
        let rows = rows
            .into_iter()
            .map(|(table, ids, gradients)| Ok::<_, PyErr>((table, keys_of(&ids)?, gradients.as_slice()?.to_vec())));
        let rows = rows.collect::<PyResult<Vec<_>>>()?;
        let dense = dense.into_iter().map(|(name, gradient)| Ok::<_, PyErr>((name, gradient.as_slice()?.to_vec())));
        let dense = dense.collect::<PyResult<Vec<_>>>()?;
        let values = self.outside(py, program, move |runner, graph| {
            let rows = rows.iter().map(|(table, ids, values)| Ok((graph.find(table)?, &ids[..], &values[..])));
            let dense = dense.iter().map(|(name, values)| Ok((graph.find(name)?, &values[..])));
            let (rows, dense) = (rows.collect::<Result<_>>()?, dense.collect::<Result<_>>()?);
            runner.push_gradients(graph, &OutsideGradients { rate_factor, rows, dense })?;
            runner.parameters(graph, Returned::Newer)
        })?;
        Ok(arrays_of(py, values))
    }

    /// Returns the newest values of the parameters of a program, by name: all, or those that may differ from what was returned
    /// last.
    fn parameters<'py>(&self, py: Python<'py>, program: &Program, all: bool) -> PyResult<Vec<ParameterArray<'py>>> {
        let which = if all { Returned::All } else { Returned::Newer };
        let values = self.outside(py, program, move |runner, graph| runner.parameters(graph, which))?;
        Ok(arrays_of(py, values))
    }

    /// Saves parameters, tables and states of a program, or of its job; returns the manifest as JSON, or `None` on workers of a
    /// job other than the first. An interrupted save completes in the background or has no effect: the checkpoint at the
    /// address is intact in either case.
    #[pyo3(signature = (program, address, *, only, replace, delta))]
    fn save(
        &self,
        py: Python<'_>,
        program: &Program,
        address: String,
        only: Vec<String>,
        replace: bool,
        delta: bool,
    ) -> PyResult<Option<String>> {
        let options = SaveOptions { replace, delta, only, ..SaveOptions::default() };
        self.save_with(py, program, move |runner, graph, job| match job {
            Some(job) => job.save_persistables_with(runner, graph, &address, &options),
            None => Ok(Some(runner.save(graph, &address, &options)?)),
        })
    }

    /// Saves an inference model for the targets; returns the manifest as JSON, or `None` on workers of a job other than the
    /// first.
    fn save_inference_model(
        &self,
        py: Python<'_>,
        program: &Program,
        feeds: Vec<String>,
        targets: Vec<String>,
        address: String,
    ) -> PyResult<Option<String>> {
        let targets = find(&program.0.lock(), &targets).map_err(raise)?;
        self.save_with(py, program, move |runner, graph, job| match job {
            Some(job) => job.save_inference_model(runner, graph, &feeds, &targets, &address),
            None => Ok(Some(runner.save_inference_model(graph, &feeds, &targets, &address)?)),
        })
    }

    /// Loads an inference model into the scope. Returns its program, and the names of its inputs and targets.
    fn load_inference_model(&self, py: Python<'_>, address: String) -> PyResult<(Program, Vec<String>, Vec<String>)> {
        let runner = self.runner.clone();
        let load = move || lock(&runner)?.load_inference_model(&address).map_err(raise);
        let model = interrupt::run(py, || {}, load)??;
        let targets = model.targets.iter().map(|&target| model.program.variable(target).name.clone()).collect();
        Ok((Program(Arc::new(Mutex::new(model.program))), model.feeds, targets))
    }

    /// Loads the parameters, tables and states of a program from a checkpoint.
    #[pyo3(signature = (program, address, *, partial, tables_only))]
    fn load(
        &self,
        py: Python<'_>,
        program: &Program,
        address: String,
        partial: bool,
        tables_only: bool,
    ) -> PyResult<()> {
        let (graph, runner) = (program.0.lock().clone(), self.runner.clone());
        // Not `Fleet::load_model`, which does nothing on other workers than the first: a worker that calls this also wants the
        // program's states in its own scope.
        if let Some(job) = &self.job
            && !job.begins_load(&address).map_err(raise)?
        {
            return Ok(());
        }
        let load = move || lock(&runner)?.load(&graph, &address, LoadOptions { partial, tables_only }).map_err(raise);
        interrupt::run(py, || {}, load)?
    }

    /// Runs one pass over a dataset. Calls `observer` every `print_period` steps with the step, the fetched values and the
    /// samples per second. An exception of the observer ends the pass.
    #[pyo3(signature = (program, dataset, *, infer, threads, fetch, print_period, debug, observer))]
    fn run_from_dataset(
        &self,
        py: Python<'_>,
        program: &Program,
        dataset: &Dataset,
        infer: bool,
        threads: usize,
        fetch: Vec<String>,
        print_period: u64,
        debug: bool,
        observer: Option<Py<PyAny>>,
    ) -> PyResult<RunReport> {
        let graph = program.0.lock().clone();
        let fetch = find(&graph, &fetch).map_err(raise)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (runner, dataset, stopped) = (self.runner.clone(), dataset.0.clone(), stop.clone());
        let pass = move || {
            let raised = Mutex::new(None);
            let observe = |observation: &Observation| {
                if let Some(Err(error)) = observer.as_ref().map(|observer| tell(observer, observation)) {
                    raised.lock().get_or_insert(error);
                    stopped.store(true, Ordering::Relaxed);
                }
            };
            let options = RunOptions {
                threads,
                fetch: &fetch,
                print_period,
                observer: Some(&observe),
                stop: Some(&stopped),
                debug,
                ..RunOptions::default()
            };
            let dataset = dataset.read();
            let mut runner = lock(&runner)?;
            let report = match infer {
                true => runner.infer_from_dataset(&graph, dataset.source(), &options),
                false => runner.train_from_dataset(&graph, dataset.source(), &options),
            };
            let raised = raised.into_inner();
            raised.map_or_else(|| report.map_err(raise), Err)
        };
        let report = interrupt::run(py, || stop.store(true, Ordering::Relaxed), pass)??;
        Ok(RunReport {
            samples: report.samples,
            steps: report.steps,
            seconds: report.elapsed.as_secs_f64(),
            waited_seconds: report.times.waited.as_secs_f64(),
            phases: report.times.phases().map(|(phase, time)| (phase, time.as_secs_f64())).into(),
            skipped_lines: report.skipped_lines,
            refused_gradients: report.refused_gradients,
            skipped: report.skipped,
            skipped_steps: report.skipped_steps,
            skipped_samples: report.skipped_samples,
            profile: report.profile.into_iter().map(|(op, time)| (op, time.as_secs_f64())).collect(),
        })
    }
}

impl Executor {
    /// Runs a part of a step whose layers another library computes, without the GIL.
    fn outside<T: Send + 'static>(
        &self,
        py: Python<'_>,
        program: &Program,
        part: impl FnOnce(&mut Runner, &Graph) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let (graph, runner) = (program.0.clone(), self.runner.clone());
        let work = move || part(&mut *lock(&runner)?, &graph.lock()).map_err(raise);
        // A local step takes milliseconds and needs no thread of its own.
        if self.remote { interrupt::run(py, || {}, work)? } else { py.detach(work) }
    }

    /// Runs a save without the GIL, on a thread that Ctrl-C does not stop.
    fn save_with(
        &self,
        py: Python<'_>,
        program: &Program,
        save: impl FnOnce(&mut Runner, &Graph, Option<&openfleet::Fleet>) -> openfleet::Result<Option<Manifest>>
        + Send
        + 'static,
    ) -> PyResult<Option<String>> {
        let (graph, runner, job) = (program.0.lock().clone(), self.runner.clone(), self.job.clone());
        let work = move || save(&mut *lock(&runner)?, &graph, job.as_deref()).map_err(raise);
        let manifest = interrupt::run(py, || {}, work)??;
        let json = manifest.map(|manifest| serde_json::to_string(&manifest));
        json.transpose().map_err(|error| PyValueError::new_err(error.to_string()))
    }

    fn lock(&self) -> PyResult<parking_lot::MutexGuard<'_, Runner>> {
        lock(&self.runner)
    }
}

/// Counters of a pass over a dataset.
#[pyclass(frozen, get_all, module = "openfleet._native")]
pub(crate) struct RunReport {
    samples: u64,
    steps: u64,
    seconds: f64,
    waited_seconds: f64,
    phases: Vec<(&'static str, f64)>,
    skipped_lines: u64,
    refused_gradients: u64,
    skipped: bool,
    skipped_steps: u64,
    skipped_samples: u64,
    profile: Vec<(String, f64)>,
}

#[pymethods]
impl RunReport {
    #[getter]
    fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.seconds.max(1e-9)
    }

    fn __repr__(&self) -> String {
        format!("RunReport(samples={}, steps={}, seconds={:.3})", self.samples, self.steps, self.seconds)
    }
}

fn lock(runner: &Mutex<Runner>) -> PyResult<parking_lot::MutexGuard<'_, Runner>> {
    // Work that Ctrl-C could not stop may still hold the lock: waiting would hang.
    runner.try_lock().ok_or_else(|| PyRuntimeError::new_err("the executor is in use by another thread"))
}

fn find(graph: &Graph, names: &[String]) -> Result<Vec<Var>> {
    names.iter().map(|name| graph.find(name)).collect()
}

/// Converts arrays to a batch.
pub(crate) fn feed_of(
    graph: &Graph,
    floats: Vec<Arrays<'_, f32>>,
    ints: Vec<Arrays<'_, i64>>,
    slots: Vec<SlotArrays<'_>>,
) -> PyResult<Feed> {
    let mut feed = Feed::new();
    let is_shaped = graph.has_unknown_shapes();
    let is_batch = |name: &str| graph.find(name).is_ok_and(|var| graph.variable(var).is_batched());
    for (name, values, dims) in floats {
        let array = values.as_slice()?.to_vec();
        feed = match is_shaped {
            true => feed.shaped_floats(&name, &dims, array, is_batch(&name)),
            false => per_row(graph, &name).and_then(|per_row| feed.floats(&name, per_row, array)),
        }
        .map_err(raise)?;
    }
    for (name, values, dims) in ints {
        let array = values.as_slice()?;
        feed = match is_shaped {
            true => feed.shaped_ints(&name, &dims, array, is_batch(&name)),
            false => per_row(graph, &name).and_then(|per_row| feed.ints(&name, per_row, array)),
        }
        .map_err(raise)?;
    }
    for (name, lengths, ids) in slots {
        let lengths: Vec<usize> = lengths.as_slice()?.iter().map(|&length| length.max(0) as usize).collect();
        feed = feed.ids(&name, &lengths, keys_of(&ids)?).map_err(raise)?;
    }
    Ok(feed)
}

/// The same 64 bits: ids above 2^63 are negative in NumPy's int64.
fn keys_of(ids: &PyReadonlyArray1<'_, i64>) -> PyResult<Vec<u64>> {
    Ok(ids.as_slice()?.iter().map(|&id| id as u64).collect())
}

fn arrays_of(py: Python<'_>, values: Vec<(String, Vec<f32>)>) -> Vec<ParameterArray<'_>> {
    values.into_iter().map(|(name, values)| (name, values.into_pyarray(py))).collect()
}

/// The ids that are wanted of each table.
fn wanted_ids(wanted: Vec<WantedArray<'_>>) -> PyResult<Vec<(String, Vec<u64>)>> {
    wanted.into_iter().map(|(table, ids)| Ok((table, keys_of(&ids)?))).collect()
}

fn found_in<'a>(graph: &Graph, wanted: &'a [(String, Vec<u64>)]) -> Result<Vec<(Var, &'a [u64])>> {
    wanted.iter().map(|(table, ids)| Ok((graph.find(table)?, ids.as_slice()))).collect()
}

/// The same 64 bits as NumPy's int64.
pub(crate) fn signed(keys: Vec<u64>) -> Vec<i64> {
    keys.into_iter().map(|key| key as i64).collect()
}

fn per_row(graph: &Graph, name: &str) -> Result<usize> {
    let variable = graph.variable(graph.find(name)?);
    Ok(variable.shape.0.iter().skip(1).map(|dim| dim.size(1)).product())
}

fn tell(observer: &Py<PyAny>, observation: &Observation) -> PyResult<()> {
    Python::attach(|py| {
        let values =
            observation.values.iter().map(|value| to_array(py, value.clone())).collect::<PyResult<Vec<_>>>()?;
        let rate = observation.samples as f64 / observation.elapsed.as_secs_f64().max(1e-9);
        observer.call1(py, (observation.step, values, observation.samples, rate)).map(drop)
    })
}
