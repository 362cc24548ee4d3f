"""Bags of sentences: real ones, labels that follow from them, halves that share none."""

import numpy as np
import pytest

from streammiml.errors import StreammimlError
from streammiml_tools.corpora.docstrings import page_bags, read_library


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library made for the test: parsing all of Python's takes seconds."""
    folder = tmp_path_factory.mktemp("library")
    for name in ("alpha", "beta", "gamma", "delta"):
        (folder / f"{name}.py").write_text(
            f'"""This is the module of {name} and its many words."""\n'
            + "\n".join(
                f'def f{i}():\n    """The {name} function number {word} does what it says.\n\n'
                f'    >>> this is code and no sentence of {name} at all\n    """\n'
                for i, word in enumerate(("one", "two", "three", "four", "five", "six", "seven"))
            )
        )
    (folder / "_hidden.py").write_text('"""Nobody should ever read this one sentence."""')
    (folder / "broken.py").write_text("def (")
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text('"""A package that has one sentence only here."""')
    return read_library(folder)


def test_read_library__takes_sentences_of_public_modules_and_no_code(library):
    assert {"alpha", "beta", "delta", "gamma"} <= set(library.modules)
    assert list(library.modules) == sorted(library.modules)
    everything = [" ".join(s) for page in library.pages for s in page]
    assert len(everything) == len(set(everything))
    assert not [s for s in everything if "code" in s or "nobody" in s]
    assert list(library.vocabulary) == sorted(library.weights)


def test_page_bags__labels_are_the_modules_of_the_sentences(library):
    block = page_bags(library, 40, seed=1, half=0)
    for bag in range(40):
        here = block.row_labels[block.bag_offsets[bag] : block.bag_offsets[bag + 1]]
        assert block.labels_of(bag).tolist() == sorted(set(here.tolist()))
        assert len(set(here.tolist())) <= 3
    lengths = np.add.reduceat(block.rows.values.astype(float) ** 2, block.rows.offsets[:-1])
    np.testing.assert_allclose(lengths, 1, rtol=1e-5)


def test_page_bags__seed_decides_and_halves_share_no_sentence(library):
    first, again = (page_bags(library, 20, seed=3, half=0) for _ in range(2))
    np.testing.assert_array_equal(first.rows.values, again.rows.values)
    for name, page in zip(library.modules, library.pages, strict=True):
        assert not {tuple(s) for s in page[::2]} & {tuple(s) for s in page[1::2]}, name


def test_read_library__of_a_python_without_sources_says_so(tmp_path):
    with pytest.raises(StreammimlError, match="has no sources of Python's library"):
        read_library(tmp_path)


@pytest.mark.slow
def test_read_library__finds_thousands_of_sentences_in_this_python():
    stdlib = read_library()
    assert len(stdlib.modules) == 24
    assert sum(map(len, stdlib.pages)) > 3000
