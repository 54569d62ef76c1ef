//! Rules and schedules against independently computed numbers: `golden/*.py` compute them in double precision from the formulas
//! of fluid's documentation, `golden/*.json` is their output.

use openfleet_table::{Optimizer, Schedule};
use serde::Deserialize;

#[derive(Deserialize)]
struct RuleCase {
    optimizer: Optimizer,
    rate: f32,
    weights: Vec<f32>,
    steps: Vec<RuleStep>,
}

#[derive(Deserialize)]
struct RuleStep {
    gradient: Vec<f32>,
    weights: Vec<f64>,
    state: Vec<f64>,
}

#[derive(Deserialize)]
struct ScheduleCase {
    schedule: Schedule,
    points: Vec<(u64, f64)>,
}

#[test]
fn every_rule_follows_its_formula_for_five_steps() {
    let cases: Vec<RuleCase> = serde_json::from_str(include_str!("golden/optimizers.json")).unwrap();
    for case in cases {
        let mut weights = case.weights.clone();
        let mut state = vec![0.0; case.optimizer.state_len(weights.len())];
        case.optimizer.init_state(weights.len(), &mut state);
        for (i, step) in case.steps.iter().enumerate() {
            case.optimizer.apply(case.rate, i as u64 + 1, &mut weights, &mut state, &step.gradient);
            let place = format!("{:?} after step {}", case.optimizer, i + 1);
            assert_near(&weights, &step.weights, &place);
            assert_near(&state, &step.state, &place);
        }
    }
}

#[test]
fn every_schedule_follows_its_formula() {
    let cases: Vec<ScheduleCase> = serde_json::from_str(include_str!("golden/schedules.json")).unwrap();
    for case in cases {
        let schedule = case.schedule.validated().unwrap();
        for (step, expected) in case.points {
            let got = schedule.rate(step);
            assert!((got - expected).abs() <= 1e-12, "{schedule:?} at step {step}: expected {expected}, got {got}");
        }
    }
}

fn assert_near(got: &[f32], expected: &[f64], place: &str) {
    assert_eq!(got.len(), expected.len(), "{place}");
    for (got, expected) in got.iter().zip(expected) {
        let error = (f64::from(*got) - expected).abs();
        assert!(error <= 2e-6 * expected.abs().max(0.1), "{place}: expected {expected}, got {got}");
    }
}
