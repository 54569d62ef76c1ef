//! What a batch costs, from constants: for `--no-calibrate`, and for systems on which costs cannot be measured.
//!
//! The constants were measured with `openfleet plan --json` on the machine that docs/benchmarks.md describes ("Growth").

use super::arithmetic::{Cost, Costs};
use super::job::PlannedJob;

/// A request with its reply.
const MESSAGE: Cost = Cost { worker: 40e-6, server: 35e-6 };
/// How long threads take to wake up for a request and its reply.
const WAKE_UP: f64 = 100e-6;
/// A distinct key of a pull, without the floats of its row.
const PULLED_KEY: Cost = Cost { worker: 20e-9, server: 80e-9 };
/// A float of a pulled row.
const PULLED_FLOAT: Cost = Cost { worker: 3e-9, server: 3e-9 };
/// A distinct key of a push, without the floats of its gradient.
const PUSHED_KEY: Cost = Cost { worker: 20e-9, server: 80e-9 };
/// A float of a pushed gradient.
const PUSHED_FLOAT: Cost = Cost { worker: 3e-9, server: 5e-9 };
/// A dense parameter: its gradient and its new value.
const PARAMETER: Cost = Cost { worker: 3e-9, server: 3e-9 };

/// The costs of a batch.
pub(super) fn costs(job: &PlannedJob) -> Costs {
    let (mut pull, mut push) = (Cost::default(), PARAMETER.times(job.dense_parameters() as f64));
    for stage in &job.load.stages {
        let dims = stage.tables.iter().map(|&table| job.load.sparse[table].1.dim);
        let (keys, floats) = (stage.keys as f64, (stage.keys * dims.sum::<usize>()) as f64);
        pull = pull.plus(keys, PULLED_KEY).plus(floats, PULLED_FLOAT);
        push = push.plus(keys, PUSHED_KEY).plus(floats, PUSHED_FLOAT);
    }
    Costs { pull, push, message: MESSAGE, wake_up: WAKE_UP }
}
