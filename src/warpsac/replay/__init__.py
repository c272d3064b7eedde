"""Replay: the memory of SAC.

age       the age law (Sample Weight Decay) and its exact draw, once, for NumPy and JAX
ring      the ring on the device; the index and gather functions of both rings
host      the same ring in host memory
own       minibatches with a part of a learner's own steps, where several share a replay
sharded   the ring over several devices
windows   the newest stretches of experience, with which predictions are compared
words     random words for a draw

Imported by agents and training; imports no simulator and no learner.
"""
