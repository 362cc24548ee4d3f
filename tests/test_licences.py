"""Licences of what a plain install brings are permissive, or named in the README."""

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SECTION = (ROOT / "README.md").read_text().partition("\n## Licence\n")[2].partition("\n## ")[0]
DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
# As SPDX writes them, and as older packages and classifiers do.
PERMISSIVE = {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "MIT", "Zlib"}
PERMISSIVE |= {"Apache Software License", "BSD", "BSD License", "MIT License"}


def licences_of(facts):
    """Every licence that the metadata of a package names: its expression, else older fields."""
    # Older packages have an expression, or a name, in the field that others fill with a whole text.
    text = facts.get("License-Expression") or facts.get("License") or ""
    if text and len(text) < 60:
        return set(re.split(r" AND | OR |[()]", text)) - {""}
    classifiers = facts.get_all("Classifier") or []
    return {line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")}


def unnamed(name, licences, section):
    """Licences of a package that are neither permissive nor beside its name in the section."""
    lines = section.replace("\n", " ").split(";")
    beside = " ".join(line for line in lines if f"`{name}`" in line)
    return {licence for licence in licences if licence not in PERMISSIVE and licence not in beside}


@pytest.mark.parametrize("requirement", DEPENDENCIES)
def test_licences__of_every_dependency_are_permissive_or_named_in_the_readme(requirement):
    name = re.match(r"[\w.-]+", requirement)[0]
    licences = licences_of(metadata(name))
    assert licences, f"the metadata of {name} names no licence"
    assert not unnamed(name, licences, SECTION), f"README's Licence section must name {name}"


def test_licences__one_that_is_not_permissive_must_stand_beside_its_package():
    section = "All are permissive but `one` (GPL-3.0-only); `other`, under LGPL-2.1-or-later."
    assert not unnamed("one", {"MIT", "GPL-3.0-only"}, section)
    assert unnamed("one", {"LGPL-2.1-or-later"}, section) == {"LGPL-2.1-or-later"}
    assert unnamed("third", {"GPL-3.0-only"}, section) == {"GPL-3.0-only"}


def test_licences__the_project_is_under_the_licence_that_the_readme_says():
    assert "streammiml is under the [MIT licence](LICENSE)" in SECTION
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")
