//! The views through which an op reads its inputs and writes its outputs and gradients.

use openfleet_core::{Batch, Column, Key};

use super::{Arena, NodeLocations, NodeShapes, State, TakenGradient, ValueLocation};

/// The inputs of a running op.
pub struct Inputs<'a> {
    pub(crate) node: &'a NodeLocations,
    pub(crate) shapes: &'a NodeShapes,
    pub(crate) arena: &'a Arena,
    pub(crate) batch: &'a Batch,
    pub(crate) training: bool,
    pub(crate) seed: u64,
}

/// A slot of a batch in CSR form.
#[derive(Debug, Clone, Copy)]
pub struct Ids<'a> {
    /// Row r has `keys[offsets[r]..offsets[r + 1]]`.
    pub offsets: &'a [u32],
    /// The ids of all rows.
    pub keys: &'a [Key],
}

/// A sparse table as an op sees it: `rows[inverse[i] * dim..]` is the row of the slot's i-th id.
#[derive(Debug, Clone, Copy)]
pub struct RowsView<'a> {
    /// For each id of the slot, the index of its unique row.
    pub inverse: &'a [u32],
    /// The unique rows in order.
    pub rows: &'a [f32],
    /// Floats in a row.
    pub dim: usize,
}

impl<'a> Inputs<'a> {
    /// The number of rows in the batch.
    pub fn rows(&self) -> usize {
        self.batch.rows
    }

    /// Whether this is training; evaluation otherwise.
    pub fn training(&self) -> bool {
        self.training
    }

    /// A number that differs between ops and between steps, and is the same when a run is repeated.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The number of inputs of the op.
    pub fn count(&self) -> usize {
        self.node.inputs.len()
    }

    /// The floats of an input.
    pub fn floats(&self, input: usize) -> &'a [f32] {
        match self.node.inputs[input] {
            ValueLocation::Feed(feed) => match &self.batch.columns[self.arena.feeds[feed]] {
                Column::Floats { values, .. } => values,
                Column::Ids { .. } => panic!("`{}` reads floats from a slot of ids", self.node.op_name),
            },
            ValueLocation::Buffer(i) => &self.arena.buffers[i].floats,
            ValueLocation::Dense(i) => &self.arena.dense[i].values,
            ValueLocation::Rows { .. } | ValueLocation::State(_) => {
                panic!("`{}` reads a table or a state as a tensor", self.node.op_name)
            }
        }
    }

    /// The integers of an input, as `u64` bits.
    pub fn ints(&self, input: usize) -> &'a [u64] {
        match self.node.inputs[input] {
            ValueLocation::Feed(feed) => match &self.batch.columns[self.arena.feeds[feed]] {
                Column::Ids { keys, .. } => keys,
                Column::Floats { .. } => panic!("`{}` reads integers from floats", self.node.op_name),
            },
            ValueLocation::Buffer(i) => &self.arena.buffers[i].ints,
            _ => panic!("`{}` reads integers from floats", self.node.op_name),
        }
    }

    /// A slot that the batch feeds.
    pub fn ids(&self, input: usize) -> Ids<'a> {
        let ValueLocation::Feed(feed) = self.node.inputs[input] else {
            panic!("`{}` reads a slot that is not fed", self.node.op_name)
        };
        match &self.batch.columns[self.arena.feeds[feed]] {
            Column::Ids { offsets, keys } => Ids { offsets, keys },
            Column::Floats { .. } => panic!("`{}` reads ids from floats", self.node.op_name),
        }
    }

    /// The pulled rows of a sparse table for a slot; `table` and `slot` are inputs.
    pub fn table(&self, table: usize, slot: usize) -> RowsView<'a> {
        let ValueLocation::Rows { stage, lookup } = self.node.inputs[table] else {
            panic!("`{}` looks up an input that is not a table", self.node.op_name)
        };
        let stage = &self.arena.sparse[stage];
        // The stage lists its slots in order: this one starts where the ones before it end.
        let before =
            self.node.lookups.iter().find(|l| l.table == table && l.slot == slot).map_or(&[][..], |l| &l.before);
        let start: usize = before
            .iter()
            .map(|&feed| match &self.batch.columns[self.arena.feeds[feed]] {
                Column::Ids { keys, .. } => keys.len(),
                Column::Floats { .. } => 0,
            })
            .sum();
        let lookup = &stage.lookups[lookup];
        let count = self.ids(slot).keys.len();
        RowsView { inverse: &stage.unique.inverse()[start..start + count], rows: &lookup.rows, dim: lookup.dim }
    }

    /// A state in the scope. Hold its lock for as long as the op changes it.
    pub fn state(&self, input: usize) -> &'a State {
        let ValueLocation::State(i) = self.node.inputs[input] else {
            panic!("`{}` changes an input that is not a state", self.node.op_name)
        };
        &self.arena.states[i]
    }

    /// The size of a dimension of an input.
    pub fn size(&self, input: usize, axis: usize) -> usize {
        self.shapes.inputs[input].0[axis].size(self.batch.rows)
    }

    /// The product of the sizes of a range of dimensions of an input.
    pub fn extent(&self, input: usize, axes: std::ops::Range<usize>) -> usize {
        self.shapes.inputs[input].0[axes].iter().map(|d| d.size(self.batch.rows)).product()
    }

    /// The number of dimensions of an input.
    pub fn rank(&self, input: usize) -> usize {
        self.shapes.inputs[input].rank()
    }

    /// The size of the last dimension of an input; 1 for a scalar.
    pub fn columns(&self, input: usize) -> usize {
        self.shapes.inputs[input].0.last().map_or(1, |d| d.size(self.batch.rows))
    }

    /// The size of a dimension of an output.
    pub fn output_size(&self, output: usize, axis: usize) -> usize {
        self.shapes.outputs[output].0[axis].size(self.batch.rows)
    }

    /// The number of dimensions of an output.
    pub fn output_rank(&self, output: usize) -> usize {
        self.shapes.outputs[output].rank()
    }

    /// Backward only: the floats that the op wrote in its forward.
    pub fn output(&self, output: usize) -> &'a [f32] {
        &self.arena.buffers[self.node.outputs[output]].floats
    }

    /// Backward only: the integers that the op wrote in its forward, as `u64` bits.
    pub fn output_ints(&self, output: usize) -> &'a [u64] {
        &self.arena.buffers[self.node.outputs[output]].ints
    }

    /// Backward only: the gradient of an output; empty if the output has none.
    pub fn output_gradient(&self, output: usize) -> &'a [f32] {
        match self.node.output_gradients[output] {
            Some((location, _)) => self.arena.gradient(location),
            None => &[],
        }
    }
}

/// The value of one output: floats or integers, never both.
#[derive(Debug, Default)]
pub struct Buffer {
    /// Holds floats and booleans.
    pub floats: Vec<f32>,
    /// Holds integers as `u64` bits.
    pub ints: Vec<u64>,
}

/// The outputs of a running op.
pub struct Outputs<'a> {
    pub(crate) buffers: &'a mut [Buffer],
}

impl Outputs<'_> {
    /// The floats of an output.
    pub fn floats(&mut self, output: usize) -> &mut [f32] {
        &mut self.buffers[output].floats
    }

    /// The integers of an output, as `u64` bits.
    pub fn ints(&mut self, output: usize) -> &mut [u64] {
        &mut self.buffers[output].ints
    }

    /// The floats of two outputs at once; `first` must be below `second`.
    pub fn two_floats(&mut self, first: usize, second: usize) -> (&mut [f32], &mut [f32]) {
        assert!(first < second, "outputs in order");
        let (head, tail) = self.buffers.split_at_mut(second);
        (&mut head[first].floats, &mut tail[0].floats)
    }

    /// All outputs.
    pub fn all(&mut self) -> &mut [Buffer] {
        self.buffers
    }
}

/// The input gradients that an op's backward adds to.
pub struct Gradients<'a> {
    pub(crate) node: &'a NodeLocations,
    pub(crate) taken: &'a mut [TakenGradient],
    pub(crate) scratch: &'a mut Vec<f32>,
}

/// One input's gradient. The first op to reach it overwrites it, the others add.
pub struct Gradient<'a> {
    values: &'a mut [f32],
    written: &'a mut bool,
}

impl Gradients<'_> {
    /// The gradient of an input, or `None` if it is not needed.
    pub fn of(&mut self, input: usize) -> Option<Gradient<'_>> {
        let (_, slot) = self.node.input_gradients[input]?;
        let taken = self.taken.iter_mut().find(|taken| taken.slot == slot)?;
        Some(Gradient { values: &mut taken.values, written: &mut taken.written })
    }
}

impl Gradients<'_> {
    /// Scratch memory that all ops share, with arbitrary content. Return it with [`put_scratch`](Self::put_scratch).
    pub fn take_scratch(&mut self) -> Vec<f32> {
        std::mem::take(self.scratch)
    }

    /// Returns scratch memory.
    pub fn put_scratch(&mut self, scratch: Vec<f32>) {
        *self.scratch = scratch;
    }
}

impl<'a> Gradient<'a> {
    /// The values, and the factor for their existing content: 0 for the first writer, 1 afterwards. For BLAS-like calls, which
    /// must then write every element.
    pub fn begin(self) -> (&'a mut [f32], f32) {
        let keep = if *self.written { 1.0 } else { 0.0 };
        *self.written = true;
        (self.values, keep)
    }

    /// The values to add to: zeros for the first writer.
    pub fn accumulate(self) -> &'a mut [f32] {
        if !*self.written {
            self.values.fill(0.0);
            *self.written = true;
        }
        self.values
    }

    /// Adds `value(i)` to every element i.
    #[inline(always)]
    pub fn add(self, mut value: impl FnMut(usize) -> f32) {
        let (values, keep) = self.begin();
        if keep == 0.0 {
            for (i, v) in values.iter_mut().enumerate() {
                *v = value(i);
            }
        } else {
            for (i, v) in values.iter_mut().enumerate() {
                *v += value(i);
            }
        }
    }
}
