"""Fine-tuning: begin with the networks of another run, on a task that has changed.

python examples/fine_tune.py                                        a pendulum learned before, now with a heavier pole
python examples/fine_tune.py 4000 runs/earlier-run                  from a run folder of your own

Here the source is a policy that comes with the package, of which only the actor is there: the critics start untrained,
and in the first steps the actor already acts to fill replay. From the shell: warpsac train TASK --init-from RUN, or
--init-from pretrained:NAME.
"""

from __future__ import annotations

import sys

import gymnasium

TASK = "InvertedDoublePendulum-v5"


def heavier(factor: float = 2.0) -> gymnasium.Env:
    """The same observations and actions, another robot: the upper pole weighs more."""
    env = gymnasium.make(TASK)
    model = env.unwrapped.model
    model.body("pole2").mass *= factor
    return env


if __name__ == "__main__":
    from warpsac import train

    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    source = sys.argv[2] if len(sys.argv) > 2 else f"pretrained:{TASK}"
    outcome = train(
        env=heavier, num_envs=1, profile="demo", init_from=source, total_steps=steps,
        learning_starts=min(1000, steps // 2), eval={"every": steps // 2},
    )  # fmt: skip
    print(f"trained: {outcome.runs[0]}")
