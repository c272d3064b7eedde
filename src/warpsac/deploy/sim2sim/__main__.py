"""`python -m warpsac.deploy.sim2sim POLICY.onnx`: the command alone, without the rest of the package."""

from __future__ import annotations

import sys

from warpsac.config.loading import parse
from warpsac.deploy.sim2sim.command import Sim2SimOptions, command
from warpsac.errors import UserError

if __name__ == "__main__":
    try:
        sys.exit(command(parse(Sim2SimOptions, sys.argv[1:], "python -m warpsac.deploy.sim2sim")))
    except UserError as error:
        print(f"sim2sim: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("sim2sim: interrupted", file=sys.stderr)
        sys.exit(130)
