"""Bags of real sentences, from the docstrings of Python's standard library.

A bag is a page that mixes sentences about a few modules, which are its labels. The module of every
sentence is known, so key instances can be checked. Rows are sparse TF-IDF vectors. Sources are
parsed, never imported. The sentences depend on the version of Python.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.offsets import from_sizes
from streammiml.errors import StreammimlError
from streammiml_tools.corpora.reuters import sentences, words

N_MODULES = 24
"""Number of labels: the modules with the most sentences."""
LEAST_WORDS = 5
"""Shorter sentences are left out."""
LEAST_SENTENCES = 2
"""A word of the vocabulary occurs in at least this many training sentences."""
LEAST_OF_MODULE = 4
"""A module with fewer sentences is left out."""
MODULES_PER_BAG = 3
"""Upper limit of modules in a bag."""
LEFT_OUT = {"idlelib", "lib2to3", "site-packages", "test", "turtledemo"}
"""Folders that are not modules of the library, or only test it."""


@dataclass(frozen=True, slots=True)
class Library:
    """The sentences of each module, and the vocabulary."""

    modules: tuple[str, ...]
    pages: tuple[tuple[list[str], ...], ...]
    """Sentences of each module; a sentence is a list of words."""
    vocabulary: tuple[str, ...]
    weights: dict[str, tuple[int, float]]
    """Column and weight of each word of the vocabulary; rare words have high weights."""


def read_library(folder: Path | None = None) -> Library:
    """Read the sentences of the modules of the standard library that have the most sentences.

    Vocabulary and weights come from the training half: every second sentence.
    """
    folder = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    texts = {name: list(_sentences(paths)) for name, paths in _modules(folder)}
    candidates = [name for name in texts if len(texts[name]) >= LEAST_OF_MODULE]
    names = sorted(candidates, key=lambda name: (-len(texts[name]), name))[:N_MODULES]
    if len(names) < MODULES_PER_BAG:
        raise StreammimlError(
            f"{folder} has no sources of Python's library to take sentences from; "
            "leave --text out, or run a Python with sources"
        )
    modules = tuple(sorted(names))
    pages = tuple(tuple(texts[name]) for name in modules)
    training = [sentence for page in pages for sentence in page[::2]]
    counts = Counter(word for sentence in training for word in set(sentence))
    vocabulary = sorted(word for word, count in counts.items() if count >= LEAST_SENTENCES)
    weights = {
        word: (column, float(np.log(len(training) / counts[word])))
        for column, word in enumerate(vocabulary)
    }
    return Library(modules, pages, tuple(vocabulary), weights)


def _modules(folder: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yield the public modules and packages, with their files."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith("_") or path.name in LEFT_OUT:
            continue
        if path.suffix == ".py":
            yield path.stem, [path]
        elif (path / "__init__.py").exists():
            yield (
                path.name,
                [file for file in sorted(path.rglob("*.py")) if "test" not in file.parts],
            )


def _sentences(paths: list[Path]) -> Iterator[list[str]]:
    """Yield the words of each sentence of all docstrings; repeated sentences only once."""
    seen = set()
    for path in paths:
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            # Leave out the lines of examples, which are code.
            text = "\n".join(
                line
                for line in (ast.get_docstring(node) or "").splitlines()
                if not line.lstrip().startswith((">>>", "..."))
            )
            for sentence in sentences(text):
                sentence_words = words(sentence)
                key = tuple(sentence_words)
                if len(key) >= LEAST_WORDS and key not in seen:
                    seen.add(key)
                    yield sentence_words


def page_bags(
    library: Library,
    n_bags: int,
    *,
    seed: int,
    half: int,
    rows_per_bag: tuple[int, int] = (4, 9),
) -> BagBlock:
    """Draw pages from one ``half``, 0 or 1, of the sentences; the halves share no sentence."""
    rows = [[_row(library, s) for s in page[half::2]] for page in library.pages]
    rows = [[row for row in module_rows if row] for module_rows in rows]
    rng = np.random.default_rng([seed, n_bags, half])
    sizes = rng.integers(rows_per_bag[0], rows_per_bag[1] + 1, n_bags)
    chosen: list[dict[int, float]] = []
    row_labels: list[int] = []
    for size in sizes:
        bag_modules = rng.choice(len(rows), MODULES_PER_BAG, replace=False)
        for module in rng.choice(bag_modules, size).tolist():
            row_labels.append(module)
            chosen.append(rows[module][int(rng.integers(len(rows[module])))])
    offsets = from_sizes(sizes)
    label_of_row = np.array(row_labels, np.int32)
    labels = [np.unique(part) for part in np.split(label_of_row, offsets[1:-1])]
    return BagBlock(
        bag_offsets=offsets,
        rows=SparseRows(
            from_sizes([len(row) for row in chosen]),
            np.array([column for row in chosen for column in row], np.uint32),
            np.array([value for row in chosen for value in row.values()], np.float32),
            len(library.vocabulary),
        ),
        label_offsets=from_sizes([len(bag_labels) for bag_labels in labels]),
        label_indices=np.concatenate(labels).astype(np.int32),
        row_labels=label_of_row,
    )


def _row(library: Library, sentence: list[str]) -> dict[int, float]:
    """Return columns, ascending, and values of a sentence, as a vector of length 1.

    The result is empty if no word is in the vocabulary.
    """
    counts = Counter(library.weights[word] for word in sentence if word in library.weights)
    values = {column: count * weight for (column, weight), count in counts.items()}
    length = sum(value * value for value in values.values()) ** 0.5
    return {column: values[column] / length for column in sorted(values)} if length else {}
