"""The age law of replay and its exact inverse, written once for NumPy and JAX.

A transition of age A (interaction steps since it entered replay, 0 the newest) is drawn with a
probability proportional to

    w(A) = max(w_min, 1 - A / T)        T > 0: Sample Weight Decay, recent transitions preferred
    w(A) = 1                            T = 0: uniform
    w(A) = min(1, w_min + A / |T|)      T < 0: old transitions preferred

The ages in replay are always 0..K-1, so the weights need no table: the law is a sum of a few shapes
from which integers can be drawn directly. With w_min = p/q, D = (q - p) T, m = D // q, r = D % q and
everything in units of 1 / (2T), a decaying weight is

    2T w(A) = f + 2 (m - A) + 2r/q     for A <= m,       f = 2 p T / q
    2T w(A) = f                        beyond

that is a floor f over all K ages, 2r/q more over the first m + 1 ages, and the triangle 2 (m - A). The
triangle needs no square root: for U1 uniform on 0..m-1 and U2 uniform on 0..m,

    P(min(U1, U2) = A) = 2 (m - A) / (m (m + 1)),

and mirrored, max(U1, U2 + 1) with U1 on 0..m-1 and U2 on 0..m-2 has P proportional to 2A. `draw`
chooses one shape, then an integer inside it. Worked example: T = 4, p/q = 1/4, K = 6 ages. D = 12,
m = 3, r = 0, f = 2; weights times 2T: 8 6 4 2 2 2 = (2 2 2 2 2 2) + (6 4 2 0 0 0). So with probability
12/24 an age is uniform on 0..5, otherwise it is the smaller of a number in 0..2 and one in 0..3.

Only the choice of the shape involves a float (rounding moves about 1e-7 of the draws from one whole shape
to another); no float decides an index, since one float32 over 1e7 transitions would draw some twice
as often as others. Floats are only added, or multiplied by a power of two, before the one product that
is compared: compilers may fuse a product with a sum, which would round differently on host and device.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np

Array = Any
Sampler = Literal["exact", "buckets"]

BUCKETS = 2000  # of the published approximation
BUCKET_UNIT = 2**20  # weight 1 of a bucket; all buckets together stay below 2^31


@dataclass(frozen=True)
class AgeLaw:
    """The law as static numbers: `decay_steps` is T, and w_min is exactly p / q."""

    decay_steps: int
    p: int = 1
    q: int = 1

    @classmethod
    def of(cls, decay_steps: int, weight_floor: float) -> AgeLaw:
        """The law of two settings; 0.1 means one tenth, not the nearest binary number."""
        floor = Fraction(str(weight_floor))
        if not 0 < floor <= 1:
            raise ValueError(f"weight_floor must be above 0 and at most 1, not {weight_floor}")
        return cls(int(decay_steps), floor.numerator, floor.denominator)

    @property
    def uniform(self) -> bool:
        return self.decay_steps == 0 or self.p == self.q

    def words(self, sampler: Sampler = "exact") -> int:
        """Random 32-bit words that one draw takes."""
        if sampler == "buckets":
            return 3
        return 2 if self.uniform else 4


def weights(law: AgeLaw, ages: Array) -> np.ndarray:
    """w(A), the obvious formula in float64: for tests, reports and the slow samplers."""
    ages = np.asarray(ages, np.float64)
    floor = law.p / law.q
    if law.decay_steps > 0:
        return np.maximum(floor, 1 - ages / law.decay_steps)
    if law.decay_steps < 0:
        return np.minimum(1.0, floor + ages / -law.decay_steps)
    return np.ones_like(ages)


def effective_length(law: AgeLaw, ages: Array, xp: Any = np) -> Array:
    """(sum w)^2 / sum w^2 over ages 0..ages-1, in interaction steps: how far back replay really reaches.

    float32 and closed form, so it can be logged at any time; equals `ages` for the uniform law.
    """
    total = xp.asarray(ages).astype(xp.float32)
    if law.uniform:
        return total
    horizon, floor = abs(law.decay_steps), law.p / law.q
    ramp_ages = -(-(law.q - law.p) * horizon // law.q)
    ramp = xp.minimum(total, xp.float32(ramp_ages))
    # On the ramp w = a + b A: sum w and sum w^2 divided by the number of ages there.
    a, b, flat = (1.0, -1.0, floor) if law.decay_steps > 0 else (floor, 1.0, 1.0)
    mean_age = (ramp - 1) / (2 * horizon)
    mean_age2 = (ramp - 1) * (2 * ramp - 1) / (6.0 * horizon**2)
    first = ramp * (a + b * mean_age) + (total - ramp) * flat
    second = ramp * (a * a + 2 * a * b * mean_age + mean_age2) + (total - ramp) * flat**2
    return xp.where(total > 0, first * first / xp.maximum(second, xp.float32(1e-30)), xp.float32(0))


def bounded(high: Array, low: Array, n: Array, xp: Any) -> Array:
    """Integers in 0..n-1 from 48 random bits each: floor((high 2^16 + low) n / 2^48), exactly.

    `high` holds 32 random bits, `low` 16, n is below 2^32, all uint32. No value is more likely than
    another by more than a factor 1 + n / 2^48.
    """
    if xp is np:
        n, product, rest = n.astype(np.uint64), high.astype(np.uint64), low.astype(np.uint64)
        product *= n
        rest *= n
        rest >>= np.uint64(16)
        product += rest
        product >>= np.uint64(32)
        return product.astype(np.uint32)
    # The same without 64-bit integers: one Horner step in base 2^16 for each 16 bits, where
    # (digit n + carry) >> 16 is put together from products that fit 32 bits.
    n_high, n_low = n >> 16, n & 0xFFFF
    carry = low * n_high + ((low * n_low) >> 16)
    for digit in (high & 0xFFFF, high >> 16):
        carry = digit * n_high + (carry >> 16) + ((digit * n_low + (carry & 0xFFFF)) >> 16)
    return carry


class Shapes(NamedTuple):
    """The law over K ages as three shapes, in the order `ramp`, `near`, `far`; see the module docstring.

    Thresholds are cumulative masses in a unit chosen per case such that each is one sum.
    """

    ramp: Array  # float32: mass of the triangle
    near: Array  # float32: that and the mass of the uniform piece over the youngest ages
    total: Array  # float32: all mass
    ramp_length: Array  # uint32: U1 of the triangle lies in 0..ramp_length-1
    partner_length: Array  # uint32: and U2 in 0..partner_length-1
    near_length: Array  # uint32: `near` covers ages 0..near_length-1
    far_start: Array  # uint32: `far` covers far_length ages from far_start on
    far_length: Array


class _Masses(NamedTuple):
    """What of the shapes is static: the ramp is `reach` ages long once that many are there."""

    reach: int  # m
    ramp: np.float32  # thresholds once the ramp is complete (K > m)
    near: np.float32
    young_total: np.float32  # the constant in the total mass while it is not (K <= m)
    has_near: bool


@functools.cache
def _masses(law: AgeLaw) -> _Masses:
    horizon = abs(law.decay_steps)
    depth = (law.q - law.p) * horizon  # D
    floor = Fraction(2 * law.p * horizon, law.q)  # f
    if law.decay_steps > 0:
        # K <= m: divided by K, the triangle over K ages is K + 1 and the rest 2 (m - K) + step + floor.
        # K > m: divided by the floor, so that its mass is K.
        m, r = divmod(depth, law.q)
        step = Fraction(2 * r, law.q)
        ramp, near = m * (m + 1) / floor, (m + 1) * (m + step) / floor
        young_total = 2 * m + 1 + step + floor
        has_near = r != 0
    else:
        # The weight is 2A above the floor up to age m - 1 and the full 2|T| from age m on.
        # K <= m: divided by K, the triangle is K - 1 and the floor over K ages f.
        # K > m: divided by the full weight, so that the mass of the ages from m on is K - m.
        m, top = -(-depth // law.q), 2 * horizon
        ramp, near = Fraction(m * (m - 1), top), m * (m - 1 + floor) / top
        young_total = floor - 1
        has_near = True
    return _Masses(m, np.float32(ramp), np.float32(near), np.float32(young_total), has_near)


def shapes(law: AgeLaw, ages: Array, xp: Any) -> Shapes:
    """The shapes of a law that is not uniform, for `ages` >= 1 (uint32) ages in replay."""
    reach, ramp, near, young_total, _ = _masses(law)
    young, real = ages <= reach, ages.astype(xp.float32)
    ramp_length = xp.minimum(ages, xp.uint32(reach))
    if law.decay_steps > 0:
        young_ramp = real + 1
        total = xp.where(young, young_total - real, real + near)
        partner_length, near_length = ramp_length + xp.uint32(1), xp.minimum(ages, xp.uint32(reach + 1))
        far_start, far_length = xp.zeros_like(ages), ages
    else:
        young_ramp, beyond = real - 1, ages - ramp_length
        total = xp.where(young, young_total + real, beyond.astype(xp.float32) + near)
        partner_length, near_length = ramp_length - xp.uint32(1), ramp_length
        far_start, far_length = xp.where(young, xp.uint32(0), xp.uint32(reach)), xp.where(young, ages, beyond)
    return Shapes(
        ramp=xp.where(young, young_ramp, ramp),
        near=xp.where(young, young_ramp, near),
        total=total,
        ramp_length=ramp_length,
        partner_length=partner_length,
        near_length=near_length,
        far_start=far_start,
        far_length=far_length,
    )


def draw(
    law: AgeLaw, words: Array, ages: Array, num_envs: int, xp: Any, sampler: Sampler = "exact"
) -> tuple[Array, Array]:
    """(age, env), int32 [..., B]: ages by the law, environments uniform.

    `words` are random uint32 [..., law.words(sampler), B] and `ages` the ages in replay, [...]. The
    same words give the same result for every array namespace `xp`. ages * num_envs is below 2^31;
    with no ages in replay the result is age 0.
    """
    count = xp.maximum(xp.asarray(ages).astype(xp.uint32), xp.uint32(1))[..., None]
    if sampler == "buckets":
        return _draw_bucket(law, words, count, num_envs, xp)
    high, lows = words[..., 0, :], words[..., 1, :]
    if law.uniform:
        return _split(bounded(high, lows & 0xFFFF, count * xp.uint32(num_envs), xp), num_envs, xp)

    shape = shapes(law, count, xp)
    place = words[..., 3, :].astype(xp.float32) * (shape.total * xp.float32(2.0**-32))
    in_ramp = place < shape.ramp
    length, start = shape.far_length, shape.far_start
    growing = law.decay_steps < 0
    if _masses(law).has_near:
        in_near = place < shape.near
        length = xp.where(in_near, shape.near_length, length)
        start = xp.where(in_near, xp.uint32(0), start)
    length = xp.where(in_ramp, shape.ramp_length, length)
    age, env = _split(bounded(high, lows & 0xFFFF, length * xp.uint32(num_envs), xp), num_envs, xp)
    partner = bounded(words[..., 2, :], lows >> 16, shape.partner_length, xp).astype(xp.int32)
    if growing:
        age = age + start.astype(xp.int32)
        return xp.where(in_ramp, xp.maximum(age, partner + 1), age), env
    return xp.where(in_ramp, xp.minimum(age, partner), age), env


def _split(flat: Array, num_envs: int, xp: Any) -> tuple[Array, Array]:
    """age * num_envs + env -> (age, env)."""
    flat = flat.astype(xp.int32)
    if num_envs == 1:
        return flat, xp.zeros_like(flat)
    age = flat // num_envs
    return age, flat - age * num_envs


def _draw_bucket(law: AgeLaw, words: Array, ages: Array, num_envs: int, xp: Any) -> tuple[Array, Array]:
    """The published approximation, `ages` [..., 1].

    Slots are transitions from the oldest to the newest. Up to 2000 buckets hold ceil(size / 2000)
    consecutive slots each (the last may hold fewer), a bucket is chosen by the weight at its midpoint,
    a slot uniformly inside it. Weights are rounded down to 2^-20, so that their sums are exact.
    """
    size = ages * xp.uint32(num_envs)
    width = (size + xp.uint32(BUCKETS - 1)) // xp.uint32(BUCKETS)
    start = xp.minimum(xp.arange(BUCKETS, dtype=xp.uint32) * width, size)
    length = xp.minimum(width, size - start)
    middle = xp.minimum(start + length // xp.uint32(2), size - xp.uint32(1)) // xp.uint32(num_envs)
    bucket_age = ages - xp.uint32(1) - middle
    weight = xp.where(length > 0, _bucket_weight(law, bucket_age, xp), xp.uint32(0))
    cumulative = xp.cumsum(weight, axis=-1, dtype=xp.uint32)

    lows = words[..., 1, :]
    target = bounded(words[..., 0, :], lows & 0xFFFF, cumulative[..., -1:], xp)
    bucket = _search(cumulative, target, xp).astype(xp.uint32)
    first = bucket * width
    inside = bounded(words[..., 2, :], lows >> 16, xp.minimum(width, size - first), xp)
    slot_age, env = _split(first + inside, num_envs, xp)
    return ages.astype(xp.int32) - 1 - slot_age, env


def _bucket_weight(law: AgeLaw, age: Array, xp: Any) -> Array:
    """w(A) in units of 2^-20, uint32."""
    if law.uniform:
        return xp.full_like(age, BUCKET_UNIT)
    floor, horizon = BUCKET_UNIT * law.p // law.q, abs(law.decay_steps)
    age = xp.minimum(age, xp.uint32(horizon))
    distance = xp.uint32(horizon) - age if law.decay_steps > 0 else age
    ramp = (distance.astype(xp.float32) * xp.float32(BUCKET_UNIT / horizon)).astype(xp.uint32)
    if law.decay_steps > 0:
        return xp.maximum(ramp, xp.uint32(floor))
    return xp.minimum(ramp + xp.uint32(floor), xp.uint32(BUCKET_UNIT))


def _search(cumulative: Array, target: Array, xp: Any) -> Array:
    """For each target the first index whose cumulative sum exceeds it, row by row."""
    if cumulative.ndim == 1:
        if xp is np:
            return np.searchsorted(cumulative, target, side="right")
        return xp.searchsorted(cumulative, target, side="right", method="scan_unrolled")
    return xp.stack([_search(row, goal, xp) for row, goal in zip(cumulative, target)])
