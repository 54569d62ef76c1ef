"""Saving and loading, in one process and by the servers of a job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import openfleet
from openfleet import static

OPENFLEET = [sys.executable, "-m", "openfleet"]


def click_model(hidden: int = 8):
    """A slot, batch statistics, a dense layer, AUC counters; trained by Adam."""
    slot = static.data("id", [None, 1], "int64", lod_level=1)
    label = static.data("label", [None, 1], "int64")
    x = static.nn.batch_norm(static.nn.embedding(slot, size=[100, 4], is_sparse=True))
    logit = static.nn.fc(static.nn.fc(x, size=hidden, activation="relu"), size=1)
    probability = static.nn.sigmoid(logit)
    loss = static.nn.mean(static.nn.log_loss(probability, static.nn.cast(label, "float32")))
    return loss, probability, static.auc(probability, label)[0]


def batch(step: int) -> dict[str, object]:
    ids = [[step % 7, 50], [step % 5 + 20], [90], [step % 3 + 30]]
    return {"id": ids, "label": np.array([[1], [0], [1], [step % 2]])}


def built(hidden: int = 8):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), static.unique_name.guard():
        loss, probability, auc = click_model(hidden)
        test = main.clone(for_test=True)
        static.optimizer.Adam(0.05).minimize(loss)
    return main, startup, test, loss, probability, auc


def steps(exe, main, loss, of):
    return [exe.run(main, feed=batch(step), fetch_list=[loss])[0].item() for step in of]


def test_a_chain_of_delta_saves_loads_like_a_whole_save(tmp_path: Path) -> None:
    main, startup, _, loss, _, _ = built()
    exe = static.Executor()
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        steps(exe, main, loss, range(5))
        base = static.save(main, tmp_path / "chain", mode="delta")
        steps(exe, main, loss, range(5, 7))
        static.save(main, tmp_path / "chain", mode="delta")
        steps(exe, main, loss, range(7, 8))
        delta = static.save(main, tmp_path / "chain", mode="delta")
        static.save(main, tmp_path / "whole")
        expected = steps(exe, main, loss, range(8, 12))
    assert base["version"] == 1 and "layers" not in base, "the first save of a chain writes everything"
    assert len(delta["layers"]) == 2 and delta["sparse"][0]["rows"] > delta["sparse"][0]["parts"][0]["rows"] > 0
    for place in ("chain", "whole"):
        with static.scope_guard(static.Scope()):
            static.load(main, tmp_path / place, exe)
            assert steps(exe, main, loss, range(8, 12)) == expected
    compacted = subprocess.run([*OPENFLEET, "compact", "chain"], cwd=tmp_path, capture_output=True, text=True)
    assert compacted.returncode == 0 and "3 saves" in compacted.stdout, compacted
    diff = subprocess.run([*OPENFLEET, "diff", "chain", "whole"], cwd=tmp_path, capture_output=True, text=True)
    assert diff.returncode == 0 and " 0 changed" in diff.stdout, diff
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        with pytest.raises(openfleet.CheckpointError, match="no change history since save"):
            static.save(main, tmp_path / "chain", mode="delta")
        with pytest.raises(ValueError, match='"whole" or "delta", got 1'):
            static.save(main, tmp_path / "chain", mode=1)


def test_only_the_listed_variables_are_saved(tmp_path: Path) -> None:
    main, startup, _, loss, _, _ = built()
    exe = static.Executor()
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        steps(exe, main, loss, range(2))
        manifest = static.save(main, tmp_path / "some", only=["embedding_0.w_0", "fc_0.b_0"])
        assert [table["name"] for table in manifest["sparse"]] == ["embedding_0.w_0"]
        assert [parameter["name"] for parameter in manifest["dense"]] == ["fc_0.b_0"]
        with pytest.raises(ValueError, match="fc_0.b_1[^~]*did you mean `fc_0.b_0`"):
            static.save(main, tmp_path / "some", only=["fc_0.b_1"])


def test_training_resumes_from_a_checkpoint_exactly(tmp_path: Path) -> None:
    main, startup, test, loss, probability, _ = built()
    exe = static.Executor()
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        steps(exe, main, loss, range(5))
        manifest = static.save(main, tmp_path / "model")
        expected = steps(exe, main, loss, range(5, 12))
    assert manifest["mode"] == "local" and manifest["step"] == 5
    with static.scope_guard(static.Scope()):
        static.load(main, tmp_path / "model", exe)
        assert steps(exe, main, loss, range(5, 12)) == expected
    # A program that is built again for inference loads what it needs; the counters of its AUC can be reset.
    with static.scope_guard(static.Scope()):
        static.load_persistables(exe, tmp_path / "model", test)
        first = exe.run(test, feed=batch(3), fetch_list=[probability])[0]
        for name in [f"_generated_var_{i}" for i in range(4)]:
            tensor = static.global_scope().var(name).get_tensor()
            tensor.set(np.zeros(tensor._get_dims()).astype("int64"), static.CPUPlace())
        assert np.array_equal(exe.run(test, feed=batch(3), fetch_list=[probability])[0], first)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    main, startup, *_ = built()
    exe = static.Executor()
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        static.save(main, tmp_path / "model")
        with pytest.raises(FileExistsError, match="model"):
            static.save(main, tmp_path / "model", replace=False)
        wide, startup, *_ = built(hidden=9)
        exe.run(startup)
        with pytest.raises(openfleet.CheckpointError, match=r"fc_0\.w_0"):
            static.load(wide, tmp_path / "model", exe)
        static.load(wide, tmp_path / "model", exe, partial=True)
        with pytest.raises(FileNotFoundError, match="nowhere"):
            static.load(main, tmp_path / "nowhere", exe)
        with pytest.raises(ValueError, match="filename"):
            static.save_persistables(exe, tmp_path / "model", main, filename="all")


def test_part_of_a_program_is_saved_and_loaded(tmp_path: Path) -> None:
    main, startup, _, loss, *_ = built()
    exe = static.Executor()
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        steps(exe, main, loss, range(3))
        static.save_vars(exe, tmp_path / "layers", main, predicate=lambda var: var.name.startswith("fc_"))
        state = static.load_program_state(tmp_path / "layers")
        assert sorted(state) == ["fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]
        steps(exe, main, loss, range(3))
        static.load_vars(exe, tmp_path / "layers", main, vars=["fc_0.w_0"])
        now = {name: np.array(static.global_scope().find_var(name).get_tensor()) for name in state}
        assert np.array_equal(now["fc_0.w_0"], state["fc_0.w_0"])
        assert not np.array_equal(now["fc_1.w_0"], state["fc_1.w_0"])
        static.set_program_state(main, state)
        assert np.array_equal(np.array(static.global_scope().find_var("fc_1.w_0").get_tensor()), state["fc_1.w_0"])
        with pytest.raises(ValueError, match=r"fc_9\.w_0"):
            static.load_vars(exe, tmp_path / "layers", main, vars=["fc_9.w_0"])
        static.save_params(exe, tmp_path / "params", main)
        assert not any(name.startswith("_generated_var") for name in static.load_program_state(tmp_path / "params"))
        static.load_params(exe, tmp_path / "params", main)


def test_three_lines_of_numpy_map_a_table(tmp_path: Path) -> None:
    main, startup, _, loss, *_ = built()
    exe = static.Executor()
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        steps(exe, main, loss, range(3))
        manifest = static.save(main, tmp_path / "model")
        rows = static.global_scope().find_var("embedding_0.w_0").rows()
    part = os.path.join(tmp_path, "model", manifest["directory"], manifest["sparse"][0]["parts"][0]["prefix"])
    keys, weights = (np.load(f"{part}.{column}.npy", mmap_mode="r") for column in ("keys", "weights"))
    assert keys.shape == (rows,) and weights.shape == (rows, 4) and 50 in keys


def test_an_exported_table_is_what_was_saved(tmp_path: Path) -> None:
    main, startup, _, loss, *_ = built()
    exe = static.Executor()
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        steps(exe, main, loss, range(3))
        manifest = static.save(main, tmp_path / "model")
    part = os.path.join(tmp_path, "model", manifest["directory"], manifest["sparse"][0]["parts"][0]["prefix"])
    command = [*OPENFLEET, "export", tmp_path / "model", "--format", "npz"]
    subprocess.run([*command, "--out", tmp_path / "table.npz"], check=True, capture_output=True)
    exported = np.load(tmp_path / "table.npz")
    assert np.array_equal(exported["keys"], np.load(f"{part}.keys.npy"))
    assert np.array_equal(exported["weights"], np.load(f"{part}.weights.npy"))


def test_an_inference_model_needs_no_script(tmp_path: Path) -> None:
    main, startup, test, loss, probability, auc = built()
    exe = static.Executor()
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        steps(exe, main, loss, range(6))
        expected = exe.run(test, feed=batch(4), fetch_list=[probability])[0]
        static.save(main, tmp_path / "checkpoint")
        static.save_inference_model(tmp_path / "model", ["id"], [probability], exe, program=main)
        with pytest.raises(ValueError, match="`label` among the feeds"):
            static.save_inference_model(tmp_path / "other", ["id"], [auc], exe, program=main)
        with pytest.raises(ValueError, match="`label`"):
            static.save_inference_model(tmp_path / "other", ["id", "label"], [probability], exe, program=main)
    with static.scope_guard(static.Scope()):
        program, feeds, (target,) = static.load_inference_model(tmp_path / "model", exe)
        assert feeds == ["id"] and target.name == probability.name
        assert np.array_equal(exe.run(program, feed={"id": batch(4)["id"]}, fetch_list=[target])[0], expected)
        # Ids that were never seen read as the row that training would start with, and no row is created.
        rows = static.global_scope().find_var("embedding_0.w_0").rows()
        exe.run(program, feed={"id": [[77], [78]]}, fetch_list=[target])
        assert static.global_scope().find_var("embedding_0.w_0").rows() == rows
        with pytest.raises(ValueError, match="save_inference_model"):
            static.load_inference_model(tmp_path / "checkpoint", exe)
