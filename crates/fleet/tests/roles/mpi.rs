//! Ranks of an MPI job find each other: threads with the variables of processes. A real `mpirun` is a test of the launcher.

use std::path::Path;

use openfleet::role::{self, Assignment, Mpi, RoleMaker, Settings};
use openfleet::variables::Variables;
use openfleet_core::error::report;

/// The variables that `mpirun -n size` of Open MPI sets on one machine.
fn variables(rank: usize, size: usize, temporary: &Path) -> Variables {
    Variables::default()
        .with("OMPI_COMM_WORLD_RANK", rank.to_string())
        .with("OMPI_COMM_WORLD_SIZE", size.to_string())
        .with("OMPI_COMM_WORLD_LOCAL_SIZE", size.to_string())
        .with("PMIX_NAMESPACE", "prterun-node1-4711@1")
        .with("TMPDIR", temporary.to_str().unwrap())
}

fn assign(variables: &Variables) -> role::Result<Assignment> {
    Mpi.assign(variables, &Settings::read(variables)?)
}

fn assign_collective(variables: &Variables) -> role::Result<Assignment> {
    role::choose_collective(variables).assign(variables, &Settings::read(variables)?)
}

/// All ranks of a job with servers at once.
fn all(size: usize, variables: impl Fn(usize) -> Variables + Sync) -> Vec<role::Result<Assignment>> {
    all_with(assign, size, variables)
}

fn all_with(
    assign: fn(&Variables) -> role::Result<Assignment>,
    size: usize,
    variables: impl Fn(usize) -> Variables + Sync,
) -> Vec<role::Result<Assignment>> {
    std::thread::scope(|scope| {
        let variables = &variables;
        let ranks: Vec<_> = (0..size).map(|rank| scope.spawn(move || assign(&variables(rank)))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn even_ranks_are_servers_and_odd_ranks_workers_and_all_know_the_servers() {
    let temporary = tempfile::tempdir().unwrap();
    let found = all(6, |rank| variables(rank, 6, temporary.path()));
    let found: Vec<Assignment> = found.into_iter().map(Result::unwrap).collect();
    let expected = [
        "server 0 of 3 (3 workers)",
        "worker 0 of 3 (3 servers)",
        "server 1 of 3 (3 workers)",
        "worker 1 of 3 (3 servers)",
        "server 2 of 3 (3 workers)",
        "worker 2 of 3 (3 servers)",
    ];
    assert_eq!(found.iter().map(|found| found.topology.to_string()).collect::<Vec<_>>(), expected);
    for assignment in &found {
        assert_eq!(assignment.topology.servers(), found[0].topology.servers());
        assert!(assignment.topology.servers().iter().all(|server| server.host() == "127.0.0.1"));
        assert!(assignment.secret.is_some(), "the file's secret is the job's");
        assert_eq!(assignment.reserved.is_some(), assignment.topology.is_server());
    }
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left.len(), 1, "nothing but the user's directory stays: {left:?}");
    assert_eq!(std::fs::read_dir(&left[0]).unwrap().count(), 0, "and that is empty");
}

#[test]
fn every_rank_of_a_collective_job_is_a_worker_and_all_know_where_they_meet() {
    let temporary = tempfile::tempdir().unwrap();
    let slurm = |rank: usize| {
        Variables::default()
            .with("SLURM_PROCID", rank.to_string())
            .with("SLURM_NTASKS", "3")
            .with("SLURM_NNODES", "1")
            .with("SLURM_JOB_ID", "11")
            .with("SLURM_STEP_ID", "0")
            .with("TMPDIR", temporary.path().to_str().unwrap())
    };
    for found in [
        all_with(assign_collective, 3, |rank| variables(rank, 3, temporary.path())),
        all_with(assign_collective, 3, slurm),
    ] {
        let found: Vec<Assignment> = found.into_iter().map(Result::unwrap).collect();
        for (rank, assignment) in found.iter().enumerate() {
            assert_eq!(assignment.topology.to_string(), format!("worker {rank} of 3 (collective)"));
            let meeting = assignment.topology.rendezvous().unwrap();
            assert_eq!(Some(meeting), found[0].topology.rendezvous());
            assert_eq!(meeting.host(), "127.0.0.1");
            assert_eq!(assignment.reserved.is_some(), rank == 0, "rank 0 listens");
            assert!(assignment.secret.is_some(), "the file's secret is the job's");
        }
    }
}

#[test]
fn a_file_left_over_from_an_earlier_job_is_replaced() {
    let temporary = tempfile::tempdir().unwrap();
    // Creates the directory; the file is removed with the job.
    let first = all(2, |rank| variables(rank, 2, temporary.path()));
    assert!(first.iter().all(Result::is_ok));
    let directory = std::fs::read_dir(temporary.path()).unwrap().next().unwrap().unwrap().path();
    // Another program listens on the old port and sends nothing.
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let note = format!(r#"{{"port":{},"secret":"old"}}"#, stranger.local_addr().unwrap().port());
    drop(stranger);
    std::fs::write(directory.join("mpi-openfleet-prterun-node1-4711-1"), note).unwrap();
    let second = all(2, |rank| variables(rank, 2, temporary.path()));
    assert!(second.iter().all(Result::is_ok), "{second:?}");
}

#[test]
fn an_address_and_a_secret_are_enough_without_a_common_file_system() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let found = all(4, |rank| {
        let temporary = Path::new("nowhere");
        // Two processes per machine.
        variables(rank, 4, temporary)
            .with("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
            .with("OPENFLEET_RENDEZVOUS", format!("127.0.0.1:{port}"))
            .with("OPENFLEET_SECRET", "swordfish")
    });
    let found: Vec<Assignment> = found.into_iter().map(Result::unwrap).collect();
    assert!(found.iter().all(|one| one.topology.servers() == found[0].topology.servers()));
    assert_eq!(found[0].topology.server_count(), 2);
}

#[test]
fn a_rank_without_the_secret_is_refused_and_reported_missing() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let found = all(2, |rank| {
        variables(rank, 2, Path::new("nowhere"))
            .with("OPENFLEET_RENDEZVOUS", format!("127.0.0.1:{port}"))
            .with("OPENFLEET_SECRET", if rank == 0 { "swordfish" } else { "sword" })
            .with("OPENFLEET_WAIT_SECONDS", if rank == 0 { "1" } else { "900" })
    });
    let messages: Vec<String> = found.into_iter().map(|found| report(&found.unwrap_err())).collect();
    assert_eq!(
        messages[0].lines().next(),
        Some(&*format!("rank 1 of 2 did not come to the rendezvous at `127.0.0.1:{port}` within 1 s"))
    );
    assert_eq!(
        messages[1].lines().next(),
        Some(&*format!(
            "rank 1 was refused at the rendezvous at `127.0.0.1:{port}`: rank 0 does not know the secret of this \
             rank"
        ))
    );
}

#[test]
fn a_rank_that_finds_nobody_names_rank_0() {
    let temporary = tempfile::tempdir().unwrap();
    let alone = variables(3, 4, temporary.path()).with("OPENFLEET_WAIT_SECONDS", "0");
    let message = report(&assign(&alone).unwrap_err());
    let place = temporary.path().display();
    assert_eq!(
        message,
        format!(
            "rank 0 of 4 did not come to the rendezvous at `mpi-openfleet-prterun-node1-4711-1` in `{place}` within 0 \
             s\n\nhint: check that all of them were started by one `mpirun` or `srun` and that `OPENFLEET_RENDEZVOUS` names \
             the machine of rank 0; `OPENFLEET_WAIT_SECONDS` is the limit"
        )
    );
}

#[test]
fn rank_0_names_everybody_who_did_not_come() {
    let temporary = tempfile::tempdir().unwrap();
    let alone = variables(0, 4, temporary.path()).with("OPENFLEET_WAIT_SECONDS", "0");
    let message = assign(&alone).unwrap_err().to_string();
    assert!(message.starts_with("ranks 1, 2 and 3 of 4 did not come to the rendezvous"), "{message}");
}
