"""Replay: the age law (`age`), the ring on the device (`ring`) and in host memory (`host`), and where it fits."""

from warpsac.replay.age import AgeLaw
from warpsac.replay.host import HostRing
from warpsac.replay.memory import choose_placement
from warpsac.replay.ring import Ring, RingSpec

__all__ = ["AgeLaw", "HostRing", "Ring", "RingSpec", "choose_placement"]
