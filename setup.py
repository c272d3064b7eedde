"""What pyproject.toml cannot say: a wheel carries trained policies, and its long description has absolute links.

The policies are those that pretrained.csv names, copied from where the repository keeps them. Of a run folder a wheel
takes what acting needs: settings, provenance, evaluations and the arrays of the policy.
"""

import csv
import re
import shutil
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
TABLE, TRAINED = HERE / "src/warpsac/runs/pretrained.csv", HERE / "results/trained"
CARRIED = ("config.json", "meta.json", "evaluations.csv", "*/step_*/manifest.json", "*/step_*/policy.npz")


class WithPolicies(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # a checkout reads them where they are
        with open(TABLE, encoding="utf-8", newline="") as file:
            runs = [TRAINED / row["run"] for row in csv.DictReader(file)]
        for source in (path for run in runs for pattern in CARRIED for path in sorted(run.glob(pattern))):
            target = Path(self.build_lib, "warpsac/runs/pretrained", source.relative_to(TRAINED))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def long_description() -> str:
    """README.md as an index shows it: links and pictures lead to the files of this version in the repository."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository, tag = project["urls"]["Repository"], f"v{project['version']}"

    def absolute(link: re.Match[str]) -> str:
        text, target = link.groups()
        kind = "raw" if text.startswith("!") else "tree" if (HERE / target).is_dir() else "blob"
        return f"{text}({repository}/{kind}/{tag}/{target})"

    readme = (HERE / "README.md").read_text(encoding="utf-8")
    return re.sub(r"(!?\[[^\]]*\])\((?!https?:|#)([^)]+)\)", absolute, readme)


setup(
    cmdclass={"build_py": WithPolicies},
    long_description=long_description(),
    long_description_content_type="text/markdown",
)
