//! The options of a strategy as the user wrote them.
//!
//! Every option is absent until it is set: a default that was never set cannot contradict anything. Names are those of the
//! PaddlePaddle scripts, plus some of our own (such as `staleness`, `geo_scale`, `row_staleness` and `wire_bits`). Only the types of
//! values are checked here; [`Strategy::resolve`](super::Strategy::resolve) checks everything else at once.

use super::{GeoScale, GradientScale, Mode};
use crate::error::{Error, Result};
use crate::placement::SplitMethod;

/// Which of PaddlePaddle's two configuration objects the options were set on. They have different options for the mode, and
/// different default modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// `DistributedStrategy`: `a_sync`, `k_steps` and `staleness` choose the mode; async by default.
    DistributedStrategy,
    /// `DistributeTranspilerConfig`: `sync_mode`, `runtime_split_send_recv` and `geo_sgd_mode` choose the mode; sync by
    /// default.
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

/// A value in a dictionary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionValue {
    /// True or false.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A string.
    Text(String),
}

impl OptionValue {
    /// Parses a value from a command line: an integer, `true` or `false`, else a string.
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

/// The type of an option.
trait Kind: Sized {
    fn read(name: &'static str, value: OptionValue) -> Result<Self>;
    fn write(self) -> OptionValue;
}

/// Generates the struct, the list of names, and the setter and getter by name from one list, so that they cannot differ.
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $kind:ty,)*) => {
        /// The options that were set; the others are `None`.
        ///
        /// ```
        /// use openfleet_core::strategy::{Strategy, StrategyOptions};
        ///
        /// let options = StrategyOptions { k_steps: Some(400), ..StrategyOptions::distributed_strategy() };
        /// let strategy = Strategy::resolve(&options)?;
        /// assert_eq!(
        ///     strategy.to_string(),
        ///     "mode geo: push differences every 400 batches, dense values averaged every 10 batches"
        /// );
        /// # Ok::<(), openfleet_core::Error>(())
        /// ```
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct StrategyOptions {
            /// The object that they were set on.
            pub front: Front,
            $($(#[$doc])* pub $name: Option<$kind>,)*
        }

        impl StrategyOptions {
            /// The names of all options.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            fn untouched(front: Front) -> Self {
                StrategyOptions { front, $($name: None,)* }
            }

            /// Sets one option by name, as from a dictionary. `wait_port` is an older name of `launch_barrier`; 0 and 1 are
            /// accepted as false and true. An unknown name or a value of the wrong type changes nothing.
            pub fn set(&mut self, name: &str, value: OptionValue) -> Result<()> {
                match name {
                    $(stringify!($name) => self.$name = Some(Kind::read(stringify!($name), value)?),)*
                    "wait_port" => self.launch_barrier = Some(Kind::read("wait_port", value)?),
                    _ => return Err(Error::UnknownOption { name: name.to_owned(), known: Self::NAMES }),
                }
                Ok(())
            }

            /// Removes an option that was set.
            pub(super) fn unset(&mut self, name: &str) {
                match name {
                    $(stringify!($name) => self.$name = None,)*
                    _ => {}
                }
            }

            /// The value that was set for a name; `None` if none was, or if there is no such option. Defaults are not returned,
            /// so a dictionary that is read and set again means the same.
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
    // The mode, in terms of `DistributedStrategy`. In PaddlePaddle, assigning `a_sync` resets `k_steps`; here the order of
    // assignments does not matter.
    /// False = sync; true = async, or geo with `k_steps`, or hybrid with `staleness`.
    a_sync: bool,
    /// Geo: batches between two pushes; 0 = not geo.
    k_steps: i64,
    /// 0 = sync, n = hybrid with at most n batches in flight, -1 = async.
    staleness: i64,

    // The mode, in terms of `DistributeTranspilerConfig`.
    /// True (its default) = sync.
    sync_mode: bool,
    /// Geo, if `sync_mode` is false.
    geo_sgd_mode: bool,
    /// Geo: batches between two pushes.
    geo_sgd_need_push_nums: i64,

    // The mode, in terms of both.
    /// Half-async: a worker waits only for its own threads.
    half_async: bool,
    /// True with `sync_mode` false = async. Gradients are always split when they are sent, so the option has no other effect.
    runtime_split_send_recv: bool,

    // When pushes and pulls are sent.
    /// Maximum number of gradients merged into one push.
    max_merge_var_num: i64,
    /// Maximum number of gradients (geo: windows of `k_steps` batches) in the send queue before training blocks.
    send_queue_size: i64,
    /// Whether dense parameters are pulled by a separate thread instead of after each push.
    independent_recv_thread: bool,
    /// Number of gradients sent before that thread pulls again.
    min_send_grad_num_before_recv: i64,
    /// How often to wait 10 ms for more gradients before an incomplete merge is sent.
    send_wait_times: i64,
    /// Number of threads of a worker that send and receive.
    thread_pool_size: i64,
    /// Whether workers wait for the servers before they start.
    launch_barrier: bool,
    /// How often PaddlePaddle's servers receive the global step; ours count it themselves.
    lr_decay_steps: i64,
    /// Geo: how the progress of the workers is joined.
    geo_scale: GeoScale,
    /// Geo: batches between two exchanges of dense parameters and of often used rows; 0 = with all rows.
    geo_dense_steps: i64,
    /// Geo: whether `k_steps` is only where it begins, and follows the measured cost of an exchange.
    geo_adaptive: bool,
    /// Geo: whether unsent differences are sent at save and stop.
    geo_flush_residual: bool,
    /// Async and hybrid: how many more batches of the worker may use a row that one has pulled; 0 = none.
    row_staleness: i64,
    /// Bits of a float on the wire: 32 or 16.
    wire_bits: i64,

    // Placement of dense parameters.
    /// Whether large parameters are split into blocks.
    slice_var_up: bool,
    /// Minimum number of elements per block.
    min_block_size: i64,
    /// How blocks are assigned to servers.
    split_method: SplitMethod,

    // Collective jobs.
    /// Whether gradients are reduced in buckets, instead of one by one.
    fuse_all_reduce_ops: bool,
    /// Size of a bucket of gradients in MB.
    fuse_grad_size_in_mb: i64,
    /// Maximum size of the last bucket in MB.
    last_comm_group_size_mb: i64,
    /// Whether gradients are sent with 16 bits.
    fp16_allreduce: bool,
    /// Whether gradients are averaged or added up over the ranks.
    gradient_scale: GradientScale,
    /// Whether gradients are merged over several steps before they are applied.
    gradient_merge: bool,
    /// Number of those steps.
    gradient_merge_k_steps: i64,
    /// Whether merged gradients are averaged over the steps.
    gradient_merge_avg: bool,
    /// Whether ranks train alone and average their parameters from time to time.
    localsgd: bool,
    /// Steps between two averages.
    localsgd_k_steps: i64,
    /// First step of training alone.
    localsgd_begin_step: i64,
    /// Local SGD with a number of steps that follows the loss, beginning with `localsgd_k_steps`.
    adaptive_localsgd: bool,
}

impl StrategyOptions {
    /// A `DistributedStrategy` without options: async.
    pub fn distributed_strategy() -> Self {
        Self::untouched(Front::DistributedStrategy)
    }

    /// A `DistributeTranspilerConfig` without options: sync.
    pub fn transpiler_config() -> Self {
        Self::untouched(Front::TranspilerConfig)
    }

    /// Options that only a job with servers uses.
    pub const WITH_SERVERS: &[&str] = &[
        "a_sync",
        "k_steps",
        "staleness",
        "sync_mode",
        "geo_sgd_mode",
        "geo_sgd_need_push_nums",
        "half_async",
        "runtime_split_send_recv",
        "max_merge_var_num",
        "send_queue_size",
        "independent_recv_thread",
        "min_send_grad_num_before_recv",
        "send_wait_times",
        "row_staleness",
        "thread_pool_size",
        "launch_barrier",
        "lr_decay_steps",
        "geo_scale",
        "geo_dense_steps",
        "geo_adaptive",
        "geo_flush_residual",
        "slice_var_up",
        "min_block_size",
        "split_method",
    ];

    /// Whether an option was switched on that only a collective job has.
    pub fn is_collective(&self) -> bool {
        let switches = [self.gradient_merge, self.localsgd, self.adaptive_localsgd, self.fp16_allreduce];
        switches.contains(&Some(true))
    }

    /// The options that were set and that only a job with servers uses.
    pub fn needing_servers(&self) -> Vec<&'static str> {
        Self::WITH_SERVERS.iter().copied().filter(|name| self.get(name).is_some()).collect()
    }

    /// A `DistributedStrategy` for a mode that was chosen by name: hybrid with 4 batches in flight, and geo with a push every
    /// 100 batches, unless `staleness` and `k_steps` are set.
    pub fn for_mode(mode: Mode) -> Self {
        let mut options = Self::distributed_strategy();
        match mode {
            Mode::Sync => options.a_sync = Some(false),
            Mode::HalfAsync => options.half_async = Some(true),
            Mode::Async => options.a_sync = Some(true),
            Mode::Hybrid => options.staleness = Some(4),
            Mode::Geo => options.k_steps = Some(100),
            // A job without servers is collective.
            Mode::Collective => {}
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

impl Kind for GradientScale {
    fn read(name: &'static str, value: OptionValue) -> Result<Self> {
        match value {
            OptionValue::Text(text) => GradientScale::parse(&text),
            other => Err(Error::OptionRange { name, expected: "`avg` or `sum`", got: other.to_string() }),
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
                "geo_scale" | "gradient_scale" => OptionValue::Text("sum".into()),
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
            // Python's `True` is not a count.
            ("k_steps", OptionValue::Bool(true), "`k_steps` expects a whole number, got true"),
            // 2 is neither true nor false.
            ("a_sync", OptionValue::Int(2), "`a_sync` expects true or false, got 2"),
            // A word that is none of the choices.
            ("geo_scale", OptionValue::Text("max".into()), "`geo_scale` cannot be `max`"),
            // The older name is checked under its own name.
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
