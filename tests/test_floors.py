"""The lowest version of each dependency is one that was tested.

``python3 tools/run.py --lowest test`` installs the lowest versions and sets STREAMMIML_LOWEST;
there every version must be the one that pyproject.toml names. Elsewhere none may be lower.
"""

import os
import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
# What benchmarks compare with is installed by hand, where they are run.
EXTRAS = [name for name in PROJECT["optional-dependencies"] if name != "peers"]
REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?(>=|==)([0-9.]+)")


def requirements():
    lines = [*PROJECT["dependencies"]]
    lines += [line for extra in EXTRAS for line in PROJECT["optional-dependencies"][extra]]
    return sorted({line for line in lines if not line.startswith("streammiml[")})


def numbers(text):
    """(2, 9) of ``2.9.post0``; zeros at the end do not count."""
    parts = [int(part) for part in re.match(r"[0-9.]+", text)[0].strip(".").split(".")]
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)


@pytest.mark.parametrize("requirement", requirements())
def test_dependency__has_a_floor_or_is_pinned_and_the_floor_is_what_is_tested(requirement):
    parsed = REQUIREMENT.fullmatch(requirement)
    assert parsed, f"{requirement}: write name>=version, or name==version for tools of developers"
    name, relation, floor = parsed.groups()
    try:
        here = version(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    if relation == "==" or os.environ.get("STREAMMIML_LOWEST"):
        assert numbers(here) == numbers(floor)
    else:
        assert numbers(here) >= numbers(floor)


def test_python__has_a_floor_and_classifiers_up_to_the_newest_tested():
    assert PROJECT["requires-python"] == ">=3.11"
    known = "Programming Language :: Python :: 3."
    minors = {int(line.removeprefix(known)) for line in PROJECT["classifiers"] if known in line}
    assert minors == {11, 12, 13, 14}
