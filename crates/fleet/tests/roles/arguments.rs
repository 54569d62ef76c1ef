//! Role makers that take arguments: every check, with its whole message.

use openfleet::role::{RoleMaker, Settings, UserDefined, UserDefinedCollective};
use openfleet::variables::Variables;
use openfleet_core::Role;
use openfleet_core::error::report;

fn outcome(role_maker: &dyn RoleMaker) -> String {
    let variables = Variables::default();
    match role_maker.assign(&variables, &Settings::read(&variables).unwrap()) {
        Ok(assignment) => assignment.topology.to_string(),
        Err(error) => report(&error),
    }
}

fn list(endpoints: &[&str]) -> Vec<String> {
    endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect()
}

#[test]
fn a_user_defined_role_is_checked_argument_by_argument() {
    let make = |current_id, role, worker_num, servers: &[&str], workers: &[&str]| {
        let (server_endpoints, worker_endpoints) = (list(servers), list(workers));
        outcome(&UserDefined { current_id, role, worker_num, server_endpoints, worker_endpoints })
    };
    let two: &[&str] = &["127.0.0.1:6001", "127.0.0.1:6002"];
    let rows = [
        // The worker of the PaddlePaddle scripts.
        (make(0, Role::Worker, 3, two, &[]), "worker 0 of 3 (2 servers)"),
        // The last server.
        (make(1, Role::Server, 3, two, &[]), "server 1 of 2 (3 workers)"),
        // Workers counted by their endpoints.
        (make(1, Role::Worker, 0, two, &["c:1", "d:1"]), "worker 1 of 2 (2 servers)"),
        // An empty list.
        (
            make(0, Role::Worker, 3, &[], &[]),
            "`server_endpoints` is not set: the list has no endpoint\n\nhint: list at least one `host:port`",
        ),
        // A duplicate.
        (
            make(0, Role::Worker, 3, &["a:1", "a:1"], &[]),
            "`server_endpoints` = `a:1,a:1`: expected each endpoint once, but `a:1` is listed twice",
        ),
        // An element that is not an endpoint.
        (
            make(0, Role::Worker, 3, &["a:1", "b"], &[]),
            "`server_endpoints` = `a:1,b`: expected `host:port,host:port,...`, but in `b` the port is missing",
        ),
        // A negative id.
        (
            make(-1, Role::Worker, 3, two, &[]),
            "`current_id` = `-1`: expected the rank of a worker, from 0 to 2 because of `worker_num`",
        ),
        // A server's id beyond the list.
        (
            make(2, Role::Server, 3, two, &[]),
            "`current_id` = `2`: expected the rank of a server, from 0 to 1 because of `server_endpoints`",
        ),
        // A worker's id beyond the number of workers, which PaddlePaddle does not check.
        (
            make(3, Role::Worker, 3, two, &[]),
            "`current_id` = `3`: expected the rank of a worker, from 0 to 2 because of `worker_num`",
        ),
        // No workers.
        (make(0, Role::Server, 0, two, &[]), "`worker_num` = `0`: expected a number from 1 up"),
        // A negative number.
        (make(0, Role::Server, -2, two, &[]), "`worker_num` = `-2`: expected a number from 1 up"),
        // More workers than endpoints.
        (
            make(0, Role::Worker, 3, two, &["c:1"]),
            "3 workers have 1 endpoints\n\nhint: list one endpoint for each worker, or none at all",
        ),
    ];
    for (got, expected) in rows {
        assert_eq!(got, expected);
    }
}

#[test]
fn a_user_defined_collective_rank_is_checked_argument_by_argument() {
    let make =
        |current_id, workers: &[&str]| outcome(&UserDefinedCollective { current_id, worker_endpoints: list(workers) });
    let rows = [
        // The second of two.
        (make(1, &["c:1", "d:1"]), "worker 1 of 2 (collective)"),
        // No workers.
        (
            make(0, &[]),
            "`worker_endpoints` is not set: the list has no endpoint\n\nhint: list at least one `host:port`",
        ),
        // Beyond the list.
        (
            make(2, &["c:1", "d:1"]),
            "`current_id` = `2`: expected the rank of a worker, from 0 to 1 because of `worker_endpoints`",
        ),
        // A negative id.
        (
            make(-1, &["c:1", "d:1"]),
            "`current_id` = `-1`: expected the rank of a worker, from 0 to 1 because of `worker_endpoints`",
        ),
        // A duplicate.
        (
            make(0, &["c:1", "c:1"]),
            "`worker_endpoints` = `c:1,c:1`: expected each endpoint once, but `c:1` is listed twice",
        ),
    ];
    for (got, expected) in rows {
        assert_eq!(got, expected);
    }
}
