"""The panel of the viewer: numbers, buttons, sliders and keys. It only passes orders on to the session."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import viser

if TYPE_CHECKING:
    from warpsac.watch.viewer.session import Session, Status

SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
AXES = (("ahead", "m/s"), ("left", "m/s"), ("turn left", "rad/s"))
KEYS = {
    "ahead": ("W", "S", "arrowup", "arrowdown"),
    "left": ("Q", "E"),
    "turn left": ("A", "D", "arrowleft", "arrowright"),
}
PRESSES = 4  # of a key, from standing still to the fastest


class Page:
    """The panel, the same on every page that is open."""

    def __init__(self, server: viser.ViserServer, task: str, agent: str):
        self._server, self._gui = server, server.gui
        self._gui.set_panel_label("warpsac")
        self._heading = f"<b>{html.escape(task)}</b><br>{html.escape(agent)}"
        self._numbers = self._gui.add_html(self._table([("simulator", "preparing")]))
        self._sliders: list[Any] = []

    @property
    def watched(self) -> bool:
        return bool(self._server.get_clients())

    def offer(self, session: Session) -> None:
        """Add what orders are given with."""
        self._session, view = session, session.view
        orders = {"pause": session.pause, "step": session.single_step, "reset": session.reset}
        self._buttons("simulation", orders, ("space", "N", "R"))
        self._buttons(
            "speed", {f"{speed:g}".lstrip("0"): partial(session.set_speed, speed) for speed in SPEEDS}, "123456"
        )
        if view.follow is not None:
            self._buttons("camera", {"follow": view.switch_follow, "home": view.camera_home}, ("F", "H"))
        command = session.command()
        if command is not None:
            orders = {"task's": partial(self._steer, None), "stand still": partial(self._steer, np.zeros(3))}
            self._buttons("command", orders, ("T", "X"))
            for axis, ((name, unit), low, high) in enumerate(zip(AXES, command.low.tolist(), command.high.tolist())):
                slider = self._gui.add_slider(f"{name}, {unit}", low, high, 0.01, min(max(0.0, low), high))
                self._sliders.append(slider)
                self._on(slider.on_update, partial(self._change, axis, 0.0))
                for key, sign in zip(KEYS[name], (1, -1, 1, -1)):
                    by = sign * max(-low, high) / PRESSES
                    self._on_key(f"{name} {by:+g}", key, partial(self._change, axis, 1.0, by))
        self._server.on_client_connect(lambda client: session.orders.put(session.show))

    def show(self, status: Status) -> None:
        """Bring numbers and sliders up to date."""
        asked = f" (of {status.speed:g}x)" if status.speed != 1 or status.pace < 0.9 else ""
        rows = [("return", f"{status.total:.2f}")] if status.rewards else []
        rows += [
            ("step", f"{status.step} ({status.step / status.hz:.1f} s)"),
            ("episode", f"{status.episode}"),
            ("speed", "paused" if status.paused else f"{status.pace:.2f}x{asked}"),
        ]
        if status.velocity is not None:
            rows += [(name, f"{value:+.2f} {unit}") for (name, unit), value in zip(AXES, status.velocity)]
        if status.ended:
            returns, lengths = np.array(status.ended).T
            if status.rewards:
                rows += [("last episodes", _bars(returns)), ("mean return", f"{returns.mean():.2f}")]
            rows += [("mean length", f"{lengths.mean():.0f}")]
        self._numbers.content = self._table(rows)
        if status.command is not None and not status.steered:
            self._set_sliders(status.command)

    def _steer(self, command: np.ndarray | None) -> None:
        self._set_sliders(self._session.steer(command))

    def _change(self, axis: int, keep: float, by: float) -> None:
        """Set one number of the command, or with `keep` change it."""
        command = np.array(self._session.status.command)
        command[axis] = keep * command[axis] + by
        self._steer(command)

    def _set_sliders(self, command: np.ndarray) -> None:
        for slider, value in zip(self._sliders, command.tolist()):
            slider.value = min(max(value, slider.min), slider.max)

    def _buttons(self, label: str, orders: dict[str, Callable[[], None]], keys: Sequence[Any]) -> None:
        group = self._gui.add_button_group(label, tuple(orders), hint=f"keys: {', '.join(keys)}")
        self._on(group.on_click, lambda name: orders.get(name, lambda: None)())
        for key, (name, order) in zip(keys, orders.items()):
            self._on_key(f"{label}: {name}", key, order)

    def _on_key(self, label: str, key: Any, order: Callable[[], None]) -> None:
        self._on(self._gui.add_command(label, hotkey=key).on_trigger, lambda _: order())

    def _on(self, register: Callable[..., Any], order: Callable[[Any], None]) -> None:
        """Let an event put an order, with the value that a page has set; what is set from here is no event."""

        async def put(event: Any) -> None:  # in viser's event loop, so that orders keep their order
            if event.client is not None:
                self._session.orders.put(partial(order, getattr(event.target, "value", None)))

        register(put)

    def _table(self, rows: list[tuple[str, str]]) -> str:
        cells = "".join(f"<tr><td style='opacity:.6'>{name}</td><td>{value}</td></tr>" for name, value in rows)
        return f"<div style='padding:0 1em'>{self._heading}<table style='border-spacing:.8em 0'>{cells}</table></div>"


def _bars(values: np.ndarray) -> str:
    """A bar for each value, in its sign's colour."""
    heights = 2 + 22 * np.abs(values) / (np.abs(values).max() or 1.0)
    bar = "<i style='display:inline-block;width:6px;margin-right:2px;height:{:.0f}px;background:{}'></i>"
    return "".join(bar.format(*each) for each in zip(heights, np.where(values < 0, "#d9822b", "#3b82c4")))
