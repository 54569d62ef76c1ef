//! What the user wrote about a strategy, word for word.
//!
//! Every option is absent until somebody writes it: a default that was never written cannot contradict anything. Names
//! are those of the seeds' scripts, with four of our own (`staleness`, `geo_scale`, `geo_flush_residual`, `wire_bits`). Nothing is
//! checked here beyond the kind of a value; [`Strategy::resolve`](super::Strategy::resolve) checks all of it at once.

use super::{GeoScale, Mode};
use crate::error::{Error, Result};
use crate::placement::SplitMethod;

/// Which of the two configuration objects of the seeds the options were written into. They choose a mode by different
/// words and start from different modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// `DistributedStrategy`: `a_sync`, `k_steps` and `staleness` choose; async where nothing is written.
    DistributedStrategy,
    /// `DistributeTranspilerConfig`: `sync_mode`, `runtime_split_send_recv` and `geo_sgd_mode` choose; sync where nothing
    /// is written.
    TranspilerConfig,
}

impl Front {
    /// The name of the object in a script.
    pub fn name(self) -> &'static str {
        match self {
            Front::DistributedStrategy => "DistributedStrategy",
            Front::TranspilerConfig => "DistributeTranspilerConfig",
        }
    }
}

/// A value as a dictionary holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionValue {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A word.
    Text(String),
}

impl OptionValue {
    /// A value as a command line holds it: a whole number, `true` or `false`, else a word.
    pub fn parse(text: &str) -> Self {
        match text {
            "true" | "True" => OptionValue::Bool(true),
            "false" | "False" => OptionValue::Bool(false),
            _ => text.parse().map_or_else(|_| OptionValue::Text(text.to_owned()), OptionValue::Int),
        }
    }
}

impl std::fmt::Display for OptionValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OptionValue::Bool(value) => value.fmt(f),
            OptionValue::Int(value) => value.fmt(f),
            OptionValue::Text(value) => write!(f, "`{value}`"),
        }
    }
}

/// What an option can be.
trait Kind: Sized {
    fn read(name: &'static str, value: OptionValue) -> Result<Self>;
    fn write(self) -> OptionValue;
}

/// Makes the struct, its dictionary of names, and the way in and out by name from one list, so that they cannot differ.
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $kind:ty,)*) => {
        /// What was written; `None` where nothing was.
        ///
        /// ```
        /// use openfleet_core::strategy::{Strategy, StrategyOptions};
        ///
        /// let options = StrategyOptions { k_steps: Some(400), ..StrategyOptions::distributed_strategy() };
        /// let strategy = Strategy::resolve(&options)?;
        /// assert_eq!(
        ///     strategy.to_string(),
        ///     "mode geo: push differences every 400 batches, residual flushed at save and stop"
        /// );
        /// # Ok::<(), openfleet_core::Error>(())
        /// ```
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct StrategyOptions {
            /// The object that was written into.
            pub front: Front,
            $($(#[$doc])* pub $name: Option<$kind>,)*
        }

        impl StrategyOptions {
            /// Every option's name.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            fn untouched(front: Front) -> Self {
                StrategyOptions { front, $($name: None,)* }
            }

            /// Writes one option by name, as from a dictionary. `wait_port` is an older word for `launch_barrier`; 0 and
            /// 1 are understood as false and true. An unknown name or another kind of value changes nothing.
            pub fn set(&mut self, name: &str, value: OptionValue) -> Result<()> {
                match name {
                    $(stringify!($name) => self.$name = Some(Kind::read(stringify!($name), value)?),)*
                    "wait_port" => self.launch_barrier = Some(Kind::read("wait_port", value)?),
                    _ => return Err(Error::UnknownOption { name: name.to_owned(), known: Self::NAMES }),
                }
                Ok(())
            }

            /// What was written under a name; `None` if nothing was, or if there is no such option. Defaults do not
            /// show: a dictionary read back and written again says no more than the first did.
            pub fn get(&self, name: &str) -> Option<OptionValue> {
                match name {
                    $(stringify!($name) => self.$name.map(Kind::write),)*
                    "wait_port" => self.launch_barrier.map(Kind::write),
                    _ => None,
                }
            }
        }
    };
}

options! {
    // The mode, in the words of `DistributedStrategy`. In the original, assigning `a_sync` resets `k_steps`; here the
    // order of lines means nothing.
    /// False = sync; true = async, or geo with `k_steps`, or hybrid with `staleness`.
    a_sync: bool,
    /// Geo: batches between two pushes; 0 = not geo.
    k_steps: i64,
    /// 0 = sync, n = hybrid with at most n batches in flight, -1 = async.
    staleness: i64,

    // The mode, in the words of `DistributeTranspilerConfig`.
    /// True (its default) = sync.
    sync_mode: bool,
    /// Geo, where `sync_mode` is false.
    geo_sgd_mode: bool,
    /// Geo: batches between two pushes.
    geo_sgd_need_push_nums: i64,

    // The mode, in the words of both.
    /// Half-async: a worker waits for its own threads only.
    half_async: bool,
    /// True with `sync_mode` false = async. We always split gradients as they are sent, so beyond that choice there is
    /// nothing to switch.
    runtime_split_send_recv: bool,

    // When pushes and pulls travel.
    /// Gradients merged into one push at most.
    max_merge_var_num: i64,
    /// Gradients (geo: windows of `k_steps` batches) that may wait to be sent before training waits too.
    send_queue_size: i64,
    /// Whether dense parameters are pulled by a thread of their own rather than after each push.
    independent_recv_thread: bool,
    /// Gradients sent before that thread pulls again.
    min_send_grad_num_before_recv: i64,
    /// Waits of 10 ms for more gradients to merge before an incomplete merge is sent.
    send_wait_times: i64,
    /// Threads of a worker that send and receive.
    thread_pool_size: i64,
    /// Whether workers wait for the servers before they start.
    launch_barrier: bool,
    /// How often the original's servers hear of the global step; ours count it themselves.
    lr_decay_steps: i64,
    /// Geo: whether differences are divided by the number of workers.
    geo_scale: GeoScale,
    /// Geo: whether what was not yet sent is sent at save and stop.
    geo_flush_residual: bool,
    /// Bits of a float on the wire: 32 or 16.
    wire_bits: i64,

    // Where dense parameters live.
    /// Whether large parameters are cut into blocks.
    slice_var_up: bool,
    /// The fewest elements a parameter must have per block.
    min_block_size: i64,
    /// How blocks are dealt to servers.
    split_method: SplitMethod,
}

impl StrategyOptions {
    /// An untouched `DistributedStrategy`: async.
    pub fn distributed_strategy() -> Self {
        Self::untouched(Front::DistributedStrategy)
    }

    /// An untouched `DistributeTranspilerConfig`: sync.
    pub fn transpiler_config() -> Self {
        Self::untouched(Front::TranspilerConfig)
    }

    /// A `DistributedStrategy` in which a mode was asked for by name: hybrid with 4 batches in flight and geo with a push
    /// every 100 batches until `staleness` and `k_steps` say otherwise.
    pub fn for_mode(mode: Mode) -> Self {
        let mut options = Self::distributed_strategy();
        match mode {
            Mode::Sync => options.a_sync = Some(false),
            Mode::HalfAsync => options.half_async = Some(true),
            Mode::Async => options.a_sync = Some(true),
            Mode::Hybrid => options.staleness = Some(4),
            Mode::Geo => options.k_steps = Some(100),
        }
        options
    }
}

impl Kind for bool {
    fn read(name: &'static str, value: OptionValue) -> Result<Self> {
        match value {
            OptionValue::Bool(value) => Ok(value),
            OptionValue::Int(0) => Ok(false),
            OptionValue::Int(1) => Ok(true),
            other => Err(Error::OptionRange { name, expected: "true or false", got: other.to_string() }),
        }
    }

    fn write(self) -> OptionValue {
        OptionValue::Bool(self)
    }
}

impl Kind for i64 {
    fn read(name: &'static str, value: OptionValue) -> Result<Self> {
        match value {
            OptionValue::Int(value) => Ok(value),
            other => Err(Error::OptionRange { name, expected: "a whole number", got: other.to_string() }),
        }
    }

    fn write(self) -> OptionValue {
        OptionValue::Int(self)
    }
}

impl Kind for SplitMethod {
    fn read(name: &'static str, value: OptionValue) -> Result<Self> {
        match value {
            OptionValue::Text(text) => SplitMethod::parse(&text),
            other => Err(Error::OptionRange { name, expected: "`RoundRobin` or `HashName`", got: other.to_string() }),
        }
    }

    fn write(self) -> OptionValue {
        OptionValue::Text(self.name().to_owned())
    }
}

impl Kind for GeoScale {
    fn read(name: &'static str, value: OptionValue) -> Result<Self> {
        match value {
            OptionValue::Text(text) => GeoScale::parse(&text),
            other => Err(Error::OptionRange { name, expected: "`mean` or `sum`", got: other.to_string() }),
        }
    }

    fn write(self) -> OptionValue {
        OptionValue::Text(self.name().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Hinted;

    #[test]
    fn every_name_can_be_written_and_read_back() {
        for name in StrategyOptions::NAMES {
            let mut options = StrategyOptions::distributed_strategy();
            assert_eq!(options.get(name), None, "{name}");
            let value = match *name {
                "split_method" => OptionValue::Text("HashName".into()),
                "geo_scale" => OptionValue::Text("sum".into()),
                _ => OptionValue::Int(1),
            };
            options.set(name, value.clone()).unwrap();
            let read = options.get(name).unwrap();
            assert!(read == value || read == OptionValue::Bool(true), "{name}: {read:?}");
        }
    }

    #[test]
    fn a_wrong_name_suggests_the_nearest() {
        let rows = [
            // An underscore left out.
            ("ksteps", "did you mean `k_steps`?"),
            // Two letters swapped.
            ("send_queue_szie", "did you mean `send_queue_size`?"),
            // A letter left out.
            ("independent_recv_thred", "did you mean `independent_recv_thread`?"),
        ];
        for (name, hint) in rows {
            let mut options = StrategyOptions::distributed_strategy();
            let error = options.set(name, OptionValue::Int(1)).unwrap_err();
            assert_eq!(error.to_string(), format!("no option is named `{name}`"));
            assert_eq!(error.hint().unwrap(), hint);
            assert_eq!(options, StrategyOptions::distributed_strategy(), "nothing changed");
        }
    }

    #[test]
    fn a_value_of_another_kind_is_refused() {
        let rows = [
            // A word for a number.
            ("k_steps", OptionValue::Text("400".into()), "`k_steps` expects a whole number, got `400`"),
            // Python's `True` is no count.
            ("k_steps", OptionValue::Bool(true), "`k_steps` expects a whole number, got true"),
            // 2 is neither true nor false.
            ("a_sync", OptionValue::Int(2), "`a_sync` expects true or false, got 2"),
            // A word that is none of the choices.
            ("geo_scale", OptionValue::Text("max".into()), "`geo_scale` cannot be `max`"),
            // The older word is checked under its own name.
            ("wait_port", OptionValue::Int(3), "`wait_port` expects true or false, got 3"),
        ];
        for (name, value, message) in rows {
            let error = StrategyOptions::distributed_strategy().set(name, value).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn wait_port_is_launch_barrier() {
        let mut options = StrategyOptions::transpiler_config();
        options.set("wait_port", OptionValue::Bool(false)).unwrap();
        assert_eq!(options.launch_barrier, Some(false));
        assert_eq!(options.get("wait_port"), Some(OptionValue::Bool(false)));
    }
}
