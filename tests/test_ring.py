"""The compact ring: against hand-computed values, a slow list of episodes, and its twin in host memory."""

import functools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from warpsac.errors import UserError
from warpsac.replay import ring
from warpsac.replay.age import AgeLaw, weights
from warpsac.replay.host import HostRing
from warpsac.replay.ring import RingSpec
from warpsac.training.devices import choose_placement, free_device_bytes, free_host_bytes
from warpsac.types import StepResult

GAMMA = 0.5
init = jax.jit(ring.init, static_argnums=0)
add = jax.jit(ring.add, static_argnames="spec")
cut = jax.jit(ring.cut, static_argnames="spec")
gather = jax.jit(ring.gather, static_argnames=("spec", "gamma"))
sample = jax.jit(ring.sample, static_argnames=("spec", "law", "batch_size", "gamma", "sampler"))


def one(reward, obs, terminated=False, truncated=False, final=0.0) -> StepResult:
    """A step of one environment whose observations are single numbers."""
    number = lambda value: np.full((1, 1, 1), value, np.float32)
    flag = lambda value: np.full((1, 1), value, bool)
    return StepResult(
        number(obs), np.full((1, 1), reward, np.float32), flag(terminated), flag(truncated), number(final)
    )


def at(state, spec, age, env=0):
    """The transition of one age as plain numbers: obs, action, reward, discount, next_obs, following if asked for."""
    index = np.full((1, 1), age, np.int32)
    batch = gather(state, spec=spec, age=index, env=np.full((1, 1), env, np.int32), gamma=GAMMA)
    return tuple(float(field.ravel()[0]) for field in jax.tree.leaves(batch))


def build(spec, steps, first=0.0):
    """Actions are numbered 10, 11, ..."""
    state = init(spec, np.full((1, 1, 1), first, np.float32))
    for i, step in enumerate(steps):
        state = add(state, spec=spec, action=np.full((1, 1, 1), 10 + i, np.float32), step=step)
    return state


# One environment: observations 0 1 2 | 20 21 | 30 31, rewards 1 2 4 8 16 32.
STEPS = [
    one(1, 1),
    one(2, 2),
    one(4, 20, truncated=True, final=3),
    one(8, 21),
    one(16, 30, terminated=True, final=22),
    one(32, 31),
]


def test_one_step_transitions_by_hand():
    spec = RingSpec(capacity=10, num_envs=1, obs_dim=1, action_dim=1)
    state = build(spec, STEPS)
    assert ring.available_ages(state, spec).tolist() == [6]
    assert [at(state, spec, age) for age in range(6)] == [
        (30, 15, 32, 0.5, 31),
        (21, 14, 16, 0.0, 22),  # terminated: no bootstrap, the true last observation
        (20, 13, 8, 0.5, 21),
        (2, 12, 4, 0.5, 3),  # truncated: bootstraps from the true last observation
        (1, 11, 2, 0.5, 2),
        (0, 10, 1, 0.5, 1),
    ]


def test_three_step_transitions_by_hand():
    spec = RingSpec(capacity=10, num_envs=1, obs_dim=1, action_dim=1, n_step=3)
    state = build(spec, STEPS)
    assert ring.available_ages(state, spec).tolist() == [4]  # the newest two windows are not complete
    assert [at(state, spec, age) for age in range(4)] == [
        (20, 13, 8 + 0.5 * 16, 0.0, 22),  # ends after two steps
        (2, 12, 4, 0.5, 3),  # ends at once, k = 1
        (1, 11, 2 + 0.5 * 4, 0.25, 3),  # k = 2
        (0, 10, 1 + 0.5 * 2 + 0.25 * 4, 0.125, 3),  # ends with the window's last step
    ]
    longer = build(spec, [one(1, i + 1) for i in range(5)])
    assert at(longer, spec, 0) == (2, 12, 1.75, 0.125, 5)


def test_terminated_wins_over_truncated():
    spec = RingSpec(capacity=10, num_envs=1, obs_dim=1, action_dim=1)
    state = build(spec, [one(1, 5, terminated=True, truncated=True, final=4)])
    assert at(state, spec, 0) == (0, 10, 1, 0.0, 4)


def test_wrap_around_keeps_exactly_the_newest():
    for n_step in (1, 3):
        spec = RingSpec(capacity=4, num_envs=1, obs_dim=1, action_dim=1, n_step=n_step)
        state = init(spec, np.zeros((1, 1, 1), np.float32))
        for i in range(23):
            state = add(state, spec=spec, action=np.full((1, 1, 1), i, np.float32), step=one(2.0**i, i + 1))
            available = int(ring.available_ages(state, spec)[0])
            assert available == np.clip(i + 2 - n_step, 0, 4)
            for age in range(available):
                start = i + 1 - n_step - age
                total = sum(GAMMA**j * 2.0 ** (start + j) for j in range(n_step))
                assert at(state, spec, age) == (start, start, total, GAMMA**n_step, start + n_step)


def test_cut_by_hand():
    spec = RingSpec(capacity=10, num_envs=1, obs_dim=1, action_dim=1)
    yes, no = np.ones((1, 1), bool), np.zeros((1, 1), bool)
    new = lambda value: np.full((1, 1, 1), value, np.float32)
    state = init(spec, new(0))
    state = cut(state, spec=spec, mask=yes, new_obs=new(7))  # nothing stored yet: only another first observation
    assert state.final_count.tolist() == [0]
    assert not np.asarray(state.end).any()
    state = add(state, spec=spec, action=new(10), step=one(1, 8))
    state = cut(state, spec=spec, mask=no, new_obs=new(99))
    assert at(state, spec, 0) == (7, 10, 1, 0.5, 8)
    state = cut(state, spec=spec, mask=yes, new_obs=new(50))  # truncated at 8
    state = cut(state, spec=spec, mask=yes, new_obs=new(60))  # already closed: only the observation changes
    assert state.final_count.tolist() == [1]
    state = add(state, spec=spec, action=new(11), step=one(2, 61, terminated=True, final=62))
    state = cut(state, spec=spec, mask=yes, new_obs=new(70))  # ended by itself: stays terminated
    state = add(state, spec=spec, action=new(12), step=one(4, 71))
    assert [at(state, spec, age) for age in range(3)] == [
        (70, 12, 4, 0.5, 71),
        (60, 11, 2, 0.0, 62),
        (7, 10, 1, 0.5, 8),
    ]


def test_full_side_table_lets_old_rows_leave():
    """Two slots: the third end overwrites the first, so steps up to the first end leave replay."""
    spec = RingSpec(capacity=100, num_envs=1, obs_dim=1, action_dim=1, final_slots=2)
    ends = {3: 100, 5: 200, 9: 300, 10: 400}
    state = init(spec, np.zeros((1, 1, 1), np.float32))
    expected = []
    for i in range(12):
        step = one(i, i + 1, truncated=i in ends, final=ends.get(i, 0))
        state = add(state, spec=spec, action=np.zeros((1, 1, 1), np.float32), step=step)
        expected.append(int(ring.available_ages(state, spec)[0]))
    #                   0  1  2  3  4  5  6  7  8  9 (lost 3: from 4) 10 (lost 5: from 6)
    assert expected == [1, 2, 3, 4, 5, 6, 7, 8, 9, 6, 5, 6]
    assert [at(state, spec, age)[4] for age in range(6)] == [12, 400, 300, 9, 8, 7]

    law = AgeLaw.of(8, 0.25)  # and the law is exact over the six ages that remain
    words = np.random.default_rng(0).integers(0, 2**32, (1, 4, 200_000), dtype=np.uint32)
    age, _ = ring.indices(state, spec, law, words)
    chance = weights(law, np.arange(6))
    assert stats.chisquare(np.bincount(age[0], minlength=6), chance / chance.sum() * 200_000).pvalue > 1e-3


class Case(NamedTuple):
    seeds: int
    envs: int
    n_step: int
    ages: int = 13
    slots: int = 0
    storage: str = "float32"
    steps: int = 60
    following: bool = False

    @property
    def spec(self) -> RingSpec:
        return RingSpec(
            capacity=self.ages * self.envs,
            num_envs=self.envs,
            obs_dim=2,
            action_dim=1,
            num_seeds=self.seeds,
            n_step=self.n_step,
            final_slots=self.slots or 100 * self.envs,
            storage=self.storage,
            following=self.following,
        )


def stream(case, seed=0):
    """Random steps with ends of both kinds, now and then a cut before the step."""
    rng = np.random.default_rng(seed)
    shape = (case.seeds, case.envs)
    obs = lambda: rng.normal(size=(*shape, 2)).astype(np.float32)
    yield obs()
    for i in range(case.steps):
        mask = rng.random(shape) < (0.5 if i % 7 == 0 else 0.0)
        step = StepResult(
            obs(),
            rng.normal(size=shape).astype(np.float32),
            rng.random(shape) < 0.08,
            rng.random(shape) < 0.08,
            obs(),
        )
        yield mask, obs(), rng.uniform(-1, 1, (*shape, 1)).astype(np.float32), step


class ListReplay:
    """The slow, obvious replay: for each environment a list of steps that know how they ended."""

    def __init__(self, first, n_step):
        self.n_step, self.current = n_step, np.array(first)
        seeds, envs, _ = first.shape
        self.steps = [[[] for _ in range(envs)] for _ in range(seeds)]

    def cut(self, mask, new_obs):
        for s, n in zip(*mask.nonzero()):
            steps = self.steps[s][n]
            if steps and steps[-1]["kind"] == "running":
                steps[-1]["kind"] = "truncated"  # its next observation is already the true one
            self.current[s, n] = new_obs[s, n]

    def add(self, action, step):
        for s, n in np.ndindex(action.shape[:2]):
            kind = "terminated" if step.terminated[s, n] else "truncated" if step.truncated[s, n] else "running"
            ended = kind != "running"
            self.steps[s][n].append(
                {
                    "obs": self.current[s, n].copy(),
                    "action": action[s, n],
                    "reward": step.reward[s, n],
                    "kind": kind,
                    "next_obs": (step.final_obs if ended else step.obs)[s, n],
                }
            )
        self.current = np.array(step.obs)

    def transition(self, s, n, age):
        steps = self.steps[s][n]
        start = len(steps) - self.n_step - age
        reward, k = 0.0, 0
        for step in steps[start : start + self.n_step]:
            reward, k = reward + GAMMA**k * float(step["reward"]), k + 1
            if step["kind"] != "running":
                break
        discount = 0.0 if step["kind"] == "terminated" else GAMMA**k
        return steps[start]["obs"], steps[start]["action"], reward, discount, step["next_obs"], steps[start]["next_obs"]


@pytest.mark.parametrize(
    "case",
    [Case(1, 1, 1), Case(1, 3, 1), Case(2, 3, 3, following=True), Case(3, 2, 5), Case(2, 4, 2, slots=9)],
)
def test_against_a_list_of_episodes(case):
    spec, events = case.spec, stream(case)
    first = next(events)
    state, slow = init(spec, first), ListReplay(first, case.n_step)
    for mask, new_obs, action, step in events:
        state = cut(state, spec=spec, mask=mask, new_obs=new_obs)
        slow.cut(mask, new_obs)
        state = add(state, spec=spec, action=action, step=step)
        slow.add(action, step)
        for s, available in enumerate(np.asarray(ring.available_ages(state, spec))):
            count = int(state.count)
            if not case.slots:
                assert available == np.clip(count - case.n_step + 1, 0, spec.ages)
            if available == 0:
                continue
            age, env = (x.ravel().astype(np.int32) for x in np.mgrid[0:available, 0 : case.envs])
            pad = np.resize(age, case.ages * case.envs), np.resize(env, case.ages * case.envs)  # one shape: one program
            index = [np.tile(x, (case.seeds, 1)) for x in pad]
            batch = gather(state, spec=spec, age=index[0], env=index[1], gamma=GAMMA)
            expected = zip(*(slow.transition(s, n, a) for a, n in zip(age, env)))
            for field, values in zip(jax.tree.leaves(batch), expected):
                np.testing.assert_allclose(np.asarray(field)[s, : age.size], np.array(values), rtol=1e-5, atol=1e-6)


def test_the_side_table_loses_no_more_than_it_must():
    """With F slots, replay reaches back to just after the end whose slot was overwritten last."""
    case = Case(2, 4, 2, ages=50, slots=9, steps=40)
    events, spec = stream(case, seed=3), case.spec
    state = init(spec, next(events))
    ends = [[], []]
    for t, (_, _, action, step) in enumerate(events):
        state = add(state, spec=spec, action=action, step=step)
        for s in range(2):
            ends[s] += [t] * int((step.terminated | step.truncated)[s].sum())
            oldest = ends[s][-10] + 1 if len(ends[s]) >= 10 else 0
            assert int(ring.available_ages(state, spec)[s]) == max(t + 1 - case.n_step - oldest + 1, 0)
    assert min(len(e) for e in ends) > 20


@pytest.mark.parametrize("sampler", ["exact", "buckets"])
@pytest.mark.parametrize(
    "case",
    [
        Case(1, 1, 1),
        Case(1, 3, 3),
        Case(2, 3, 1, storage="float16"),
        Case(2, 1, 3, slots=3),
        Case(2, 3, 3, slots=5, storage="float16", following=True),
    ],
)
def test_host_ring_returns_the_same_bits(case, sampler):
    spec, law, events = case.spec, AgeLaw.of(6, 0.15), stream(case)
    first = next(events)
    device, host = init(spec, first), HostRing.init(spec, first)
    for i, (mask, new_obs, action, step) in enumerate(events):
        device = cut(device, spec=spec, mask=mask, new_obs=new_obs)
        host.cut(mask, new_obs)
        device = add(device, spec=spec, action=action, step=step)
        host.add(action, step)
        np.testing.assert_array_equal(host.available_ages(), ring.available_ages(device, spec))
        if i < case.n_step or i % 5:
            continue
        for a, b in zip(jax.tree.leaves(device), jax.tree.leaves(host.state), strict=True):
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        keys = jax.random.split(jax.random.key(i), case.seeds)
        theirs = host.sample(law, keys, 64, 0.97, sampler)
        ours = sample(device, spec=spec, law=law, keys=keys, batch_size=64, gamma=0.97, sampler=sampler)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            assert isinstance(b, np.ndarray)
            assert a.shape[:2] == (case.seeds, 64)
            assert a.dtype == b.dtype == np.float32
            np.testing.assert_array_equal(a, b)


def test_float16_storage_clips_instead_of_overflowing():
    spec = RingSpec(capacity=4, num_envs=1, obs_dim=1, action_dim=1, storage="float16")
    state = build(spec, [one(1, 1e9), one(1, 0, truncated=True, final=-np.inf)], first=0.1)
    assert at(state, spec, 1)[::4] == (float(np.float16(0.1)), 65504.0)
    assert at(state, spec, 0)[::4] == (65504.0, -65504.0)


def test_seeds_do_not_see_each_other():
    """Two seeds side by side hold what each holds alone, and draw the same with the same key."""
    both, law = Case(2, 3, 2, slots=7), AgeLaw.of(5, 0.1)
    alone = both._replace(seeds=1)
    states = [init(both.spec, (events := list(stream(both)))[0])]
    states += [init(alone.spec, events[0][s : s + 1]) for s in range(2)]
    for _, _, action, step in events[1:]:
        states[0] = add(states[0], spec=both.spec, action=action, step=step)
        for s in range(2):
            mine = jax.tree.map(lambda x, s=s: x[s : s + 1], (action, step))
            states[1 + s] = add(states[1 + s], spec=alone.spec, action=mine[0], step=mine[1])
    keys = jax.random.split(jax.random.key(0), 2)
    together = sample(states[0], spec=both.spec, law=law, keys=keys, batch_size=32, gamma=GAMMA)
    for s in range(2):
        single = sample(states[1 + s], spec=alone.spec, law=law, keys=keys[s : s + 1], batch_size=32, gamma=GAMMA)
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(single), strict=True):
            np.testing.assert_array_equal(a[s], b[0])


SPEC = RingSpec(capacity=20_000, num_envs=16, num_seeds=2, obs_dim=24, action_dim=3, n_step=3)


def random_step(key) -> tuple[jax.Array, StepResult]:
    shape = (SPEC.num_seeds, SPEC.num_envs)
    a, b, c, d = jax.random.split(key, 4)
    obs = functools.partial(jax.random.normal, shape=(*shape, SPEC.obs_dim))
    done = jax.random.bernoulli(c, 0.1, shape)
    return jax.random.normal(a, (*shape, SPEC.action_dim)), StepResult(obs(b), jnp.ones(shape), done, ~done, obs(d))


def scan_add_and_sample(state, key):
    def body(state, key):
        state = ring.add(state, SPEC, *random_step(key))
        batch = ring.sample(state, SPEC, AgeLaw.of(100, 0.1), jax.random.split(key, 2), 32, GAMMA)
        return state, jax.tree.map(jnp.sum, batch)

    return jax.lax.scan(body, state, jax.random.split(key, 20))


@pytest.mark.parametrize(
    "program",
    [
        lambda state, key: ring.add(state, SPEC, *random_step(key)),
        lambda state, key: ring.cut(state, SPEC, random_step(key)[1].truncated, random_step(key)[1].obs),
        scan_add_and_sample,
    ],
    ids=["add", "cut", "scan"],
)
def test_no_program_copies_the_ring(program):
    key = jax.random.key(0)
    state = jax.eval_shape(lambda: ring.init(SPEC, jnp.zeros((SPEC.num_seeds, SPEC.num_envs, SPEC.obs_dim))))
    compiled = jax.jit(program, donate_argnums=0).lower(state, key).compile()
    used = compiled.memory_analysis()
    assert used.alias_size_in_bytes >= SPEC.nbytes
    assert used.temp_size_in_bytes < SPEC.nbytes / 20
    for shape, _ in SPEC.arrays[:4]:
        text = ",".join(map(str, shape))
        assert not re.search(rf"= \w+\[{text}\]\S* copy\(", compiled.as_text())


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        RingSpec(capacity=1000, num_envs=1, obs_dim=17, action_dim=6),
        RingSpec(capacity=1000, num_envs=7, obs_dim=5, action_dim=2, n_step=3, storage="float16", final_slots=8),
    ],
)
def test_memory_is_counted_exactly_and_small(spec):
    state = ring.init(spec, np.zeros((spec.num_seeds, spec.num_envs, spec.obs_dim), np.float32), np)
    assert spec.nbytes == sum(field.nbytes for field in jax.tree.leaves(state))
    table = spec.num_seeds * spec.finals * (spec.obs_dim + 1) * 4
    assert spec.nbytes <= 1.05 * (spec.obs_dim + spec.action_dim + 2) * 4 * spec.capacity * spec.num_seeds + table
    assert spec.transition_bytes == (2 if spec.storage == "float16" else 4) * spec.obs_dim + 4 * spec.action_dim + 8


def test_placement_is_where_the_ring_fits():
    spec = RingSpec(capacity=1_000_000, num_envs=10, obs_dim=100, action_dim=10)
    need = spec.nbytes
    assert choose_placement(spec, "auto", need, need) == "device"
    assert choose_placement(spec, "auto", need - 1, need) == "host"
    assert choose_placement(spec, "auto", need, need, reserve_bytes=0) == "device"
    assert choose_placement(spec, "host", need, need) == "host"
    assert choose_placement(spec, "device", need, 0) == "device"
    with pytest.raises(UserError, match=r"replay\.capacity = 1000000: needs .* GB of device memory"):
        choose_placement(spec, "device", need - 1, need)
    with pytest.raises(UserError, match="device or host memory") as error:
        choose_placement(spec, "auto", need // 2, need // 4)
    fits = int(str(error.value).rsplit(" ", 1)[1])
    assert RingSpec(fits, 10, 100, 10).nbytes <= need // 2 < RingSpec(fits + 10, 10, 100, 10).nbytes
    with pytest.raises(UserError, match="not even the smallest"):
        choose_placement(spec, "auto", 1000, 1000)


def test_free_memory_is_measured(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 2000 kB\nMemAvailable:    1000 kB\n")
    assert free_host_bytes(tmp_path / "meminfo") == 1_024_000
    assert free_host_bytes(tmp_path / "none") > 2**28
    assert free_device_bytes() > 0


def test_impossible_sizes_are_refused():
    for sizes in ({"capacity": 3, "num_envs": 4}, {"capacity": 8, "num_envs": 4, "final_slots": 2},
                  {"capacity": 2**30, "num_envs": 4, "num_seeds": 2}):  # fmt: skip
        with pytest.raises(UserError, match=r"replay\."):
            RingSpec(obs_dim=1, action_dim=1, **sizes)


def test_a_faulty_step_closes_the_episode_before_it_and_is_never_sampled() -> None:
    """Two envs, five steps; step 2 of env 1 is faulty: its environment starts again at observation 90."""
    spec = RingSpec(capacity=20, num_envs=2, obs_dim=1, action_dim=1, n_step=2, voids=True)
    no = np.zeros((1, 2), bool)

    def step(t: int, faulty: bool) -> StepResult:
        obs = np.array([[[10.0 + t + 1], [90.0 if faulty else (20.0 if t < 2 else 88.0) + t + 1]]], np.float32)
        reward = np.array([[1.0 + t, 0.0 if faulty else 100.0 * (t + 1)]], np.float32)
        mask = np.array([[False, faulty]])
        return StepResult(obs, reward, no, no, np.zeros_like(obs), faulty=mask)

    first = np.array([[[10.0], [20.0]]], np.float32)
    device, host = init(spec, jnp.asarray(first)), HostRing.init(spec, first)
    for t in range(5):
        action, result = np.full((1, 2, 1), 0.1 * t, np.float32), step(t, faulty=t == 2)
        device = add(device, spec=spec, action=action, step=result)
        host.add(action, result)
    for name, value in device._asdict().items():
        np.testing.assert_array_equal(np.asarray(value), getattr(host.state, name), err_msg=name)

    # Ages 3, 2, 1, 0 are steps 0, 1, 2, 3; of env 1, step 1 ends truncated at observation 22, step 2 is void.
    age, env = np.array([[3, 2, 1, 0, 1]], np.int32), np.array([[1, 1, 1, 1, 0]], np.int32)
    batch = gather(device, spec=spec, age=age, env=env, gamma=0.5)
    np.testing.assert_allclose(batch.obs[0, :, 0], [20, 21, 20, 90, 12])  # the void one: the first stands in
    np.testing.assert_allclose(batch.reward[0], [100 + 0.5 * 200, 200, 200, 400 + 0.5 * 500, 3 + 0.5 * 4])
    np.testing.assert_allclose(batch.next_obs[0, :, 0], [22, 22, 22, 93, 14])
    np.testing.assert_allclose(batch.discount[0], [0.25, 0.5, 0.25, 0.25, 0.25])
    same = host.gather(np.asarray(age), np.asarray(env), 0.5)
    for name, value in batch._asdict().items():
        np.testing.assert_array_equal(np.asarray(value), getattr(same, name), err_msg=name)
    assert np.isfinite(gather(device, spec=spec, age=age[:, 2:3], env=env[:, 2:3], gamma=0.5).next_obs).all()
