//! The user's choice of mode and options, resolved and checked once.
//!
//! [`StrategyOptions`] is what the user wrote, [`Strategy`] what it means: one mode, and only the options that the mode uses.
//! Two options that contradict each other are an error that names both, and so is an option that the chosen mode would ignore.
//! There is one exception: an option with its default value (such as `send_queue_size` 16 in sync mode) has no effect and is
//! accepted in every mode, because scripts copy whole dictionaries. `independent_recv_thread` = false is accepted in this sense
//! too, because the modes without that thread do what it says.
//!
//! The algorithms of the modes are not here: `dist` chooses a communicator by [`ModeSettings`], and a server its aggregation by
//! [`Mode`].

mod collective;
mod options;
mod resolve;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use collective::{CollectiveSettings, CollectiveUpdate, GradientScale};
pub use options::{Front, OptionValue, StrategyOptions};

use crate::error::{Error, Result};
use crate::placement::PlacementRule;

/// When gradients are sent, and who waits for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// All live workers wait for each other at every step.
    Sync,
    /// The threads of a worker wait for each other; workers do not.
    HalfAsync,
    /// A background thread pushes; nothing waits.
    Async,
    /// Sparse parameters as in async, dense parameters as in sync, with a bound on the batches in flight.
    Hybrid,
    /// Workers train on copies and exchange differences periodically.
    Geo,
    /// Workers train with each other, without servers.
    Collective,
}

impl Mode {
    /// All modes: those with servers from the strictest to the loosest, then the one without.
    pub const ALL: [Mode; 6] = [Mode::Sync, Mode::HalfAsync, Mode::Async, Mode::Hybrid, Mode::Geo, Mode::Collective];

    /// The name in options, logs and checkpoints.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Sync => "sync",
            Mode::HalfAsync => "half_async",
            Mode::Async => "async",
            Mode::Hybrid => "hybrid",
            Mode::Geo => "geo",
            Mode::Collective => "collective",
        }
    }

    /// The mode with this name; hyphens are accepted for underscores.
    pub fn parse(name: &str) -> Result<Self> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name.replace('-', "_")).ok_or_else(|| Error::OptionChoice {
            name: "mode",
            got: name.to_owned(),
            choices: &["sync", "half_async", "async", "hybrid", "geo", "collective"],
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A mode with the options that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModeSettings {
    /// No options.
    Sync,
    /// No options.
    HalfAsync,
    /// See [`AsyncSettings`].
    Async(AsyncSettings),
    /// See [`HybridSettings`].
    Hybrid(HybridSettings),
    /// See [`GeoSettings`].
    Geo(GeoSettings),
    /// See [`CollectiveSettings`].
    Collective(CollectiveSettings),
}

/// Options of async mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncSettings {
    /// How gradients are merged before a push.
    pub merge: Merge,
    /// Maximum number of gradients in the send queue; a full queue blocks training.
    pub send_queue_size: usize,
    /// When dense parameters are pulled.
    pub receive: DenseReceive,
}

/// Options of hybrid mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HybridSettings {
    /// Maximum number of batches whose gradients are not applied yet; at least 1.
    pub staleness: usize,
}

/// Options of geo mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GeoSettings {
    /// Batches between two exchanges of rows; at least 1.
    pub k_steps: u64,
    /// Whether `k_steps` is only where it begins, and follows the measured cost of an exchange.
    pub is_adaptive: bool,
    /// Batches between two exchanges of dense parameters and of often used rows; 0: only together with all rows.
    pub dense_steps: u64,
    /// How the progress of the workers is joined.
    pub scale: GeoScale,
    /// Whether unsent differences are sent at save and stop.
    pub flush_residual: bool,
    /// Maximum number of windows of `k_steps` batches in the send queue; a full queue blocks training.
    pub send_queue_size: usize,
}

/// How queued gradients are merged into one push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merge {
    /// Maximum number of gradients in one push; at least 1.
    pub max_gradients: usize,
    /// How long an incomplete merge waits for more gradients, in milliseconds.
    pub wait_ms: u64,
    /// Maximum number of gradients in one push while a push takes much longer than a batch. 1 if the user has chosen `max_gradients`, or if
    /// not every push is followed by a fetch of dense values.
    pub slow_link_gradients: usize,
}

/// When dense parameters are pulled in async mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DenseReceive {
    /// After each push, by the thread that pushed.
    AfterSend,
    /// By a separate thread, each time at least this many gradients were sent.
    Independent {
        /// At least 1.
        min_sent: u64,
    },
}

/// Width of floats that are sent between workers and servers. Tables and arithmetic always use 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FloatWidth {
    /// Unchanged.
    #[default]
    Bits32,
    /// Rounded to `bfloat16`: the range of 32 bits with 8 of its 24 bits of precision. Half the traffic.
    Bits16,
}

/// How geo mode joins the progress of N workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GeoScale {
    /// Dense parameters are averaged: an exchange moves the servers by a share of 1/N, and the worker continues from the servers'
    /// values. Rows are not divided.
    #[default]
    Average,
    /// Differences are divided by N, as in PaddlePaddle; what one exchange leaves unsent is sent with the next ones.
    Mean,
    /// No division: a worker's whole progress is sent at once.
    Sum,
}

impl GeoScale {
    /// The name that a user writes.
    pub fn name(self) -> &'static str {
        match self {
            GeoScale::Average => "average",
            GeoScale::Mean => "mean",
            GeoScale::Sum => "sum",
        }
    }

    /// The scale with this name.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "average" => Ok(GeoScale::Average),
            "mean" => Ok(GeoScale::Mean),
            "sum" => Ok(GeoScale::Sum),
            _ => Err(Error::OptionChoice {
                name: "geo_scale",
                got: name.to_owned(),
                choices: &["average", "mean", "sum"],
            }),
        }
    }
}

/// The resolved options: a mode, its options, and the options of all modes.
///
/// `Display` is the line that a job prints when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strategy {
    settings: ModeSettings,
    placement: PlacementRule,
    float_width: FloatWidth,
    row_staleness: u64,
    thread_pool_size: usize,
    launch_barrier: bool,
    lr_decay_steps: u64,
}

impl Strategy {
    /// The mode.
    pub fn mode(&self) -> Mode {
        match self.settings {
            ModeSettings::Sync => Mode::Sync,
            ModeSettings::HalfAsync => Mode::HalfAsync,
            ModeSettings::Async(_) => Mode::Async,
            ModeSettings::Hybrid(_) => Mode::Hybrid,
            ModeSettings::Geo(_) => Mode::Geo,
            ModeSettings::Collective(_) => Mode::Collective,
        }
    }

    /// The mode with its options.
    pub fn settings(&self) -> &ModeSettings {
        &self.settings
    }

    /// Whether workers train on copies of the tables, whose rows must not be removed on the servers.
    pub fn trains_on_copies(&self) -> bool {
        matches!(self.settings, ModeSettings::Geo(_))
    }

    /// How dense parameters are split and assigned.
    pub fn placement(&self) -> PlacementRule {
        self.placement
    }

    /// Width of gradients that are sent.
    pub fn float_width(&self) -> FloatWidth {
        self.float_width
    }

    /// How many more batches of a worker may use a row that one of them has pulled.
    pub fn row_staleness(&self) -> u64 {
        self.row_staleness
    }

    /// Number of threads of a worker that send and receive; at least 1.
    pub fn thread_pool_size(&self) -> usize {
        self.thread_pool_size
    }

    /// Whether workers wait for the servers before they start.
    pub fn launch_barrier(&self) -> bool {
        self.launch_barrier
    }

    /// How often PaddlePaddle's servers receive the global step; at least 1. Our servers count it themselves, so learning rates
    /// follow every step, and the description says so if the option was set.
    pub fn lr_decay_steps(&self) -> u64 {
        self.lr_decay_steps
    }

    /// The resolved options in one line; the same as `to_string`.
    pub fn describe(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mode {}: ", self.mode())?;
        match self.settings {
            ModeSettings::Sync => {
                write!(f, "every step waits for all live workers and applies the mean of their gradients")?
            }
            ModeSettings::HalfAsync => {
                write!(f, "every step waits for the worker's own threads and pushes the mean of their gradients")?;
            }
            ModeSettings::Async(settings) => {
                write!(f, "{}, queue of {}, ", settings.merge, settings.send_queue_size)?;
                match settings.receive {
                    DenseReceive::AfterSend => write!(f, "dense pulled after each push")?,
                    DenseReceive::Independent { min_sent: 1 } if self.float_width == FloatWidth::Bits16 => {
                        write!(f, "dense values come with the replies")?;
                    }
                    DenseReceive::Independent { min_sent } => {
                        write!(f, "dense pulled by its own thread after {}", counted(min_sent, "gradient"))?;
                    }
                }
            }
            ModeSettings::Hybrid(settings) => {
                let flight = counted(settings.staleness as u64, "batch");
                write!(f, "at most {flight} in flight, dense as sync, sparse as async")?;
            }
            ModeSettings::Geo(settings) => {
                let every = |steps| if steps == 1 { "batch".to_owned() } else { counted(steps, "batch") };
                let what = if settings.scale == GeoScale::Sum { "undivided differences" } else { "differences" };
                write!(f, "push {what} every {}", every(settings.k_steps))?;
                if settings.is_adaptive {
                    write!(f, " at first, then by what an exchange costs")?;
                }
                match (settings.scale, settings.flush_residual) {
                    (GeoScale::Average, _) => write!(f, ", dense values averaged")?,
                    (_, true) => write!(f, ", residual flushed at save and stop")?,
                    (_, false) => write!(f, ", residual kept by the worker")?,
                }
                if (1..settings.k_steps).contains(&settings.dense_steps) {
                    let dense = if settings.scale == GeoScale::Average { "" } else { ", dense values" };
                    write!(f, "{dense} every {}", every(settings.dense_steps))?;
                }
            }
            ModeSettings::Collective(settings) => write!(f, "{settings}")?,
        }
        if self.float_width == FloatWidth::Bits16 && self.mode() != Mode::Geo {
            write!(f, "; gradients travel as 16 bits")?;
        }
        if self.row_staleness > 0 {
            write!(f, "; a pulled row is used again for up to {}", counted(self.row_staleness, "batch"))?;
        }
        // Options of all modes are only printed if they differ from their defaults.
        let usual = PlacementRule::default();
        if !self.placement.slice.slice_var_up() {
            write!(f, "; parameters kept whole")?;
        } else if self.placement.slice != usual.slice {
            write!(f, "; parameters cut into blocks of at least {} elements", self.placement.slice.min_block_size())?;
        }
        if self.placement.split_method != usual.split_method {
            write!(f, "; blocks placed by {}", self.placement.split_method.name())?;
        }
        if !self.launch_barrier {
            write!(f, "; does not wait for the servers at launch")?;
        }
        if self.thread_pool_size != resolve::default::THREAD_POOL_SIZE as usize {
            write!(f, "; {} threads send and receive", self.thread_pool_size)?;
        }
        if self.lr_decay_steps != resolve::default::LR_DECAY_STEPS as u64 {
            write!(f, "; learning rates follow every step (`lr_decay_steps` is not needed)")?;
        }
        Ok(())
    }
}

impl fmt::Display for Merge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max_gradients {
            1 if self.slow_link_gradients == 1 => f.write_str("push each gradient"),
            1 => write!(f, "push each gradient, up to {} merged on a slow link", self.slow_link_gradients),
            most => write!(f, "push up to {most} merged gradients, waiting {} ms for more", self.wait_ms),
        }
    }
}

/// `1 batch`, `400 batches`.
fn counted(count: u64, noun: &str) -> String {
    let ending = match (count, noun) {
        (1, _) => "",
        (_, "batch") => "es",
        _ => "s",
    };
    format!("{count} {noun}{ending}")
}

#[cfg(test)]
mod tests;
