//! Initial values of parameters and rows.
//!
//! Every number is a pure function of a seed and a position: (seed, index) in a dense array, (seed, key, column) in a sparse
//! row. A row that was evicted and is created again, or that is on another number of servers, starts with the same values, and
//! the order in which rows are created does not matter. There is no generator state.

use openfleet_core::Key;
use openfleet_core::key::mix;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, require};

/// The distribution of initial values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Initializer {
    /// The same number everywhere.
    Constant(f32),
    /// Uniform in `[low, high)`.
    Uniform {
        /// The lower bound.
        low: f32,
        /// The upper bound, exclusive.
        high: f32,
    },
    /// Normal distribution.
    Normal {
        /// The mean.
        mean: f32,
        /// The standard deviation.
        std: f32,
    },
    /// Normal distribution, conditioned on being within two standard deviations of the mean.
    TruncatedNormal {
        /// The mean.
        mean: f32,
        /// The standard deviation before truncation.
        std: f32,
    },
    /// Glorot and Bengio 2010: uniform within `sqrt(6 / (fan_in + fan_out))`, or normal with
    /// `std = sqrt(2 / (fan_in + fan_out))`.
    Xavier {
        /// Uniform instead of normal.
        uniform: bool,
        /// Inputs of a unit; derived from the shape if `None`.
        #[serde(default)]
        fan_in: Option<f64>,
        /// Outputs of a unit; derived from the shape if `None`.
        #[serde(default)]
        fan_out: Option<f64>,
    },
    /// He et al. 2015: uniform within `sqrt(6 / fan_in)`, or normal with `std = sqrt(2 / fan_in)`.
    Msra {
        /// Uniform instead of normal.
        uniform: bool,
        /// Inputs of a unit; derived from the shape if `None`.
        #[serde(default)]
        fan_in: Option<f64>,
    },
}

/// The numbers of inputs and outputs of a unit, which scale Xavier and MSRA initialization.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fans {
    /// Number of inputs.
    pub fan_in: f64,
    /// Number of outputs.
    pub fan_out: f64,
}

impl Fans {
    /// Derives the fans from a shape as PaddlePaddle does: `[in, out]` for a matrix, `n` for both if the shape is `[n]`, and
    /// `[out, in, ...]` times the receptive field for convolution filters.
    pub fn of(shape: &[usize]) -> Self {
        let (fan_in, fan_out) = match shape {
            [] => (1, 1),
            [n] => (*n, *n),
            [inputs, outputs] => (*inputs, *outputs),
            [outputs, inputs, field @ ..] => {
                let field: usize = field.iter().product();
                (inputs * field, outputs * field)
            }
        };
        Fans { fan_in: fan_in as f64, fan_out: fan_out as f64 }
    }
}

impl Initializer {
    /// Fills a dense array of `shape`, row-major; every array should have its own seed.
    ///
    /// # Panics
    ///
    /// If the length of `out` does not match `shape`.
    pub fn fill(&self, seed: u64, shape: &[usize], out: &mut [f32]) {
        assert_eq!(out.len(), shape.iter().product::<usize>(), "the shape counts the values");
        self.draw(mix(seed ^ DENSE), Fans::of(shape), out);
    }

    /// Fills the row of `key` in the table with this seed.
    pub fn row(&self, seed: u64, key: Key, fans: Fans, out: &mut [f32]) {
        // Two rounds of mixing, so that neither neighbouring keys nor neighbouring seeds share a sequence.
        self.draw(mix(mix(seed ^ SPARSE) ^ key.wrapping_mul(GOLDEN)), fans, out);
    }

    /// This initializer with missing fans derived from a declared size, `[vocabulary, dim]` for an embedding.
    pub fn with_fans_of(self, shape: &[usize]) -> Self {
        let fans = Fans::of(shape);
        match self {
            Initializer::Xavier { uniform, fan_in, fan_out } => Initializer::Xavier {
                uniform,
                fan_in: fan_in.or(Some(fans.fan_in)),
                fan_out: fan_out.or(Some(fans.fan_out)),
            },
            Initializer::Msra { uniform, fan_in } => {
                Initializer::Msra { uniform, fan_in: fan_in.or(Some(fans.fan_in)) }
            }
            other => other,
        }
    }

    /// Fails if a number is out of range.
    pub fn validate(&self) -> Result<()> {
        match *self {
            Initializer::Constant(value) => finite("value", value),
            Initializer::Uniform { low, high } => {
                finite("low", low)?;
                finite("high", high)?;
                require(low <= high, OWNER, "high", "at least `low`", format!("[{low}, {high})"))
            }
            Initializer::Normal { mean, std } | Initializer::TruncatedNormal { mean, std } => {
                finite("mean", mean)?;
                require(std.is_finite() && std >= 0.0, OWNER, "std", "a number not below 0", std)
            }
            Initializer::Xavier { fan_in, fan_out, .. } => {
                fan("fan_in", fan_in)?;
                fan("fan_out", fan_out)?;
                let sum = fan_in.zip(fan_out).map_or(1.0, |(inputs, outputs)| inputs + outputs);
                require(sum > 0.0, OWNER, "fan_in + fan_out", "above 0", sum)
            }
            Initializer::Msra { fan_in, .. } => {
                fan("fan_in", fan_in)?;
                require(fan_in != Some(0.0), OWNER, "fan_in", "above 0", 0)
            }
        }
    }

    /// The fans of a sparse table's rows. Fails if the initializer lacks one.
    pub(crate) fn fans_of_rows(&self) -> Result<Fans> {
        let missing = |initializer, field| Error::FansUnknown { initializer, field };
        match *self {
            Initializer::Xavier { fan_in, fan_out, .. } => Ok(Fans {
                fan_in: fan_in.ok_or(missing("xavier", "fan_in"))?,
                fan_out: fan_out.ok_or(missing("xavier", "fan_out"))?,
            }),
            Initializer::Msra { fan_in, .. } => {
                Ok(Fans { fan_in: fan_in.ok_or(missing("msra", "fan_in"))?, fan_out: 1.0 })
            }
            _ => Ok(Fans { fan_in: 1.0, fan_out: 1.0 }),
        }
    }

    /// Value `i` comes from bits `mix(stream + (i + 1) * golden)`: SplitMix64 with a counter instead of a state.
    fn draw(&self, stream: u64, fans: Fans, out: &mut [f32]) {
        match *self {
            Initializer::Constant(value) => out.fill(value),
            Initializer::Uniform { low, high } => uniform(stream, low, high, out),
            Initializer::Normal { mean, std } => normal(stream, mean, std, 0.0, 1.0, out),
            Initializer::TruncatedNormal { mean, std } => {
                normal(stream, mean, std, BELOW_TWO_STD, 1.0 - 2.0 * BELOW_TWO_STD, out);
            }
            Initializer::Xavier { uniform: is_uniform, fan_in, fan_out } => {
                let sum = fan_in.unwrap_or(fans.fan_in) + fan_out.unwrap_or(fans.fan_out);
                scaled(stream, is_uniform, sum, out);
            }
            Initializer::Msra { uniform: is_uniform, fan_in } => {
                scaled(stream, is_uniform, fan_in.unwrap_or(fans.fan_in), out);
            }
        }
    }
}

const OWNER: &str = "the initializer";
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Keeps the dense and sparse sequences of one seed apart ("dense" and "sparse" in ASCII).
const DENSE: u64 = 0x64_656e_7365;
const SPARSE: u64 = 0x7370_6172_7365;
/// The normal distribution function at -2.
const BELOW_TWO_STD: f64 = 0.022_750_131_948_179_21;

#[inline(always)]
fn bits(stream: u64, index: usize) -> u64 {
    mix(stream.wrapping_add((index as u64 + 1).wrapping_mul(GOLDEN)))
}

fn uniform(stream: u64, low: f32, high: f32, out: &mut [f32]) {
    let width = high - low;
    for (i, value) in out.iter_mut().enumerate() {
        // An f32 in [0, 1) has 24 evenly spaced bits.
        let unit = (bits(stream, i) >> 40) as f32 * (1.0 / (1u32 << 24) as f32);
        *value = low + width * unit;
    }
}

/// Normal values from one uniform number each: the quantile of `from + u * width`.
fn normal(stream: u64, mean: f32, std: f32, from: f64, width: f64, out: &mut [f32]) {
    for (i, value) in out.iter_mut().enumerate() {
        // Adding a half keeps u away from both ends, whose quantiles are infinite.
        let unit = ((bits(stream, i) >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64);
        *value = (f64::from(mean) + f64::from(std) * quantile(from + unit * width)) as f32;
    }
}

fn scaled(stream: u64, is_uniform: bool, fans: f64, out: &mut [f32]) {
    if is_uniform {
        let limit = (6.0 / fans).sqrt() as f32;
        uniform(stream, -limit, limit, out);
    } else {
        normal(stream, 0.0, (2.0 / fans).sqrt() as f32, 0.0, 1.0, out);
    }
}

/// The standard normal quantile, to seven digits (Wichura 1988, algorithm AS 241, `PPND7`).
///
/// Chosen over Box-Muller because it needs one number per value, so a truncated value also needs only one draw, and most values
/// cost two short polynomials and a division.
fn quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        let above = ((59.109_374_720 * r + 159.291_132_02) * r + 50.434_271_938) * r + 3.387_132_717_9;
        let below = ((67.187_563_600 * r + 78.757_757_664) * r + 17.895_169_469) * r + 1.0;
        return q * above / below;
    }
    let tail = if q < 0.0 { p } else { 1.0 - p };
    let r = (-tail.ln()).sqrt();
    let size = if r <= 5.0 {
        let r = r - 1.6;
        let above = ((0.170_238_211_03 * r + 1.306_728_481_6) * r + 2.756_815_390_0) * r + 1.423_437_277_7;
        above / ((0.120_211_329_75 * r + 0.737_001_642_50) * r + 1.0)
    } else {
        let r = r - 5.0;
        let above = ((0.017_337_203_997 * r + 0.428_682_943_37) * r + 3.081_226_386_0) * r + 6.657_905_115_0;
        above / ((0.012_258_202_635 * r + 0.241_978_942_25) * r + 1.0)
    };
    if q < 0.0 { -size } else { size }
}

fn finite(field: &'static str, value: f32) -> Result<()> {
    require(value.is_finite(), OWNER, field, "a finite number", value)
}

fn fan(field: &'static str, value: Option<f64>) -> Result<()> {
    let value = value.unwrap_or(1.0);
    require(value.is_finite() && value >= 0.0, OWNER, field, "a number not below 0", value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FANS: Fans = Fans { fan_in: 1.0, fan_out: 1.0 };

    fn moments(values: &[f32]) -> (f64, f64) {
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance.sqrt())
    }

    fn filled(initializer: Initializer, shape: &[usize]) -> Vec<f32> {
        let mut values = vec![0.0; shape.iter().product()];
        initializer.fill(5, shape, &mut values);
        values
    }

    #[test]
    fn quantiles_are_the_published_ones() {
        // Python: statistics.NormalDist().inv_cdf(p)
        let table = [
            (0.5, 0.0),
            (0.6, 0.253_347_103_135_799_8),
            (0.975, 1.959_963_984_540_053_6),
            (0.02, -2.053_748_910_631_822_5),
            (1e-3, -3.090_232_306_167_813),
            (1e-9, -5.997_807_015_007_686),
            (1e-13, -7.348_796_102_800_673),
        ];
        for (p, expected) in table {
            assert!((quantile(p) - expected).abs() < 1e-6, "p = {p}: expected {expected}, got {}", quantile(p));
        }
    }

    #[test]
    fn values_have_the_distribution_that_was_asked_for() {
        let shape = [400, 500];
        let (mean, std) = moments(&filled(Initializer::Normal { mean: 1.0, std: 2.0 }, &shape));
        assert!((mean - 1.0).abs() < 0.02 && (std - 2.0).abs() < 0.02);

        let uniform = filled(Initializer::Uniform { low: -1.0, high: 3.0 }, &shape);
        let (mean, std) = moments(&uniform);
        assert!((mean - 1.0).abs() < 0.02 && (std - 4.0 / 12f64.sqrt()).abs() < 0.02);
        assert!(uniform.iter().all(|value| (-1.0..3.0).contains(value)));

        let cut = filled(Initializer::TruncatedNormal { mean: 1.0, std: 2.0 }, &shape);
        // Truncated at two standard deviations, the standard deviation is 0.8796 of the original.
        assert!((moments(&cut).1 - 2.0 * 0.8796).abs() < 0.02);
        assert!(cut.iter().all(|value| (-3.0..=5.0).contains(value)));
    }

    #[test]
    fn xavier_and_msra_scale_with_the_fans_of_the_shape() {
        let shape = [400, 500];
        let limit = (6.0f32 / 900.0).sqrt();
        let xavier = Initializer::Xavier { uniform: true, fan_in: None, fan_out: None };
        let values = filled(xavier, &shape);
        assert!(values.iter().all(|value| value.abs() <= limit));
        assert!(values.iter().any(|value| value.abs() > 0.999 * limit));
        let normal = filled(Initializer::Xavier { uniform: false, fan_in: None, fan_out: Some(1.0) }, &shape);
        assert!((moments(&normal).1 - (2.0f64 / 401.0).sqrt()).abs() < 1e-3);
        let msra = filled(Initializer::Msra { uniform: false, fan_in: None }, &shape);
        assert!((moments(&msra).1 - (2.0f64 / 400.0).sqrt()).abs() < 1e-3);
        assert_eq!(xavier.with_fans_of(&shape).fans_of_rows(), Ok(Fans { fan_in: 400.0, fan_out: 500.0 }));
        assert_eq!(Fans::of(&[8, 3, 5, 5]), Fans { fan_in: 75.0, fan_out: 200.0 });
    }

    #[test]
    fn rows_differ_by_key_and_by_seed_and_by_nothing_else() {
        let initializer = Initializer::Uniform { low: -1.0, high: 1.0 };
        let row = |seed, key| {
            let mut row = [0.0; 4];
            initializer.row(seed, key, FANS, &mut row);
            row
        };
        assert_eq!(row(1, 2), row(1, 2));
        assert_ne!(row(1, 2), row(2, 1));
        assert_ne!(row(1, 2), row(1, 3));
        let mut longer = [0.0; 9];
        initializer.row(1, 2, FANS, &mut longer);
        assert_eq!(longer[..4], row(1, 2), "a column does not depend on how many follow");
    }

    #[test]
    fn neighbouring_keys_are_not_correlated() {
        let initializer = Initializer::Uniform { low: -1.0, high: 1.0 };
        let column: Vec<f32> = (0..20_000)
            .map(|key| {
                let mut row = [0.0; 1];
                initializer.row(1, key, FANS, &mut row);
                row[0]
            })
            .collect();
        let product: f64 = column.windows(2).map(|pair| f64::from(pair[0] * pair[1])).sum::<f64>() / 20_000.0;
        assert!(moments(&column).0.abs() < 0.02 && product.abs() < 0.02);
    }
}
