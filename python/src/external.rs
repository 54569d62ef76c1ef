//! What a driver in Python needs to run a job on another scheduler: the rules of `fleetrun` (`ExternalJob`), a process on its
//! machine (`ChildProcess`) and a reserved port.
//!
//! Actions are passed as tuples: `("job_file", text)`, `("start", index, attempt)`, `("signal", index, number)` and
//! `("tell", line)`. An ending is a pair of an exit code and a signal number, one of which may be `None`; both are for an
//! unknown status.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ::openfleet::Endpoint;
use ::openfleet::Role;
use ::openfleet::job_file::JobFile;
use ::openfleet::launch::{
    ChildOptions, ChildProcess as Child, CommandWords, Ending, ExternalAction, ExternalJob as Job, ExternalOptions,
    PortReservation as Reservation,
};
use openfleet_core::error::report;
use parking_lot::Mutex;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::raise;

type Action<'py> = Bound<'py, PyAny>;
type PyEnding = (Option<i32>, Option<i32>);

/// A job whose processes the caller starts.
#[pyclass(frozen, module = "openfleet._native")]
pub(crate) struct ExternalJob(Mutex<Job>);

#[pymethods]
impl ExternalJob {
    #[new]
    #[pyo3(signature = (command, module, compat, servers, workers, job, max_restarts, timeout))]
    fn new(
        command: Vec<String>,
        module: bool,
        compat: bool,
        servers: usize,
        workers: usize,
        job: Option<String>,
        max_restarts: i64,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let timeout = timeout.map(seconds).transpose()?;
        let command = words(command, module, compat);
        let options = ExternalOptions { command, servers, workers, job, max_restarts, timeout };
        Ok(ExternalJob(Mutex::new(Job::new(&options).map_err(raise)?)))
    }

    #[getter]
    fn name(&self) -> String {
        self.0.lock().name().to_owned()
    }

    #[getter]
    fn run(&self) -> String {
        self.0.lock().run().to_owned()
    }

    #[getter]
    fn restarts(&self) -> u64 {
        self.0.lock().restarts()
    }

    #[getter]
    fn is_stopping(&self) -> bool {
        self.0.lock().is_stopping()
    }

    fn is_paused(&self, index: usize) -> bool {
        self.0.lock().is_paused(index)
    }

    fn process_names(&self) -> Vec<String> {
        self.0.lock().process_names()
    }

    fn headline(&self) -> String {
        self.0.lock().headline()
    }

    fn prefixed(&self, index: usize, line: &str, has_colour: bool) -> String {
        self.0.lock().prefixed(index, line, has_colour)
    }

    /// Begins to supervise processes at these hosts and ports.
    fn begin<'py>(
        &self,
        py: Python<'py>,
        endpoints: Vec<(String, u16)>,
        rendezvous: (String, u16),
    ) -> PyResult<Vec<Action<'py>>> {
        let endpoints = endpoints.iter().map(endpoint).collect::<PyResult<Vec<Endpoint>>>()?;
        let begun = self.0.lock().begin(endpoints, Some(endpoint(&rendezvous)?), Instant::now());
        actions(py, begun.map_err(raise)?)
    }

    fn place(&self, index: usize, at: (String, u16)) -> PyResult<()> {
        self.0.lock().place(index, endpoint(&at)?);
        Ok(())
    }

    fn meet_at(&self, at: (String, u16)) -> PyResult<()> {
        self.0.lock().meet_at(endpoint(&at)?);
        Ok(())
    }

    fn environment(&self, index: usize, attempt: u64) -> Vec<(String, String)> {
        let variables = self.0.lock().environment(index, attempt);
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn started(&self, index: usize, pid: u32) {
        self.0.lock().started(index, pid);
    }

    fn not_started<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Vec<Action<'py>>> {
        actions(py, self.0.lock().not_started(index, Instant::now()))
    }

    fn skipped<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Vec<Action<'py>>> {
        actions(py, self.0.lock().skipped(index, Instant::now()))
    }

    /// Reports processes that ended at the same moment: index, ending and the content of the progress file of each.
    fn ended<'py>(&self, py: Python<'py>, ended: Vec<(usize, PyEnding, String)>) -> PyResult<Vec<Action<'py>>> {
        let ended = ended.into_iter().map(|(index, ending, report)| (index, from_python(ending), report)).collect();
        actions(py, self.0.lock().ended(ended, Instant::now()))
    }

    fn reported<'py>(&self, py: Python<'py>, index: usize, report: String) -> PyResult<Vec<Action<'py>>> {
        actions(py, self.0.lock().reported(index, report, Instant::now()))
    }

    fn interrupted<'py>(&self, py: Python<'py>) -> PyResult<Vec<Action<'py>>> {
        actions(py, self.0.lock().interrupted(Instant::now()))
    }

    fn tick<'py>(&self, py: Python<'py>) -> PyResult<Vec<Action<'py>>> {
        actions(py, self.0.lock().tick(Instant::now()))
    }

    /// Seconds until `tick` has something to do.
    fn next_tick(&self) -> Option<f64> {
        let at = self.0.lock().next_tick()?;
        Some(at.saturating_duration_since(Instant::now()).as_secs_f64())
    }

    /// The exit code, the error with its hint, and the process that failed; `None` while the job runs.
    fn outcome(&self) -> Option<(u8, Option<String>, Option<usize>)> {
        let outcome = self.0.lock().outcome()?;
        Some((outcome.exit_code, outcome.error.map(|error| report(&error)), outcome.process))
    }
}

/// A process of such a job, on the machine where it runs.
#[pyclass(frozen, module = "openfleet._native")]
pub(crate) struct ChildProcess(Mutex<Child>);

#[pymethods]
impl ChildProcess {
    #[new]
    #[pyo3(signature = (name, attempt, command, module, compat, python, variables, directory, job_file))]
    fn new(
        py: Python<'_>,
        name: &str,
        attempt: u64,
        command: Vec<String>,
        module: bool,
        compat: bool,
        python: PathBuf,
        variables: Vec<(String, String)>,
        directory: PathBuf,
        job_file: &str,
    ) -> PyResult<Self> {
        let (role, rank) = match name.split_once(' ') {
            Some(("server", rank)) => (Role::Server, rank),
            Some(("worker", rank)) => (Role::Worker, rank),
            _ => return Err(PyValueError::new_err(format!("`{name}` is not a process"))),
        };
        let options = ChildOptions {
            role,
            rank: rank.parse().map_err(|_| PyValueError::new_err(format!("`{name}` is not a process")))?,
            attempt,
            command: &words(command, module, compat),
            python: &python,
            variables: &variables,
            directory: &directory,
            job_file: &JobFile::parse(job_file),
        };
        Ok(ChildProcess(Mutex::new(py.detach(|| Child::start(&options)).map_err(raise)?)))
    }

    #[getter]
    fn pid(&self) -> u32 {
        self.0.lock().pid()
    }

    /// Waits at most this many seconds. Returns output lines, and how the process ended if it has.
    fn poll(&self, py: Python<'_>, wait: f64) -> PyResult<(Vec<String>, Option<PyEnding>)> {
        let wait = seconds(wait)?;
        let events = py.detach(|| self.0.lock().poll(wait));
        Ok((events.lines, events.ending.map(to_python)))
    }

    fn report(&self) -> String {
        self.0.lock().report()
    }

    fn write_job_file(&self, text: &str) -> PyResult<()> {
        self.0.lock().write_job_file(&JobFile::parse(text)).map_err(raise)
    }

    fn signal(&self, number: i32) {
        self.0.lock().signal(number);
    }
}

/// A free port of a host, which no other process can take until it is released.
#[pyclass(frozen, module = "openfleet._native")]
pub(crate) struct PortReservation {
    #[pyo3(get)]
    port: u16,
    reserved: Mutex<Option<Reservation>>,
}

#[pymethods]
impl PortReservation {
    #[new]
    fn new(host: &str) -> PyResult<Self> {
        let (reserved, port) = Reservation::free(host).map_err(raise)?;
        Ok(PortReservation { port, reserved: Mutex::new(Some(reserved)) })
    }

    fn release(&self) {
        drop(self.reserved.lock().take());
    }
}

/// The exit code that a shell would report for an ending.
#[pyfunction]
pub(crate) fn shell_exit_code(ending: PyEnding) -> u8 {
    from_python(ending).exit_code()
}

fn words(command: Vec<String>, module: bool, compat: bool) -> CommandWords {
    CommandWords { module, compat, python: None, command: command.into_iter().map(Into::into).collect() }
}

fn endpoint((host, port): &(String, u16)) -> PyResult<Endpoint> {
    Endpoint::new(host, *port).map_err(|error| PyValueError::new_err(report(&error)))
}

fn seconds(number: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(number)
        .map_err(|_| PyValueError::new_err(format!("expected a number of seconds from 0 up, got `{number}`")))
}

fn from_python(ending: PyEnding) -> Ending {
    match ending {
        (Some(code), _) => Ending::Code(code),
        (None, Some(signal)) => Ending::Signal(signal),
        (None, None) => Ending::Unknown,
    }
}

fn to_python(ending: Ending) -> PyEnding {
    match ending {
        Ending::Code(code) => (Some(code), None),
        Ending::Signal(signal) => (None, Some(signal)),
        Ending::Unknown => (None, None),
    }
}

fn actions(py: Python<'_>, actions: Vec<ExternalAction>) -> PyResult<Vec<Action<'_>>> {
    let tuple = |action| {
        let fields = match action {
            ExternalAction::WriteJobFile(file) => ("job_file", file.to_text()).into_pyobject(py)?,
            ExternalAction::Start(index, attempt) => return ("start", index, attempt).into_bound_py_any(py),
            ExternalAction::Signal(index, number) => return ("signal", index, number).into_bound_py_any(py),
            ExternalAction::Tell(line) => ("tell", line).into_pyobject(py)?,
        };
        Ok::<_, PyErr>(fields.into_any())
    };
    actions.into_iter().map(tuple).collect()
}
