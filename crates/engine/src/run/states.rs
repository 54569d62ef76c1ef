//! A program's states (running statistics, counters of metrics) as a checkpoint stores them.

use openfleet_table::checkpoint::{StateElements, StateValue, States};

use crate::error::{Error, Result};
use crate::graph::{Program, VariableKind};
use crate::memory::Scope;
use crate::value::{Elements, Tensor};

/// Sets the states of a program in an empty scope. Fails if one is missing or has another shape.
pub(crate) fn take(program: &Program, scope: &Scope, saved: States) -> Result<()> {
    check(program, scope, &saved, false)?;
    set(program, scope, saved)
}

/// The states of a program that have a value; all of them if `only` is empty.
pub(crate) fn of(program: &Program, scope: &Scope, only: &[String]) -> States {
    if !program.is_for_test() {
        scope.begin_training(program);
    }
    let names = program.persistables().filter(|(_, variable)| variable.kind == VariableKind::State);
    let names = names.map(|(_, variable)| &variable.name).filter(|name| only.is_empty() || only.contains(name));
    let value = |name: &String| {
        let tensor = scope.get(name)?;
        let elements = match tensor.elements() {
            Elements::F32(floats) => StateElements::F32(floats.clone()),
            Elements::I64(counts) => StateElements::I64(counts.clone()),
        };
        Some((name.clone(), StateValue { dims: tensor.dims().to_vec(), elements }))
    };
    names.filter_map(value).collect()
}

/// Fails if a state has another shape in the checkpoint, or has a value neither there nor in the scope. With `partial` such
/// states are ignored.
pub(crate) fn check(program: &Program, scope: &Scope, saved: &States, partial: bool) -> Result<()> {
    for (_, variable) in program.persistables().filter(|(_, variable)| variable.kind == VariableKind::State) {
        match saved.get(&variable.name) {
            None if scope.get(&variable.name).is_none() && !partial => {
                return Err(Error::NotInitialized { name: variable.name.clone() });
            }
            Some(value) if value.dims != variable.shape.sizes(0) && !partial => {
                return Err(Error::ScopeMismatch {
                    name: variable.name.clone(),
                    expected: format!("a tensor of dimensions {:?}", variable.shape.sizes(0)),
                    got: format!("a tensor of dimensions {:?}", value.dims),
                });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Sets the states that match the program; the others keep their value.
pub(crate) fn set(program: &Program, scope: &Scope, mut saved: States) -> Result<()> {
    for (_, variable) in program.persistables().filter(|(_, variable)| variable.kind == VariableKind::State) {
        let fitting = saved.remove(&variable.name).filter(|value| value.dims == variable.shape.sizes(0));
        if let Some(StateValue { dims, elements }) = fitting {
            let tensor = match elements {
                StateElements::F32(floats) => Tensor::from_f32(&dims, floats)?,
                StateElements::I64(counts) => Tensor::from_i64(&dims, counts)?,
            };
            scope.replace(&variable.name, tensor);
        }
    }
    Ok(())
}
