//! The options of a collective job: workers that train with each other, without servers.

use std::fmt;

use super::options::{OptionValue, StrategyOptions};
use super::resolve::{contradiction, ranged};
use super::{FloatWidth, counted};
use crate::error::{Error, Result};

/// Options of collective mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectiveSettings {
    /// Gradients are reduced together until they have this many bytes.
    pub bucket_bytes: usize,
    /// Maximum size of the last bucket, which nothing is computed beside.
    pub last_bucket_bytes: usize,
    /// Width of gradients that are sent.
    pub float_width: FloatWidth,
    /// Whether gradients are added up instead of averaged over the ranks.
    pub sums: bool,
    /// When parameters are updated.
    pub update: CollectiveUpdate,
}

/// When the parameters of a collective job are updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectiveUpdate {
    /// At every step, with the gradients of all ranks.
    EveryStep,
    /// Every `steps` steps, with the gradients that were added up since.
    Merged {
        /// At least 2.
        steps: u64,
        /// Whether the sum is divided by the number of steps.
        averages: bool,
    },
    /// Every rank trains by itself, and parameters are averaged every `steps` steps.
    Local {
        /// At least 1; with `adapts` the first number.
        steps: u64,
        /// Before this step, parameters are averaged at every step.
        begin_step: u64,
        /// Whether the number of steps follows the loss.
        adapts: bool,
    },
}

/// The default values.
mod default {
    pub(super) const FUSE_GRAD_SIZE_IN_MB: i64 = 32;
    pub(super) const LAST_COMM_GROUP_SIZE_MB: i64 = 1;
    pub(super) const LOCALSGD_BEGIN_STEP: i64 = 1;
}

impl Default for CollectiveSettings {
    fn default() -> Self {
        CollectiveSettings {
            bucket_bytes: (default::FUSE_GRAD_SIZE_IN_MB as usize) << 20,
            last_bucket_bytes: (default::LAST_COMM_GROUP_SIZE_MB as usize) << 20,
            float_width: FloatWidth::Bits32,
            sums: false,
            update: CollectiveUpdate::EveryStep,
        }
    }
}

impl CollectiveSettings {
    /// Reads the options of collective mode.
    pub(super) fn resolve(options: &StrategyOptions) -> Result<Self> {
        let mb = |name, written: Option<i64>, usual| {
            Ok((ranged(name, written.unwrap_or(usual), 1..=1024, "a number of MB from 1 to 1024")? as usize) << 20)
        };
        let fuses = options.fuse_all_reduce_ops.unwrap_or(true);
        let bucket_bytes = mb("fuse_grad_size_in_mb", options.fuse_grad_size_in_mb, default::FUSE_GRAD_SIZE_IN_MB)?;
        let last = mb("last_comm_group_size_mb", options.last_comm_group_size_mb, default::LAST_COMM_GROUP_SIZE_MB)?;
        let float_width = match (options.fp16_allreduce, options.wire_bits) {
            (Some(true), Some(32)) => {
                let hint = "they say the opposite: keep one of them";
                return Err(contradiction(("fp16_allreduce", true), ("wire_bits", 32), hint));
            }
            (Some(true), _) | (_, Some(16)) => FloatWidth::Bits16,
            (_, None | Some(32)) => FloatWidth::Bits32,
            (_, Some(other)) => {
                return Err(Error::OptionRange { name: "wire_bits", expected: "32 or 16", got: other.to_string() });
            }
        };
        Ok(CollectiveSettings {
            // A bucket per gradient.
            bucket_bytes: if fuses { bucket_bytes } else { 1 },
            last_bucket_bytes: if fuses { last } else { 1 },
            float_width,
            sums: options.gradient_scale.is_some_and(|scale| scale == GradientScale::Sum),
            update: update(options)?,
        })
    }
}

fn update(options: &StrategyOptions) -> Result<CollectiveUpdate> {
    let StrategyOptions { gradient_merge, localsgd, adaptive_localsgd, .. } = *options;
    let chosen = [("gradient_merge", gradient_merge), ("localsgd", localsgd), ("adaptive_localsgd", adaptive_localsgd)];
    let chosen: Vec<&'static str> =
        chosen.into_iter().filter(|(_, written)| *written == Some(true)).map(|(name, _)| name).collect();
    if let [first, second, ..] = chosen[..] {
        return Err(contradiction((first, true), (second, true), "they cannot be combined: keep one of them"));
    }
    let begin_step = || -> Result<u64> {
        let written = options.localsgd_begin_step.unwrap_or(default::LOCALSGD_BEGIN_STEP);
        ranged("localsgd_begin_step", written, 0..=i64::MAX, "a number of steps")
    };
    let local_steps = || -> Result<u64> {
        ranged("localsgd_k_steps", options.localsgd_k_steps.unwrap_or(1), 1..=i64::MAX, "a number of steps above 0")
    };
    let unused = |names: &[&'static str], switch: &'static str| -> Result<()> {
        let written = names.iter().find_map(|&name| Some((name, options.get(name)?)));
        match written.filter(|(_, value)| !matches!(value, OptionValue::Int(1) | OptionValue::Bool(true))) {
            Some((name, value)) => {
                Err(contradiction((name, value), (switch, false), "set the switch to true, or leave the option out"))
            }
            None => Ok(()),
        }
    };
    if gradient_merge != Some(true) {
        unused(&["gradient_merge_k_steps", "gradient_merge_avg"], "gradient_merge")?;
    }
    if localsgd != Some(true) && adaptive_localsgd != Some(true) {
        unused(&["localsgd_k_steps", "localsgd_begin_step"], "localsgd")?;
    }
    Ok(match chosen.first() {
        Some(&"gradient_merge") => {
            let steps = options.gradient_merge_k_steps.unwrap_or(1);
            let steps = ranged("gradient_merge_k_steps", steps, 1..=i64::MAX, "a number of steps above 0")?;
            match steps {
                1 => CollectiveUpdate::EveryStep,
                steps => CollectiveUpdate::Merged { steps, averages: options.gradient_merge_avg.unwrap_or(true) },
            }
        }
        Some(_) => CollectiveUpdate::Local {
            steps: local_steps()?,
            begin_step: begin_step()?,
            adapts: adaptive_localsgd == Some(true),
        },
        None => CollectiveUpdate::EveryStep,
    })
}

impl fmt::Display for CollectiveSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.sums { "sum" } else { "mean" };
        match self.update {
            CollectiveUpdate::EveryStep => write!(f, "every step applies the {what} of all ranks' gradients"),
            CollectiveUpdate::Merged { steps, averages } => {
                let kind = if averages { "mean" } else { "sum" };
                let steps = counted(steps, "step");
                write!(
                    f,
                    "gradients are merged over {steps} ({kind}), then the {what} of all ranks' gradients is applied"
                )
            }
            CollectiveUpdate::Local { steps, begin_step, adapts } => {
                let every = if steps == 1 { "step".to_owned() } else { counted(steps, "step") };
                write!(f, "ranks train alone and average their parameters every {every}")?;
                if adapts {
                    write!(f, " at first, then as the loss falls")?;
                }
                if begin_step > 1 { write!(f, ", from step {begin_step} on") } else { Ok(()) }
            }
        }
    }
}

/// Whether gradients are averaged or added up over the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GradientScale {
    /// The mean.
    #[default]
    Avg,
    /// The sum.
    Sum,
}

impl GradientScale {
    /// The name that a user writes.
    pub fn name(self) -> &'static str {
        match self {
            GradientScale::Avg => "avg",
            GradientScale::Sum => "sum",
        }
    }

    /// The scale with this name.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "avg" | "mean" => Ok(GradientScale::Avg),
            "sum" => Ok(GradientScale::Sum),
            _ => Err(Error::OptionChoice { name: "gradient_scale", got: name.to_owned(), choices: &["avg", "sum"] }),
        }
    }
}
