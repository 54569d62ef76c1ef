//! What a batch costs, from constants: for `--no-calibrate`, and for systems on which costs cannot be measured.
//!
//! The constants were measured by the calibration itself (`openfleet plan --json`), on the machine that docs/benchmarks.md
//! describes ("Growth"): batches of 1 and 5,192 keys, rows of 10 and 64 floats, 1 and 431,202 dense parameters, with Adam.

use super::arithmetic::{Cost, Costs};
use super::job::PlannedJob;

/// A request with its reply.
const MESSAGE: Cost = Cost { worker: 20e-6, server: 20e-6 };
/// A batch, whatever it has.
const BATCH: Cost = Cost { worker: 150e-6, server: 40e-6 };
/// A distinct key of a pull, without the floats of its row.
const PULLED_KEY: Cost = Cost { worker: 42e-9, server: 102e-9 };
/// A float of a pulled row.
const PULLED_FLOAT: Cost = Cost { worker: 2.5e-9, server: 4.0e-9 };
/// A distinct key of a push, without the floats of its gradient.
const PUSHED_KEY: Cost = Cost { worker: 80e-9, server: 135e-9 };
/// A float of a pushed gradient.
const PUSHED_FLOAT: Cost = Cost { worker: 0.9e-9, server: 4.8e-9 };
/// A dense parameter: its gradient and its new value.
const PARAMETER: Cost = Cost { worker: 3.6e-9, server: 4.3e-9 };

/// The costs of a batch.
pub(super) fn costs(job: &PlannedJob) -> Costs {
    let (mut pull, mut push) = (BATCH, PARAMETER.times(job.dense_parameters() as f64));
    for stage in &job.load.stages {
        let dims = stage.tables.iter().map(|&table| job.load.sparse[table].1.dim);
        let (keys, floats) = (stage.keys as f64, (stage.keys * dims.sum::<usize>()) as f64);
        pull = pull.plus(keys, PULLED_KEY).plus(floats, PULLED_FLOAT);
        push = push.plus(keys, PUSHED_KEY).plus(floats, PUSHED_FLOAT);
    }
    Costs { pull, push, message: MESSAGE, wake_up: 0.0 }
}
