"""Named observations: which part is stored where, who sees it, and what kind of environment an object is."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from warpsac.envs.kinds import kind_of
from warpsac.envs.observations import Layout, layout_of
from warpsac.errors import UserError
from warpsac.types import ObsViews

FULL = {"robot": 4, "goal": 3, "mass": 1}


def test_a_vector_has_no_names() -> None:
    assert layout_of(5) == Layout(ObsViews(5, 5), ((),), ())
    assert layout_of(5).parts("all of it") == ["all of it"]


def test_a_plain_mapping_is_one_observation_in_its_own_order() -> None:
    layout = layout_of(FULL)
    assert layout.views == ObsViews(8, 8)
    assert layout.paths == (("robot",), ("goal",), ("mass",))
    assert layout.terms == (("robot", 4), ("goal", 3), ("mass", 1))
    # One key of an asymmetric task alone means nothing.
    assert layout_of({"state": 3, "goal": 2}).views == ObsViews(5, 5)
    assert layout_of({"goal": 2, "privileged": 3}).views == ObsViews(5, 5)


@pytest.mark.parametrize("actor", ["policy", "actor", "state"])
@pytest.mark.parametrize("critic", ["critic", "privileged", "privileged_state"])
def test_known_keys_make_an_asymmetric_task(actor: str, critic: str) -> None:
    layout = layout_of({critic: 9, actor: 5})
    assert layout.views == ObsViews(14, 5, critic_start=5)
    assert layout.paths == ((actor,), (critic,))
    assert layout.terms == ((actor, 5),)


def test_terms_within_a_group() -> None:
    layout = layout_of({"policy": {"joints": 4, "gravity": 1}, "critic": {"joints": 4, "mass": 2}})
    assert layout.views == ObsViews(11, 5, critic_start=5)
    assert layout.terms == (("joints", 4), ("gravity", 1))
    assert layout.critic_terms == (("critic.joints", 4), ("critic.mass", 2))
    observation = {"policy": {"gravity": "g", "joints": "j"}, "critic": {"mass": "m", "joints": "J"}}
    assert layout.parts(observation) == ["j", "g", "J", "m"]
    assert layout_of({"arm": {"angle": 2, "speed": 2}, "goal": 3}).terms == (
        ("arm.angle", 2),
        ("arm.speed", 2),
        ("goal", 3),
    )


def test_a_choice_stores_what_both_see_once() -> None:
    layout = layout_of(FULL, {"actor": ["robot", "goal"], "critic": ["robot", "mass"]})
    assert [path[0] for path in layout.paths] == ["goal", "robot", "mass"]
    stored = np.array([10, 11, 12, 1, 2, 3, 4, 20])
    assert layout.views.actor(stored).tolist() == [10, 11, 12, 1, 2, 3, 4]
    assert layout.views.critic(stored).tolist() == [1, 2, 3, 4, 20]
    assert (layout.terms, layout.critic_terms) == ((("goal", 3), ("robot", 4)), (("mass", 1),))
    # An actor's part within the critic's, in the actor's order; what nobody chose is left out.
    layout = layout_of(FULL, {"actor": "goal", "critic": ("mass", "goal")})
    assert (layout.views, layout.paths) == (ObsViews(4, 3), (("goal",), ("mass",)))
    layout = layout_of(FULL, {"actor": ("mass", "goal")})
    assert (layout.views, layout.terms) == (ObsViews(4, 4), (("mass", 1), ("goal", 3)))


@pytest.mark.parametrize(
    ("sizes", "groups", "said"),
    [
        ({"policy": 2, "critic": 3, "camera": 9}, None, r"'camera' is neither the actor's \('policy'\) nor"),
        (5, {"actor": "x"}, "the observation is a vector"),
        (FULL, {"actor": "arm"}, "'actor': there is no 'arm'; there are robot, goal, mass"),
        (FULL, {"critic": "mass"}, "must be 'actor' and"),
        (FULL, {"actor": "mass", "other": "goal"}, "must be 'actor' and"),
        (FULL, {"actor": ["goal", "goal"]}, "'actor': a part is named twice"),
        ({}, None, "the actor sees no numbers"),
        ({"policy": 3, "critic": 0}, None, "the critic sees no numbers"),
    ],
)  # fmt: skip
def test_what_cannot_be_laid_out(sizes: Any, groups: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        layout_of(sizes, groups)


# --- kinds


class Single(gymnasium.Env[Any, Any]):
    @property
    def action_size(self) -> int:
        raise RuntimeError("not asked for")


class Many(gymnasium.vector.VectorEnv[Any, Any, Any]):
    pass


class Methods:
    def reset(self) -> None: ...
    def step(self) -> None: ...


class InJax(Methods):
    @property
    def action_size(self) -> int:
        raise RuntimeError("known after the reset")


class Gymnax(Methods):
    def action_space(self, params: Any) -> None: ...


class Duck(Methods):
    observation_space = action_space = 1


class TorchEnvs(Methods):
    pass


def test_kinds() -> None:
    assert kind_of(Single()) == kind_of(gymnasium.Wrapper(Single())) == kind_of(Duck()) == "gymnasium"
    assert kind_of(Many()) == "vector"
    assert kind_of(InJax()) == kind_of(Gymnax()) == "jax"
    for other in (None, 3, Methods(), InJax, Single, TorchEnvs(), lambda: None):
        assert kind_of(other) is None
    TorchEnvs.__module__ = "warpsac.envs.torch.base"
    assert kind_of(TorchEnvs()) == "torch"
