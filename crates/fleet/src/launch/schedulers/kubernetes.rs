//! A Kubernetes manifest: a JobSet with one Indexed Job per role, or plain Indexed Jobs without JobSet. A collective job has
//! workers only.
//!
//! - A pod's completion index is its rank and gives it a name that stays when the pod is replaced. Servers are listed by these
//!   names, and clients resolve them again at every reconnect.
//! - A failed pod restarts alone. The replacement of a server waits until the old pod has terminated (`podReplacementPolicy:
//!   Failed`): two servers of one name would each serve a part of the workers.
//! - The JobSet succeeds when the workers have succeeded, which ends the servers with SIGTERM. Plain Jobs have no such rule:
//!   there servers end by themselves when all workers have departed.
//! - The ranks of a collective job cannot continue without one of them. When a pod fails, JobSet replaces all pods at once. With
//!   a plain Job the other ranks fail too within seconds, each is replaced, and they meet again.
//!
//! Sources: <https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/>,
//! <https://kubernetes.io/docs/concepts/workloads/controllers/job/>.

use openfleet_core::topology::{JobId, Role};
use serde_json::{Value, json};

use super::super::options::KubernetesArgs;
use super::super::plan::run_identity;
use super::super::program::Program;
use super::super::secret::Secret;
use super::{counts, yaml};
use crate::error::{Error, Result};
use crate::job_file::RESTART_EXIT_CODE;
use crate::variables::{
    BIND, JOB, JOB_FILE, OWN_RANK, OWN_ROLE, OWN_SERVERS, OWN_WORKER_COUNT, OWN_WORKERS, POD_IP, PORT, RUN, SECRET,
    SERVERS, TRAINING_ROLE, WORKER_COUNT, WORKER_ENDPOINTS, WORKER_RANK,
};

/// The longest name: pods are named after it with `-server-0-4095` appended, in at most 63 characters.
const LONGEST_NAME: usize = 48;
/// The incarnation of a pod: larger for each replacement. (In backquotes, because Kubernetes expands `$( )` itself.)
const START: &str = "export OPENFLEET_INCARNATION=`date +%s`; exec \"$@\"";
/// The annotation with the pod's index.
const INDEX: &str = "metadata.annotations['batch.kubernetes.io/job-completion-index']";

/// The manifest, ready for `kubectl create -f -`.
pub(crate) fn manifest(arguments: &KubernetesArgs) -> Result<String> {
    check_name(&arguments.name)?;
    let (servers, workers) = counts(&arguments.job, "`fleetrun k8s`")?;
    if servers == 0 {
        check_without_servers(arguments)?;
    }
    let program = Program::elsewhere(&arguments.words, None)?;
    let job = JobId::new(arguments.job.job.clone().unwrap_or_else(|| arguments.name.clone()))?;
    let run = run_identity(false);
    let pods = Pods { arguments, program, job, servers, workers, run };
    let mut documents = vec![pods.secret()];
    if arguments.plain_jobs {
        documents.push(pods.service());
        documents.extend(pods.roles().iter().map(|role| pods.plain_job(*role)));
    } else {
        documents.push(pods.job_set());
    }
    let needs = match arguments.plain_jobs {
        true => "Kubernetes 1.31 or later",
        false => "Kubernetes 1.31 or later with JobSet (https://jobset.sigs.k8s.io/docs/installation)",
    };
    let processes = match servers {
        0 => format!("{workers} ranks of collective job"),
        _ => format!("{servers} servers and {workers} workers of job"),
    };
    let header = format!("# {processes} {}, for {needs}.\n", pods.job);
    let documents: Vec<String> = documents.iter().map(yaml::document).collect();
    Ok(header + &documents.concat())
}

fn check_name(name: &str) -> Result<()> {
    let allowed = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase());
    match allowed && begins && !name.ends_with('-') && name.len() <= LONGEST_NAME {
        true => Ok(()),
        false => Err(Error::BadOption {
            option: "--name",
            expected: "at most 48 lower-case letters, digits and `-`, beginning with a letter and not ending with `-`",
            got: name.to_owned(),
        }),
    }
}

/// Options that only a job with servers has.
fn check_without_servers(arguments: &KubernetesArgs) -> Result<()> {
    let given =
        [("--server-cpu", arguments.server_cpu.is_some()), ("--server-memory", arguments.server_memory.is_some())];
    match given.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => {
            let takers = "jobs with servers";
            Err(Error::MeaninglessOption { option, owner: "a collective job".to_owned(), takers })
        }
        None => Ok(()),
    }
}

struct Pods<'a> {
    arguments: &'a KubernetesArgs,
    program: Program,
    job: JobId,
    /// 0 in a collective job.
    servers: usize,
    workers: usize,
    /// The identity of the run, the same for all pods and their replacements.
    run: String,
}

impl Pods<'_> {
    fn is_collective(&self) -> bool {
        self.servers == 0
    }

    fn roles(&self) -> &'static [Role] {
        if self.is_collective() { &[Role::Worker] } else { &[Role::Server, Role::Worker] }
    }

    fn job_set(&self) -> Value {
        let replicated = |role: Role| {
            json!({
                "name": role.to_string(),
                "replicas": 1,
                "template": { "metadata": { "labels": self.labels() }, "spec": self.job_spec(role) },
            })
        };
        json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": self.metadata(&self.arguments.name),
            "spec": {
                // JobSet creates the headless service itself. Servers resolve before they are ready, because workers wait for
                // them.
                "network": {
                    "enableDNSHostnames": true,
                    "publishNotReadyAddresses": true,
                    "subdomain": self.arguments.name,
                },
                "successPolicy": { "operator": "All", "targetReplicatedJobs": ["worker"] },
                "failurePolicy": self.failure_policy(),
                "replicatedJobs": self.roles().iter().map(|role| replicated(*role)).collect::<Vec<_>>(),
            },
        })
    }

    fn failure_policy(&self) -> Value {
        // Pods restart alone; if one cannot, the whole JobSet has failed.
        if !self.is_collective() {
            return json!({ "maxRestarts": 0 });
        }
        let mut policy = json!({ "maxRestarts": self.arguments.max_restarts });
        if self.arguments.timeout.is_some() {
            // A job that takes too long does not begin again.
            policy["rules"] = json!([{ "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"] }]);
        }
        policy
    }

    fn plain_job(&self, role: Role) -> Value {
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": self.metadata(&format!("{}-{role}", self.arguments.name)),
            "spec": self.job_spec(role),
        })
    }

    fn job_spec(&self, role: Role) -> Value {
        let count = match role {
            Role::Server => self.servers,
            Role::Worker => self.workers,
        };
        let mut spec = json!({
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "template": { "metadata": { "labels": self.labels() }, "spec": self.pod_spec(role) },
        });
        if let Some(timeout) = self.arguments.timeout {
            spec["activeDeadlineSeconds"] = json!(timeout.as_secs_f64().ceil() as u64);
        }
        if self.is_collective() && !self.arguments.plain_jobs {
            // The first pod that fails fails the Job, and JobSet replaces all pods.
            spec["backoffLimit"] = json!(0);
            return spec;
        }
        spec["backoffLimitPerIndex"] = json!(self.arguments.max_restarts);
        spec["maxFailedIndexes"] = json!(0);
        if role == Role::Server || self.is_collective() {
            spec["podReplacementPolicy"] = json!("Failed");
        }
        if self.is_collective() {
            return spec;
        }
        // A worker that exits with this code returns to a checkpoint with the others: that is not a failure of its own.
        let returns = json!({ "operator": "In", "values": [RESTART_EXIT_CODE] });
        spec["podFailurePolicy"] = json!({ "rules": [{ "action": "Ignore", "onExitCodes": returns }] });
        spec
    }

    fn pod_spec(&self, role: Role) -> Value {
        let arguments = self.arguments;
        let (cpu, memory) = match role {
            Role::Worker => (&arguments.cpu, &arguments.memory),
            Role::Server => (
                arguments.server_cpu.as_ref().unwrap_or(&arguments.cpu),
                arguments.server_memory.as_ref().unwrap_or(&arguments.memory),
            ),
        };
        // Kubernetes must not expand what the user wrote.
        let words = self.program.words.iter().map(|word| word.to_string_lossy().replace("$(", "$$("));
        let command: Vec<String> = ["sh", "-c", START, "fleet"].into_iter().map(str::to_owned).chain(words).collect();
        let mut container = json!({
            "name": role.to_string(),
            "image": arguments.image,
            "command": command,
            "env": self.environment(role),
            // No CPU limit: it would only slow down a pod next to idle cores.
            "resources": { "requests": { "cpu": cpu, "memory": memory }, "limits": { "memory": memory } },
        });
        if role == Role::Server {
            container["ports"] = json!([{ "name": "server", "containerPort": arguments.port }]);
            let port = json!({ "port": "server" });
            container["startupProbe"] = json!({ "tcpSocket": port, "periodSeconds": 2, "failureThreshold": 150 });
            container["livenessProbe"] = json!({ "tcpSocket": port, "periodSeconds": 20, "timeoutSeconds": 5 });
        }
        if self.is_collective() {
            // Open only while the ranks connect, so there are no probes.
            container["ports"] = json!([{ "name": "rank", "containerPort": arguments.port }]);
        }
        if let Some(workdir) = &arguments.workdir {
            container["workingDir"] = json!(workdir);
        }
        let mut spec = json!({ "restartPolicy": "Never", "containers": [container] });
        if arguments.plain_jobs {
            // JobSet does this by itself.
            spec["subdomain"] = json!(arguments.name);
        }
        spec
    }

    /// In an order in which later variables can refer to earlier ones.
    fn environment(&self, role: Role) -> Vec<Value> {
        let value = |name: &str, value: String| json!({ "name": name, "value": value });
        let index = |name: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": INDEX } } });
        let secret = json!({ "secretKeyRef": { "name": self.secret_name(), "key": "secret" } });
        let port = self.arguments.port;
        let listed = |role: Role, count: usize| {
            let endpoint = |rank: usize| format!("{}:{port}", self.host_name(role, &rank.to_string()));
            (0..count).map(endpoint).collect::<Vec<_>>().join(",")
        };
        let mut all = vec![
            value(JOB, self.job.to_string()),
            value(RUN, self.run.clone()),
            // No launcher writes it: a pod that is asked to stop ends at once, and resumes when it is back.
            value(JOB_FILE, "/dev/null".to_owned()),
            json!({ "name": SECRET, "valueFrom": secret }),
            value(OWN_ROLE, role.to_string()),
            index(OWN_RANK),
            value(OWN_WORKER_COUNT, self.workers.to_string()),
            value(WORKER_COUNT, self.workers.to_string()),
        ];
        let (own_list, list, endpoints) = match self.is_collective() {
            true => (OWN_WORKERS, WORKER_ENDPOINTS, listed(Role::Worker, self.workers)),
            false => (OWN_SERVERS, SERVERS, listed(Role::Server, self.servers)),
        };
        all.extend([value(own_list, endpoints.clone()), value(list, endpoints)]);
        match role {
            Role::Server => all.extend([
                value(TRAINING_ROLE, "PSERVER".into()),
                value(POD_IP, self.host_name(role, &format!("$({OWN_RANK})"))),
                value(PORT, port.to_string()),
                value(BIND, "0.0.0.0".into()),
            ]),
            Role::Worker => all.extend([value(TRAINING_ROLE, "TRAINER".into()), index(WORKER_RANK)]),
        }
        if self.program.is_python {
            all.push(value("PYTHONUNBUFFERED", "1".into()));
        }
        all
    }

    /// The host name of a process, whichever pod currently has it.
    fn host_name(&self, role: Role, rank: &str) -> String {
        let name = &self.arguments.name;
        match self.arguments.plain_jobs {
            true => format!("{name}-{role}-{rank}.{name}"),
            false => format!("{name}-{role}-0-{rank}.{name}"),
        }
    }

    fn service(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self.metadata(&self.arguments.name),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": true,
                "selector": self.labels(),
                "ports": [{ "name": if self.is_collective() { "rank" } else { "server" }, "port": self.arguments.port }],
            },
        })
    }

    fn secret(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": self.metadata(&self.secret_name()),
            "stringData": { "secret": Secret::fresh().expose() },
        })
    }

    fn secret_name(&self) -> String {
        format!("{}-secret", self.arguments.name)
    }

    fn metadata(&self, name: &str) -> Value {
        let mut metadata = json!({ "name": name, "labels": self.labels() });
        if let Some(namespace) = &self.arguments.namespace {
            metadata["namespace"] = json!(namespace);
        }
        metadata
    }

    fn labels(&self) -> Value {
        json!({ "app.kubernetes.io/name": "openfleet", "app.kubernetes.io/instance": self.arguments.name })
    }
}
