"""Pages of the guide are there, with one title; special words come after a way to look them up."""

import re
from pathlib import Path

import pytest

from streammiml.errors import StreammimlError
from streammiml.tell.guide import PAGES, guide, title
from tests.reading import prose_of, reading_ease

README = Path(__file__).parent.parent.parent / "README.md"
WRITTEN = [name for name, path in PAGES.items() if path.startswith("guide/")]
SPECIAL = (
    "bag",
    "block",
    "calibration",
    "chunk",
    "dummy",
    "fingerprint",
    "kept column",
    "key instance",
    "lift",
    "look",
    "manifest",
    "margin",
    "replica",
    "shared space",
    "store",
    "sub-concept",
    "variance inflation",
    "window",
)
"""Words that mean something else here than elsewhere, or that a newcomer cannot know."""
LEAST_EASE = {"start": 80.0, "README": 72.0}
"""Flesch's reading ease, the higher the easier; other pages may be a little harder to read."""


@pytest.mark.parametrize("name", PAGES)
def test_guide__every_page_has_one_title(name):
    lines = guide(name).splitlines()
    assert title(name)
    outside = "\n".join("\n".join(lines).split("```")[::2]).splitlines()
    assert sum(line.startswith("# ") for line in outside) == 1


def test_guide__an_unknown_page_names_those_that_exist():
    with pytest.raises(StreammimlError, match=r"^no page of the guide is called 'x'; known: arch"):
        guide("x")


def test_glossary__explains_every_special_word():
    defined = re.findall(r"^\| ([\w -]+) \|", guide("glossary"), re.M)
    assert set(SPECIAL) <= set(defined)


def unexplained(text):
    """Special words whose first use is neither in italics nor near a link to the glossary.

    A paragraph that links to the glossary, and all after it, may use any word.
    """
    seen = set()
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith("#") or paragraph.startswith("```"):
            continue
        if "glossary.md" in paragraph:
            break
        plain = re.sub(r"`[^`]*`", "", paragraph)
        for word in SPECIAL:
            use = re.search(rf"(\*?)\b{word}s?\b", plain)
            if use and word not in seen:
                seen.add(word)
                if not use[1]:
                    yield word


@pytest.mark.parametrize("name", [name for name in WRITTEN if name != "glossary"])
def test_guide__special_words_come_after_what_explains_them(name):
    assert not [*unexplained(re.sub(r"```.*?```", "", guide(name), flags=re.S))]


def test_unexplained__finds_a_word_that_is_used_before_it_is_explained():
    assert [*unexplained("# Stores\n\nThe dummy of a *bag*.")] == ["dummy"]
    assert not [*unexplained("A *dummy*: see the [glossary](glossary.md).\n\nIts lift.")]


@pytest.mark.parametrize("name", WRITTEN)
def test_guide__is_easy_to_read(name):
    assert reading_ease(prose_of(guide(name))) >= LEAST_EASE.get(name, 65.0)


def test_readme__is_easy_to_read():
    assert reading_ease(prose_of(README.read_text())) >= LEAST_EASE["README"]


def test_reading_ease__long_words_and_sentences_are_harder():
    easy = reading_ease("The cat sat. It was fat.")
    hard = reading_ease("Considerable organizational complexity necessitates reconsideration.")
    assert easy > 100 > 0 > hard
    assert prose_of("# Title\n\nRun `a --b`.\n\n```text\nno\n```\n\n| a |\n").split() == [
        "Run",
        "code.",
    ]
