"""Files that a platform shows beside the code: their links lead somewhere, their facts are true."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".github"


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_pages__link_to_files_that_exist(name):
    for link in re.findall(r"\]\(([^)#]+)", (FOLDER / name).read_text()):
        assert (FOLDER / link).exists(), link


def test_contributing__names_jobs_and_modules_that_exist():
    text = (FOLDER / "CONTRIBUTING.md").read_text()
    jobs = set(re.findall(r"python3 tools/run\.py (\w+)", text))
    assert jobs == {"test", "exec", "docs"}
    for module in re.findall(r"python -m (tests\.\w+|benchmarks|streammiml_tools[\w.]+)", text):
        path = ROOT / module.replace("streammiml_tools", "tools").replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_citation__has_the_version_and_licence_of_the_project():
    text = (FOLDER / "CITATION.cff").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"\nversion: {project['version']}\n" in text
    assert f"\nlicense: {project['license']}\n" in text
    assert "Fast Multi-Instance Multi-Label Learning" in text
