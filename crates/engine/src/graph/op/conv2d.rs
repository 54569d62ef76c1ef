//! Two-dimensional convolutions, as matrix products.
//!
//! The elements that each window covers become a column of a matrix, which the filters, one per row, are multiplied with. N rows,
//! C channels of H x W, M filters of C x KH x KW; the result is M channels. In groups, each group of filters reads its own group of
//! channels. As in other systems, filters are not flipped.

use serde::{Deserialize, Serialize};

use super::windows::Windows;
use super::{Operator, Signature, expect_floats, expected, shapes};
use crate::error::Result;
use crate::graph::onnx_builder::{OnnxAttribute, OnnxNode};
use crate::graph::{Net, Var};
use crate::kernel::matrix::{Plain, Transposed, multiply};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// A convolution. Inputs: x `[N, C, H, W]`, filters `[M, C / groups, KH, KW]`. Outputs: y, and the columns that were multiplied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Conv2d {
    /// The windows along H and W.
    pub windows: [Windows; 2],
    /// How many groups the channels and the filters are divided into.
    pub groups: usize,
}

impl Net {
    /// The convolution of x `[N, C, H, W]` with filters `[M, C / groups, KH, KW]`. Of `windows`, along H and W, the sizes are those
    /// of the filters.
    pub fn conv2d(&mut self, x: Var, filters: Var, windows: [Windows; 2], groups: usize) -> Result<Var> {
        let mut windows = windows;
        for (windows, dim) in windows.iter_mut().zip(self.shape(filters).0.iter().skip(2)) {
            windows.size = dim.size(0);
        }
        let outputs = self.append("conv2d", Conv2d { windows, groups }, &[x, filters])?;
        self.stop_gradient(outputs[1]);
        Ok(outputs[0])
    }
}

/// The sizes of a convolution of one row of the batch.
struct Sizes {
    /// Channels of a group, and filters of a group.
    channels: usize,
    filters: usize,
    plane: [usize; 2],
    out: [usize; 2],
    /// Elements that a filter reads: the height of the matrix of columns.
    depth: usize,
    /// Windows: its width.
    windows: usize,
}

impl Conv2d {
    fn sizes(&self, inputs: &Inputs<'_>) -> Sizes {
        let [height, width] = [2, 3].map(|axis| inputs.size(0, axis));
        let out = [2, 3].map(|axis| inputs.output_size(0, axis));
        let channels = inputs.size(1, 1);
        Sizes {
            channels,
            filters: inputs.size(1, 0) / self.groups,
            plane: [height, width],
            out,
            depth: channels * self.windows[0].size * self.windows[1].size,
            windows: out[0] * out[1],
        }
    }

    /// Calls `visit` with each run of a row of the matrix of columns: the position of the run, the windows of it along W that cover
    /// an element of x, and the position in x that the first of them covers.
    #[inline(always)]
    fn each_run(&self, sizes: &Sizes, mut visit: impl FnMut(usize, std::ops::Range<usize>, usize)) {
        let ([height, width], [rows, columns]) = (sizes.plane, sizes.out);
        let [down, across] = &self.windows;
        let mut at = 0;
        for channel in 0..sizes.channels {
            for i in 0..down.size {
                for j in 0..across.size {
                    // The windows whose element j is not padding are adjacent.
                    let first = (0..columns).find(|&w| across.element(w, j, width).is_some()).unwrap_or(columns);
                    let end = (first..columns).find(|&w| across.element(w, j, width).is_none()).unwrap_or(columns);
                    for row in 0..rows {
                        let start = down.element(row, i, height).and_then(|y| {
                            Some((channel * height + y) * width + across.element(first, j, width)?)
                        });
                        match start {
                            Some(start) => visit(at, first..end, start),
                            None => visit(at, 0..0, 0),
                        }
                        at += columns;
                    }
                }
            }
        }
    }

    /// Writes the columns of one group of one row of the batch.
    fn gather(&self, sizes: &Sizes, x: &[f32], columns: &mut [f32]) {
        let (width, step) = (sizes.out[1], self.windows[1].stride);
        self.each_run(sizes, |at, covered, from| {
            let run = &mut columns[at..][..width];
            run[..covered.start].fill(0.0);
            run[covered.end..].fill(0.0);
            if step == 1 {
                run[covered.clone()].copy_from_slice(&x[from..][..covered.len()]);
            } else {
                run[covered].iter_mut().zip(x[from..].iter().step_by(step)).for_each(|(to, &x)| *to = x);
            }
        });
    }

    /// Adds the gradient of the columns to that of x.
    fn scatter(&self, sizes: &Sizes, columns: &[f32], x: &mut [f32]) {
        let step = self.windows[1].stride;
        self.each_run(sizes, |at, covered, to| {
            let run = &columns[at..][covered];
            x[to..].iter_mut().step_by(step).zip(run).for_each(|(x, g)| *x += g);
        });
    }
}

impl Operator for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        self.windows.iter().try_for_each(|windows| windows.check(self.name()))?;
        let (&[n, c, h, w], &[Dim::Fixed(m), Dim::Fixed(of_group), ..]) =
            (&inputs[0].shape.0[..], &inputs[1].shape.0[..])
        else {
            return expected(self.name(), "x [N, C, H, W] and filters [M, C, KH, KW]", shapes(inputs));
        };
        let groups = self.groups;
        if groups == 0 || inputs[1].shape.rank() != 4 || c != Dim::Fixed(of_group * groups) || m % groups.max(1) != 0 {
            let wanted = format!("x [N, C, H, W] and filters [M, C / {groups}, KH, KW] with M divisible by {groups}");
            return expected(self.name(), wanted, shapes(inputs));
        }
        let [down, across] = &self.windows;
        let (rows, columns) = (down.infer(self.name(), h, false)?, across.infer(self.name(), w, false)?);
        let depth = Dim::Fixed(of_group * groups * down.size * across.size);
        let windows = Shape::product(&[rows, columns]);
        Ok(vec![
            Signature::float(Shape(vec![n, Dim::Fixed(m), rows, columns])),
            Signature::float(Shape(vec![n, depth, windows])),
        ])
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (x, filters, sizes) = (inputs.floats(0), inputs.floats(1), self.sizes(inputs));
        let (m, k, n) = (sizes.filters, sizes.depth, sizes.windows);
        let of_group = sizes.channels * sizes.plane[0] * sizes.plane[1];
        let (y, columns) = outputs.two_floats(0, 1);
        if y.is_empty() {
            return Ok(());
        }
        // Row after row of the batch, group after group.
        let parts = x.chunks_exact(of_group).zip(columns.chunks_exact_mut(k * n)).zip(y.chunks_exact_mut(m * n));
        for (part, ((x, columns), y)) in parts.enumerate() {
            self.gather(&sizes, x, columns);
            let filters = &filters[part % self.groups * m * k..][..m * k];
            multiply(m, n, k, filters, Plain, columns, Plain, 0.0, y);
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let (filters, columns, dy) = (inputs.floats(1), inputs.output(1), inputs.output_gradient(0));
        let sizes = self.sizes(inputs);
        let (m, k, n) = (sizes.filters, sizes.depth, sizes.windows);
        if let Some(gradient) = gradients.of(1) {
            let own = gradient.accumulate();
            for (part, (columns, dy)) in columns.chunks_exact((k * n).max(1)).zip(dy.chunks_exact((m * n).max(1))).enumerate() {
                let own = &mut own[part % self.groups * m * k..][..m * k];
                multiply(m, k, n, dy, Plain, columns, Transposed, 1.0, own);
            }
        }
        let mut scratch = gradients.take_scratch();
        scratch.clear();
        scratch.resize(k * n, 0.0);
        if let Some(gradient) = gradients.of(0) {
            let own = gradient.accumulate();
            let of_group = sizes.channels * sizes.plane[0] * sizes.plane[1];
            let parts = own.chunks_exact_mut(of_group.max(1)).zip(dy.chunks_exact((m * n).max(1)));
            for (part, (own, dy)) in parts.enumerate() {
                let filters = &filters[part % self.groups * m * k..][..m * k];
                multiply(k, n, m, filters, Transposed, dy, Plain, 0.0, &mut scratch);
                self.scatter(&sizes, &scratch, own);
            }
        }
        gradients.put_scratch(scratch);
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let each = |of: fn(&Windows) -> usize| self.windows.iter().map(|w| of(w) as i64).collect::<Vec<_>>();
        let pads = [each(|w| w.before), each(|w| w.after)].concat();
        let attributes = vec![
            ("dilations", OnnxAttribute::Ints(each(|w| w.dilation))),
            ("group", OnnxAttribute::Int(self.groups as i64)),
            ("kernel_shape", OnnxAttribute::Ints(each(|w| w.size))),
            ("pads", OnnxAttribute::Ints(pads)),
            ("strides", OnnxAttribute::Ints(each(|w| w.stride))),
        ];
        let (x, filters) = (node.input(0), node.input(1));
        node.finish(0, "Conv", &[&x, &filters], attributes);
        Ok(())
    }
}
