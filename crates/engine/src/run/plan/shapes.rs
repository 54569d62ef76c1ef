//! Shapes that are known only when a program runs.
//!
//! Most programs have dimensions that are fixed or grow with the batch, and nothing here runs for them. If a dimension is unknown
//! (`data([-1, -1])`, a slice of the batch, `masked_select`), every op infers its shapes before its forward, from the shapes and
//! values of its inputs. The shapes are kept for batches that are fed with the same shapes; only ops whose sizes depend on fed
//! values infer them again.

use openfleet_core::{Batch, Column, FieldKind};

use super::{Plan, PlanNode};
use crate::error::{Error, Result};
use crate::graph::op::{Op, Signature, shapes};
use crate::graph::{Node, Program, Var};
use crate::memory::{Arena, Inputs, NodeShapes, ShapeSet};
use crate::value::{Dim, Shape};

/// How many sets of fed shapes a thread remembers.
const MOST_SHAPE_SETS: usize = 64;

/// Where the shape of a variable comes from when the program runs.
#[derive(Debug, Clone, Copy)]
pub(super) enum ShapeSource {
    /// It is known before.
    Known,
    /// It is fed.
    Feed(usize),
    /// An op infers it.
    Output { node: usize, output: usize },
}

/// What an op needs to infer its shapes when the program runs.
pub(super) struct ShapesAtRun {
    /// Where the shapes of its inputs come from.
    pub(super) sources: Vec<ShapeSource>,
    /// Its inputs before the program runs, for their types.
    pub(super) inputs: Vec<Signature>,
    /// Whether its shapes depend on fed values, so that equal fed shapes do not mean equal shapes.
    pub(super) depends_on_values: bool,
    /// The line of the script that added it.
    pub(super) made_at: Option<String>,
}

/// Per op: whether its shapes depend on fed values.
pub(super) fn nodes_sized_by_values(program: &Program) -> Vec<bool> {
    let count = program.variables().len();
    // Whether the value of a variable follows from shapes alone, and whether its shape depends on values.
    let (mut from_shapes, mut sized_by_values) = (vec![false; count], vec![false; count]);
    let is_sized = |node: &Node, from_shapes: &[bool], sized_by_values: &[bool]| {
        let operator = node.op.operator();
        node.inputs.iter().enumerate().any(|(i, var)| {
            // The number of ids in a slot of a fixed length follows from its shape.
            let is_fixed_slot = operator.lookups().iter().any(|&(_, slot)| slot == i) && !program.variable(*var).ragged;
            sized_by_values[var.index()] || (operator.is_sized_by(i) && !from_shapes[var.index()] && !is_fixed_slot)
        })
    };
    program
        .nodes()
        .iter()
        .map(|node| {
            let sized = is_sized(node, &from_shapes, &sized_by_values);
            let follows = match node.op {
                Op::Sizes(_) => !sized,
                Op::Random(_) => false,
                _ => node.inputs.iter().all(|var| from_shapes[var.index()]),
            };
            for output in &node.outputs {
                from_shapes[output.index()] = follows;
                sized_by_values[output.index()] = sized;
            }
            sized
        })
        .collect()
}

impl Plan {
    /// The shapes for a batch like this one, as far as they are known; `None` if all shapes are known before the program runs.
    pub(super) fn take_shapes(&self, arena: &mut Arena, batch: &Batch) -> Result<Option<ShapeSet>> {
        if !self.are_shapes_unknown {
            return Ok(None);
        }
        let fed = (0..self.feeds.len()).map(|feed| self.fed_shape(feed, arena, batch)).collect::<Result<Vec<_>>>()?;
        let known = arena.shape_sets.iter().position(|set| set.fed == fed);
        Ok(Some(match known {
            Some(at) => arena.shape_sets.remove(at),
            None => ShapeSet { fed, nodes: Vec::with_capacity(self.nodes.len()) },
        }))
    }

    /// Keeps the shapes of a batch for later ones.
    pub(super) fn keep_shapes(&self, arena: &mut Arena, shapes: Option<ShapeSet>) {
        let Some(shapes) = shapes else { return };
        if arena.shape_sets.len() == MOST_SHAPE_SETS {
            arena.shape_sets.pop();
            if !std::mem::replace(&mut arena.is_shape_limit_reported, true) {
                tracing::info!(
                    "this program has been fed more than {MOST_SHAPE_SETS} different shapes, so it infers the shapes of its ops \
                     again and again; batches padded to a few lengths would be faster"
                );
            }
        }
        arena.shape_sets.insert(0, shapes);
    }

    /// The shapes of an op for this batch.
    pub(super) fn shapes_of<'a>(
        &'a self,
        index: usize,
        set: &'a mut Option<ShapeSet>,
        arena: &Arena,
        batch: &Batch,
        seed: u64,
    ) -> Result<&'a NodeShapes> {
        let node = &self.nodes[index];
        let (Some(set), Some(at_run)) = (set, &node.shapes_at_run) else { return Ok(&node.shapes) };
        if index >= set.nodes.len() || at_run.depends_on_values {
            let inferred = self.infer(node, at_run, set, arena, batch, seed)?;
            match set.nodes.get_mut(index) {
                Some(known) => *known = inferred,
                None => set.nodes.push(inferred),
            }
        }
        Ok(&set.nodes[index])
    }

    fn infer(
        &self,
        node: &PlanNode,
        at_run: &ShapesAtRun,
        set: &ShapeSet,
        arena: &Arena,
        batch: &Batch,
        seed: u64,
    ) -> Result<NodeShapes> {
        let mut signatures = at_run.inputs.clone();
        for (signature, &source) in signatures.iter_mut().zip(&at_run.sources) {
            if let Some(shape) = shape_from(source, set) {
                signature.shape = shape.clone();
            }
        }
        let inputs = signatures.iter().map(|signature| signature.shape.clone()).collect();
        let mut known = NodeShapes { inputs, outputs: Vec::new() };
        let values = Inputs { node: &node.locations, shapes: &known, arena, batch, training: !self.for_test, seed };
        let operator = node.op.operator();
        let outputs = operator.infer_at_run(&signatures, &values).map_err(|error| Error::ShapesAtRun {
            op: operator.name(),
            shapes: shapes(&signatures),
            made_at: at_run.made_at.clone(),
            source: Box::new(error),
        })?;
        known.outputs = outputs.into_iter().map(|output| output.shape.for_rows(batch.rows)).collect();
        Ok(known)
    }

    /// The sizes of a variable after a step.
    pub(super) fn sizes_of(&self, var: Var, arena: &Arena, batch: &Batch) -> Vec<usize> {
        let known = &self.shapes[var.index()].1;
        let shape = arena.shape_sets.first().and_then(|set| shape_from(self.shape_sources[var.index()], set));
        shape.unwrap_or(known).sizes(batch.rows)
    }

    /// The shape of a feed: as the caller gave it, or from the number of elements per row.
    fn fed_shape(&self, feed: usize, arena: &Arena, batch: &Batch) -> Result<Shape> {
        let field = &self.feeds[feed];
        let column = &batch.columns[arena.feeds[feed]];
        let elements = match column {
            Column::Floats { values, .. } => values.len(),
            Column::Ids { keys, .. } => keys.len(),
        };
        if field.kind == FieldKind::Ids && field.is_ragged {
            return Ok(field.shape.for_rows(batch.rows));
        }
        let mismatch =
            |got: String| Error::FeedMismatch { name: field.name.clone(), expected: field.described.clone(), got };
        if let Some(dims) = arena.fed_dims.get(arena.feeds[feed]).and_then(Option::as_ref) {
            let fits = dims.len() == field.shape.rank()
                && field.shape.0.iter().zip(dims).all(|(declared, &dim)| match *declared {
                    Dim::Fixed(size) => size == dim,
                    Dim::PerRow(_) | Dim::Unknown => true,
                });
            return if fits { Ok(Shape::fixed(dims)) } else { Err(mismatch(format!("an array of shape {dims:?}"))) };
        }
        // From a dataset: rows of one length, of which at most one dimension is unknown.
        let mut shape = field.shape.for_rows(batch.rows);
        let known: usize = shape.0.iter().map(|dim| if let Dim::Fixed(size) = dim { *size } else { 1 }).product();
        let unknown: Vec<usize> = (0..shape.rank()).filter(|&axis| shape.0[axis] == Dim::Unknown).collect();
        let is_even = match column {
            Column::Ids { offsets, .. } => offsets.windows(3).all(|at| at[1] - at[0] == at[2] - at[1]),
            Column::Floats { .. } => true,
        };
        match unknown[..] {
            [] if elements == known => Ok(shape),
            [axis] if is_even && known > 0 && elements.is_multiple_of(known) => {
                shape.0[axis] = Dim::Fixed(elements / known);
                Ok(shape)
            }
            _ => Err(mismatch(format!("{elements} elements in {} rows, whose shape does not follow", batch.rows))),
        }
    }
}

fn shape_from(source: ShapeSource, set: &ShapeSet) -> Option<&Shape> {
    match source {
        ShapeSource::Known => None,
        ShapeSource::Feed(feed) => set.fed.get(feed),
        ShapeSource::Output { node, output } => set.nodes.get(node)?.outputs.get(output),
    }
}
