//! Tables of what a user may write, one comment per row.

use super::*;
use crate::error::Hinted;

/// `"a_sync=true k_steps=400"` set on an object without options.
fn written(front: Front, text: &str) -> StrategyOptions {
    let mut options = match front {
        Front::DistributedStrategy => StrategyOptions::distributed_strategy(),
        Front::TranspilerConfig => StrategyOptions::transpiler_config(),
    };
    for pair in text.split_whitespace() {
        let (name, value) = pair.split_once('=').unwrap();
        let value = match (value.parse(), value.parse()) {
            (Ok(value), _) => OptionValue::Bool(value),
            (_, Ok(value)) => OptionValue::Int(value),
            _ => OptionValue::Text(value.to_owned()),
        };
        options.set(name, value).unwrap();
    }
    options
}

fn resolve(front: Front, text: &str) -> Result<Strategy> {
    Strategy::resolve(&written(front, text))
}

#[test]
fn a_distributed_strategy_resolves_to() {
    let rows = [
        // No options: async (a default of PaddlePaddle), printed.
        (
            "",
            "mode async: push each gradient, up to 4 merged on a slow link, queue of 16, dense values come with the replies; \
             gradients travel as 16 bits",
        ),
        // The same, set explicitly.
        (
            "a_sync=true",
            "mode async: push each gradient, up to 4 merged on a slow link, queue of 16, dense values come with the replies; \
             gradients travel as 16 bits",
        ),
        // `k_steps` 0 leaves the choice to `a_sync`.
        (
            "a_sync=true k_steps=0",
            "mode async: push each gradient, up to 4 merged on a slow link, queue of 16, dense values come with the replies; \
             gradients travel as 16 bits",
        ),
        (
            "a_sync=false k_steps=0",
            "mode sync: every step waits for all live workers and applies the mean of their gradients",
        ),
        // The geo script of PaddlePaddle.
        (
            "a_sync=true k_steps=400",
            "mode geo: push differences every 400 batches, dense values averaged every 10 batches",
        ),
        // `a_sync` is true by default; the order of assignments does not matter.
        (
            "k_steps=400 a_sync=true",
            "mode geo: push differences every 400 batches, dense values averaged every 10 batches",
        ),
        ("k_steps=1", "mode geo: push differences every batch, dense values averaged"),
        // The options of geo mode, and the queue that it has too.
        (
            "k_steps=7 geo_scale=sum geo_flush_residual=false send_queue_size=2",
            "mode geo: push undivided differences every 7 batches, residual kept by the worker",
        ),
        (
            "k_steps=50 geo_scale=mean geo_dense_steps=10 geo_adaptive=true",
            "mode geo: push differences every 50 batches at first, then by what an exchange costs, residual flushed at save and \
             stop, dense values every 10 batches",
        ),
        ("k_steps=50 geo_dense_steps=0", "mode geo: push differences every 50 batches, dense values averaged"),
        // One integer for users who do not want to choose.
        ("staleness=0", "mode sync: every step waits for all live workers and applies the mean of their gradients"),
        ("staleness=1", "mode hybrid: at most 1 batch in flight, dense as sync, sparse as async"),
        (
            "staleness=8 a_sync=true wire_bits=16",
            "mode hybrid: at most 8 batches in flight, dense as sync, sparse as async; gradients travel as 16 bits",
        ),
        (
            "staleness=-1 k_steps=0",
            "mode async: push each gradient, up to 4 merged on a slow link, queue of 16, dense values come with the replies; \
             gradients travel as 16 bits",
        ),
        (
            "staleness=2 row_staleness=1",
            "mode hybrid: at most 2 batches in flight, dense as sync, sparse as async; a pulled row is used again for up to 1 \
             batch",
        ),
        // Ours: PaddlePaddle 2.x has no option for half-async.
        (
            "half_async=true",
            "mode half_async: every step waits for the worker's own threads and pushes the mean of their gradients",
        ),
        // Every option of async mode.
        (
            "max_merge_var_num=20 send_queue_size=40 send_wait_times=0 min_send_grad_num_before_recv=3",
            "mode async: push up to 20 merged gradients, waiting 0 ms for more, queue of 40, dense pulled by its own \
             thread after 3 gradients; gradients travel as 16 bits",
        ),
        // Full floats, although dense values arrive asynchronously.
        (
            "wire_bits=32",
            "mode async: push each gradient, up to 4 merged on a slow link, queue of 16, dense pulled by its own thread after 1 gradient",
        ),
        ("independent_recv_thread=false", "mode async: push each gradient, queue of 16, dense pulled after each push"),
        // Options of all modes are printed if they differ from their defaults.
        (
            "a_sync=false slice_var_up=false split_method=HashName launch_barrier=false",
            "mode sync: every step waits for all live workers and applies the mean of their gradients; parameters kept \
             whole; blocks placed by HashName; does not wait for the servers at launch",
        ),
        (
            "k_steps=2 min_block_size=81920",
            "mode geo: push differences every 2 batches, dense values averaged; parameters cut into blocks \
             of at least 81920 elements",
        ),
        // PaddlePaddle's whole dictionary: default values are accepted in every mode.
        (
            "a_sync=false k_steps=0 max_merge_var_num=1 send_queue_size=16 independent_recv_thread=false \
             min_send_grad_num_before_recv=1 thread_pool_size=1 send_wait_times=1 runtime_split_send_recv=false \
             launch_barrier=true lr_decay_steps=10",
            "mode sync: every step waits for all live workers and applies the mean of their gradients",
        ),
        // PaddlePaddle's servers receive the global step periodically; ours count it.
        (
            "a_sync=false thread_pool_size=5 lr_decay_steps=20",
            "mode sync: every step waits for all live workers and applies the mean of their gradients; 5 threads send \
             and receive; learning rates follow every step (`lr_decay_steps` is not needed)",
        ),
        // The flag says what async and geo do anyway.
        (
            "a_sync=true k_steps=3 runtime_split_send_recv=true",
            "mode geo: push differences every 3 batches, dense values averaged",
        ),
    ];
    for (text, line) in rows {
        let strategy = resolve(Front::DistributedStrategy, text).unwrap();
        assert_eq!(strategy.describe(), line, "{text}");
    }
}

#[test]
fn a_transpiler_config_resolves_to() {
    let rows = [
        // No options: sync.
        ("", Mode::Sync),
        // As a PaddlePaddle script writes it.
        ("sync_mode=true", Mode::Sync),
        ("sync_mode=true runtime_split_send_recv=false", Mode::Sync),
        // The async script of PaddlePaddle.
        ("sync_mode=false runtime_split_send_recv=true", Mode::Async),
        // `sync_mode` false alone.
        ("sync_mode=false", Mode::HalfAsync),
        ("sync_mode=false runtime_split_send_recv=false", Mode::HalfAsync),
        // The half-async flag, with and without the split.
        ("sync_mode=false half_async=true", Mode::HalfAsync),
        ("sync_mode=false half_async=true runtime_split_send_recv=true", Mode::HalfAsync),
        // Half-async set to false leaves async.
        ("sync_mode=false half_async=false", Mode::Async),
        // Geo with the split, and without: PaddlePaddle would run half-async with a geo program.
        ("sync_mode=false geo_sgd_mode=true runtime_split_send_recv=true", Mode::Geo),
        ("sync_mode=false geo_sgd_mode=true geo_sgd_need_push_nums=400", Mode::Geo),
        // Flags set to false change nothing.
        ("geo_sgd_mode=false half_async=false geo_sgd_need_push_nums=100", Mode::Sync),
    ];
    for (text, mode) in rows {
        assert_eq!(resolve(Front::TranspilerConfig, text).unwrap().mode(), mode, "{text}");
    }
    let adaptive = "sync_mode=false geo_sgd_mode=true geo_sgd_need_push_nums=0 geo_dense_steps=0";
    assert_eq!(
        resolve(Front::TranspilerConfig, adaptive).unwrap().describe(),
        "mode geo: push differences every 100 batches at first, then by what an exchange costs, dense values averaged"
    );
    let geo = resolve(Front::TranspilerConfig, "sync_mode=false geo_sgd_mode=true").unwrap();
    assert_eq!(geo.describe(), "mode geo: push differences every 100 batches, dense values averaged every 10 batches");
}

#[test]
fn contradictions_name_both_options() {
    use Front::{DistributedStrategy as New, TranspilerConfig as Old};
    let rows = [
        // No staleness means no asynchrony.
        (New, "staleness=0 a_sync=true", "`staleness` = 0 contradicts `a_sync` = true"),
        (New, "staleness=4 a_sync=false", "`staleness` = 4 contradicts `a_sync` = false"),
        (New, "staleness=-1 a_sync=false", "`staleness` = -1 contradicts `a_sync` = false"),
        // Two ways to name a mode.
        (New, "staleness=4 k_steps=9", "`staleness` = 4 contradicts `k_steps` = 9"),
        (New, "staleness=0 half_async=true", "`staleness` = 0 contradicts `half_async` = true"),
        // Geo is asynchronous.
        (New, "k_steps=9 a_sync=false", "`k_steps` = 9 contradicts `a_sync` = false"),
        (New, "k_steps=9 half_async=true", "`k_steps` = 9 contradicts `half_async` = true"),
        (New, "half_async=true a_sync=false", "`half_async` = true contradicts `a_sync` = false"),
        // Sync does not split at send time.
        (
            New,
            "a_sync=false runtime_split_send_recv=true",
            "`runtime_split_send_recv` = true contradicts `a_sync` = false",
        ),
        (
            New,
            "staleness=0 runtime_split_send_recv=true",
            "`runtime_split_send_recv` = true contradicts `staleness` = 0",
        ),
        // A count that would have no effect.
        (
            New,
            "independent_recv_thread=false min_send_grad_num_before_recv=5",
            "`min_send_grad_num_before_recv` = 5 contradicts `independent_recv_thread` = false",
        ),
        // A wait for a merge of one.
        (New, "send_wait_times=5", "`send_wait_times` = 5 contradicts `max_merge_var_num` = 1"),
        // Whole parameters have no blocks.
        (New, "slice_var_up=false min_block_size=16384", "`min_block_size` = 16384 contradicts `slice_var_up` = false"),
        // PaddlePaddle's own check, with the option set and by default.
        (
            Old,
            "sync_mode=true runtime_split_send_recv=true",
            "`runtime_split_send_recv` = true contradicts `sync_mode` = true",
        ),
        (
            Old,
            "runtime_split_send_recv=true",
            "`runtime_split_send_recv` = true contradicts `sync_mode` = true (its default)",
        ),
        (Old, "geo_sgd_mode=true", "`geo_sgd_mode` = true contradicts `sync_mode` = true (its default)"),
        (Old, "half_async=true", "`half_async` = true contradicts `sync_mode` = true (its default)"),
        // Two modes at once.
        (
            Old,
            "sync_mode=false geo_sgd_mode=true half_async=true",
            "`geo_sgd_mode` = true contradicts `half_async` = true",
        ),
        (
            Old,
            "sync_mode=false geo_sgd_mode=true runtime_split_send_recv=false",
            "`geo_sgd_mode` = true contradicts `runtime_split_send_recv` = false",
        ),
        // Neither sync, nor async, nor half-async.
        (
            Old,
            "sync_mode=false runtime_split_send_recv=false half_async=false",
            "`runtime_split_send_recv` = false contradicts `half_async` = false",
        ),
    ];
    for (front, text, message) in rows {
        let error = resolve(front, text).unwrap_err();
        assert_eq!(error.to_string(), message, "{text}");
        assert!(matches!(error, Error::Contradiction { .. }) && error.hint().is_some(), "{text}");
    }
}

#[test]
fn a_knob_the_mode_does_not_read_is_an_error_naming_both() {
    use Front::{DistributedStrategy as New, TranspilerConfig as Old};
    let rows = [
        // Sync and half-async merge the worker's threads, nothing else.
        (
            New,
            "a_sync=false max_merge_var_num=4",
            "`max_merge_var_num` = 4 has no effect in mode sync (chosen by `a_sync` = false)",
            "leave it out, or choose mode async",
        ),
        (
            New,
            "half_async=true send_queue_size=4",
            "`send_queue_size` = 4 has no effect in mode half_async (chosen by `half_async` = true)",
            "leave it out, or choose mode async or geo",
        ),
        // Hybrid's queue is bounded by its staleness.
        (
            New,
            "staleness=4 send_queue_size=4",
            "`send_queue_size` = 4 has no effect in mode hybrid (chosen by `staleness` = 4)",
            "leave it out, or choose mode async or geo",
        ),
        // In sync every row that a batch uses is changed by its step.
        (
            New,
            "a_sync=false row_staleness=4",
            "`row_staleness` = 4 has no effect in mode sync (chosen by `a_sync` = false)",
            "leave it out, or choose mode async or hybrid",
        ),
        // Geo sends differences: there is nothing to merge, and rows come with the reply.
        (
            New,
            "k_steps=400 max_merge_var_num=4",
            "`max_merge_var_num` = 4 has no effect in mode geo (chosen by `k_steps` = 400)",
            "leave it out, or choose mode async",
        ),
        (
            New,
            "k_steps=400 independent_recv_thread=true",
            "`independent_recv_thread` = true has no effect in mode geo (chosen by `k_steps` = 400)",
            "leave it out, or choose mode async",
        ),
        // Options of geo in other modes.
        (
            New,
            "geo_scale=sum",
            "`geo_scale` = `sum` has no effect in mode async (chosen by the default of `DistributedStrategy`)",
            "leave it out, or choose mode geo",
        ),
        (
            Old,
            "geo_sgd_need_push_nums=400",
            "`geo_sgd_need_push_nums` = 400 has no effect in mode sync (chosen by the default of \
             `DistributeTranspilerConfig`)",
            "leave it out, or choose mode geo",
        ),
        (
            Old,
            "sync_mode=false geo_flush_residual=false",
            "`geo_flush_residual` = false has no effect in mode half_async (chosen by `sync_mode` = false)",
            "leave it out, or choose mode geo",
        ),
    ];
    for (front, text, message, hint) in rows {
        let error = resolve(front, text).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.hint().unwrap().as_ref()), (message, hint), "{text}");
    }
}

#[test]
fn options_of_the_other_object_are_refused() {
    use Front::{DistributedStrategy as New, TranspilerConfig as Old};
    let rows = [
        // Options of the old object in the new one.
        (New, "sync_mode=true", "`sync_mode` is not an option of `DistributedStrategy`"),
        (New, "geo_sgd_mode=false", "`geo_sgd_mode` is not an option of `DistributedStrategy`"),
        // Options of the new object in the old one.
        (Old, "a_sync=true", "`a_sync` is not an option of `DistributeTranspilerConfig`"),
        (Old, "k_steps=4", "`k_steps` is not an option of `DistributeTranspilerConfig`"),
        (Old, "staleness=4", "`staleness` is not an option of `DistributeTranspilerConfig`"),
    ];
    for (front, text, message) in rows {
        let error = resolve(front, text).unwrap_err();
        assert_eq!(error.to_string(), message, "{text}");
        assert!(error.hint().unwrap().starts_with("use "));
    }
}

#[test]
fn numbers_out_of_range_are_errors() {
    let rows = [
        // PaddlePaddle's value for no mode at all.
        ("k_steps=-1", "`k_steps` expects 0 or a number of batches, got -1"),
        // -1 is the only meaningful negative number.
        ("staleness=-2", "`staleness` expects -1, 0 or a number of batches up to 65536, got -2"),
        ("staleness=65537", "`staleness` expects -1, 0 or a number of batches up to 65536, got 65537"),
        ("row_staleness=-1", "`row_staleness` expects a number of batches from 0 to 65536, got -1"),
        // Floats have two widths.
        ("wire_bits=8", "`wire_bits` expects 32 or 16, got 8"),
        // At least one gradient must be merged.
        ("max_merge_var_num=0", "`max_merge_var_num` expects a number from 1 to 65536, got 0"),
        ("send_queue_size=0", "`send_queue_size` expects a number from 1 to 65536, got 0"),
        (
            "send_queue_size=9223372036854775807 k_steps=1",
            "`send_queue_size` expects a number from 1 to 65536, got 9223372036854775807",
        ),
        ("min_send_grad_num_before_recv=0", "`min_send_grad_num_before_recv` expects a number above 0, got 0"),
        (
            "send_wait_times=-1 max_merge_var_num=2",
            "`send_wait_times` expects a number of 10 ms waits from 0 to 60000, got -1",
        ),
        ("thread_pool_size=0", "`thread_pool_size` expects a number from 1 to 1024, got 0"),
        ("lr_decay_steps=0", "`lr_decay_steps` expects a number above 0, got 0"),
        // As in PaddlePaddle, whether or not anything would be split.
        ("min_block_size=8191", "`min_block_size` expects at least 8192 elements, got 8191"),
        ("min_block_size=-1 slice_var_up=false", "`min_block_size` expects at least 8192 elements, got -1"),
    ];
    for (text, message) in rows {
        assert_eq!(resolve(Front::DistributedStrategy, text).unwrap_err().to_string(), message, "{text}");
    }
    let error = resolve(Front::TranspilerConfig, "sync_mode=false geo_sgd_mode=true geo_sgd_need_push_nums=-1");
    assert_eq!(
        error.unwrap_err().to_string(),
        "`geo_sgd_need_push_nums` expects a number of batches, or 0 for an adaptive one, got -1"
    );
}

#[test]
fn a_mode_asked_for_by_name_is_the_mode_one_gets() {
    for mode in Mode::ALL {
        assert_eq!(Mode::parse(mode.name()), Ok(mode));
        let options = StrategyOptions::for_mode(mode);
        let strategy = match mode {
            // A job without servers has this mode, whatever its options are.
            Mode::Collective => Strategy::resolve_collective(&options),
            _ => Strategy::resolve(&options),
        };
        assert_eq!(strategy.unwrap().mode(), mode);
    }
    assert_eq!(Mode::parse("half-async"), Ok(Mode::HalfAsync));
    assert_eq!(Mode::parse("asynch").unwrap_err().hint().unwrap(), "did you mean `async`?");
}

#[test]
fn the_plan_carries_the_numbers() {
    let text = "max_merge_var_num=20 send_queue_size=40 send_wait_times=5 thread_pool_size=3 lr_decay_steps=7";
    let strategy = resolve(Front::DistributedStrategy, text).unwrap();
    assert_eq!(
        *strategy.settings(),
        ModeSettings::Async(AsyncSettings {
            merge: Merge { max_gradients: 20, wait_ms: 50, slow_link_gradients: 1 },
            send_queue_size: 40,
            receive: DenseReceive::Independent { min_sent: 1 },
        })
    );
    assert_eq!((strategy.thread_pool_size(), strategy.lr_decay_steps(), strategy.launch_barrier()), (3, 7, true));
    assert_eq!(strategy.placement(), PlacementRule::default());
    let geo = resolve(Front::DistributedStrategy, "k_steps=400").unwrap();
    let expected = GeoSettings {
        k_steps: 400,
        is_adaptive: false,
        dense_steps: 10,
        scale: GeoScale::Average,
        flush_residual: true,
        send_queue_size: 16,
    };
    assert_eq!(*geo.settings(), ModeSettings::Geo(expected));
}
