//! The user's choice of mode and knobs, resolved and checked once.
//!
//! [`StrategyOptions`] is what was written, [`Strategy`] what it means: one mode, and for that mode only the knobs it
//! has. Two options that contradict each other are an error naming both, and so is a knob that the chosen mode would not
//! read. One kind of exception: an option written with the value it would have had anyway (`send_queue_size` 16 in sync
//! mode) asks for nothing and is accepted everywhere, because scripts copy whole dictionaries. `independent_recv_thread`
//! is harmless as false in this sense, since the modes without that thread do what it says.
//!
//! A mode's algorithm is not here: `dist` chooses a communicator by [`ModeSettings`] and a server its aggregation by [`Mode`].

mod options;
mod resolve;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use options::{Front, OptionValue, StrategyOptions};

use crate::error::{Error, Result};
use crate::placement::PlacementRule;

/// When gradients travel and who waits for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// All live workers wait for each other at every step.
    Sync,
    /// A worker's threads wait for each other, workers do not.
    HalfAsync,
    /// A background thread pushes, nobody waits.
    Async,
    /// Sparse as async, dense as sync, with a bound on the batches in flight.
    Hybrid,
    /// Workers train on copies and exchange differences now and then.
    Geo,
}

impl Mode {
    /// All modes, from the strictest to the loosest.
    pub const ALL: [Mode; 5] = [Mode::Sync, Mode::HalfAsync, Mode::Async, Mode::Hybrid, Mode::Geo];

    /// The name in options, logs and checkpoints.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Sync => "sync",
            Mode::HalfAsync => "half_async",
            Mode::Async => "async",
            Mode::Hybrid => "hybrid",
            Mode::Geo => "geo",
        }
    }

    /// The mode of this name; hyphens may stand for underscores.
    pub fn parse(name: &str) -> Result<Self> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name.replace('-', "_")).ok_or_else(|| Error::OptionChoice {
            name: "mode",
            got: name.to_owned(),
            choices: &["sync", "half_async", "async", "hybrid", "geo"],
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A mode with the knobs it reads, and no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModeSettings {
    /// Nothing to choose.
    Sync,
    /// Nothing to choose.
    HalfAsync,
    /// See [`AsyncSettings`].
    Async(AsyncSettings),
    /// See [`HybridSettings`].
    Hybrid(HybridSettings),
    /// See [`GeoSettings`].
    Geo(GeoSettings),
}

/// The knobs of async.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncSettings {
    /// How gradients are merged before a push.
    pub merge: Merge,
    /// Gradients that may wait to be pushed; a full queue makes training wait.
    pub send_queue_size: usize,
    /// Who pulls dense parameters.
    pub receive: DenseReceive,
}

/// The knobs of hybrid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HybridSettings {
    /// Batches whose gradients are not yet applied, at most; at least 1.
    pub staleness: usize,
}

/// The knobs of geo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GeoSettings {
    /// Batches between two pushes; at least 1.
    pub k_steps: u64,
    /// What a difference is divided by.
    pub scale: GeoScale,
    /// Whether what was not yet sent is sent at save and stop.
    pub flush_residual: bool,
    /// Windows of `k_steps` batches that may wait to be sent; a full queue makes training wait.
    pub send_queue_size: usize,
}

/// How queued gradients become one push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merge {
    /// Gradients in one push, at most; at least 1.
    pub max_gradients: usize,
    /// How long an incomplete merge waits for more.
    pub wait_ms: u64,
}

/// Who pulls dense parameters in async.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DenseReceive {
    /// Whoever has just pushed.
    AfterSend,
    /// A thread of its own, each time at least this many gradients were sent.
    Independent {
        /// At least 1.
        min_sent: u64,
    },
}

/// How many bits a float has on its way between workers and servers. Tables and arithmetic have 32 in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FloatWidth {
    /// As it is.
    #[default]
    Bits32,
    /// Rounded to the nearest `bfloat16`: the range of 32 bits with 8 of its 24 digits. Half the traffic.
    Bits16,
}

/// What a geo difference is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GeoScale {
    /// The number of workers, as the seeds have it.
    #[default]
    Mean,
    /// Nothing: a worker's whole progress is sent at once.
    Sum,
}

impl GeoScale {
    /// The word a user writes.
    pub fn name(self) -> &'static str {
        match self {
            GeoScale::Mean => "mean",
            GeoScale::Sum => "sum",
        }
    }

    /// The scale of this name.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "mean" => Ok(GeoScale::Mean),
            "sum" => Ok(GeoScale::Sum),
            _ => Err(Error::OptionChoice { name: "geo_scale", got: name.to_owned(), choices: &["mean", "sum"] }),
        }
    }
}

/// What the options mean: a mode, its knobs, and what every mode has.
///
/// `Display` is the one line a job prints when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strategy {
    settings: ModeSettings,
    placement: PlacementRule,
    float_width: FloatWidth,
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
        }
    }

    /// The mode with its knobs.
    pub fn settings(&self) -> &ModeSettings {
        &self.settings
    }

    /// Whether workers train on copies of the tables, which nothing may take away from under them.
    pub fn trains_on_copies(&self) -> bool {
        matches!(self.settings, ModeSettings::Geo(_))
    }

    /// How dense parameters are cut and dealt.
    pub fn placement(&self) -> PlacementRule {
        self.placement
    }

    /// How floats travel.
    pub fn float_width(&self) -> FloatWidth {
        self.float_width
    }

    /// Threads of a worker that send and receive; at least 1.
    pub fn thread_pool_size(&self) -> usize {
        self.thread_pool_size
    }

    /// Whether workers wait for the servers before they start.
    pub fn launch_barrier(&self) -> bool {
        self.launch_barrier
    }

    /// How often the original's servers hear of the global step; at least 1. Here they count it themselves, so learning
    /// rates follow every step, and the description says so where a number was written.
    pub fn lr_decay_steps(&self) -> u64 {
        self.lr_decay_steps
    }

    /// What the options resolved to, in one line; the same as `to_string`.
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
                let what = if settings.scale == GeoScale::Mean { "differences" } else { "undivided differences" };
                let every = if settings.k_steps == 1 { "batch".to_owned() } else { counted(settings.k_steps, "batch") };
                let rest = if settings.flush_residual { "flushed at save and stop" } else { "kept by the worker" };
                write!(f, "push {what} every {every}, residual {rest}")?;
            }
        }
        if self.float_width == FloatWidth::Bits16 {
            write!(f, "; gradients travel as 16 bits")?;
        }
        // What every mode has is said only where it is not as usual.
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
            1 => f.write_str("push each gradient"),
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
