//! One process of a job.

use std::collections::BTreeMap;
use std::sync::Arc;

use numpy::{IntoPyArray, PyReadonlyArray1};
use openfleet::fleet::{DistributedOptimizer as Distributed, ProcessContext};
use openfleet::role::{self, Environment, Local, Mpi, UserDefined, UserDefinedCollective};
use openfleet_core::Role;
use openfleet_dist::collective::Element;
use openfleet_dist::{Reduce, Shrink};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::raise;
use crate::executor::Executor;
use crate::interrupt;
use crate::program::{Program, named, parse_exceptions, parse_minimize};
use crate::scope::Scope;
use crate::strategy::Options;

/// Determines the role of a process.
#[pyclass(frozen, module = "openfleet._native")]
pub(crate) struct RoleMaker(Box<dyn role::RoleMaker + Send + Sync>);

#[pymethods]
impl RoleMaker {
    #[staticmethod]
    fn user_defined(
        current_id: i64,
        is_server: bool,
        worker_num: i64,
        server_endpoints: Vec<String>,
        worker_endpoints: Vec<String>,
    ) -> Self {
        let role = if is_server { Role::Server } else { Role::Worker };
        RoleMaker(Box::new(UserDefined { current_id, role, worker_num, server_endpoints, worker_endpoints }))
    }

    #[staticmethod]
    fn user_defined_collective(current_id: i64, worker_endpoints: Vec<String>) -> Self {
        RoleMaker(Box::new(UserDefinedCollective { current_id, worker_endpoints }))
    }

    #[staticmethod]
    fn environment(collective: bool) -> Self {
        RoleMaker(Box::new(Environment { collective }))
    }

    #[staticmethod]
    fn mpi() -> Self {
        RoleMaker(Box::new(Mpi))
    }

    #[staticmethod]
    fn local() -> Self {
        RoleMaker(Box::new(Local))
    }
}

/// One process of a job: a server, a worker, or a process that trains alone.
#[pyclass(frozen, module = "openfleet._native")]
pub(crate) struct Fleet(Arc<openfleet::Fleet>);

#[pymethods]
impl Fleet {
    /// Takes the role from a role maker, or from the environment.
    ///
    /// With `paddle_lines` it also prints the lines that PaddlePaddle prints, word for word.
    #[new]
    #[pyo3(signature = (role_maker, paddle_lines=false, is_collective=false))]
    fn new(py: Python<'_>, role_maker: Option<&RoleMaker>, paddle_lines: bool, is_collective: bool) -> PyResult<Self> {
        // Missing processes and refused requests are logged as warnings. A program with its own logger keeps it.
        openfleet::log::to_stderr(&openfleet::variables::Variables::of_process()).map_err(raise)?;
        // The role maker of an MPI job on several machines waits for the other machines.
        let mut context = ProcessContext::default();
        if paddle_lines {
            context.notices = context.notices.with_paddle_lines();
        }
        let fleet = py.detach(|| match role_maker {
            Some(role_maker) => openfleet::Fleet::init_in(Some(role_maker.0.as_ref()), context),
            None if is_collective => openfleet::Fleet::init_collective(context),
            None => openfleet::Fleet::init_in(None, context),
        });
        Ok(Fleet(Arc::new(fleet.map_err(raise)?)))
    }

    fn is_worker(&self) -> bool {
        self.0.is_worker()
    }

    fn is_server(&self) -> bool {
        self.0.is_server()
    }

    fn is_first_worker(&self) -> bool {
        self.0.is_first_worker()
    }

    /// Whether workers train with each other, without servers.
    fn is_collective(&self) -> bool {
        self.0.topology().is_collective()
    }

    fn worker_index(&self) -> PyResult<usize> {
        self.0.worker_index().map_err(raise)
    }

    fn worker_num(&self) -> usize {
        self.0.worker_num()
    }

    fn server_index(&self) -> PyResult<usize> {
        self.0.server_index().map_err(raise)
    }

    fn server_num(&self) -> usize {
        self.0.server_num()
    }

    fn server_endpoints(&self) -> Vec<String> {
        self.0.server_endpoints().iter().map(ToString::to_string).collect()
    }

    fn worker_endpoints(&self) -> Vec<String> {
        self.0.worker_endpoints().iter().map(ToString::to_string).collect()
    }

    fn thread_num(&self) -> usize {
        self.0.thread_num()
    }

    /// Describes the role of this process: `worker 0 of 2 (2 servers)`.
    fn __str__(&self) -> String {
        self.0.topology().to_string()
    }

    /// Chooses the mode and the optimizer of the job. The optimizer is described in JSON.
    fn distributed_optimizer(&self, rule: &str, options: &Options) -> PyResult<DistributedOptimizer> {
        let minimize = parse_minimize(rule)?;
        let options = options.0.lock();
        self.0.distributed_optimizer(minimize, &options).map(DistributedOptimizer).map_err(raise)
    }

    fn init_server(&self, path: Option<&str>) -> PyResult<()> {
        self.0.init_server(path).map_err(raise)
    }

    /// Serves until all workers have left the job.
    fn run_server(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, |fleet| fleet.run_server())
    }

    /// Waits for the servers and connects to them.
    fn init_worker(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, |fleet| fleet.init_worker())
    }

    fn stop_worker(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, |fleet| fleet.stop_worker())
    }

    fn barrier_worker(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, |fleet| fleet.barrier_worker())
    }

    /// Combines the arrays of all workers element by element. An array is one-dimensional, of `float32`, `float64` or `int64`.
    fn all_reduce<'py>(&self, py: Python<'py>, op: &str, values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let Some(op) = Reduce::ALL.into_iter().find(|known| known.to_string() == op) else {
            let names = Reduce::ALL.map(|known| format!("`{known}`")).join(", ");
            return Err(PyValueError::new_err(format!("`mode` cannot be `{op}`\n\nhint: choose one of {names}")));
        };
        if let Ok(values) = values.extract::<PyReadonlyArray1<'py, f32>>() {
            self.reduce(py, op, values)
        } else if let Ok(values) = values.extract::<PyReadonlyArray1<'py, f64>>() {
            self.reduce(py, op, values)
        } else {
            self.reduce(py, op, values.extract::<PyReadonlyArray1<'py, i64>>()?)
        }
    }

    /// Copies the bytes of worker `root` to all workers of a collective job. All pass the same number of bytes.
    fn broadcast<'py>(&self, py: Python<'py>, root: usize, mut bytes: Vec<u8>) -> PyResult<Bound<'py, PyBytes>> {
        let copied = self.wait(py, move |fleet| fleet.broadcast(root, &mut bytes).map(|()| bytes))?;
        Ok(PyBytes::new(py, &copied))
    }

    /// Gathers the bytes of all workers of a collective job in rank order.
    fn all_gather<'py>(&self, py: Python<'py>, bytes: Vec<u8>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let gathered = self.wait(py, move |fleet| fleet.all_gather(&bytes))?;
        Ok(gathered.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// Computes the AUC from the histograms of all workers.
    fn auc(&self, py: Python<'_>, positive: Vec<i64>, negative: Vec<i64>) -> PyResult<f64> {
        self.wait(py, move |fleet| fleet.metrics().auc(&positive, &negative))
    }

    /// Computes `acc`, `mae`, `mse` or `rmse` of all workers, from each worker's sum and number of rows.
    fn ratio_metric(&self, py: Python<'_>, name: &str, sum: f64, total: u64) -> PyResult<f64> {
        type Metric = fn(&openfleet::fleet::Metrics<'_>, f64, u64) -> openfleet::Result<f64>;
        let metric: Metric = match name {
            "acc" => |metrics, sum, total| metrics.acc(sum.round() as u64, total),
            "mae" => |metrics, sum, total| metrics.mae(sum, total),
            "mse" => |metrics, sum, total| metrics.mse(sum, total),
            "rmse" => |metrics, sum, total| metrics.rmse(sum, total),
            _ => return Err(PyValueError::new_err(format!("`{name}` is not a metric"))),
        };
        self.wait(py, move |fleet| metric(&fleet.metrics(), sum, total))
    }

    /// Removes stale rows. Returns how many were removed by score, by unseen days and by age; `None` on workers other than the
    /// first.
    fn shrink(
        &self,
        py: Python<'_>,
        table: Option<String>,
        now: Option<u32>,
        max_age: Option<u32>,
        end_of_day: bool,
    ) -> PyResult<Option<(usize, usize, usize)>> {
        let shrink = Shrink { table, now, max_age: max_age.unwrap_or(u32::MAX), end_of_day };
        let shrunk = self.wait(py, move |fleet| fleet.shrink(&shrink))?;
        Ok(shrunk.map(|shrunk| (shrunk.by_score, shrunk.by_unseen_days, shrunk.by_age)))
    }

    /// Returns the number of rows per sparse table on all servers; `None` if this process trains alone.
    fn table_rows(&self, py: Python<'_>) -> PyResult<Option<BTreeMap<String, u64>>> {
        self.wait(py, |fleet| {
            let Some(cluster) = fleet.cluster()? else { return Ok(None) };
            let mut rows = BTreeMap::new();
            for (name, count, _bytes) in cluster.status()?.into_iter().flat_map(|status| status.sparse) {
                *rows.entry(name).or_insert(0) += count;
            }
            Ok(Some(rows))
        })
    }

    /// Returns this worker's part of a list of files.
    fn split_files(&self, files: Vec<String>) -> PyResult<Vec<String>> {
        self.0.split_files(&files).map(<[String]>::to_vec).map_err(raise)
    }

    /// Creates an executor on the tables of this job.
    fn executor(&self, scope: &Scope) -> PyResult<Executor> {
        let remote = self.0.worker_num() > 1 || self.0.server_num() > 0;
        let runner = self.0.executor(scope.0.clone()).map_err(raise)?;
        Ok(Executor::of_job(runner, self.0.clone(), remote))
    }

    /// Returns whether this rank was restarted and repeats what its script had done before; then a line says that `what` is
    /// skipped.
    fn skips_repeated(&self, what: &str) -> bool {
        self.0.skips_repeated(what)
    }

    /// Reports the progress of this process to the launcher.
    fn report_progress(&self, state: String, samples: u64, samples_per_second: f64) {
        self.0.report_progress(&state, Some(samples), Some(samples_per_second));
    }
}

impl Fleet {
    fn reduce<'py, T: Element + numpy::Element>(
        &self,
        py: Python<'py>,
        op: Reduce,
        values: PyReadonlyArray1<'py, T>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut values = values.as_slice()?.to_vec();
        let reduced = self.wait(py, move |fleet| fleet.all_reduce(op, &mut values).map(|()| values))?;
        Ok(reduced.into_pyarray(py).into_any())
    }

    /// Runs work that waits for other processes. Ctrl-C stops it.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&openfleet::Fleet) -> openfleet::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let (fleet, stop) = (self.0.clone(), self.0.stop_handle());
        interrupt::run(py, || stop.stop(), move || work(&fleet))?.map_err(raise)
    }
}

/// An optimizer with the strategy of its job.
#[pyclass(frozen, module = "openfleet._native")]
pub(crate) struct DistributedOptimizer(Distributed);

#[pymethods]
impl DistributedOptimizer {
    /// Adds the gradients of a loss and their updates. `exceptions` says in JSON what is different for some parameters.
    fn minimize(&self, program: &Program, loss: &str, exceptions: &str) -> PyResult<Vec<(String, String)>> {
        let exceptions = parse_exceptions(exceptions)?;
        let mut graph = program.0.lock();
        let loss = graph.find(loss).map_err(raise)?;
        let pairs = self.0.clone().with_exceptions(exceptions).minimize(&mut graph, loss).map_err(raise)?;
        Ok(named(&graph, pairs))
    }

    /// Describes the strategy in one line.
    fn describe(&self) -> String {
        self.0.strategy().to_string()
    }
}
