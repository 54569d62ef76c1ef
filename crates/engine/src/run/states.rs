//! A program's states (running statistics, counters of metrics) as a checkpoint stores them.

use openfleet_table::checkpoint::{StateElements, StateValue, States};

use crate::error::{Error, Result};
use crate::graph::{Program, VariableKind};
use crate::memory::Scope;
use crate::value::{Elements, Tensor};

/// Puts the states of a program into a scope that has none.
pub(crate) fn take(program: &Program, scope: &Scope, saved: States) -> Result<()> {
    check(program, scope, &saved, false)?;
    set(program, scope, saved)
}

/// The states of a program that have a value.
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

/// Fails where a state has no value in the checkpoint, nor one in the scope to go on with, or another shape.
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

/// Takes those states of a program that fit; the others stay.
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
