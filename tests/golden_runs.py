"""The tiny trainings whose numbers `golden` records: with each setting that leads to another program or order."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

DATA = Path(__file__).resolve().parent / "data"
HALF, END = 90, 180  # environment steps; an evaluation is due at both, so a run that stops at half leaves no extra row

SAC: dict[str, Any] = {
    "profile": "cpu",
    "variant": "warpsac-l",
    "total_steps": END,
    "learning_starts": 63,
    "updates_per_step": 1,
    "env": {"num_envs": 3},
    "replay": {"capacity": 120, "batch_size": 8, "n_step": 3, "decay_steps": 40, "placement": "device"},
    "learner": {
        "actor_width": 4, "critic_width": 4, "actor_blocks": 1, "critic_blocks": 1, "expansion": 2, "atoms": 5,
    },
    "eval": {"every": HALF, "episodes": 2, "num_envs": 2},
    "checkpoint": {"every": 60, "keep": 1},
    # Rows and all else fall on even interactions: from an odd one on, the fused loop needs programs of their own.
    "log": {"every": 8, "tensorboard": False},
}  # fmt: skip
PPO: dict[str, Any] = {
    "algo": "ppo",
    "profile": "cpu",
    "total_steps": END,
    "env": {"num_envs": 3},
    "ppo": {"rollout_steps": 5, "epochs": 2, "minibatches": 3, "actor_hidden": (4,), "critic_hidden": (4,)},
    "eval": {"every": HALF, "episodes": 2, "num_envs": 2},
    "checkpoint": {"every": 60, "keep": 1},
    "log": {"every": 20, "tensorboard": False},
}
IN_PROCESS = {"env": {"workers": 0}}
FLASHSAC = {"variant": "flashsac", "replay": {"n_step": 1, "decay_steps": 0}}


def merged(*settings: Mapping[str, Any]) -> dict[str, Any]:
    """All of these settings, group by group; the later ones win."""
    result: dict[str, Any] = {}
    for one in settings:
        for name, value in one.items():
            result[name] = merged(result.get(name, {}), value) if isinstance(value, Mapping) else value
    return result


# Name -> task and settings.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sac-host": ("probe-point", merged(SAC, IN_PROCESS)),
    "sac-host-strict": (
        "probe-truncated",
        merged(SAC, IN_PROCESS, FLASHSAC, {"overlap": False}),
    ),
    "sac-host-two-seeds": ("probe-point", merged(SAC, IN_PROCESS, {"variant": "warpsac-a", "seeds": (1, 2)})),
    "sac-host-bfloat16": (
        "probe-action",
        merged(
            SAC,
            IN_PROCESS,
            {"variant": "warpsac-a", "updates_per_step": 2},
            {"replay": {"storage": "float16"}, "learner": {"compute": "bfloat16"}},
        ),
    ),
    "sac-fused": ("probe-native", SAC),
    "sac-fused-two-seeds": (
        "probe-native-faulty",
        merged(
            SAC,
            {"variant": "warpsac-a", "seeds": (1, 2)},
            {"replay": {"sampler": "buckets"}, "learner": {"policy_delay": 1}},
        ),
    ),
    "ppo-host": ("probe-point", merged(PPO, IN_PROCESS)),
    "ppo-host-two-seeds": ("probe-delay", merged(PPO, IN_PROCESS, {"seeds": (1, 2), "ppo": {"desired_kl": 0.01}})),
    "ppo-fused": ("probe-native", PPO),
    "ppo-fused-two-seeds": ("probe-native-faulty", merged(PPO, {"seeds": (1, 2), "ppo": {"squash": True}})),
    "sac-torch": ("probe-torch", SAC),
    "sac-torch-two-seeds": ("probe-torch-critic", merged(SAC, FLASHSAC, {"seeds": (1, 2)})),
    "ppo-torch": ("probe-torch", PPO),
    "ppo-torch-two-seeds": ("probe-torch-self-reset", merged(PPO, {"seeds": (1, 2)})),
}
# Other ways to train a case, with the same numbers in the end.
RESUMED, HOST_REPLAY = "resumed", "replay-on-host"
WAYS: dict[str, tuple[str, ...]] = {
    "sac-host": (RESUMED, HOST_REPLAY),
    "sac-host-strict": (RESUMED,),
    "sac-host-two-seeds": (RESUMED,),
    "sac-fused": (RESUMED,),
    "ppo-host": (RESUMED,),
    "ppo-fused": (RESUMED,),
    "ppo-fused-two-seeds": (RESUMED,),
    "sac-torch": (HOST_REPLAY,),
}
# Cases with other numbers where they are resumed: the state of torch simulators is not saved.
CUT = {f"{name}-{RESUMED}": name for name in ("sac-torch", "ppo-torch")}
# Cases of which tests/data has a run folder that was left half way: see `golden.make_data`.
IN_DATA = ("sac-host", "sac-fused", "ppo-host", "ppo-fused")
FROM_DATA = {f"data/{name}": name for name in IN_DATA}
NAMES = (*CASES, *CUT, *FROM_DATA)


def runs_here(name: str) -> bool:
    return "torch" not in name or importlib.util.find_spec("torch") is not None


def run(name: str, out: Path, way: str | None = None) -> list[Path]:
    """Train a run of `NAMES` below `out`, a case also in one of its other ways; the folders of its seeds."""
    from warpsac import resume, train

    with without_pictures():
        if name in FROM_DATA:
            runs = [out / FROM_DATA[name]]
            shutil.copytree(DATA / FROM_DATA[name], runs[0])
            outcome = resume(runs, stop_at=END)
        else:
            task, settings = CASES[CUT.get(name, name)]
            if way == HOST_REPLAY:
                settings = merged(settings, {"replay": {"placement": "host"}})
            halves = way == RESUMED or name in CUT
            outcome = train(task, **settings, out=str(out), stop_at=HALF if halves else None)
            if halves:
                assert (outcome.runs[0] / "checkpoints" / f"step_{HALF:012d}").is_dir()
                outcome = resume(outcome.runs, stop_at=END)
    assert outcome.finished
    return list(outcome.runs)


def without_pictures() -> contextlib.AbstractContextManager[Any]:
    """Drawing learning curves would take longer than all else."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    return mock.patch.object(FigureCanvasAgg, "print_png")
