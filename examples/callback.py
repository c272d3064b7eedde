"""A callback: told of every evaluation, it keeps a list of its own and ends training when the policy is good enough.

python examples/callback.py                                         train until a return of 9000
warpsac train InvertedDoublePendulum-v5 --profile demo --callback callback:StopWhenGood      from this folder
"""

from __future__ import annotations

import sys
from typing import Any

from warpsac import Callback
from warpsac.runs.callbacks import RunView


class StopWhenGood(Callback):
    def __init__(self, enough: float = 9000.0):
        self.enough = enough
        self.returns: list[float] = []

    def on_evaluation(self, run: RunView, row: dict[str, Any]) -> None:
        self.returns.append(row["eval/return"])
        if self.returns[-1] >= self.enough:
            run.stop(f"a return of {self.returns[-1]:.0f} is good enough")

    def on_end(self, run: RunView, reason: str) -> None:
        run.message(f"{reason}: returns {', '.join(f'{one:.0f}' for one in self.returns)}")


if __name__ == "__main__":
    from warpsac import train

    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    told = StopWhenGood()
    outcome = train(
        "InvertedDoublePendulum-v5", profile="demo", total_steps=steps, learning_starts=min(500, steps // 2),
        eval={"every": steps // 2}, callbacks=[told],
    )  # fmt: skip
    print(f"trained: {outcome.runs[0]}, {len(told.returns)} evaluations")
