"""One update of the learner written as plainly as possible, to check the fast one against.

Float64 NumPy, loops over members and samples, gradients as difference quotients of the losses: no
automatic differentiation, no fused formulas, no packed parameters, no code of the package. Slow, so only
for networks of a few hundred parameters.

A network is {"norm_in": (scale, bias), "w_in", "blocks": [{"w1", "norm1", "w2", "norm2"}], "rms", "head_w",
"head_b"}, an ensemble a list of them, the moments of a network a list of (mean, variance) in the order of
its BatchNorms. `plain` brings the package's state into this form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

STEP = 1e-6  # of the difference quotients

Net = dict[str, Any]
Moments = list[tuple[np.ndarray, np.ndarray]]


def plain_network(net: Any) -> Net:
    def affine(norm: Any) -> tuple[Any, Any]:
        return (norm.scale, norm.bias)

    trunk = net.trunk
    return {
        "norm_in": affine(trunk.norm_in),
        "w_in": trunk.w_in,
        "blocks": [{"w1": b.w1, "norm1": affine(b.norm1), "w2": b.w2, "norm2": affine(b.norm2)} for b in trunk.blocks],
        "rms": trunk.rms,
        "head_w": net.head_w,
        "head_b": net.head_b,
    }


def plain_moments(trunk: Any) -> Moments:
    norms = [trunk.norm_in] + [norm for pair in trunk.blocks for norm in pair]
    return [(norm.mean, norm.var) for norm in norms]


def plain(learner: Any) -> dict[str, Any]:
    """A learner state of the package, unpacked, in float64."""
    count = learner.critic.head_w.shape[0]

    def members(tree: Any) -> list[Any]:
        return [jax.tree.map(lambda x, c=c: x[c], tree) for c in range(count)]

    def adam(state: Any, of: Callable[[Any], Any]) -> dict[str, Any]:
        return {"count": state.count, "mu": of(state.mu), "nu": of(state.nu)}

    state = {
        "actor": plain_network(learner.actor),
        "actor_moments": plain_moments(learner.actor_moments),
        "critic": members(plain_network(learner.critic)),
        "critic_moments": members(plain_moments(learner.critic_moments)),
        "target": members(plain_network(learner.target)),
        "log_alpha": learner.log_alpha,
        "actor_adam": adam(learner.actor_adam, plain_network),
        "critic_adam": adam(learner.critic_adam, lambda tree: members(plain_network(tree))),
        "alpha_adam": adam(learner.alpha_adam, lambda tree: tree),
        "updates": learner.updates,
        "first_bad": learner.first_bad,
    }
    return jax.tree.map(lambda x: np.array(x, np.float64), state)


def numerical_gradient(loss: Callable[[Any], float], params: Any) -> Any:
    """d loss / d params, one parameter at a time."""
    leaves, structure = jax.tree.flatten(params)
    leaves = [np.array(leaf) for leaf in leaves]
    gradients = [np.zeros_like(leaf) for leaf in leaves]
    moved = jax.tree.unflatten(structure, leaves)
    for leaf, gradient in zip(leaves, gradients, strict=True):
        for index in np.ndindex(leaf.shape):
            value = leaf[index]
            leaf[index] = value + STEP
            above = loss(moved)
            leaf[index] = value - STEP
            below = loss(moved)
            leaf[index] = value
            gradient[index] = (above - below) / (2 * STEP)
    return jax.tree.unflatten(structure, gradients)


# --- networks


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def softmax(logits: np.ndarray) -> np.ndarray:
    weight = np.exp(logits - logits.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


def network(net: Net, x: np.ndarray, running: Moments | None) -> tuple[np.ndarray, Moments]:
    """The head's output, with the running moments or (None) in training mode, and the moments used."""
    used: Moments = []

    def batch_norm(x: np.ndarray, affine: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        if running is None:
            mean = x.mean(0)
            var = ((x - mean) ** 2).mean(0)
        else:
            mean, var = running[len(used)]
        used.append((mean, var))
        scale, bias = affine
        return (x - mean) / np.sqrt(var + 1e-5) * scale + bias

    x = batch_norm(x, net["norm_in"]) @ net["w_in"]
    for block in net["blocks"]:
        y = relu(batch_norm(x @ block["w1"], block["norm1"]))
        x = x + relu(batch_norm(y @ block["w2"], block["norm2"]))
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * net["rms"]
    return x @ net["head_w"] + net["head_b"], used


def gaussian(actor: Net, obs: np.ndarray, running: Moments | None) -> tuple[np.ndarray, np.ndarray, Moments]:
    """Mean and standard deviation before tanh."""
    out, moments = network(actor, obs, running)
    mean, raw = np.split(out, 2, axis=-1)
    return mean, np.exp(-10 + 12 * (1 + np.tanh(raw)) / 2), moments


def squash(mean: np.ndarray, std: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Action and log-density: that of u, divided by the slope of tanh at u, 1 / cosh(u)^2."""
    u = mean + std * noise
    log_normal = -0.5 * noise**2 - np.log(std) - 0.5 * math.log(2 * math.pi)
    return np.tanh(u), (log_normal + 2 * np.log(np.cosh(u))).sum(-1)


def fold(running: Moments, batch: Moments) -> Moments:
    return [(0.99 * m + 0.01 * mb, 0.99 * v + 0.01 * vb) for (m, v), (mb, vb) in zip(running, batch, strict=True)]


# --- projection, unit by unit


def project(net: Net) -> Net:
    def unit_columns(kernel: np.ndarray) -> np.ndarray:
        return np.stack([w / max(math.sqrt((w**2).sum()), 1e-8) for w in kernel.T], axis=1)

    def affine(norm: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        scale, bias = norm
        gain = math.sqrt(len(scale)) / math.sqrt((scale**2 + bias**2).sum() + 1e-8)
        return scale * gain, bias * gain

    return {
        "norm_in": affine(net["norm_in"]),
        "w_in": unit_columns(net["w_in"]),
        "blocks": [
            {
                "w1": unit_columns(b["w1"]), "norm1": affine(b["norm1"]),
                "w2": unit_columns(b["w2"]), "norm2": affine(b["norm2"]),
            }
            for b in net["blocks"]
        ],
        "rms": net["rms"] * math.sqrt(len(net["rms"])) / math.sqrt((net["rms"] ** 2).sum() + 1e-8),
        "head_w": unit_columns(net["head_w"]),
        "head_b": net["head_b"],
    }  # fmt: skip


# --- losses


def onto_support(probs: np.ndarray, atoms: np.ndarray, support: np.ndarray) -> np.ndarray:
    """[B, Z]: each atom's mass goes to the two support points around it, in proportion to their nearness."""
    out = np.zeros_like(probs)
    spacing = support[1] - support[0]
    for b in range(probs.shape[0]):
        for i in range(probs.shape[1]):
            position = (atoms[b, i] - support[0]) / spacing
            below = min(max(math.floor(position), 0), len(support) - 2)
            out[b, below] += probs[b, i] * (below + 1 - position)
            out[b, below + 1] += probs[b, i] * (position - below)
    return out


def adam(params: Any, gradient: Any, state: dict[str, Any], rate: float) -> tuple[Any, dict[str, Any]]:
    count = int(state["count"]) + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], gradient)
    nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, state["nu"], gradient)

    def step(p: np.ndarray, m: np.ndarray, v: np.ndarray) -> np.ndarray:
        return p - rate * (m / (1 - 0.9**count)) / (np.sqrt(v / (1 - 0.999**count)) + 1e-8)

    return jax.tree.map(step, params, mu, nu), {"count": np.float64(count), "mu": mu, "nu": nu}


# --- the update


def update(
    agent: Any, state: dict[str, Any], batch: Any, reward_scale: float, noise: np.ndarray, actor_turn: bool
) -> tuple[dict[str, Any], dict[str, float]]:
    """`noise` is [2, B, A]: that of the actor's own action, and that of a'."""
    batch = jax.tree.map(lambda x: np.array(x, np.float64), batch)
    noise = np.array(noise, np.float64)
    high, low = agent.config.learning_rate, agent.config.final_learning_rate

    def rate(updates: int) -> float:
        return low + (high - low) * 0.5 * (1 + math.cos(math.pi * min(updates / agent.horizon_updates, 1.0)))

    made = int(state["updates"])
    metrics: dict[str, float] = {}
    if actor_turn:
        own = sum(update % agent.config.policy_delay == 0 for update in range(made))
        state, metrics = update_actor(agent, state, batch, noise[0], rate(own))
    state, more = update_critic(agent, state, batch, reward_scale, noise[1], rate(made))
    return state | {"updates": state["updates"] + 1}, metrics | more


def update_actor(
    agent: Any, state: dict[str, Any], batch: Any, noise: np.ndarray, rate: float
) -> tuple[dict[str, Any], dict[str, float]]:
    config, size = agent.config, len(batch.obs)
    support = np.linspace(-config.value_limit, config.value_limit, config.atoms)
    following = batch.next_obs if batch.following is None else batch.following
    both = np.concatenate([agent.views.actor(batch.obs), agent.views.actor(following)])
    alpha = math.exp(state["log_alpha"])

    def forward(actor: Net) -> tuple[float, np.ndarray, Moments, float]:
        mean, std, moments = gaussian(actor, both, None)
        action, log_prob = squash(mean[:size], std[:size], noise)
        x = np.concatenate([agent.views.critic(batch.obs), action], axis=1)
        values = [
            (softmax(network(critic, x, running)[0]) * support).sum(-1)
            for critic, running in zip(state["critic"], state["critic_moments"], strict=True)
        ]
        action_rate = np.mean((np.tanh(mean[size:]) - np.tanh(mean[:size])) ** 2)
        value = (alpha * log_prob - np.min(values, axis=0)).mean() + config.action_rate_weight * action_rate
        return value, log_prob, moments, action_rate

    value, log_prob, moments, action_rate = forward(state["actor"])
    gradient = numerical_gradient(lambda actor: forward(actor)[0], state["actor"])
    actor, actor_adam = adam(state["actor"], gradient, state["actor_adam"], rate)
    entropy = -log_prob.mean()
    wanted = 0.5 * agent.action_dim * math.log(2 * math.pi * math.e * config.target_std**2)
    slope = numerical_gradient(lambda log_alpha: np.exp(log_alpha) * (entropy - wanted), state["log_alpha"])
    log_alpha, alpha_adam = adam(state["log_alpha"], slope, state["alpha_adam"], rate)
    changes = {
        "actor": project(actor) if config.projection else actor,
        "actor_adam": actor_adam,
        "actor_moments": fold(state["actor_moments"], moments),
        "log_alpha": log_alpha,
        "alpha_adam": alpha_adam,
    }
    metrics = {"loss/actor": value, "policy/entropy": entropy, "policy/alpha": alpha}
    return state | changes, metrics | ({"policy/action_rate": action_rate} if config.action_rate_weight else {})


def update_critic(
    agent: Any, state: dict[str, Any], batch: Any, reward_scale: float, noise: np.ndarray, rate: float
) -> tuple[dict[str, Any], dict[str, float]]:
    config, size, limit = agent.config, len(batch.obs), agent.config.value_limit
    support = np.linspace(-limit, limit, config.atoms)
    mean, std, _ = gaussian(state["actor"], agent.views.actor(batch.next_obs), state["actor_moments"])
    next_action, log_prob = squash(mean, std, noise)
    now = np.concatenate([agent.views.critic(batch.obs), batch.action], axis=1)
    then = np.concatenate([agent.views.critic(batch.next_obs), next_action], axis=1)
    both = np.concatenate([now, then])

    candidates = [softmax(network(target, both, None)[0][size:]) for target in state["target"]]
    probs = np.zeros((size, config.atoms))
    for b in range(size):
        probs[b] = min((member[b] for member in candidates), key=lambda p: (p * support).sum())
    shifted = support - math.exp(state["log_alpha"]) * log_prob[:, None]
    atoms = np.clip(reward_scale * batch.reward[:, None] + batch.discount[:, None] * shifted, -limit, limit)
    goal = onto_support(probs, atoms, support)

    def loss(critic: Net) -> float:
        """The member's part of the mean over members and batch."""
        logits = network(critic, both, None)[0][:size]
        return -(goal * np.log(softmax(logits))).sum(-1).mean() / len(state["critic"])

    gradient = [numerical_gradient(loss, critic) for critic in state["critic"]]
    critics, critic_adam = adam(state["critic"], gradient, state["critic_adam"], rate)
    if config.projection:
        critics = [project(critic) for critic in critics]
    changes = {
        "critic": critics,
        "critic_adam": critic_adam,
        "critic_moments": [
            fold(running, network(critic, both, None)[1])
            for critic, running in zip(state["critic"], state["critic_moments"], strict=True)
        ],
        "target": jax.tree.map(lambda t, c: (1 - config.tau) * t + config.tau * c, state["target"], critics),
    }
    return state | changes, {
        "loss/critic": sum(loss(critic) for critic in state["critic"]),
        "value/mean": (goal * support).sum(-1).mean(),
        "value/edge_low": goal[:, 0].mean(),
        "value/edge_high": goal[:, -1].mean(),
    }
