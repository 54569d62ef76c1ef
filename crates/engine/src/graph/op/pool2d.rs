//! The maximum or the mean of each window of a plane.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::windows::Windows;
use super::{Operator, Signature, expect_floats, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim, Shape};

/// What becomes of the elements of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pool {
    /// The greatest; the first of equal ones gets the gradient.
    Max,
    /// The mean. Padding counts as zeros if `count_padding`, and is left out otherwise.
    Mean {
        /// Whether padding counts.
        count_padding: bool,
    },
}

/// Where the windows of a plane are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolWindows {
    /// Windows along H and W. With `ceil`, the last ones may reach beyond the padding.
    Sliding {
        /// Along H and W.
        windows: [Windows; 2],
        /// Whether the number of windows is rounded up.
        ceil: bool,
    },
    /// As many windows as this, as equal as possible.
    Adaptive([usize; 2]),
}

/// Pooling. Input: x `[N, C, H, W]`. Outputs: y, and for the maximum the positions in the plane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pool2d {
    /// What becomes of a window.
    pub pool: Pool,
    /// Where the windows are.
    pub windows: PoolWindows,
}

impl Net {
    /// The maximum or the mean of each window of x `[N, C, H, W]`.
    pub fn pool2d(&mut self, x: Var, pool: Pool, windows: PoolWindows) -> Result<Var> {
        let outputs = self.append("pool2d", Pool2d { pool, windows }, &[x])?;
        Ok(outputs[0])
    }
}

impl Pool2d {
    /// The elements of a window along an axis (0 for H, 1 for W) of this size, of `count` windows.
    fn covered(&self, axis: usize, window: usize, size: usize, count: usize) -> Range<usize> {
        match &self.windows {
            PoolWindows::Sliding { windows, .. } => windows[axis].covered(window, size),
            PoolWindows::Adaptive(_) => window * size / count..((window + 1) * size).div_ceil(count),
        }
    }

    /// What the sum of a window is divided by.
    fn divisor(&self, covered: usize) -> f32 {
        match (&self.windows, self.pool) {
            (PoolWindows::Sliding { windows, .. }, Pool::Mean { count_padding: true }) => {
                (windows[0].size * windows[1].size) as f32
            }
            _ => covered.max(1) as f32,
        }
    }

    /// Calls `visit` with every window: its place in the result, its plane's place in x, and its elements along H and W.
    #[inline(always)]
    fn each_window(&self, inputs: &Inputs<'_>, mut visit: impl FnMut(usize, usize, Range<usize>, Range<usize>)) {
        let [height, width] = [2, 3].map(|axis| inputs.size(0, axis));
        let [rows, columns] = [2, 3].map(|axis| inputs.output_size(0, axis));
        for plane in 0..inputs.extent(0, 0..2) {
            for row in 0..rows {
                let down = self.covered(0, row, height, rows);
                for column in 0..columns {
                    let across = self.covered(1, column, width, columns);
                    visit((plane * rows + row) * columns + column, plane * height * width, down.clone(), across);
                }
            }
        }
    }
}

impl Operator for Pool2d {
    fn name(&self) -> &'static str {
        "pool2d"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        let &[n, c, h, w] = &inputs[0].shape.0[..] else {
            return expected(self.name(), "x [N, C, H, W]", &inputs[0].shape);
        };
        let (rows, columns) = match &self.windows {
            PoolWindows::Sliding { windows, ceil } => {
                for windows in windows {
                    windows.check(self.name())?;
                    if windows.dilation != 1 || windows.before.max(windows.after) >= windows.size {
                        return expected(self.name(), "padding below the size of a window", format!("{windows:?}"));
                    }
                }
                let [down, across] = windows;
                (down.infer(self.name(), h, *ceil)?, across.infer(self.name(), w, *ceil)?)
            }
            PoolWindows::Adaptive(counts) if counts.contains(&0) => {
                return expected(self.name(), "at least one window", format!("{counts:?}"));
            }
            PoolWindows::Adaptive([rows, columns]) => (Dim::Fixed(*rows), Dim::Fixed(*columns)),
        };
        let shape = Shape(vec![n, c, rows, columns]);
        let mut outputs = vec![Signature::float(shape.clone())];
        if self.pool == Pool::Max {
            outputs.push(Signature { shape, dtype: DType::I64, ragged: false });
        }
        Ok(outputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (x, width) = (inputs.floats(0), inputs.size(0, 3));
        match outputs.all() {
            [y, positions] => {
                let (y, positions) = (&mut y.floats, &mut positions.ints);
                self.each_window(inputs, |at, plane, down, across| {
                    let (mut greatest, mut position) = (f32::NEG_INFINITY, plane);
                    for row in down {
                        let start = plane + row * width;
                        for (place, &value) in (start + across.start..).zip(&x[start..][across.clone()]) {
                            if value > greatest || value.is_nan() {
                                (greatest, position) = (value, place);
                            }
                        }
                    }
                    (y[at], positions[at]) = (greatest, position as u64);
                });
            }
            [y] => self.each_window(inputs, |at, plane, down, across| {
                let divisor = self.divisor(down.len() * across.len());
                let sum = down.map(|row| x[plane + row * width..][across.clone()].iter().sum::<f32>()).sum::<f32>();
                y.floats[at] = sum / divisor;
            }),
            _ => unreachable!("one or two outputs were inferred"),
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let (dy, dx, width) = (inputs.output_gradient(0), gradient.accumulate(), inputs.size(0, 3));
        if self.pool == Pool::Max {
            inputs.output_ints(1).iter().zip(dy).for_each(|(&at, dy)| dx[at as usize] += dy);
            return Ok(());
        }
        self.each_window(inputs, |at, plane, down, across| {
            let share = dy[at] / self.divisor(down.len() * across.len());
            for row in down {
                dx[plane + row * width..][across.clone()].iter_mut().for_each(|dx| *dx += share);
            }
        });
        Ok(())
    }
}
