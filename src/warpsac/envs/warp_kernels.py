"""The kernels of MuJoCo-Warp, compiled side by side before a simulator needs the first.

Warp compiles a kernel where it is first launched: one after the other, a minute of processor time for a humanoid, while
the GPU and all other cores wait. Which kernels a model needs is known before: `launched` makes a step of the model in
Python with launches that only take note of their kernel, in a fraction of a second. `load` then compiles and loads them
in threads; what Warp keeps on disk from an earlier start is read from there.

Nothing depends on it but time: a kernel that was not foreseen is compiled where it is launched, as ever.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np


class Needed(NamedTuple):
    module: Any  # of Warp: what is compiled in one piece
    block_dim: int  # threads of a block that it is compiled for


def of_playground(environment: Any, device: Any) -> list[Needed]:
    """What a step of an MjxEnv on Warp launches, with the options that MJX gives its model."""
    import warp
    from mujoco.mjx.third_party import mujoco_warp

    model, options, settings = environment.mj_model, environment.mjx_model.opt._impl, environment._config
    sizes = {name: settings[name] for name in ("naconmax", "njmax") if settings.get(name)}

    def step() -> None:
        own = mujoco_warp.put_model(model)
        for name, value in vars(options).items():
            if isinstance(value, bool | int) and hasattr(own.opt, name):
                setattr(own.opt, name, value)
        mujoco_warp.step(own, mujoco_warp.make_data(model, nworld=1, **sizes))

    calls: Any = warp.get_module("mujoco.mjx.warp.ffi")  # it has no kernels, and is loaded by every call
    return [*launched(step, device), Needed(calls, calls.options["block_dim"])]


def of_mjlab(simulation: Any) -> list[Needed]:
    """What a step of MJLab's Simulation launches, and a reset."""
    import mujoco_warp
    import warp

    model, settings = simulation.mj_model, simulation.cfg

    def step() -> None:
        own = mujoco_warp.put_model(model)
        settings.apply_wp_opt(own.opt)
        data = mujoco_warp.make_data(model, nworld=1, nconmax=settings.nconmax, njmax=settings.njmax)
        mujoco_warp.step(own, data)
        mujoco_warp.reset_data(own, data, reset=warp.zeros(1, dtype=bool))  # of chosen environments

    return launched(step, simulation.wp_device)


def load_in_time(needed: Callable[[], tuple[Sequence[Needed], Any]]) -> Callable[[], None]:
    """Begin to load what is needed on a device; the result waits until it is there."""
    import warp

    if not hasattr(warp.config, "load_module_max_workers"):  # earlier versions cannot compile in several threads
        return lambda: None
    try:
        return load(*needed())
    except Exception:
        # It looks into packages that may change. Whatever is wrong with the model is said where it is simulated.
        return lambda: None


def launched(step: Callable[[], None], device: Any) -> list[Needed]:
    """What a function would launch, the slowest to compile first; it computes nothing meanwhile."""
    import warp

    found: dict[Needed, None] = {}  # a set that keeps the order

    def launch(kernel: Any, dim: Any, *_: Any, block_dim: int | None = None, **__: Any) -> None:
        if np.prod(dim) > 0:  # Warp does not load what it need not launch
            found[Needed(kernel.module, block_dim or kernel.module.options["block_dim"])] = None

    def both(_: Any, on_true: Any = None, on_false: Any = None, **arguments: Any) -> None:
        for branch in (on_true, on_false):
            if branch is not None:
                branch(**arguments)

    def once(_: Any, while_body: Any, **arguments: Any) -> None:
        while_body(**arguments)

    def block_size(kernel: Any, device: Any = None) -> tuple[int, int]:
        return 256, 1

    # Loops and branches on the device, and the question about a kernel that would compile it.
    stand_ins: dict[str, Callable[..., Any]] = {
        "launch": launch, "launch_tiled": launch, "capture_if": both, "capture_while": once,
        "get_suggested_block_size": block_size,
    }  # fmt: skip
    with _replaced(warp, stand_ins), warp.ScopedDevice(device):
        step()
    # Those with blocks of their own multiply and factorise matrices or look for contacts, in long unrolled code; after
    # them those of many kernels.
    return sorted(found, key=lambda one: (one.block_dim == one.module.options["block_dim"], -len(one.module.kernels)))


@contextlib.contextmanager
def _replaced(owner: Any, stand_ins: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Other functions, for this thread alone."""
    kept, here = {name: getattr(owner, name) for name in stand_ins}, threading.get_ident()

    def either(own: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: (stand_in if threading.get_ident() == here else own)(*given, **named)

    try:
        for name, own in kept.items():
            setattr(owner, name, either(own, stand_ins[name]))
        yield
    finally:
        for name, own in kept.items():
            setattr(owner, name, own)


_LOADING: dict[tuple[str, Needed], Future[Any]] = {}  # on a device; once for training and evaluation


@functools.cache
def _threads() -> ThreadPoolExecutor:
    threads = ThreadPoolExecutor(os.cpu_count(), "warp-kernels")
    # Before Python waits for threads: what has not begun is given up.
    threading._register_atexit(threads.shutdown, wait=False, cancel_futures=True)  # type: ignore[attr-defined]
    return threads


def load(modules: Sequence[Needed], device: Any) -> Callable[[], None]:
    """Compile and load them in threads: Python waits while compilers work. The result waits for all."""
    import warp

    loading = []
    for one in modules:
        key = str(device), one
        if key not in _LOADING:
            load_one = functools.partial(warp.force_load, device, [one.module], one.block_dim, max_workers=0)
            _LOADING[key] = _threads().submit(load_one)
        loading.append(_LOADING[key])

    def ready() -> None:
        wait(loading)  # what failed fails again, with its reason, where it is launched

    return ready
