"""Checkpoints come back bit for bit, and no fault of the disk or the process costs an earlier one."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from warpsac.errors import TrainingStopped, UserError
from warpsac.runs import checkpoint
from warpsac.runs.checkpoint import CheckpointError, DamagedCheckpoint
from warpsac.training import state as pytree

GROUPS = {
    "policy": {"actor/w": np.arange(6, dtype=np.float32).reshape(2, 3), "actor/count": np.int32(7)},
    "replay": {"obs": np.arange(64, dtype=np.float16).reshape(4, 16), "end": np.zeros((4, 2), bool)},
    "loop": {"seconds": np.float64(1.5), "empty": np.zeros((0, 3), np.float32)},
}
FILES = ["policy.npz", "replay.npz", "loop.npz", checkpoint.MANIFEST]


def save(folder: Path, step: int, keep: int = 5, **info: Any) -> Path:
    groups = {name: {key: np.array(value) for key, value in group.items()} for name, group in GROUPS.items()}
    groups["loop"]["step"] = np.array(step)
    return checkpoint.save(folder, step, groups, info, keep)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def equal(left: Any, right: Any) -> bool:
    left, right = np.asarray(left), np.asarray(right)
    same_kind = left.dtype == right.dtype and left.shape == right.shape
    return bool(same_kind and left.tobytes() == right.tobytes())


def flip_byte(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


# --- round trip -----------------------------------------------------------------------------------------


class Inner(NamedTuple):
    w: Any
    blocks: list[Any]


def test_a_nested_tree_comes_back_exactly(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tree = {
        "actor": Inner(
            w=jnp.asarray(rng.normal(size=(3, 5)), jnp.bfloat16),
            blocks=[
                {"w1": jnp.asarray(rng.normal(size=(4,)), jnp.float32)},
                {"w1": np.array([np.nan, -0.0])},
            ],
        ),
        "count": jnp.int32(-3),
        "mask": np.array([True, False]),
        "key": jax.random.key(5),
        "none": None,
        "python": (3, 0.1, True),
        "scalar": np.float64(1 / 3),
        "empty": np.zeros((0, 2), np.uint8),
    }
    arrays = pytree.flatten(tree)
    assert sorted(arrays) == [
        "actor/blocks/0/w1", "actor/blocks/1/w1", "actor/w", "count", "empty", "key", "mask",
        "python/0", "python/1", "python/2", "scalar",
    ]  # fmt: skip
    path = checkpoint.save(tmp_path, 12, {"all": arrays}, {"rng": 2**100, "best": 0.1}, keep=1)
    loaded = checkpoint.load(path)
    assert (loaded.step, loaded.info) == (12, {"rng": 2**100, "best": 0.1})
    back = pytree.restore(tree, loaded.arrays["all"], "test")
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    assert jnp.array_equal(jax.random.key_data(back.pop("key")), jax.random.key_data(tree.pop("key")))
    for original, copy in zip(jax.tree.leaves(tree), jax.tree.leaves(back), strict=True):
        assert equal(original, copy)
        assert isinstance(copy, jax.Array if isinstance(original, jax.Array) else type(original))


def test_info_is_what_json_makes_of_it(tmp_path: Path) -> None:
    info = {9: 1, 10: (1, 2), "inf": -np.inf, "text": "é\n"}
    path = checkpoint.save(tmp_path, 1, {}, info, keep=1)  # type: ignore[arg-type]
    assert checkpoint.load(path).info == {"9": 1, "10": [1, 2], "inf": -np.inf, "text": "é\n"}


def test_restore_from_abstract_shapes_gives_numpy() -> None:
    tree = {"w": jnp.ones((2, 3), jnp.bfloat16), "key": jax.random.key(1)}
    template = jax.eval_shape(lambda: tree)
    back = pytree.restore(template, pytree.flatten(tree), "test")
    assert type(back["w"]) is np.ndarray
    assert back["w"].dtype == ml_dtypes.bfloat16
    assert jax.random.normal(back["key"]) == jax.random.normal(tree["key"])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"a": {"w": np.zeros((2, 4), np.float32)}}, r"policy: a/w is float32[2, 3], expected float32[2, 4]"),
        ({"a": {"w": np.zeros((2, 3), np.int32)}}, r"policy: a/w is float32[2, 3], expected int32[2, 3]"),
        ({"a": {"w": np.zeros((2, 3), np.float32), "b": 1}}, "policy: no array a/b"),
        ({"b": 1, "a": {}}, "policy: unexpected array a/w"),
    ],
)
def test_restore_names_the_leaf_that_does_not_fit(template: Any, message: str) -> None:
    arrays = {"a/w": np.zeros((2, 3), np.float32)}
    with pytest.raises(UserError) as raised:
        pytree.restore(template, arrays, "policy")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_leaves_of_one_name_and_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="both named a/b"):
        pytree.flatten({"a": {"b": 1}, "a/b": 2})
    with pytest.raises(TypeError, match="array x: object"):
        checkpoint.save(tmp_path, 1, {"g": {"x": np.array([None])}}, {}, 1)
    assert names(tmp_path) == []


def test_numpy_alone_reads_the_files(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    for group, arrays in GROUPS.items():
        with np.load(path / f"{group}.npz", allow_pickle=False) as archive:
            assert {"step"} | set(arrays) == set(archive.files) | {"step"}
            assert all(equal(archive[name], value) for name, value in arrays.items())


def test_equal_arrays_give_equal_files_and_arrays_beyond_one_chunk_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHUNK", 1000)
    big = np.random.default_rng(1).normal(size=(70, 90))
    groups = {"g": {"strided": big.T[::3], "plain": big}}
    first = checkpoint.save(tmp_path / "a", 1, groups, {}, 1)
    second = checkpoint.save(tmp_path / "b", 1, groups, {}, 1)
    assert contents(first) == contents(second)
    loaded = checkpoint.load(first).arrays["g"]
    assert equal(loaded["strided"], big.T[::3])
    assert equal(loaded["plain"], big)


def test_groups_are_read_one_by_one(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    flip_byte(path / "replay.npz", 100)
    assert set(checkpoint.load(path, ["policy"]).arrays) == {"policy"}
    with pytest.raises(DamagedCheckpoint, match="holds no video"):
        checkpoint.load(path, ["video"])


# --- writing goes wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("failing", FILES)
def test_a_failed_write_leaves_the_previous_checkpoint_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, code: int
) -> None:
    save(tmp_path, 100)
    before = contents(tmp_path)
    write_file = checkpoint._write_file

    def faulty(path: Path, produce: Any) -> tuple[int, int]:
        if path.name == failing:
            path.write_bytes(b"half of it")
            raise OSError(code, os.strerror(code), str(path))
        return write_file(path, produce)

    monkeypatch.setattr(checkpoint, "_write_file", faulty)
    with pytest.raises(CheckpointError) as raised:
        save(tmp_path, 200, keep=1)
    message = str(raised.value)
    assert isinstance(raised.value, TrainingStopped)
    assert "\n" not in message
    assert os.strerror(code).lower()[1:] in message.lower()
    assert str(tmp_path / "step_000000000200") in message
    assert " free" in message
    assert "the checkpoint of step 100 is kept" in message
    assert contents(tmp_path) == before
    assert names(tmp_path) == ["step_000000000100"]
    monkeypatch.undo()
    save(tmp_path, 200, keep=1)  # and once there is room again, it works
    assert checkpoint.steps(tmp_path) == [200]


def test_a_file_that_the_system_cuts_off(tmp_path: Path) -> None:
    """A real refusal by the kernel in the middle of a file, not an injected one."""
    resource = pytest.importorskip("resource")
    save(tmp_path, 1)
    before = contents(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="file too large"):
            checkpoint.save(tmp_path, 2, {"g": {"x": np.zeros(1_000_000, np.uint8)}}, {}, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("function", ["fsync", "rename"])
def test_making_it_durable_or_final_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    save(tmp_path, 1)
    before = contents(tmp_path)

    def faulty(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(checkpoint.os, function, faulty)
    with pytest.raises(CheckpointError, match="step 1 is kept"):
        save(tmp_path, 2)
    assert contents(tmp_path) == before


def test_too_little_space_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_free_bytes", lambda folder: 2_000_000)
    monkeypatch.setattr(checkpoint, "_write_file", lambda *_: pytest.fail("must not write"))
    with pytest.raises(CheckpointError) as raised:
        checkpoint.save(tmp_path / "new", 5, {"g": {"x": np.zeros(3_000_000, np.uint8)}}, {}, 1)
    assert str(raised.value) == (
        f"cannot write checkpoint {tmp_path}/new/step_000000000005 (no space left on device: 3.01 MB needed, "
        "2 MB free); there is no earlier checkpoint"
    )
    assert names(tmp_path / "new") == []


def test_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file is in the way")
    with pytest.raises(CheckpointError, match="there is no earlier checkpoint"):
        save(tmp_path / "checkpoints", 1)


def test_an_interruption_while_saving_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "_write_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 1)
    assert names(tmp_path) == []


def test_leftovers_of_a_killed_process_are_ignored_then_removed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    leftover = tmp_path / ".tmp-step_000000000002-99"
    leftover.mkdir()
    (leftover / "policy.npz").write_bytes(b"half")
    assert checkpoint.steps(tmp_path) == [1]
    found = checkpoint.newest_good(tmp_path, report=pytest.fail)
    assert found is not None
    assert found.step == 1
    assert leftover.exists()  # reading removes nothing: another process may be writing it
    save(tmp_path, 2)
    assert names(tmp_path) == ["step_000000000001", "step_000000000002"]


def test_killed_at_any_moment_there_is_a_good_checkpoint_and_no_damaged_one(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, numpy as np; from warpsac.runs import checkpoint\n"
        "assert 'jax' not in sys.modules\n"
        "for step in range(1, 10**9):\n"
        "    groups = {'a': {'x': np.full(100_000, step)}, 'b': {'y': np.full(1000, step)}}\n"
        "    checkpoint.save(pathlib.Path(sys.argv[1]), step // 2, groups, {'save': step}, keep=1)\n"
        "    print(step, flush=True)\n"
    )
    for kill in range(6):
        folder = tmp_path / str(kill)
        process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(0.0137 * kill)
        process.kill()
        finished = int((first + process.stdout.read()).split()[-1])
        process.wait()
        process.stdout.close()
        found = checkpoint.newest_good(folder, report=pytest.fail)
        assert found is not None
        assert found.info["save"] in (finished, finished + 1)
        assert found.arrays["a"]["x"][-1] == found.arrays["b"]["y"][0] == found.info["save"]


# --- keeping --------------------------------------------------------------------------------------------


def test_old_ones_go_only_after_the_new_one_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3, 10_000_000_000_000):
        save(tmp_path, step, keep=2)
    assert checkpoint.steps(tmp_path) == [3, 10_000_000_000_000]
    seen = []
    prune = checkpoint.prune

    def spy(folder: Path, keep: int) -> None:
        seen.append(names(folder))
        prune(folder, keep)

    monkeypatch.setattr(checkpoint, "prune", spy)
    save(tmp_path, 5, keep=1)
    assert seen == [["step_000000000003", "step_000000000005", "step_10000000000000"]]
    assert names(tmp_path) == ["step_10000000000000"]


def test_a_process_killed_while_pruning_leaves_no_damaged_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            os.unlink(path / "policy.npz")
            raise SystemExit

    monkeypatch.setattr(checkpoint.shutil, "rmtree", killed)
    with pytest.raises(SystemExit):
        save(tmp_path, 2, keep=1)
    monkeypatch.undo()
    assert checkpoint.steps(tmp_path) == [2]
    save(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["step_000000000003"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 1, which="a")
    save(tmp_path, 2, which="a")
    save(tmp_path, 2, keep=2, which="b")
    assert names(tmp_path) == ["step_000000000001", "step_000000000002"]
    assert checkpoint.load(tmp_path / "step_000000000002").info == {"which": "b"}


def test_killed_while_replacing_a_step_the_old_one_still_counts(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2, which="a")
    path.rename(path.with_name(f".old-{path.name}"))  # what the first of the two renames leaves
    assert checkpoint.steps(tmp_path) == [1, 2]
    found = checkpoint.newest_good(tmp_path, report=pytest.fail)
    assert found is not None
    assert found.info == {"which": "a"}
    save(tmp_path, 2, keep=2, which="b")
    assert names(tmp_path) == ["step_000000000001", "step_000000000002"]


# --- reading what is damaged ----------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])  # in the manifest: its closing bracket


def flip_in_the_middle(path: Path) -> None:
    flip_byte(path, path.stat().st_size // 2)


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00 not what it was")


@pytest.mark.parametrize("damage", [Path.unlink, truncate, flip_in_the_middle, garbage])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(tmp_path: Path, file: str, damage: Any) -> None:
    save(tmp_path, 100)
    newest = save(tmp_path, 200)
    damage(newest / file)
    before = contents(tmp_path)
    reports: list[str] = []
    found = checkpoint.newest_good(tmp_path, report=reports.append)
    assert found is not None
    assert found.step == 100
    assert found.arrays["loop"]["step"] == 100
    assert len(reports) == 1
    assert str(newest) in reports[0]
    assert file in reports[0]
    assert "\n" not in reports[0]
    assert contents(tmp_path) == before

    # Resuming from 100: the damaged one is put aside, so that 200 can be saved again and counts for itself.
    moved = checkpoint.set_aside_newer(found)
    assert moved == [tmp_path / "set-aside-step_000000000200"]
    save(tmp_path, 200, keep=2)
    assert checkpoint.steps(tmp_path) == [100, 200]
    assert checkpoint.load(tmp_path / "step_000000000200").step == 200
    aside = {k.replace("set-aside-", ""): v for k, v in contents(tmp_path).items() if k.startswith("set-aside-")}
    assert aside == {key: value for key, value in before.items() if "200" in key}


def test_every_flipped_byte_of_every_file_is_found(tmp_path: Path) -> None:
    path = save(tmp_path, 7, note="x")
    for file in FILES:
        original = (path / file).read_bytes()
        for position in range(0, len(original), 13):
            flip_byte(path / file, position)
            with pytest.raises(DamagedCheckpoint):
                checkpoint.load(path)
            (path / file).write_bytes(original)
    assert checkpoint.load(path).info == {"note": "x"}


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", "3", '{"checksum": 1}', '{"a":' * 100_000, "\x00" * 50])
def test_any_content_of_the_manifest_is_a_clear_error(tmp_path: Path, text: str) -> None:
    path = save(tmp_path, 7)
    (path / checkpoint.MANIFEST).write_text(text)
    with pytest.raises(DamagedCheckpoint, match=r"manifest\.json is cut off or altered"):
        checkpoint.load(path)


def test_a_newer_format_and_a_renamed_folder_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 7)
    renamed = path.rename(tmp_path / "step_000000000008")
    with pytest.raises(DamagedCheckpoint, match="it holds step 7"):
        checkpoint.load(renamed)
    manifest = json.loads((renamed / checkpoint.MANIFEST).read_text())
    manifest["format"] = 3
    manifest["checksum"] = checkpoint._manifest_checksum(manifest)
    (renamed / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DamagedCheckpoint, match="has format 3; this version of warpsac reads 1 and 2"):
        checkpoint.load(renamed)


def test_no_good_checkpoint_at_all(tmp_path: Path) -> None:
    assert checkpoint.newest_good(tmp_path / "none", report=pytest.fail) is None
    for step in (1, 2):
        truncate(save(tmp_path, step) / "policy.npz")
    reports: list[str] = []
    assert checkpoint.newest_good(tmp_path, report=reports.append) is None
    assert len(reports) == 2
    found = checkpoint.newest_good(tmp_path, ["loop"], report=pytest.fail)
    assert found is not None
    assert found.step == 2


def test_a_visibly_damaged_one_does_not_count_as_kept(tmp_path: Path) -> None:
    save(tmp_path, 1)
    truncate(save(tmp_path, 2) / "policy.npz")
    save(tmp_path, 3, keep=2)
    assert checkpoint.steps(tmp_path) == [1, 2, 3]
    save(tmp_path, 4, keep=2)
    assert checkpoint.steps(tmp_path) == [2, 3, 4]


def test_an_unreadable_file_counts_as_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, 1)

    def unreadable(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path / "policy.npz"))

    monkeypatch.setattr(checkpoint, "_read_arrays", unreadable)
    with pytest.raises(DamagedCheckpoint, match=r"policy\.npz: input/output error"):
        checkpoint.load(path)
