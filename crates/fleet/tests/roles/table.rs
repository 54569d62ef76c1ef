//! Runs the tables `*.txt` beside this file. A case is a comment, the variables that are set, and after `=>` the role of the
//! process with its source, or the error and its hint.

use openfleet::role::{self, RoleMaker, Settings};
use openfleet::variables::Variables;
use openfleet_core::error::report;

/// Chooses a role maker for variables.
type Choose = fn(&Variables) -> Box<dyn RoleMaker>;

/// The result of `init(None)`, or of a collective job.
fn outcome(variables: &Variables, choose: Choose) -> String {
    let assign = || {
        let settings = Settings::read(variables)?;
        let role_maker = choose(variables);
        let assignment = role_maker.assign(variables, &settings)?;
        Ok((assignment.topology, role_maker.source(variables)))
    };
    match assign() {
        Ok((topology, source)) => format!("{topology}: {source}"),
        Err(error) => {
            let error: role::Error = error;
            format!("error: {}", report(&error).replace("\n\n", "\n"))
        }
    }
}

/// Runs every case of a table. With `OPENFLEET_REWRITE_TABLES` set, the results are written into it, to be reviewed in the
/// diff; without, a difference is a failure.
fn check(name: &str, choose: Choose) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/roles").join(name);
    let table = std::fs::read_to_string(&path).unwrap();
    let mut rewritten = Vec::new();
    for block in table.trim_end().split("\n\n") {
        let Some((given, _)) = block.split_once("=>") else {
            rewritten.push(block.to_owned());
            continue;
        };
        let (comments, settings): (Vec<&str>, Vec<&str>) = given.lines().partition(|line| line.starts_with('#'));
        assert!(!comments.is_empty(), "a case says what it is about: {block}");
        let got = outcome(&settings.iter().map(|line| line.split_once('=').unwrap()).collect(), choose);
        rewritten.push(format!("{given}=> {got}"));
    }
    let rewritten = rewritten.join("\n\n") + "\n";
    if std::env::var_os("OPENFLEET_REWRITE_TABLES").is_some() {
        std::fs::write(&path, &rewritten).unwrap();
    }
    for (expected, got) in table.split("\n\n").zip(rewritten.split("\n\n")) {
        assert_eq!(expected.trim_end(), got.trim_end());
    }
}

#[test]
fn paddle_variables() {
    check("paddle.txt", role::choose);
}

#[test]
fn our_own_variables() {
    check("own.txt", role::choose);
}

#[test]
fn collective_variables() {
    check("collective.txt", role::choose);
}

#[test]
fn schedulers() {
    check("schedulers.txt", role::choose);
}

#[test]
fn schedulers_of_collective_jobs() {
    check("collective_schedulers.txt", role::choose_collective);
}

#[test]
fn settings() {
    check("settings.txt", role::choose);
}

#[test]
fn no_proxy_variable_changes_anything() {
    let names = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "no_proxy"];
    let proxies: Variables = names.map(|name| (name, "http://proxy.invalid:3128")).into_iter().collect();
    assert_eq!(outcome(&proxies, role::choose), "one local process: no role variables are set");
    let worker = proxies
        .with("TRAINING_ROLE", "TRAINER")
        .with("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:36011")
        .with("PADDLE_TRAINERS_NUM", "1")
        .with("PADDLE_TRAINER_ID", "0");
    assert_eq!(outcome(&worker, role::choose), "worker 0 of 1 (1 server): role from PADDLE_*");
}

#[test]
fn a_secret_is_never_shown() {
    let variables: Variables = [("OPENFLEET_SECRET", "swordfish"), ("OPENFLEET_JOB", "no good")].into_iter().collect();
    let shown = format!("{variables:?} {}", outcome(&variables, role::choose));
    assert!(!shown.contains("swordfish"), "{shown}");
    let settings = Settings::read(&Variables::default().with("OPENFLEET_SECRET", "swordfish")).unwrap();
    assert!(!format!("{settings:?}").contains("swordfish"));
}
