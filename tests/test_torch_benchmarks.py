"""The benchmarks of torch simulators on the probe: what they print adds up, and they notice what does not hold."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="needs torch: make test-mjlab")

import torch_handover
import torch_loop
from warpsac.errors import UserError
from warpsac.training import devices


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "use_compilation_cache", lambda: None)


def test_an_interaction_beside_the_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    torch_loop.main(["--json", "--task", "probe-torch", "--num-envs", "4", "--steps", "3", "--rounds", "2"])
    row = json.loads(capsys.readouterr().out)  # and nothing else
    assert (row["task"], row["variant"], row["num_envs"]) == ("probe-torch", "warpsac-a", 4)
    assert 0 < row["env_step_ms"] < row["iteration_ms"]
    assert row["steps_per_second"] == pytest.approx(4e3 / row["iteration_ms"], rel=0.01)
    assert row["waits"] == {}  # on a CPU


def test_another_simulators_task() -> None:
    with pytest.raises(UserError, match="--task probe-native: no task of a torch simulator"):
        torch_loop.main(["--task", "probe-native", "--num-envs", "4"])


def test_what_training_relies_on(capsys: pytest.CaptureFixture[str]) -> None:
    torch_handover.main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert len(report["holds"]) == 12
    assert all(report["holds"].values())
    assert min(report["to_jax_ms"], report["to_torch_ms"], report["action_ms"]) > 0


def test_what_does_not_hold_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Were tensors copied on their way, it would say so."""
    to_jax = torch_handover.torch_base.to_jax
    monkeypatch.setattr(torch_handover.torch_base, "to_jax", lambda tensor: to_jax(tensor.clone()))
    with pytest.raises(SystemExit) as ended:
        torch_handover.main(["--json"])
    assert ended.value.code == 1
    wrong = [name for name, holds in json.loads(capsys.readouterr().out)["holds"].items() if not holds]
    assert wrong == [
        "JAX shares memory of torch.float32", "torch.float32 given back is where it was",
        "JAX shares memory of torch.bool", "torch.bool given back is where it was",
    ]  # fmt: skip
