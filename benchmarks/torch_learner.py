"""The learner's update once more, in PyTorch: what `torch_update.py` compares the package's own with.

Written from the equations of docs/algorithm.md as one would write it for speed in PyTorch: rows of a minibatch lead,
the members of a critic ensemble are one batched product, losses and their gradients are compiled, Adam is the fused one
of PyTorch, EMA and moments are one call each. Random numbers come from outside, so both can be given the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

EPS_BATCH, EPS_RMS, EPS_PROJECTION = 1e-5, 1e-6, 1e-8
KEPT = 0.99  # of running moments
LOW, HIGH = -10.0, 2.0  # of log-std


@dataclass(frozen=True)
class Settings:
    """Those of an update that both have."""

    critics: int
    projection: bool
    atoms: int
    limit: float
    tau: float
    learning_rate: float
    entropy_target: float
    compute: torch.dtype


class Norm(NamedTuple):
    scale: Tensor
    bias: Tensor


class Trunk(NamedTuple):
    """Of an actor, or, with a leading axis, of all members of a critic."""

    norm_in: Norm
    w_in: Tensor  # [in, out], as all kernels
    blocks: tuple[tuple[Tensor, Norm, Tensor, Norm], ...]
    rms: Tensor
    head_w: Tensor
    head_b: Tensor

    def flat(self) -> list[Tensor]:
        blocks = [tensor for w1, norm1, w2, norm2 in self.blocks for tensor in (w1, *norm1, w2, *norm2)]
        return [*self.norm_in, self.w_in, *blocks, self.rms, self.head_w, self.head_b]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Trunk:
        norm_in, w_in, *rest = Norm(*tensors[:2]), *tensors[2:]
        *inner, rms, head_w, head_b = rest
        blocks = tuple(
            (inner[i], Norm(*inner[i + 1 : i + 3]), inner[i + 3], Norm(*inner[i + 4 : i + 6]))
            for i in range(0, len(inner), 6)
        )
        return cls(norm_in, w_in, blocks, rms, head_w, head_b)


Moments = list[tuple[Tensor, Tensor]]  # mean and variance before each BatchNorm, from the input on


def batch_norm(x: Tensor, norm: Norm, running: tuple[Tensor, Tensor] | None, used: Moments) -> Tensor:
    """Over the rows, [..., rows, features], by the given moments or those of the minibatch."""
    wide = x.float()
    if running is None:
        var, mean = torch.var_mean(wide, dim=-2, correction=0)
        used.append((mean.detach(), var.detach()))
    else:
        mean, var = running
    gain = norm.scale * torch.rsqrt(var + EPS_BATCH)
    return ((wide - mean.unsqueeze(-2)) * gain.unsqueeze(-2) + norm.bias.unsqueeze(-2)).to(x.dtype)


def forward(
    net: Trunk, x: Tensor, running: Moments | None, compute: torch.dtype, rows: slice
) -> tuple[Tensor, Moments]:
    """Outputs of the head for some rows, and the moments of the minibatch."""
    used: Moments = []
    known = iter(running) if running is not None else None

    def norm(x: Tensor, affine: Norm) -> Tensor:
        return batch_norm(x, affine, None if known is None else next(known), used)

    h = norm(x.float(), net.norm_in).to(compute) @ net.w_in.to(compute)
    for w1, norm1, w2, norm2 in net.blocks:
        y = F.relu(norm(h @ w1.to(compute), norm1))
        h = h + F.relu(norm(y @ w2.to(compute), norm2))
    wide = h[..., rows, :].float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS_RMS) * net.rms.unsqueeze(-2)
    return (y.to(compute) @ net.head_w.to(compute)).float() + net.head_b.unsqueeze(-2), used


def act(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh(mean + std noise), and its log-density."""
    mean, raw = outputs.chunk(2, dim=-1)
    log_std = LOW + (HIGH - LOW) * (1 + torch.tanh(raw)) / 2
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    return torch.tanh(u), (log_normal - 2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)


class Batch(NamedTuple):
    obs: Tensor
    action: Tensor
    reward: Tensor  # scaled
    discount: Tensor
    next_obs: Tensor


class TorchLearner:
    """Networks, optimizers and the three losses; `compiled` leaves them to torch.compile."""

    def __init__(self, settings: Settings, actor: Trunk, critic: Trunk, initial_alpha: float, compiled: bool = True):
        self.settings = settings
        device = actor.w_in.device
        self.actor = Trunk.of([tensor.clone().requires_grad_() for tensor in actor.flat()])
        self.critic = Trunk.of([tensor.clone().requires_grad_() for tensor in critic.flat()])
        self.target = Trunk.of([tensor.clone() for tensor in critic.flat()])
        self.log_alpha = torch.tensor(math.log(initial_alpha), device=device, requires_grad=True)
        self.actor_moments, self.critic_moments = (self._first_moments(net) for net in (self.actor, self.critic))
        self.support = torch.linspace(-settings.limit, settings.limit, settings.atoms, device=device)

        def adam(parameters: list[Tensor]) -> torch.optim.Adam:
            return torch.optim.Adam(parameters, lr=settings.learning_rate, eps=1e-8, fused=True)

        self._optimizers = tuple(adam(group) for group in (self.actor.flat(), self.critic.flat(), [self.log_alpha]))

        def ready(function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(function, fullgraph=True) if compiled else function

        self._actor_loss, self._critic_loss = ready(self.actor_loss), ready(self.critic_loss)
        self._target_of, self._project = ready(self.target_of), ready(self.project)

    @staticmethod
    def _first_moments(net: Trunk) -> Moments:
        sizes = [net.w_in.shape[-2], *(kernel.shape[-1] for w1, _, w2, _ in net.blocks for kernel in (w1, w2))]
        lead = net.w_in.shape[:-2]
        make = lambda number, size: torch.full((*lead, size), number, device=net.w_in.device)
        return [(make(0.0, size), make(1.0, size)) for size in sizes]

    # --- losses

    def actor_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor, Moments]:
        size, compute = len(batch.obs), self.settings.compute
        both = torch.cat([batch.obs, batch.next_obs])
        outputs, moments = forward(self.actor, both, None, compute, slice(0, size))
        action, log_prob = act(outputs, noise)
        frozen = Trunk.of([tensor.detach() for tensor in self.critic.flat()])
        values = self._values(frozen, torch.cat([batch.obs, action], dim=-1))
        return (self.log_alpha.exp().detach() * log_prob - values.amin(0)).mean(), -log_prob.detach().mean(), moments

    def _values(self, critic: Trunk, x: Tensor) -> Tensor:
        x = x.expand(self.settings.critics, *x.shape)
        logits, _ = forward(critic, x, self.critic_moments, self.settings.compute, slice(None))
        return (logits.softmax(-1) * self.support).sum(-1)

    def target_of(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """What the critic learns: the distribution of each row, [B, Z], and the inputs of both networks."""
        settings, size = self.settings, len(batch.obs)
        outputs, _ = forward(self.actor, batch.next_obs, self.actor_moments, settings.compute, slice(None))
        action, log_prob = act(outputs, noise)
        here, there = torch.cat([batch.obs, batch.action], dim=-1), torch.cat([batch.next_obs, action], dim=-1)
        x = torch.cat([here, there]).expand(settings.critics, -1, -1)
        logits, _ = forward(self.target, x, None, settings.compute, slice(size, None))
        probs = logits.softmax(-1)
        lower = (probs * self.support).sum(-1).argmin(0)
        probs = probs[lower, torch.arange(size, device=lower.device)]
        spacing = 2 * settings.limit / (settings.atoms - 1)
        bonus = -self.log_alpha.exp() * log_prob
        atoms = batch.reward[:, None] + batch.discount[:, None] * (self.support + bonus[:, None])
        place = ((atoms.clamp(-settings.limit, settings.limit) + settings.limit) / spacing).clamp(0, settings.atoms - 1)
        left = place.floor().clamp(max=settings.atoms - 2)
        share = place - left
        index = left.long()
        target = torch.zeros_like(probs).scatter_add(1, index, probs * (1 - share))
        return target.scatter_add(1, index + 1, probs * share), x

    def critic_loss(self, x: Tensor, target: Tensor) -> tuple[Tensor, Moments]:
        logits, moments = forward(self.critic, x, None, self.settings.compute, slice(0, len(target)))
        return -(target * logits.log_softmax(-1)).sum(-1).mean(), moments

    # --- what follows an optimizer's step

    def project(self, net: Trunk) -> None:
        """In place."""
        for kernel in (net.w_in, net.head_w, *(w for w1, _, w2, _ in net.blocks for w in (w1, w2))):
            kernel.div_(kernel.square().sum(-2, keepdim=True).sqrt().clamp(min=EPS_PROJECTION))
        for scale, bias in (net.norm_in, *(norm for _, norm1, _, norm2 in net.blocks for norm in (norm1, norm2))):
            squares = (scale.square() + bias.square()).sum(-1, keepdim=True)
            gain = math.sqrt(scale.shape[-1]) / (squares + EPS_PROJECTION).sqrt()
            scale.mul_(gain)
            bias.mul_(gain)
        size = net.rms.shape[-1]
        net.rms.mul_(math.sqrt(size) / (net.rms.square().sum(-1, keepdim=True) + EPS_PROJECTION).sqrt())

    def _after_step(self, net: Trunk, running: Moments, moments: Moments) -> None:
        if self.settings.projection:
            self._project(net)
        flat = [[tensor for pair in one for tensor in pair] for one in (running, moments)]
        torch._foreach_lerp_(*flat, 1 - KEPT)

    # --- one update

    def update(self, batch: Batch, noise: Tensor, actor_turn: bool) -> Tensor:
        """`noise` is [2, B, A], for the actor's and the critic's part; returns the critic's loss."""
        actor_adam, critic_adam, alpha_adam = self._optimizers
        if actor_turn:
            loss, entropy, moments = self._actor_loss(batch, noise[0])
            loss.backward()
            actor_adam.step()
            actor_adam.zero_grad()
            with torch.no_grad():
                self._after_step(self.actor, self.actor_moments, moments)
                self.log_alpha.grad = self.log_alpha.exp() * (entropy - self.settings.entropy_target)
            alpha_adam.step()
        with torch.no_grad():
            target, x = self._target_of(batch, noise[1])
        loss, moments = self._critic_loss(x, target)
        loss.backward()
        critic_adam.step()
        critic_adam.zero_grad()
        with torch.no_grad():
            self._after_step(self.critic, self.critic_moments, moments)
            torch._foreach_lerp_(self.target.flat(), self.critic.flat(), self.settings.tau)
        return loss.detach()
