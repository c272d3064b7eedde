"""`python -m warpsac.sim2sim POLICY.onnx`: the command alone, with nothing of the rest of the package."""

from __future__ import annotations

import sys

import tyro

from warpsac.deploy.sim2sim.command import Sim2SimOptions, command
from warpsac.errors import UserError

if __name__ == "__main__":
    try:
        sys.exit(command(tyro.cli(Sim2SimOptions, prog="python -m warpsac.sim2sim")))
    except UserError as error:
        print(f"sim2sim: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("sim2sim: interrupted", file=sys.stderr)
        sys.exit(130)
