//! Tests of every rule, with instants passed in.

use super::*;
use crate::progress::Silent;

const POLICY: Policy = Policy { max_restarts: Some(0), timeout: None, has_all_workers: true, restarts_together: false };
const RESTARTING: Policy = Policy { max_restarts: Some(3), ..POLICY };
const FAILED: Ending = Ending::Code(3);
const WELL: Ending = Ending::Code(0);
const KILL: Ending = Ending::Signal(9);
const AGAIN: Ending = Ending::Code(101);

const SECOND: Duration = Duration::from_secs(1);

/// Servers 0 and 1 are processes 0 and 1, workers 0 and 1 are processes 2 and 3.
fn job(policy: Policy) -> (Supervisor, Instant) {
    let now = Instant::now();
    let processes = [(Role::Server, 0), (Role::Server, 1), (Role::Worker, 0), (Role::Worker, 1)];
    (Supervisor::new(processes, policy, now), now)
}

fn signals(signal: Signal, indices: &[usize]) -> Vec<Action> {
    indices.iter().map(|index| Action::Signal(*index, signal)).collect()
}

/// What the failure of a server causes while these others run.
fn returns(index: usize, cause: Cause, others: &[usize]) -> Vec<Action> {
    let mut actions = vec![Action::Notify(Notice::Return(index, cause))];
    actions.extend(signals(Signal::SIGKILL, others));
    actions
}

fn worker_restarts(index: usize, ending: Ending) -> Vec<Action> {
    vec![Action::Notify(Notice::WorkerRestart(index, Cause::Ended(ending)))]
}

/// The killed processes end, and the next tick starts all.
fn die_and_start(job: &mut Supervisor, killed: &[usize], now: Instant) -> (Vec<Action>, Instant) {
    for index in killed {
        assert_eq!(job.ended(*index, KILL, now), vec![], "part of the same event");
    }
    let start = job.next_tick().unwrap();
    (job.tick(start), start)
}

fn starts(attempts: [u64; 4]) -> Vec<Action> {
    attempts.into_iter().enumerate().map(|(index, attempt)| Action::Start(index, attempt)).collect()
}

fn silence(role: Role, rank: usize, seconds: f64) -> Progress {
    Progress { silent: vec![Silent { role, rank, seconds }], ..Progress::default() }
}

fn done() -> Progress {
    Progress { state: Some(Progress::DONE.to_owned()), ..Progress::default() }
}

// Ending

#[test]
fn a_failure_asks_the_others_then_kills_them_then_gives_up() {
    let (mut job, now) = job(POLICY);
    assert_eq!(job.ended(3, FAILED, now), signals(Signal::SIGTERM, &[0, 1, 2]));
    assert_eq!(job.ended(2, Ending::Signal(15), now), vec![], "it was asked to");
    assert_eq!(job.tick(now), vec![]);
    let later = job.next_tick().unwrap();
    assert!(later - now < Duration::from_secs(5), "the promise of five seconds");
    assert_eq!(job.tick(later), signals(Signal::SIGKILL, &[0, 1]));
    assert_eq!(job.outcome(), None);
    let end = job.next_tick().unwrap();
    job.tick(end);
    assert_eq!(job.outcome(), Some(Outcome::Failed(3, Cause::Ended(FAILED))));
}

#[test]
fn servers_may_end_by_themselves_when_the_workers_have_succeeded() {
    let (mut job, now) = job(POLICY);
    job.ended(2, WELL, now);
    assert!(!job.is_leaving());
    job.ended(3, WELL, now);
    assert!(job.is_leaving());
    job.ended(0, WELL, now);
    assert_eq!(job.outcome(), None);
    job.ended(1, WELL, now);
    assert_eq!(job.outcome(), Some(Outcome::Done));
}

#[test]
fn servers_that_stay_after_the_workers_are_asked_after_a_second_then_killed_and_the_job_has_succeeded() {
    let (mut job, now) = job(POLICY);
    job.ended(2, WELL, now);
    job.ended(3, WELL, now);
    let asked = job.next_tick().unwrap();
    assert_eq!(asked - now, SECOND);
    assert_eq!(job.tick(asked), signals(Signal::SIGTERM, &[0, 1]));
    assert_eq!(job.stopping(), None);
    assert_eq!(job.ended(0, Ending::Signal(15), asked), vec![]);
    let killed = job.next_tick().unwrap();
    assert_eq!(job.tick(killed), signals(Signal::SIGKILL, &[1]));
    job.ended(1, KILL, killed);
    assert_eq!(job.outcome(), Some(Outcome::Done));
}

#[test]
fn a_job_whose_workers_have_succeeded_has_succeeded_whatever_its_servers_end_with() {
    for policy in [POLICY, RESTARTING] {
        let (mut job, now) = job(policy);
        job.ended(2, WELL, now);
        job.ended(3, WELL, now);
        assert_eq!(job.ended(0, FAILED, now), vec![]);
        assert_eq!(job.ended(1, KILL, now), vec![]);
        assert_eq!(job.outcome(), Some(Outcome::Done));
        assert_eq!(job.restarts(), 0);
    }
}

#[test]
fn servers_on_a_machine_without_all_workers_are_never_asked() {
    let (mut job, now) = job(Policy { has_all_workers: false, ..POLICY });
    job.ended(2, WELL, now);
    job.ended(3, WELL, now);
    assert_eq!(job.next_tick(), None);
    job.ended(0, WELL, now);
    assert_eq!(job.next_tick(), None, "no worker here needs it");
    job.ended(1, WELL, now);
    assert_eq!(job.outcome(), Some(Outcome::Done));
}

#[test]
fn the_second_interrupt_does_not_ask() {
    let (mut job, now) = job(POLICY);
    assert_eq!(job.interrupted(Signal::SIGTERM, now), signals(Signal::SIGTERM, &[0, 1, 2, 3]));
    assert_eq!(job.interrupted(Signal::SIGTERM, now), signals(Signal::SIGKILL, &[0, 1, 2, 3]));
}

#[test]
fn a_job_whose_time_is_over_is_ended() {
    let (mut job, now) = job(Policy { timeout: Some(Duration::from_secs(60)), ..POLICY });
    let over = job.next_tick().unwrap();
    assert_eq!(over - now, Duration::from_secs(60));
    assert_eq!(job.tick(over), signals(Signal::SIGTERM, &[0, 1, 2, 3]));
    assert_eq!(job.stopping(), Some(Outcome::TimedOut));
}

// Rule 1: a worker fails

#[test]
fn worker_restarts_are_counted_over_the_job_and_pause_longer_each_time() {
    let (mut job, now) = job(Policy { max_restarts: Some(2), ..POLICY });
    assert_eq!(job.ended(2, FAILED, now), worker_restarts(2, FAILED));
    assert_eq!(job.tick(now), vec![], "not at once");
    let first = job.next_tick().unwrap();
    assert_eq!(job.tick(first), vec![Action::Start(2, 2)]);
    job.ended(2, FAILED, first);
    let second = job.next_tick().unwrap();
    assert!(second - first > first - now);
    assert_eq!(job.tick(second), vec![Action::Start(2, 3)]);
    assert_eq!(job.restarts(), 2);
    assert_eq!(job.ended(3, KILL, second), signals(Signal::SIGTERM, &[0, 1, 2]));
    assert_eq!(job.stopping(), Some(Outcome::Failed(3, Cause::Ended(KILL))));
}

#[test]
fn a_process_that_waits_to_be_started_is_not_started_into_an_ending_job() {
    let (mut job, now) = job(RESTARTING);
    job.ended(2, FAILED, now);
    assert_eq!(job.interrupted(Signal::SIGINT, now), signals(Signal::SIGINT, &[0, 1, 3]));
    for index in [0, 1, 3] {
        job.ended(index, Ending::Signal(2), now);
    }
    assert_eq!(job.outcome(), Some(Outcome::Interrupted(Signal::SIGINT)));
}

// Rule 2: a server fails

#[test]
fn a_failed_server_kills_all_and_starts_all_servers_first_for_one_restart() {
    let (mut job, now) = job(RESTARTING);
    let cause = Cause::Ended(KILL);
    assert_eq!(job.ended(1, KILL, now), returns(1, cause, &[0, 2, 3]));
    assert_eq!(job.restarts(), 1);
    assert_eq!(job.tick(now + SECOND), vec![], "not before all have ended");
    job.ended(0, KILL, now);
    job.ended(3, FAILED, now);
    assert_eq!(job.outcome(), None);
    let (started, at) = die_and_start(&mut job, &[2], now);
    assert_eq!(started, starts([2, 2, 2, 2]));
    assert_eq!(job.restarts(), 1, "however many died");
    assert_eq!(job.next_tick(), None);
    // The next failure is another event.
    assert_eq!(job.ended(0, FAILED, at), returns(0, Cause::Ended(FAILED), &[1, 2, 3]));
    assert_eq!(job.restarts(), 2);
}

#[test]
fn without_a_restart_left_a_failed_server_ends_the_job() {
    let (mut job, now) = job(Policy { max_restarts: Some(1), ..POLICY });
    job.ended(0, KILL, now);
    let (started, now) = die_and_start(&mut job, &[1, 2, 3], now);
    assert_eq!(started, starts([2, 2, 2, 2]));
    assert_eq!(job.ended(0, KILL, now), signals(Signal::SIGTERM, &[1, 2, 3]));
    assert_eq!(job.stopping(), Some(Outcome::Failed(0, Cause::Ended(KILL))));
    assert!(job.next_tick().unwrap() - now < Duration::from_secs(5));
}

/// The server of a drained pod: SIGTERM, exit code 143, no `done`.
#[test]
fn a_server_that_was_asked_to_end_by_somebody_else_has_failed() {
    let (mut job, now) = job(POLICY);
    assert_eq!(job.ended(1, Ending::Code(143), now), signals(Signal::SIGTERM, &[0, 2, 3]));
    assert_eq!(job.stopping(), Some(Outcome::Failed(1, Cause::Ended(Ending::Code(143)))));
}

#[test]
fn a_worker_that_failed_moments_before_its_server_is_part_of_the_same_event() {
    let (mut job, now) = job(Policy { max_restarts: Some(1), ..POLICY });
    assert_eq!(job.ended(3, FAILED, now), worker_restarts(3, FAILED));
    assert_eq!(job.restarts(), 1);
    assert_eq!(job.ended(0, KILL, now), returns(0, Cause::Ended(KILL), &[1, 2]));
    assert_eq!(job.restarts(), 1);
    let (started, _) = die_and_start(&mut job, &[1, 2], now);
    assert_eq!(started, starts([2, 2, 2, 2]));
}

#[test]
fn a_server_that_leaves_while_workers_run_ends_the_job_whatever_it_said() {
    for report in [Progress::default(), done()] {
        let (mut job, now) = job(POLICY);
        job.reported(1, &report, now);
        assert_eq!(job.ended(1, WELL, now), vec![]);
        let later = job.next_tick().unwrap();
        assert_eq!(job.tick(later), signals(Signal::SIGTERM, &[0, 2, 3]));
        assert_eq!(job.stopping(), Some(Outcome::Failed(1, Cause::EndedEarly)));
    }
}

#[test]
fn a_server_that_leaves_while_workers_run_returns_the_job_when_restarts_are_left() {
    let (mut job, now) = job(RESTARTING);
    job.ended(2, WELL, now);
    job.ended(1, WELL, now);
    job.ended(0, WELL, now);
    let later = job.next_tick().unwrap();
    assert_eq!(job.tick(later), returns(1, Cause::EndedEarly, &[3]));
    let (started, now) = die_and_start(&mut job, &[3], later);
    assert_eq!(started, starts([2, 2, 2, 2]));
    assert_eq!((job.restarts(), job.next_tick()), (1, None), "the servers that left before are forgotten");
    for index in [2, 3, 0, 1] {
        job.ended(index, WELL, now);
    }
    assert_eq!(job.outcome(), Some(Outcome::Done));
}

#[test]
fn servers_may_leave_long_before_workers_that_say_that_they_need_none() {
    let (mut job, now) = job(RESTARTING);
    for worker in [2, 3] {
        job.reported(worker, &done(), now);
        // A later report does not take it back.
        job.reported(worker, &Progress { state: Some("exporting".into()), ..Progress::default() }, now);
    }
    job.ended(0, WELL, now);
    job.ended(1, WELL, now);
    assert_eq!(job.next_tick(), None);
    assert_eq!(job.tick(now + 1000 * SECOND), vec![]);
    job.ended(2, WELL, now);
    job.ended(3, WELL, now);
    assert_eq!((job.outcome(), job.restarts()), (Some(Outcome::Done), 0));
}

#[test]
fn a_worker_that_fails_when_servers_have_ended_needs_them_again() {
    // A departed worker fails for its own reasons.
    let (mut departed, now) = job(RESTARTING);
    for index in 0..4 {
        departed.reported(index, &done(), now);
    }
    departed.ended(0, WELL, now);
    departed.ended(1, WELL, now);
    assert_eq!(departed.ended(3, FAILED, now), returns(3, Cause::Ended(FAILED), &[2]));
    assert_eq!(die_and_start(&mut departed, &[2], now).0, starts([2, 2, 2, 2]));
    assert_eq!(departed.restarts(), 1);
    // Other workers fail because of the server.
    let (mut left, now) = job(RESTARTING);
    left.ended(0, WELL, now);
    assert_eq!(left.ended(3, FAILED, now), returns(0, Cause::EndedEarly, &[1, 2]));
    let (mut ending, now) = job(POLICY);
    ending.ended(0, WELL, now);
    assert_eq!(ending.ended(3, FAILED, now), signals(Signal::SIGTERM, &[1, 2]));
    assert_eq!(ending.stopping(), Some(Outcome::Failed(0, Cause::EndedEarly)));
}

#[test]
fn a_job_that_is_interrupted_while_it_returns_ends() {
    let (mut job, now) = job(RESTARTING);
    job.ended(0, KILL, now);
    job.ended(1, KILL, now);
    assert_eq!(job.interrupted(Signal::SIGINT, now), signals(Signal::SIGINT, &[2, 3]));
    job.ended(2, KILL, now);
    job.ended(3, KILL, now);
    assert_eq!(job.outcome(), Some(Outcome::Interrupted(Signal::SIGINT)));
}

#[test]
fn a_process_that_cannot_be_killed_ends_the_job() {
    let (mut job, now) = job(RESTARTING);
    job.ended(0, KILL, now);
    job.ended(1, KILL, now);
    job.ended(3, KILL, now);
    let later = job.next_tick().unwrap();
    assert_eq!(later - now, KILLED);
    assert_eq!(job.tick(later), signals(Signal::SIGTERM, &[2]));
    assert_eq!(job.stopping(), Some(Outcome::Failed(2, Cause::NotKilled)));
}

// Rule 3: workers that had departed

#[test]
fn a_departed_worker_is_started_again_by_a_return() {
    let (mut job, now) = job(RESTARTING);
    assert_eq!(job.departed(), Vec::<usize>::new());
    job.ended(3, WELL, now);
    assert_eq!(job.departed(), vec![1]);
    assert_eq!(job.ended(0, KILL, now), returns(0, Cause::Ended(KILL), &[1, 2]));
    assert_eq!(job.departed(), Vec::<usize>::new());
    let (started, now) = die_and_start(&mut job, &[1, 2], now);
    assert_eq!(started, starts([2, 2, 2, 2]));
    job.ended(2, WELL, now);
    assert!(!job.is_leaving(), "the other has to succeed again");
    job.ended(3, WELL, now);
    assert!(job.is_leaving());
    assert_eq!(job.departed(), vec![0, 1]);
}

#[test]
fn a_worker_that_is_restarted_alone_leaves_departed_workers_alone() {
    let (mut job, now) = job(RESTARTING);
    job.ended(3, WELL, now);
    job.ended(2, FAILED, now);
    let later = job.next_tick().unwrap();
    assert_eq!(job.tick(later), vec![Action::Start(2, 2)]);
    assert_eq!(job.departed(), vec![1]);
}

// Exit code 101

#[test]
fn a_worker_that_asks_to_be_started_again_is_not_charged() {
    let (mut job, now) = job(RESTARTING);
    assert_eq!(job.ended(2, AGAIN, now), vec![Action::Notify(Notice::FreeRestart(2))]);
    let later = job.next_tick().unwrap();
    assert_eq!(job.tick(later), vec![Action::Start(2, 2)]);
    assert_eq!(job.restarts(), 0);
}

#[test]
fn asking_to_be_started_again_is_a_failure_where_restarts_are_not_allowed() {
    let (mut job, now) = job(POLICY);
    assert_eq!(job.ended(2, AGAIN, now), signals(Signal::SIGTERM, &[0, 1, 3]));
    assert_eq!(job.stopping(), Some(Outcome::Failed(2, Cause::Ended(AGAIN))));
}

#[test]
fn a_worker_that_asks_too_often_is_charged_and_a_broken_job_ends() {
    let (mut job, mut now) = job(Policy { max_restarts: Some(2), ..POLICY });
    let mut said = Vec::new();
    while job.stopping().is_none() {
        said.extend(job.ended(2, AGAIN, now).into_iter().filter(|action| matches!(action, Action::Notify(_))));
        now = job.next_tick().unwrap();
        job.tick(now);
    }
    let free = Action::Notify(Notice::FreeRestart(2));
    let charged = worker_restarts(2, AGAIN)[0];
    // 3 free restarts, and 3 more for each of the 2 charged ones.
    assert_eq!(said, [free, free, free, charged, free, free, free, charged, free, free, free]);
    assert_eq!(job.stopping(), Some(Outcome::Failed(2, Cause::Ended(AGAIN))));
}

#[test]
fn a_server_that_exits_with_the_code_of_workers_has_failed() {
    let (mut job, now) = job(RESTARTING);
    assert_eq!(job.ended(0, AGAIN, now), returns(0, Cause::Ended(AGAIN), &[1, 2, 3]));
}

// Rule 5: silence

#[test]
fn a_frozen_worker_is_killed_and_started_again_alone() {
    let (mut job, start) = job(RESTARTING);
    let now = start + Duration::from_secs(30);
    assert_eq!(job.reported(0, &silence(Role::Worker, 1, 7.9), now), vec![]);
    assert_eq!(job.reported(0, &silence(Role::Worker, 1, 8.0), now), signals(Signal::SIGKILL, &[3]));
    assert_eq!(job.reported(2, &silence(Role::Worker, 1, 9.0), now), vec![], "once");
    let cause = Cause::Silent(Duration::from_secs(8));
    assert_eq!(job.ended(3, KILL, now), vec![Action::Notify(Notice::WorkerRestart(3, cause))]);
    assert_eq!(job.restarts(), 1);
}

#[test]
fn a_frozen_server_is_killed_and_returns_the_job() {
    let (mut job, start) = job(RESTARTING);
    let now = start + Duration::from_secs(30);
    assert_eq!(job.reported(2, &silence(Role::Server, 1, 8.5), now), signals(Signal::SIGKILL, &[1]));
    let cause = Cause::Silent(Duration::from_millis(8500));
    assert_eq!(job.ended(1, KILL, now), returns(1, cause, &[0, 2, 3]));
}

#[test]
fn without_restarts_a_frozen_process_ends_the_job_and_is_named() {
    let (mut job, start) = job(POLICY);
    let now = start + Duration::from_secs(30);
    assert_eq!(job.reported(0, &silence(Role::Worker, 0, 8.2), now), signals(Signal::SIGKILL, &[2]));
    assert_eq!(job.ended(2, KILL, now), signals(Signal::SIGTERM, &[0, 1, 3]));
    let Some(Outcome::Failed(2, cause)) = job.stopping() else { panic!("{:?}", job.stopping()) };
    assert_eq!(cause.to_string(), "did not answer for 8 s; it was killed");
}

#[test]
fn a_silence_from_before_a_process_was_started_is_not_its_own() {
    let (mut job, start) = job(RESTARTING);
    let now = start + Duration::from_secs(30);
    job.ended(3, KILL, now);
    let restarted = job.next_tick().unwrap();
    job.tick(restarted);
    let soon = restarted + SECOND;
    assert_eq!(job.reported(0, &silence(Role::Worker, 1, 12.0), soon), vec![], "its predecessor's");
    let later = restarted + Duration::from_secs(9);
    assert_eq!(job.reported(0, &silence(Role::Worker, 1, 8.0), later), signals(Signal::SIGKILL, &[3]));
}

#[test]
fn reports_count_only_from_running_peers_about_running_peers() {
    let (mut job, start) = job(RESTARTING);
    let now = start + Duration::from_secs(30);
    job.ended(2, WELL, now);
    assert_eq!(job.reported(2, &silence(Role::Worker, 1, 20.0), now), vec![], "the reporter has ended");
    assert_eq!(job.reported(0, &silence(Role::Worker, 0, 20.0), now), vec![], "it has departed");
    assert_eq!(job.reported(3, &silence(Role::Worker, 1, 20.0), now), vec![], "of itself");
    assert_eq!(job.reported(0, &silence(Role::Worker, 1, f64::NAN), now), vec![]);
    assert_eq!(job.reported(0, &silence(Role::Worker, 1, -20.0), now), vec![]);
    // Of two processes that report each other, the second is ignored.
    assert_eq!(job.reported(0, &silence(Role::Worker, 1, 9.0), now), signals(Signal::SIGKILL, &[3]));
    assert_eq!(job.reported(3, &silence(Role::Server, 0, 9.0), now), vec![]);
}

#[test]
fn a_frozen_process_that_cannot_be_killed_ends_the_job() {
    let (mut job, start) = job(RESTARTING);
    let now = start + Duration::from_secs(30);
    job.reported(0, &silence(Role::Worker, 1, 8.0), now);
    let later = job.next_tick().unwrap();
    assert_eq!(later - now, KILLED);
    job.tick(later);
    assert_eq!(job.stopping(), Some(Outcome::Failed(3, Cause::NotKilled)));
}

#[test]
fn a_silent_process_of_another_machine_ends_a_job_without_restarts() {
    let (mut job, now) = job(POLICY);
    assert_eq!(job.reported(0, &silence(Role::Worker, 7, 9.9), now), vec![]);
    assert_eq!(job.reported(0, &silence(Role::Worker, 7, 10.0), now), signals(Signal::SIGTERM, &[0, 1, 2, 3]));
    let silent = Duration::from_secs(10);
    assert_eq!(job.stopping(), Some(Outcome::RemoteSilent { role: Role::Worker, rank: 7, silent }));
}

#[test]
fn with_restarts_a_silent_process_of_another_machine_is_waited_for() {
    let (mut job, now) = job(RESTARTING);
    let report = |seconds: u64| silence(Role::Server, 5, seconds as f64);
    let at = |seconds: u64| now + Duration::from_secs(seconds);
    let (role, rank, silent) = (Role::Server, 5, Duration::from_secs(10));
    let notice = Action::Notify(Notice::WaitForRemote { role, rank, silent });
    assert_eq!(job.reported(0, &report(10), at(10)), vec![notice]);
    for seconds in 11..40 {
        assert_eq!(job.reported(2, &report(seconds), at(seconds)), vec![], "said once");
    }
    // It was heard from again, and is silent again.
    assert_eq!(job.reported(0, &report(10), at(100)), vec![notice]);
    for seconds in 11..120 {
        assert_eq!(job.reported(0, &report(seconds), at(90 + seconds)), vec![]);
    }
    assert_eq!(job.reported(0, &report(120), at(210)), signals(Signal::SIGTERM, &[0, 1, 2, 3]));
    let silent = Duration::from_secs(120);
    assert_eq!(job.stopping(), Some(Outcome::RemoteSilent { role, rank, silent }));
    assert_eq!(job.restarts(), 0);
}
