//! Resolves options: first the mode, then every option against it.
//!
//! The order of the checks: does this object have the option, which mode is chosen, does the mode use every option, are the
//! numbers in range. The first failure is the error.

use std::fmt;
use std::ops::RangeInclusive;

use super::{
    AsyncSettings, CollectiveSettings, DenseReceive, FloatWidth, Front, GeoScale, GeoSettings, GradientScale,
    HybridSettings, Merge, Mode, ModeSettings, OptionValue, Strategy, StrategyOptions,
};
use crate::error::{Error, Result};
use crate::placement::{PlacementRule, SliceRule};

impl Strategy {
    /// Chooses the mode of a job with servers, then checks every option against it.
    pub fn resolve(options: &StrategyOptions) -> Result<Self> {
        refuse_foreign(options)?;
        let choice = match options.front {
            Front::DistributedStrategy => choose_by_distributed_strategy(options)?,
            Front::TranspilerConfig => choose_by_transpiler_config(options)?,
        };
        Self::resolve_as(options, choice)
    }

    /// The strategy of a job without servers. The options that choose a mode with servers are left out: see
    /// [`StrategyOptions::needing_servers`].
    pub fn resolve_collective(options: &StrategyOptions) -> Result<Self> {
        let mut options = options.clone();
        for name in StrategyOptions::WITH_SERVERS {
            options.unset(name);
        }
        Self::resolve_as(&options, Choice::new(Mode::Collective, 0, "a job without servers".into()))
    }

    fn resolve_as(options: &StrategyOptions, choice: Choice) -> Result<Self> {
        refuse_ignored(options, &choice)?;
        let merge = || -> Result<Merge> {
            let max_gradients = ranged(
                "max_merge_var_num",
                options.max_merge_var_num.unwrap_or(default::MAX_MERGE_VAR_NUM),
                1..=MOST_BATCHES,
                "a number from 1 to 65536",
            )? as usize;
            let wait_times = ranged(
                "send_wait_times",
                options.send_wait_times.unwrap_or(default::SEND_WAIT_TIMES),
                0..=60_000,
                "a number of 10 ms waits from 0 to 60000",
            )?;
            if max_gradients == 1 && wait_times != default::SEND_WAIT_TIMES as u64 {
                return Err(contradiction(
                    ("send_wait_times", wait_times),
                    ("max_merge_var_num", 1),
                    "with one gradient a push there is nothing to wait for: raise `max_merge_var_num`",
                ));
            }
            let fetches_each_time = dense_receive(options)? == DenseReceive::Independent { min_sent: 1 };
            let slow_link_gradients = match options.max_merge_var_num {
                None if fetches_each_time => SLOW_LINK_GRADIENTS,
                _ => 1,
            };
            Ok(Merge { max_gradients, wait_ms: wait_times * SEND_WAIT_MS, slow_link_gradients })
        };
        let send_queue_size = || -> Result<usize> {
            let size = options.send_queue_size.unwrap_or(default::SEND_QUEUE_SIZE);
            Ok(ranged("send_queue_size", size, 1..=MOST_BATCHES, "a number from 1 to 65536")? as usize)
        };
        let settings = match choice.mode {
            Mode::Sync => ModeSettings::Sync,
            Mode::HalfAsync => ModeSettings::HalfAsync,
            Mode::Async => ModeSettings::Async(AsyncSettings {
                merge: merge()?,
                send_queue_size: send_queue_size()?,
                receive: dense_receive(options)?,
            }),
            Mode::Hybrid => ModeSettings::Hybrid(HybridSettings { staleness: choice.count as usize }),
            Mode::Geo => ModeSettings::Geo(GeoSettings {
                k_steps: if choice.count == 0 { default::GEO_SGD_NEED_PUSH_NUMS as u64 } else { choice.count },
                is_adaptive: choice.count == 0 || options.geo_adaptive == Some(true),
                dense_steps: geo_dense_steps(options)?,
                scale: options.geo_scale.unwrap_or_default(),
                flush_residual: options.geo_flush_residual.unwrap_or(true),
                send_queue_size: send_queue_size()?,
            }),
            Mode::Collective => ModeSettings::Collective(CollectiveSettings::resolve(options)?),
        };
        let thread_pool_size = options.thread_pool_size.unwrap_or(default::THREAD_POOL_SIZE);
        let lr_decay_steps = options.lr_decay_steps.unwrap_or(default::LR_DECAY_STEPS);
        Ok(Strategy {
            float_width: float_width(options, &settings)?,
            settings,
            placement: placement_rule(options)?,
            row_staleness: ranged(
                "row_staleness",
                options.row_staleness.unwrap_or(0),
                0..=MOST_BATCHES,
                "a number of batches from 0 to 65536",
            )?,
            thread_pool_size: ranged("thread_pool_size", thread_pool_size, 1..=1024, "a number from 1 to 1024")?
                as usize,
            launch_barrier: options.launch_barrier.unwrap_or(true),
            lr_decay_steps: ranged("lr_decay_steps", lr_decay_steps, 1..=i64::MAX, "a number above 0")?,
        })
    }
}

/// Default values; those of PaddlePaddle's `a_sync_configs`.
pub(super) mod default {
    pub(super) const MAX_MERGE_VAR_NUM: i64 = 1;
    pub(super) const SEND_QUEUE_SIZE: i64 = 16;
    /// PaddlePaddle's dictionary says false and its runtime true; its design document says true.
    pub(super) const INDEPENDENT_RECV_THREAD: bool = true;
    pub(super) const MIN_SEND_GRAD_NUM_BEFORE_RECV: i64 = 1;
    pub(super) const SEND_WAIT_TIMES: i64 = 1;
    pub(in crate::strategy) const THREAD_POOL_SIZE: i64 = 1;
    pub(in crate::strategy) const LR_DECAY_STEPS: i64 = 10;
    pub(super) const GEO_SGD_NEED_PUSH_NUMS: i64 = 100;
    /// With dense values averaged every 10 batches and rows every 400, two workers reach the AUC of sync mode.
    pub(super) const GEO_DENSE_STEPS: i64 = 10;
}

/// Gradients that async mode merges into one push while pushes are slow, unless `max_merge_var_num` is given. Four
/// batches of 512 rows are still a common batch size.
const SLOW_LINK_GRADIENTS: usize = 4;
/// The unit of `send_wait_times`.
const SEND_WAIT_MS: u64 = 10;
/// Queues and merges are allocated ahead and counted in batches: more than this is probably a typing error.
const MOST_BATCHES: i64 = 65_536;

/// Dense parameters that are averaged have their own interval; with the other scales they are exchanged with the rows.
fn geo_dense_steps(options: &StrategyOptions) -> Result<u64> {
    let usual = match options.geo_scale.unwrap_or_default() {
        GeoScale::Average => default::GEO_DENSE_STEPS,
        GeoScale::Mean | GeoScale::Sum => 0,
    };
    ranged("geo_dense_steps", options.geo_dense_steps.unwrap_or(usual), 0..=MOST_BATCHES, "a number from 0 to 65536")
}

/// The mode, the number that came with it (staleness, or batches between pushes), and the option that chose it.
struct Choice {
    mode: Mode,
    count: u64,
    because: String,
}

impl Choice {
    fn new(mode: Mode, count: i64, because: String) -> Self {
        Choice { mode, count: count.unsigned_abs(), because }
    }
}

/// `a_sync`, `k_steps`, `staleness` and `half_async`; async by default.
fn choose_by_distributed_strategy(options: &StrategyOptions) -> Result<Choice> {
    let StrategyOptions { a_sync, k_steps, staleness, half_async, runtime_split_send_recv, .. } = *options;
    if let Some(k_steps) = k_steps {
        ranged("k_steps", k_steps, 0..=i64::MAX, "0 or a number of batches")?;
    }
    if let Some(staleness) = staleness
        && !(-1..=MOST_BATCHES).contains(&staleness)
    {
        let expected = "-1, 0 or a number of batches up to 65536";
        return Err(Error::OptionRange { name: "staleness", expected, got: staleness.to_string() });
    }
    let geo_steps = k_steps.filter(|&k_steps| k_steps > 0);
    let half_async = half_async == Some(true);
    // If several pairs contradict each other, the first one is reported.
    if let Some(staleness) = staleness {
        if let Some(a_sync) = a_sync.filter(|&a_sync| a_sync == (staleness == 0)) {
            return Err(contradiction(
                ("staleness", staleness),
                ("a_sync", a_sync),
                "`staleness` alone is enough: 0 = sync, n = hybrid, -1 = async",
            ));
        }
        if let Some(k_steps) = geo_steps {
            let hint = "`k_steps` chooses geo, which has no bound on staleness: keep one of them";
            return Err(contradiction(("staleness", staleness), ("k_steps", k_steps), hint));
        }
        if half_async {
            let hint = "half_async waits for the worker's own threads only: keep one of them";
            return Err(contradiction(("staleness", staleness), ("half_async", true), hint));
        }
    }
    if let Some(k_steps) = geo_steps {
        if a_sync == Some(false) {
            let hint = "geo needs `a_sync` to be true; sync needs `k_steps` to be 0";
            return Err(contradiction(("k_steps", k_steps), ("a_sync", false), hint));
        }
        if half_async {
            let hint = "`k_steps` chooses geo: keep one of them";
            return Err(contradiction(("k_steps", k_steps), ("half_async", true), hint));
        }
    }
    if half_async && a_sync == Some(false) {
        let hint = "half_async is asynchronous between workers: leave `a_sync` out, or `half_async` for sync";
        return Err(contradiction(("half_async", true), ("a_sync", false), hint));
    }
    let choice = match (staleness, geo_steps, a_sync) {
        (Some(0), ..) => Choice::new(Mode::Sync, 0, wrote("staleness", 0)),
        (Some(-1), ..) => Choice::new(Mode::Async, 0, wrote("staleness", -1)),
        (Some(staleness), ..) => Choice::new(Mode::Hybrid, staleness, wrote("staleness", staleness)),
        (None, Some(k_steps), _) => Choice::new(Mode::Geo, k_steps, wrote("k_steps", k_steps)),
        (None, None, _) if half_async => Choice::new(Mode::HalfAsync, 0, wrote("half_async", true)),
        (None, None, Some(false)) => Choice::new(Mode::Sync, 0, wrote("a_sync", false)),
        (None, None, Some(true)) => Choice::new(Mode::Async, 0, wrote("a_sync", true)),
        (None, None, None) => Choice::new(Mode::Async, 0, "the default of `DistributedStrategy`".into()),
    };
    if choice.mode == Mode::Sync && runtime_split_send_recv == Some(true) {
        let (name, value) = if staleness == Some(0) { ("staleness", "0") } else { ("a_sync", "false") };
        let hint = "only the asynchronous modes split at send time: leave it out";
        return Err(contradiction(("runtime_split_send_recv", true), (name, value), hint));
    }
    Ok(choice)
}

/// `sync_mode`, `runtime_split_send_recv`, `geo_sgd_mode` and `half_async`; sync by default.
///
/// `sync_mode` false alone is half-async, as in the PaddlePaddle version that has all these options. The geo flag does not need
/// `runtime_split_send_recv` (without it, PaddlePaddle silently trains in another mode).
fn choose_by_transpiler_config(options: &StrategyOptions) -> Result<Choice> {
    let StrategyOptions { sync_mode, runtime_split_send_recv: split, geo_sgd_mode, half_async, .. } = *options;
    if sync_mode.unwrap_or(true) {
        let value = if sync_mode.is_some() { "true" } else { "true (its default)" };
        for (name, written) in
            [("runtime_split_send_recv", split), ("geo_sgd_mode", geo_sgd_mode), ("half_async", half_async)]
        {
            if written == Some(true) {
                return Err(contradiction((name, true), ("sync_mode", value), "set `sync_mode` to false as well"));
            }
        }
        let because = if sync_mode.is_some() {
            wrote("sync_mode", true)
        } else {
            "the default of `DistributeTranspilerConfig`".into()
        };
        return Ok(Choice::new(Mode::Sync, 0, because));
    }
    if geo_sgd_mode == Some(true) {
        if half_async == Some(true) {
            let hint = "they are two modes: keep one of them";
            return Err(contradiction(("geo_sgd_mode", true), ("half_async", true), hint));
        }
        if split == Some(false) {
            let hint = "geo splits at send time: leave `runtime_split_send_recv` out";
            return Err(contradiction(("geo_sgd_mode", true), ("runtime_split_send_recv", false), hint));
        }
        let batches = options.geo_sgd_need_push_nums.unwrap_or(default::GEO_SGD_NEED_PUSH_NUMS);
        ranged("geo_sgd_need_push_nums", batches, 0..=i64::MAX, "a number of batches, or 0 for an adaptive one")?;
        return Ok(Choice::new(Mode::Geo, batches, wrote("geo_sgd_mode", true)));
    }
    match (split, half_async) {
        (_, Some(true)) => Ok(Choice::new(Mode::HalfAsync, 0, wrote("half_async", true))),
        (Some(true), _) => Ok(Choice::new(Mode::Async, 0, wrote("runtime_split_send_recv", true))),
        (Some(false), Some(false)) => {
            let hint = "without `sync_mode`, set one of them to true: the first for async, the second for half_async";
            Err(contradiction(("runtime_split_send_recv", false), ("half_async", false), hint))
        }
        (None, Some(false)) => Ok(Choice::new(Mode::Async, 0, wrote("half_async", false))),
        (_, None) => Ok(Choice::new(Mode::HalfAsync, 0, wrote("sync_mode", false))),
    }
}

/// The options that choose a mode belong to one of the two objects; mixing them would be ambiguous.
fn refuse_foreign(options: &StrategyOptions) -> Result<()> {
    let rows: &[(&'static str, &'static str)] = match options.front {
        Front::DistributedStrategy => &[
            ("sync_mode", "use `a_sync`, which says the opposite"),
            ("geo_sgd_mode", "use `k_steps`: any number above 0 is geo"),
            ("geo_sgd_need_push_nums", "use `k_steps`"),
        ],
        Front::TranspilerConfig => &[
            ("a_sync", "use `sync_mode`, which says the opposite"),
            ("k_steps", "use `geo_sgd_mode` and `geo_sgd_need_push_nums`"),
            ("staleness", "use a `DistributedStrategy`"),
        ],
    };
    match rows.iter().find(|(name, _)| options.get(name).is_some()) {
        Some(&(name, hint)) => Err(Error::ForeignOption { name, front: options.front.name(), hint }),
        None => Ok(()),
    }
}

/// Refuses an option that differs from its default in a mode that does not use it.
fn refuse_ignored(options: &StrategyOptions, choice: &Choice) -> Result<()> {
    use Mode::{Async, Collective, Geo, HalfAsync, Hybrid, Sync};
    use OptionValue::{Bool, Int, Text};
    let rows: [(&'static str, OptionValue, &'static [Mode]); 24] = [
        ("max_merge_var_num", Int(default::MAX_MERGE_VAR_NUM), &[Async]),
        ("send_wait_times", Int(default::SEND_WAIT_TIMES), &[Async]),
        // Hybrid's queue is bounded by `staleness`.
        ("send_queue_size", Int(default::SEND_QUEUE_SIZE), &[Async, Geo]),
        ("independent_recv_thread", Bool(false), &[Async]),
        ("min_send_grad_num_before_recv", Int(default::MIN_SEND_GRAD_NUM_BEFORE_RECV), &[Async]),
        ("geo_sgd_need_push_nums", Int(default::GEO_SGD_NEED_PUSH_NUMS), &[Geo]),
        ("geo_scale", Text(GeoScale::default().name().to_owned()), &[Geo]),
        ("geo_dense_steps", Int(default::GEO_DENSE_STEPS), &[Geo]),
        ("geo_adaptive", Bool(false), &[Geo]),
        ("geo_flush_residual", Bool(true), &[Geo]),
        // In the other modes a batch trains with the newest rows, or with the worker's own.
        ("row_staleness", Int(0), &[Async, Hybrid]),
        ("wire_bits", Int(32), &[Sync, HalfAsync, Async, Hybrid, Geo, Collective]),
        ("fuse_all_reduce_ops", Bool(true), &[Collective]),
        ("fuse_grad_size_in_mb", Int(32), &[Collective]),
        ("last_comm_group_size_mb", Int(1), &[Collective]),
        ("fp16_allreduce", Bool(false), &[Collective]),
        ("gradient_scale", Text(GradientScale::default().name().to_owned()), &[Collective]),
        ("gradient_merge", Bool(false), &[Collective]),
        ("gradient_merge_k_steps", Int(1), &[Collective]),
        ("gradient_merge_avg", Bool(true), &[Collective]),
        ("localsgd", Bool(false), &[Collective]),
        ("localsgd_k_steps", Int(1), &[Collective]),
        ("localsgd_begin_step", Int(1), &[Collective]),
        ("adaptive_localsgd", Bool(false), &[Collective]),
    ];
    for (name, harmless, modes) in rows {
        if let Some(value) = options.get(name).filter(|value| *value != harmless && !modes.contains(&choice.mode)) {
            return Err(Error::IgnoredOption {
                name,
                value: value.to_string(),
                mode: choice.mode,
                because: choice.because.clone(),
                modes,
            });
        }
    }
    Ok(())
}

fn dense_receive(options: &StrategyOptions) -> Result<DenseReceive> {
    let min_sent = options.min_send_grad_num_before_recv.unwrap_or(default::MIN_SEND_GRAD_NUM_BEFORE_RECV);
    let min_sent = ranged("min_send_grad_num_before_recv", min_sent, 1..=i64::MAX, "a number above 0")?;
    if options.independent_recv_thread.unwrap_or(default::INDEPENDENT_RECV_THREAD) {
        return Ok(DenseReceive::Independent { min_sent });
    }
    if min_sent != default::MIN_SEND_GRAD_NUM_BEFORE_RECV as u64 {
        let hint = "only the independent thread counts gradients; without it every push is followed by a pull";
        return Err(contradiction(
            ("min_send_grad_num_before_recv", min_sent),
            ("independent_recv_thread", false),
            hint,
        ));
    }
    Ok(DenseReceive::AfterSend)
}

/// If dense values arrive asynchronously they are slightly stale anyway, and 16 bits halve the traffic. In all other modes a
/// worker trains with exactly the servers' values.
fn float_width(options: &StrategyOptions, settings: &ModeSettings) -> Result<FloatWidth> {
    match (options.wire_bits, settings) {
        (_, ModeSettings::Collective(settings)) => Ok(settings.float_width),
        (Some(32), _) => Ok(FloatWidth::Bits32),
        // What rounding takes away from a difference would stay with the worker for ever.
        (Some(16), ModeSettings::Geo(GeoSettings { scale: scale @ (GeoScale::Mean | GeoScale::Sum), .. })) => {
            let hint = "only averaged dense values travel as 16 bits: leave `wire_bits` or `geo_scale` out";
            Err(contradiction(("wire_bits", 16), ("geo_scale", scale.name()), hint))
        }
        (Some(16), _) => Ok(FloatWidth::Bits16),
        (Some(other), _) => Err(Error::OptionRange { name: "wire_bits", expected: "32 or 16", got: other.to_string() }),
        (None, ModeSettings::Geo(GeoSettings { scale: GeoScale::Average, .. })) => Ok(FloatWidth::Bits16),
        (None, ModeSettings::Async(AsyncSettings { receive: DenseReceive::Independent { .. }, .. })) => {
            Ok(FloatWidth::Bits16)
        }
        (None, _) => Ok(FloatWidth::Bits32),
    }
}

fn placement_rule(options: &StrategyOptions) -> Result<PlacementRule> {
    let usual = SliceRule::default();
    let slice_var_up = options.slice_var_up.unwrap_or(usual.slice_var_up());
    let min_block_size = match options.min_block_size {
        Some(written) => ranged("min_block_size", written, 8192..=i64::MAX, "at least 8192 elements")? as usize,
        None => usual.min_block_size(),
    };
    if !slice_var_up && min_block_size != usual.min_block_size() {
        let hint = "parameters that are kept whole have no blocks: leave `min_block_size` out";
        return Err(contradiction(("min_block_size", min_block_size), ("slice_var_up", false), hint));
    }
    Ok(PlacementRule {
        slice: SliceRule::new(slice_var_up, min_block_size)?,
        split_method: options.split_method.unwrap_or_default(),
    })
}

pub(super) fn ranged(
    name: &'static str,
    value: i64,
    range: RangeInclusive<i64>,
    expected: &'static str,
) -> Result<u64> {
    if range.contains(&value) {
        Ok(value.unsigned_abs())
    } else {
        Err(Error::OptionRange { name, expected, got: value.to_string() })
    }
}

fn wrote(name: &str, value: impl fmt::Display) -> String {
    format!("`{name}` = {value}")
}

pub(super) fn contradiction(
    (name, value): (&'static str, impl fmt::Display),
    (other, other_value): (&'static str, impl fmt::Display),
    hint: &'static str,
) -> Error {
    Error::Contradiction { name, value: value.to_string(), other, other_value: other_value.to_string(), hint }
}
