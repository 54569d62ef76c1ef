//! The specs of a program's sparse tables and dense parameters: what their tables are created from.

use openfleet_table::sparse::DEFAULT_SHARDS;
use openfleet_table::{Accessor, DenseSpec, NonFinite, Optimizer, Regularizer, Schedule, Sgd, SparseSpec};

use super::{Node, Program, Var, VariableKind};

/// Whether any lookup in a table salts its ids.
fn is_salted(program: &Program, table: Var) -> bool {
    let looks_up = |node: &Node| node.op.operator().lookups().iter().any(|&(input, _)| node.inputs[input] == table);
    program.nodes().iter().any(|node| node.op.operator().salt().is_some() && looks_up(node))
}

/// Whether the program updates a parameter or table. What it only reads may be trained by another program with another rule.
pub(crate) fn trains(program: &Program, var: Var) -> bool {
    program.minimize.is_some() && program.gradient_of(var).is_some()
}

/// The spec of a sparse table; `None` for other variables.
pub(crate) fn sparse_spec(program: &Program, var: Var) -> Option<SparseSpec> {
    let variable = program.variable(var);
    let VariableKind::SparseTable(attributes) = &variable.kind else { return None };
    let (optimizer, schedule, regularizer) = rule(program, &variable.name);
    let rows = &attributes.rows;
    // A step that moves every row costs as much as the table has rows, and rows that count or are evicted have lives of their own.
    let is_bounded = attributes.vocabulary.is_some() && rows.capacity.is_none() && rows.accessor == Accessor::Plain;
    Some(SparseSpec {
        dim: attributes.dim,
        optimizer: if is_bounded { optimizer } else { optimizer.lazily() },
        schedule: schedule.scaled(f64::from(attributes.learning_rate)),
        regularizer: attributes.regularizer.or(regularizer),
        initializer: attributes.initializer,
        seed: program.seed_of(&variable.name),
        shards: DEFAULT_SHARDS,
        accessor: attributes.rows.accessor,
        admission: attributes.rows.admission,
        capacity: attributes.rows.capacity,
        non_finite: non_finite(program),
        salted: is_salted(program, var),
        storage: attributes.rows.storage,
    })
}

/// The spec of a dense parameter; `None` for other variables.
pub(crate) fn dense_spec(program: &Program, var: Var) -> Option<DenseSpec> {
    let variable = program.variable(var);
    let VariableKind::Parameter(attributes) = &variable.kind else { return None };
    let (optimizer, schedule, regularizer) = rule(program, &variable.name);
    let as_rows = program.minimize.as_ref().is_some_and(|minimize| minimize.trains_as_rows(&variable.name));
    Some(DenseSpec {
        shape: variable.shape.sizes(0),
        // A row-wise rule trains rows; dense parameters have none.
        optimizer: if as_rows { optimizer.for_dense_rows() } else { optimizer.for_dense() },
        schedule: schedule.scaled(f64::from(attributes.learning_rate)),
        regularizer: attributes.regularizer.or(regularizer),
        non_finite: non_finite(program),
    })
}

fn rule(program: &Program, name: &str) -> (Optimizer, Schedule, Option<Regularizer>) {
    match &program.minimize {
        Some(minimize) => {
            let (optimizer, schedule) = minimize.rule_of(name);
            (optimizer, schedule, minimize.regularizer)
        }
        None => (Optimizer::Sgd(Sgd::default()), Schedule::Constant(0.0), None),
    }
}

/// Whether the optimizer would move every row of a table in every step, were it not for the table.
pub(crate) fn would_move_every_row(program: &Program, var: Var) -> bool {
    trains(program, var) && program.minimize.as_ref().is_some_and(|minimize| minimize.optimizer.moves_every_row())
}

pub(crate) fn non_finite(program: &Program) -> NonFinite {
    program.minimize.as_ref().map_or(NonFinite::default(), |minimize| minimize.non_finite)
}
