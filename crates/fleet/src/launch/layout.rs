//! The endpoint of every process of a job, from counts or lists.
//!
//! All machines of a job read the same lists and must derive the same endpoints, so nothing here depends on the machine. On one
//! machine without lists, [`super::plan`] chooses the ports.

use openfleet_core::{Endpoint, Error as CoreError};

use super::error::Error;
use super::options::{JobOptions, MachineCount, RunMode};
use super::without_effect;
use crate::cli::output::plural;
use crate::error::{Error as OptionError, Result};

/// The first port if none is given, as in PaddlePaddle.
pub(crate) const START_PORT: u16 = 6170;
/// The host of all processes of a job on one machine.
pub(crate) const LOOPBACK: &str = "127.0.0.1";

/// The host of a process, and its port if it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostPort {
    pub host: String,
    /// `None` for any free port.
    pub port: Option<u16>,
    /// Whether the user wrote the port. Otherwise it was counted from the first port.
    pub written: bool,
}

/// All processes of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobLayout {
    pub mode: RunMode,
    pub servers: Vec<HostPort>,
    pub workers: Vec<HostPort>,
    /// Collective: where the processes of torch meet.
    pub rendezvous: Option<HostPort>,
    /// Whether this machine starts all processes, whatever its name is.
    pub is_local: bool,
    /// Collective, without a list of machines: `workers` are those of one machine.
    pub numbered: Option<NumberedMachines>,
}

/// Machines of a collective job that are known by their numbers. Their ranks meet at the rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NumberedMachines {
    /// How many there are.
    pub count: usize,
    /// The number of this machine, if it was given.
    pub own: Option<usize>,
}

impl JobLayout {
    /// Resolves the options. A contradiction is an error that names both options.
    pub(crate) fn resolve(job: &JobOptions) -> Result<Self> {
        match mode(job)? {
            RunMode::Ps => parameter_server(job),
            RunMode::Collective => collective(job),
        }
    }
}

/// The kind of job that the options select.
fn mode(job: &JobOptions) -> Result<RunMode> {
    // With servers, `--gpus` says where workers compute, not how many there are; and options that describe one machine agree with
    // counts of processes.
    let names_one = job.has_servers() && job.names_one_machine();
    let server_flags = [
        ("--server-num", job.server_num.is_some()),
        ("--worker-num", job.worker_num.is_some()),
        ("--trainer-num", job.trainer_num.is_some()),
        ("--servers", job.servers.is_some()),
        ("--workers", job.workers.is_some()),
    ];
    let collective_flags = [
        ("--nproc-per-node", job.nproc_per_node.is_some()),
        ("--ips", job.ips.is_some() && !names_one),
        ("--nnodes", job.nnodes.is_some() && !names_one),
        ("--master", job.master.is_some() && !names_one),
        ("--rank", job.rank.is_some() && !names_one),
        ("--gpus", job.gpus.is_some() && !job.has_servers()),
    ];
    let first = |flags: &[(&'static str, bool)]| flags.iter().find(|(_, given)| *given).map(|(flag, _)| *flag);
    let remedy = match job.has_servers() && job.nproc_per_node.is_none() {
        true => {
            "list the processes of a job with servers on several machines, the same on each: `--servers IP:PORT,...` and \
             `--workers IP,...`"
        }
        false => "a job has servers (`--server-num`, `--servers`) or is collective (`--nproc-per-node`, `--ips`)",
    };
    match (job.run_mode, first(&server_flags), first(&collective_flags)) {
        (_, Some(first), Some(second)) => Err(OptionError::Contradiction { first, second, remedy }),
        (Some(mode @ RunMode::Collective), Some(flag), None) | (Some(mode @ RunMode::Ps), None, Some(flag)) => {
            Err(OptionError::Contradiction { first: mode.flag(), second: flag, remedy })
        }
        (_, Some(_), None) => Ok(RunMode::Ps),
        (_, None, Some(_)) | (Some(RunMode::Collective), None, None) => Ok(RunMode::Collective),
        (_, None, None) => Err(OptionError::MissingOption {
            option: "--server-num",
            owner: "a job".into(),
            remedy: "give the numbers of processes, as in `--server-num 2 --worker-num 2`, or `--nproc-per-node 4` for a \
                     collective job",
        }),
    }
}

impl JobOptions {
    /// Whether options count or list servers or workers of a job with servers.
    fn has_servers(&self) -> bool {
        let counts = [self.server_num, self.worker_num, self.trainer_num];
        counts.iter().any(Option::is_some) || self.servers.is_some() || self.workers.is_some()
    }

    /// Whether the options of collective jobs that name machines name only one.
    fn names_one_machine(&self) -> bool {
        let has_one_address = self.ips.as_ref().is_none_or(|ips| !ips.contains(','));
        has_one_address && self.machine_count().is_none_or(|count| count == 1) && self.rank.is_none_or(|rank| rank <= 0)
    }

    /// A line for each option that this job accepts and does not use.
    pub(crate) fn notes(&self) -> Vec<String> {
        if self.has_servers() {
            let reason = "the machines of a job with servers are those of `--servers` and `--workers`, or this one";
            let given = [
                ("--master", self.master.is_some()),
                ("--nnodes", self.nnodes.is_some()),
                ("--rank", self.rank.is_some()),
                ("--ips", self.ips.is_some()),
            ];
            let given = given.into_iter().filter(|(_, given)| *given);
            return given.map(|(option, _)| without_effect::line(option, reason)).collect();
        }
        match self.nnodes {
            Some(MachineCount { count, is_range: true }) => vec![format!(
                "the job has {}, the first number of `--nnodes`: machines do not join or leave while it runs",
                plural(count as usize, "machine")
            )],
            _ => Vec::new(),
        }
    }
}

fn parameter_server(job: &JobOptions) -> Result<JobLayout> {
    let worker_num = match (job.worker_num, job.trainer_num) {
        (Some(worker_num), Some(trainer_num)) if worker_num != trainer_num => {
            return Err(OptionError::Contradiction {
                first: "--worker-num",
                second: "--trainer-num",
                remedy: "they are two names of one option: give one of them",
            });
        }
        (worker_num, trainer_num) => worker_num.or(trainer_num),
    };
    let missing =
        |option, given: &str, remedy| Err(OptionError::MissingOption { option, owner: format!("`{given}`"), remedy });
    match (&job.servers, &job.workers) {
        (Some(servers), Some(workers)) => {
            let servers = list("--servers", servers, true)?;
            let mut workers = list("--workers", workers, false)?;
            agrees(job.server_num, servers.len(), "--server-num", "--servers")?;
            let number = if job.worker_num.is_some() { "--worker-num" } else { "--trainer-num" };
            agrees(worker_num, workers.len(), number, "--workers")?;
            if job.start_port.is_some() && workers.iter().all(|worker| worker.written) {
                return Err(OptionError::MeaninglessOption {
                    option: "--start-port",
                    owner: "lists in which every port is written".into(),
                    takers: "counts, and workers without a port",
                });
            }
            let start = job.start_port.unwrap_or(START_PORT);
            // By the position in the list, so that all machines count the same ports.
            number_ports(&mut workers, start, servers.len())?;
            Ok(JobLayout { mode: RunMode::Ps, servers, workers, rendezvous: None, is_local: false, numbered: None })
        }
        (Some(_), None) => {
            missing("--workers", "--servers", "list the workers too, as in `--workers 10.0.0.1,10.0.0.2`")
        }
        (None, Some(_)) => missing("--servers", "--workers", "list the servers too, as in `--servers 10.0.0.1:36000`"),
        (None, None) => {
            let remedy = "give the numbers, as in `--server-num 2 --worker-num 2`";
            let Some(server_num) = job.server_num else {
                let given = if job.worker_num.is_some() { "--worker-num" } else { "--trainer-num" };
                return missing("--server-num", given, remedy);
            };
            let Some(worker_num) = worker_num else { return missing("--worker-num", "--server-num", remedy) };
            let open = HostPort { host: LOOPBACK.into(), port: None, written: false };
            let mut servers = vec![open.clone(); server_num as usize];
            let mut workers = vec![open; worker_num as usize];
            if let Some(start) = job.start_port {
                number_ports(&mut servers, start, 0)?;
                number_ports(&mut workers, start, server_num as usize)?;
            }
            Ok(JobLayout { mode: RunMode::Ps, servers, workers, rendezvous: None, is_local: true, numbered: None })
        }
    }
}

/// Collective workers per machine.
pub(crate) fn workers_per_machine(job: &JobOptions) -> Result<usize> {
    let devices = match &job.gpus {
        Some(devices) if devices.split(',').any(|device| device.trim().parse::<u32>().is_err()) => {
            let expected = "numbers with a comma between any two";
            return Err(OptionError::BadOption { option: "--gpus", expected, got: devices.clone() });
        }
        devices => devices.as_ref().map(|devices| devices.split(',').count()),
    };
    Ok(job.nproc_per_node.map(|number| number as usize).or(devices).unwrap_or(1))
}

/// Machines that meet at `--master`.
fn numbered(job: &JobOptions, each: usize) -> Result<Option<JobLayout>> {
    let master = match (&job.master, job.machine_count(), job.machine_number()) {
        (Some(master), _, _) if master.starts_with("etcd://") => {
            let expected = "the address of the first machine, as in `10.0.0.1:6170` (etcd is not used)";
            return Err(OptionError::BadOption { option: "--master", expected, got: master.clone() });
        }
        (Some(master), _, _) => master.strip_prefix("http://").unwrap_or(master),
        (None, Some(2..), _) if job.ips.is_none() => {
            return Err(OptionError::MissingOption {
                option: "--master",
                owner: "`--nnodes`".into(),
                remedy: "say where the machines meet, as in `--master 10.0.0.1:6170`, or list them with `--ips`",
            });
        }
        (None, _, Some(_)) => {
            let (owner, takers) = ("a job without `--master`".to_owned(), "jobs with `--master` and `--nnodes`");
            return Err(OptionError::MeaninglessOption { option: "--rank", owner, takers });
        }
        (None, _, None) => return Ok(None),
    };
    if job.ips.is_some() {
        let remedy = "both say where the machines are: keep one of them";
        return Err(OptionError::Contradiction { first: "--master", second: "--ips", remedy });
    }
    let mut rendezvous = list("--master", master, false)?;
    let (Some(first), true) = (rendezvous.pop(), rendezvous.is_empty()) else {
        let expected = "one address, as in `10.0.0.1:6170`";
        return Err(OptionError::BadOption { option: "--master", expected, got: master.to_owned() });
    };
    let count = job.machine_count().unwrap_or(1) as usize;
    let own = job.machine_number();
    if let Some(rank) = own.filter(|rank| *rank >= count) {
        let expected = "a number below `--nnodes`, from 0";
        return Err(OptionError::BadOption { option: "--rank", expected, got: rank.to_string() });
    }
    let start = job.start_port.unwrap_or(START_PORT);
    let rendezvous = Some(HostPort { port: first.port.or(Some(start)), ..first });
    let numbered = Some(NumberedMachines { count, own });
    let workers = vec![HostPort { host: LOOPBACK.into(), port: None, written: false }; each];
    Ok(Some(JobLayout {
        mode: RunMode::Collective,
        servers: vec![],
        workers,
        rendezvous,
        is_local: count == 1,
        numbered,
    }))
}

fn collective(job: &JobOptions) -> Result<JobLayout> {
    let each = workers_per_machine(job)?;
    if let Some(numbered) = numbered(job, each)? {
        return Ok(numbered);
    }
    let Some(ips) = &job.ips else {
        let open = HostPort { host: LOOPBACK.into(), port: None, written: false };
        let mut hosts = vec![open; each + 1];
        if let Some(start) = job.start_port {
            number_ports(&mut hosts, start, 0)?;
        }
        let rendezvous = hosts.pop();
        return Ok(JobLayout {
            mode: RunMode::Collective,
            servers: vec![],
            workers: hosts,
            rendezvous,
            is_local: true,
            numbered: None,
        });
    };
    let machines = list("--ips", ips, false)?;
    agrees(job.machine_count(), machines.len(), "--nnodes", "--ips")?;
    if let Some(machine) = machines.iter().find(|machine| machine.written) {
        let got = format!("{}:{}", machine.host, machine.port.unwrap_or_default());
        return Err(OptionError::BadOption { option: "--ips", expected: "addresses without ports", got });
    }
    if let Some(twice) = machines.iter().enumerate().find(|(at, machine)| machines[..*at].contains(machine)) {
        let got = twice.1.host.clone();
        return Err(OptionError::BadOption { option: "--ips", expected: "every machine once", got });
    }
    let start = job.start_port.unwrap_or(START_PORT);
    let mut workers = Vec::with_capacity(machines.len() * each);
    for machine in &machines {
        let mut hosts = vec![machine.clone(); each];
        number_ports(&mut hosts, start, 0)?;
        workers.append(&mut hosts);
    }
    // The port after those of the first machine's workers.
    let mut rendezvous = vec![machines[0].clone()];
    number_ports(&mut rendezvous, start, each)?;
    let rendezvous = rendezvous.pop();
    Ok(JobLayout { mode: RunMode::Collective, servers: vec![], workers, rendezvous, is_local: false, numbered: None })
}

/// Gives hosts without a port one by their index.
fn number_ports(hosts: &mut [HostPort], start: u16, offset: usize) -> Result<()> {
    let count = offset + hosts.len();
    if usize::from(start) + count > usize::from(u16::MAX) + 1 {
        return Err(Error::PortRange { start: start.into(), count }.into());
    }
    for (at, host_port) in hosts.iter_mut().enumerate().filter(|(_, host_port)| host_port.port.is_none()) {
        host_port.port = Some(start + (offset + at) as u16);
    }
    Ok(())
}

fn agrees(number: Option<u32>, listed: usize, first: &'static str, second: &'static str) -> Result<()> {
    match number {
        Some(number) if number as usize != listed => Err(OptionError::Contradiction {
            first,
            second,
            remedy: "the list already gives the number: omit the option, or correct one of them",
        }),
        _ => Ok(()),
    }
}

/// Parses `host:port,...`, or `host,...` if ports are optional.
fn list(option: &'static str, text: &str, needs_ports: bool) -> Result<Vec<HostPort>> {
    let items = text.split(',').map(str::trim);
    let host_port = |item: &str| -> Result<HostPort> {
        if item.is_empty() {
            let expected = "addresses with a comma between any two";
            return Err(OptionError::BadOption { option, expected, got: text.to_owned() });
        }
        match item.parse::<Endpoint>() {
            Ok(endpoint) => Ok(HostPort { host: endpoint.host().into(), port: Some(endpoint.port()), written: true }),
            Err(_) if !needs_ports && is_host(item) => {
                Ok(HostPort { host: item.trim_matches(['[', ']']).to_ascii_lowercase(), port: None, written: false })
            }
            Err(error) => Err(error.into()),
        }
    };
    items.map(host_port).collect()
}

/// Whether the text is a host without a port.
fn is_host(text: &str) -> bool {
    format!("{text}:1").parse::<Endpoint>().is_ok() || format!("[{text}]:1").parse::<Endpoint>().is_ok()
}

/// The endpoints, after all ports have been chosen.
pub(crate) fn endpoints(hosts: &[HostPort]) -> Result<Vec<Endpoint>, CoreError> {
    hosts.iter().map(|host_port| Endpoint::new(&host_port.host, host_port.port.unwrap_or_default())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(hosts: &[HostPort]) -> String {
        let shown = |host_port: &HostPort| match host_port.port {
            Some(port) => format!("{}:{port}", host_port.host),
            None => host_port.host.clone(),
        };
        hosts.iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn counts_leave_the_ports_open_unless_told() {
        let job = JobOptions { server_num: Some(2), trainer_num: Some(1), ..JobOptions::default() };
        let layout = JobLayout::resolve(&job).unwrap();
        assert_eq!(
            (shown(&layout.servers), shown(&layout.workers)),
            ("127.0.0.1 127.0.0.1".into(), "127.0.0.1".into())
        );
        let layout = JobLayout::resolve(&JobOptions { start_port: Some(7000), ..job }).unwrap();
        assert_eq!(shown(&layout.servers), "127.0.0.1:7000 127.0.0.1:7001");
        assert_eq!(shown(&layout.workers), "127.0.0.1:7002");
        assert!(layout.is_local);
    }

    #[test]
    fn workers_without_ports_are_numbered_by_their_place_in_the_list() {
        let job = JobOptions {
            servers: Some("a:1, b:1".into()),
            workers: Some("a,b:9,[::1],::2".into()),
            ..JobOptions::default()
        };
        let layout = JobLayout::resolve(&job).unwrap();
        assert_eq!(shown(&layout.workers), "a:6172 b:9 ::1:6174 ::2:6175");
        assert!(!layout.is_local);
    }

    #[test]
    fn a_collective_job_has_workers_machine_by_machine_and_a_meeting_place() {
        let job = JobOptions { nproc_per_node: Some(2), ips: Some("a,b".into()), ..JobOptions::default() };
        let layout = JobLayout::resolve(&job).unwrap();
        assert_eq!(shown(&layout.workers), "a:6170 a:6171 b:6170 b:6171");
        assert_eq!(shown(layout.rendezvous.as_slice()), "a:6172");
        let layout = JobLayout::resolve(&JobOptions { run_mode: Some(RunMode::Collective), ..JobOptions::default() });
        assert_eq!(layout.unwrap().workers.len(), 1);
    }

    #[test]
    fn numbered_machines_meet_at_the_master() {
        let job = |master: Option<&str>, nnodes: Option<u32>, rank| JobOptions {
            nproc_per_node: Some(2),
            master: master.map(str::to_owned),
            nnodes: nnodes.map(MachineCount::from),
            rank,
            ..JobOptions::default()
        };
        let layout = JobLayout::resolve(&job(Some("http://a:99"), Some(3), Some(2))).unwrap();
        assert_eq!((layout.workers.len(), shown(layout.rendezvous.as_slice())), (2, "a:99".into()));
        assert_eq!(layout.numbered, Some(NumberedMachines { count: 3, own: Some(2) }));
        assert_eq!(shown(JobLayout::resolve(&job(Some("a"), Some(2), None)).unwrap().rendezvous.as_slice()), "a:6170");
        for (job, message) in [
            (job(None, Some(2), None), "`--nnodes` needs `--master`"),
            (job(None, None, Some(0)), "`--rank` cannot be used with a job without `--master`"),
            (job(Some("a:1"), Some(2), Some(2)), "`--rank`: expected a number below `--nnodes`, from 0, got `2`"),
            (
                job(Some("a:1,b:1"), Some(2), None),
                "`--master`: expected one address, as in `10.0.0.1:6170`, got `a:1,b:1`",
            ),
            (
                JobOptions { ips: Some("a,b".into()), ..job(Some("a"), Some(2), None) },
                "`--master` and `--ips` contradict each other",
            ),
            (
                JobOptions { ips: Some("a,b".into()), ..job(None, Some(3), None) },
                "`--nnodes` and `--ips` contradict each other",
            ),
            (
                JobOptions { gpus: Some("0,all".into()), ..JobOptions::default() },
                "`--gpus`: expected numbers with a comma between any two, got `0,all`",
            ),
        ] {
            assert_eq!(JobLayout::resolve(&job).unwrap_err().to_string(), message);
        }
        let devices = JobOptions { gpus: Some("0,1,3".into()), ..JobOptions::default() };
        assert_eq!(JobLayout::resolve(&devices).unwrap().workers.len(), 3);
    }

    #[test]
    fn ports_end_at_the_last() {
        let job = |start| JobOptions {
            server_num: Some(2),
            worker_num: Some(2),
            start_port: Some(start),
            ..JobOptions::default()
        };
        JobLayout::resolve(&job(65532)).unwrap();
        let error = JobLayout::resolve(&job(65533)).unwrap_err();
        assert_eq!(error.to_string(), "4 ports from 65533 on end beyond 65535");
    }
}
