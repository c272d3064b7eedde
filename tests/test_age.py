"""The age law: drawn exactly, the same on host and device."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

from warpsac.replay import age, words
from warpsac.replay.age import AgeLaw

DRAWS = 1_000_000

# decay_steps, weight_floor, ages, num_envs
SHAPES = [
    (0, 0.1, 1, 1),
    (0, 0.1, 50, 7),
    (100, 0.1, 1, 1),  # one age
    (100, 0.1, 1, 7),
    (100, 0.1, 30, 7),  # the ramp is not complete
    (100, 0.1, 90, 1),  # as many ages as the ramp has
    (100, 0.1, 91, 1),
    (100, 0.1, 400, 1),  # ramp and floor
    (100, 0.1, 60, 3),
    (7, 0.15, 40, 7),  # D / q = 5.95 is no integer
    (7, 0.15, 6, 1),
    (7, 0.15, 5, 1),
    (13, 1 / 3, 20, 2),
    (1, 0.1, 10, 7),  # the ramp is shorter than one age
    (1, 0.1, 1, 1),
    (2, 0.95, 10, 1),
    (100, 1.0, 40, 7),  # no decay after all
    (-100, 1.0, 40, 7),
    (-100, 0.1, 1, 1),
    (-100, 0.1, 30, 7),
    (-100, 0.1, 90, 1),
    (-100, 0.1, 91, 1),
    (-100, 0.1, 400, 1),
    (-7, 0.15, 40, 7),
    (-7, 0.15, 6, 1),
    (-1, 0.1, 10, 7),
    (-1, 0.1, 1, 1),
    (-2, 0.95, 10, 1),
]


def random_words(law: AgeLaw, batch: int, seed: int, sampler: age.Sampler = "exact") -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, (law.words(sampler), batch), dtype=np.uint32)


@pytest.mark.parametrize(("decay", "floor", "ages", "envs"), SHAPES)
def test_draws_follow_the_law_over_ages_and_environments(decay, floor, ages, envs):
    law = AgeLaw.of(decay, floor)
    drawn, env = age.draw(law, random_words(law, DRAWS, seed=1000 * abs(decay) + ages), np.int32(ages), envs, np)
    assert drawn.dtype == env.dtype == np.int32
    seen = np.bincount(drawn * envs + env, minlength=ages * envs)
    assert seen.size == ages * envs
    expected = np.repeat(age.weights(law, np.arange(ages)), envs)
    if seen.size > 1:
        assert stats.chisquare(seen, expected / expected.sum() * DRAWS).pvalue > 1e-3


@pytest.mark.parametrize(
    ("decay", "ages", "envs"), [(80_000, 1_000_000, 1), (2_000, 9_765, 1024), (-2_000, 9_765, 1024)]
)
def test_draws_follow_the_law_at_full_size(decay, ages, envs):
    law = AgeLaw.of(decay, 0.1)
    drawn, env = age.draw(law, random_words(law, DRAWS, seed=1), np.int32(ages), envs, np)
    edges = np.linspace(0, ages, 201).astype(int)
    weights = np.add.reduceat(age.weights(law, np.arange(ages)), edges[:-1])
    seen = np.histogram(drawn, edges)[0]
    assert stats.chisquare(seen, weights / weights.sum() * DRAWS).pvalue > 1e-3
    assert env.min() >= 0
    assert env.max() == envs - 1
    # The last bits are as good as the first: each transition is reached, not every second one.
    parity = np.bincount((drawn * envs + env) % 2, minlength=2)
    assert stats.chisquare(parity).pvalue > 1e-3


FLOORS = [0.1, 0.05, 0.15, 1 / 3, 0.5, 0.95, 0.123, 1e-6]


@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize("decay", [1, 2, 3, 7, 10, 64, -1, -2, -3, -7, -10, -64])
def test_shapes_add_up_to_the_law_in_exact_arithmetic(decay, floor):
    """Every age's mass in units of 1 / (2 |T|), from the lengths that `draw` uses and no floats."""
    law = AgeLaw.of(decay, floor)
    horizon, low = abs(decay), Fraction(law.p, law.q)
    base, depth = 2 * horizon * low, horizon * (1 - low)
    for ages in [*range(1, 25), 63, 64, 65, 100]:
        shape = age.shapes(law, np.array([ages], np.uint32), np)
        ramp, partner, near, start, far = (int(field[0]) for field in shape[3:])
        if decay > 0:
            complete = ages > depth // 1
            near_each = 2 * (depth % 1) if complete else 0
            far_each = base if complete else base + 2 * (depth - ages)
        else:
            complete = ages > -(-depth // 1)
            near_each = base if complete else 0
            far_each = 2 * horizon if complete else base
        mass = [Fraction(0)] * ages
        for u in range(ramp):  # each pair of U1 and U2 has mass 1
            for v in range(partner):
                mass[min(u, v) if decay > 0 else max(u, v + 1)] += 1
        ramp_mass = sum(mass)
        for a in range(near):
            mass[a] += near_each
        near_mass = sum(mass)
        for a in range(start, start + far):
            mass[a] += far_each
        if decay > 0:
            assert mass == [2 * horizon * max(low, 1 - Fraction(a, horizon)) for a in range(ages)]
        else:
            assert mass == [2 * horizon * min(Fraction(1), low + Fraction(a, horizon)) for a in range(ages)]
        # The float32 thresholds are these masses.
        for threshold, exact in ((shape.ramp, ramp_mass), (shape.near, near_mass)):
            assert float(threshold[0] / shape.total[0]) == pytest.approx(float(exact / sum(mass)), rel=1e-6)


def test_the_usual_law_has_two_shapes_only():
    law = AgeLaw.of(80_000, 0.1)
    assert (law.p, law.q, law.words(), AgeLaw.of(0, 0.1).words()) == (1, 10, 4, 2)
    assert not age._masses(law).has_near


@pytest.mark.parametrize("sampler", ["exact", "buckets"])
@pytest.mark.parametrize(
    ("decay", "floor", "envs"), [(0, 0.1, 3), (100, 0.1, 1), (7, 0.15, 7), (-9, 0.15, 7), (-9, 1.0, 1)]
)
def test_host_and_device_draw_the_same(decay, floor, envs, sampler):
    law = AgeLaw.of(decay, floor)
    drawn = np.stack([random_words(law, 4096, seed, sampler) for seed in (0, 1, 2)])
    drawn[:, :, :4] = [0, 1, 2**31, 2**32 - 1]
    on_device = jax.jit(lambda drawn, ages: age.draw(law, drawn, ages, envs, jnp, sampler))
    for ages in ([1, 2, 5], [6, 50, 3], [90, 100, 2_000_003]):
        host = age.draw(law, drawn, np.array(ages, np.int32), envs, np, sampler)
        device = on_device(drawn, jnp.array(ages, jnp.int32))
        for a, b in zip(host, device):
            assert a.dtype == b.dtype == np.int32
            np.testing.assert_array_equal(a, b)
        for row, limit in zip(host[0], ages):
            assert row.min() >= 0
            assert row.max() < limit


@pytest.mark.parametrize("xp", [np, jnp])
def test_bounded_integers_against_big_integers(xp):
    rng = np.random.default_rng(0)
    high = np.concatenate([[0, 0, 2**32 - 1, 2**32 - 1, 2**31], rng.integers(0, 2**32, 300)]).astype(np.uint32)
    low = np.concatenate([[0, 2**16 - 1, 2**16 - 1, 0, 1], rng.integers(0, 2**16, 300)]).astype(np.uint32)
    for n in [1, 2, 3, 2**16 - 1, 2**16, 2**16 + 1, 10**7, 2**31 - 1, 2**31, 2**32 - 1]:
        drawn = age.bounded(xp.asarray(high), xp.asarray(low), xp.full(high.shape, n, xp.uint32), xp)
        assert drawn.dtype == np.uint32
        exact = [((int(h) << 16) + int(w)) * n >> 48 for h, w in zip(high, low)]
        assert np.asarray(drawn).tolist() == exact
        assert exact[0] == 0
        assert exact[2] == n - 1


def test_threefry_by_known_answers():
    """The published test vectors, and JAX's own generator."""
    answers = {
        ((0, 0), (0, 0)): (0x6B200159, 0x99BA4EFE),
        ((2**32 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1)): (0x1CB996FC, 0xBB002BE7),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3)): (0xC4923A9C, 0x483DF7A0),
    }
    for (key, counter), answer in answers.items():
        drawn = words.threefry(*(tuple(jnp.uint32(x) for x in pair) for pair in (key, counter)))
        assert tuple(map(int, drawn)) == answer
    keys = jax.random.split(jax.random.key(3), 2)
    drawn = words.random_words(keys, 3, 10)
    assert drawn.shape == (2, 3, 10)
    counters = jnp.concatenate([jnp.arange(10, dtype=jnp.uint32), jnp.ones(10, jnp.uint32)])
    theirs = threefry_2x32(jax.random.key_data(keys[1]), counters).reshape(2, 10)
    np.testing.assert_array_equal(drawn[1, 2], theirs[0])


def test_words_of_keys_differ_and_any_generator_will_do():
    keys = jax.random.split(jax.random.key(3), 4)
    drawn = np.asarray(words.random_words(keys, 4, 500))
    assert np.unique(drawn).size > drawn.size - 10
    for impl in ("rbg", "unsafe_rbg"):
        assert words.random_words(jax.random.split(jax.random.key(3, impl=impl), 2), 2, 5).shape == (2, 2, 5)


def test_nothing_in_replay_draws_age_zero():
    law = AgeLaw.of(100, 0.1)
    drawn, _ = age.draw(law, random_words(law, 100, 0), np.int32(0), 1, np)
    assert not drawn.any()


@pytest.mark.parametrize(
    ("decay", "floor"), [(0, 0.1), (100, 0.1), (7, 0.15), (1, 0.1), (-100, 0.1), (-7, 0.15), (5, 1.0)]
)
@pytest.mark.parametrize("ages", [0, 1, 5, 6, 89, 91, 5000])
def test_effective_length_is_the_brute_force_sum(decay, floor, ages):
    law = AgeLaw.of(decay, floor)
    w = age.weights(law, np.arange(ages))
    expected = w.sum() ** 2 / (w * w).sum() if ages else 0.0
    for xp in (np, jnp):
        np.testing.assert_allclose(age.effective_length(law, np.array([ages]), xp)[0], expected, rtol=1e-5)


def test_weights_by_hand():
    np.testing.assert_allclose(age.weights(AgeLaw.of(4, 0.25), range(6)), [1, 0.75, 0.5, 0.25, 0.25, 0.25])
    np.testing.assert_allclose(age.weights(AgeLaw.of(-4, 0.25), range(6)), [0.25, 0.5, 0.75, 1, 1, 1])
    np.testing.assert_allclose(age.weights(AgeLaw.of(0, 0.25), range(3)), 1)
    with pytest.raises(ValueError, match="weight_floor"):
        AgeLaw.of(4, 0.0)


@pytest.mark.parametrize(("decay", "ages", "envs"), [(300, 1000, 7), (300, 50, 3), (-300, 1000, 7), (0, 2001, 1)])
def test_buckets_against_their_definition(decay, ages, envs):
    law, size = AgeLaw.of(decay, 0.1), ages * envs
    width = -(-size // age.BUCKETS)
    slots = np.split(np.arange(size), range(width, size, width))  # oldest first
    weight = np.array([age.weights(law, ages - 1 - (s[0] + len(s) // 2) // envs) for s in slots])
    chance = np.concatenate([np.full(len(s), w / len(s)) for s, w in zip(slots, weight)]) / weight.sum()
    drawn, env = age.draw(law, random_words(law, DRAWS, 3, "buckets"), np.int32(ages), envs, np, "buckets")
    seen = np.bincount((ages - 1 - drawn) * envs + env, minlength=size)
    assert stats.chisquare(seen, chance * DRAWS).pvalue > 1e-3
