"""ARCHITECTURE.md names files and functions that exist, and every folder; so does SECURITY.md."""

import ast
import re
from pathlib import Path

import pytest

from streammiml.tell.guide import guide

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "streammiml" / "ARCHITECTURE.md").read_text()
SECURITY = (ROOT / "streammiml" / "SECURITY.md").read_text()
PATH = re.compile(r"`((?:[\w.]+/)*[\w.]+\.(?:py|md|html)|(?:[\w.]+/)+)(?::([\w.]+))?`")


def resolved(path):
    top = path.split("/")[0]
    return ROOT / path if top in ("tools", "tests", "streammiml") else ROOT / "streammiml" / path


def names_in(path):
    """Functions and classes of a module, and methods as Class.method."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{node.name}.{inner.name}"


def words_of(text):
    """The table of words of a page."""
    return re.search(r"\| word \| meaning \|\n(.*?)\n\n", text, re.S)[1]


def test_architecture__has_the_words_of_the_glossary():
    assert words_of(TEXT) == words_of(guide("glossary"))


@pytest.mark.parametrize(("path", "name"), sorted(set(PATH.findall(TEXT))))
def test_architecture__names_what_exists(path, name):
    assert resolved(path).exists()
    assert not name or name in names_in(resolved(path))


@pytest.mark.parametrize("path", sorted({path for path, _ in PATH.findall(SECURITY)}))
def test_security__names_files_that_exist(path):
    assert resolved(path).exists()


def test_architecture__names_in_parentheses_are_in_the_file_before_them():
    pairs = re.findall(r"`([\w/]+\.py)` \(`(\w+)`", TEXT)
    assert len(pairs) > 5
    for path, name in pairs:
        assert re.search(rf"\b{name}\b", resolved(path).read_text()), (path, name)


def test_architecture__has_every_folder_in_the_order_of_the_pipe():
    listed = re.search(r"```\n(.*?)\n```", TEXT, re.S)[1].split()
    folders = [f"{path.parent.name}/" for path in sorted(ROOT.glob("streammiml/*/__init__.py"))]
    assert [name for name in listed if name.endswith("/")] == folders
    for folder in (*folders, "tools/readers/", "tools/convert/", "tools/corpora/"):
        assert f"| `{folder}` |" in TEXT
