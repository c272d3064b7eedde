"""Random words for replay: the Threefry-2x32 generator (20 rounds), written out for XLA to fuse.

`jax.random.bits` on a JAX key would do, but it spends a whole evaluation on each 32-bit word and, on a CPU,
runs it as a loop of small kernels: more time than all the rest of a draw. Here one evaluation yields two
words, and the compiler works it into the arithmetic that uses them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from warpsac.types import Array

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry(key: tuple[Array, Array], counter: tuple[Array, Array]) -> tuple[Array, Array]:
    """Two random words for each pair of counters; uint32 throughout (Salmon et al. 2011)."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY))
    x, y = counter[0] + schedule[0], counter[1] + schedule[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x = x + y
            y = ((y << rotation) | (y >> (32 - rotation))) ^ x
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def random_words(keys: Array, words: int, batch_size: int) -> Array:
    """uint32 [S, words, batch_size] from JAX keys [S], each good for one call."""
    data = jax.random.key_data(keys).astype(jnp.uint32)
    pairs = data.reshape(data.shape[0], -1, 2)  # two words for JAX's default generator, four for others
    key = pairs[:, 0]
    for extra in range(1, pairs.shape[1]):
        key = key ^ pairs[:, extra]
    sample = jnp.arange(batch_size, dtype=jnp.uint32)
    drawn = [
        word
        for draw in range((words + 1) // 2)
        for word in threefry((key[:, :1], key[:, 1:]), (sample, jnp.uint32(draw)))
    ]
    return jnp.stack(drawn[:words], axis=1)
