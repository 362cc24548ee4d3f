"""Bags of real sentences: the documentation of Python's standard library, which comes with Python.

A bag is a page that mixes sentences on a few modules; its labels are these modules. Which module a
sentence is about is known, so key instances can be checked. Rows are sparse TF-IDF vectors.
Sources are parsed, never imported; which sentences there are depends on the version of Python.
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
from streammiml_tools.reuters import sentences, words

N_MODULES = 24
"""Modules that become labels, those with the most sentences."""
LEAST_WORDS = 5
"""Of a sentence."""
LEAST_SENTENCES = 2
"""Of the training half, that a word must occur in."""
LEAST_OF_MODULE = 4
"""Sentences."""
MODULES_PER_BAG = 3
"""At most."""
LEFT_OUT = {"idlelib", "lib2to3", "site-packages", "test", "turtledemo"}
"""Folders that are no module of the library, or tests of it."""


@dataclass(frozen=True, slots=True)
class Library:
    """Sentences on modules, as words, and the words that rows are made of."""

    modules: tuple[str, ...]
    pages: tuple[tuple[list[str], ...], ...]
    """Sentences on each module."""
    vocabulary: tuple[str, ...]
    weights: dict[str, tuple[int, float]]
    """Of each word of the vocabulary: its column and weight; the rarer, the heavier."""


def read_library(folder: Path | None = None) -> Library:
    """Sentences on the modules of the standard library that say the most of themselves.

    Words and their weights come from every second sentence, those of half 0.
    """
    folder = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    found = {name: list(_sentences(paths)) for name, paths in _modules(folder)}
    enough = [name for name in found if len(found[name]) >= LEAST_OF_MODULE]
    names = sorted(enough, key=lambda name: (-len(found[name]), name))[:N_MODULES]
    if len(names) < MODULES_PER_BAG:
        raise StreammimlError(
            f"{folder} has no sources of Python's library to take sentences from; "
            "leave --text out, or run a Python that has them"
        )
    modules = tuple(sorted(names))
    pages = tuple(tuple(found[name]) for name in modules)
    training = [sentence for page in pages for sentence in page[::2]]
    counts = Counter(word for sentence in training for word in set(sentence))
    kept = sorted(word for word, count in counts.items() if count >= LEAST_SENTENCES)
    weights = {
        word: (column, float(np.log(len(training) / counts[word])))
        for column, word in enumerate(kept)
    }
    return Library(modules, pages, tuple(kept), weights)


def _modules(folder: Path) -> Iterator[tuple[str, list[Path]]]:
    """Public modules and packages, with their files."""
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
    """Sentences of all docstrings, as words; each once."""
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
            # Lines of an example are code.
            text = "\n".join(
                line
                for line in (ast.get_docstring(node) or "").splitlines()
                if not line.lstrip().startswith((">>>", "..."))
            )
            for sentence in sentences(text):
                found = words(sentence)
                if len(found) >= LEAST_WORDS and tuple(found) not in seen:
                    seen.add(tuple(found))
                    yield found


def page_bags(
    library: Library,
    n_bags: int,
    *,
    seed: int,
    half: int,
    rows_per_bag: tuple[int, int] = (4, 9),
) -> BagBlock:
    """Draw pages; ``half`` 0 or 1 takes every second sentence only, so that halves share none."""
    rows = [[_row(library, s) for s in page[half::2]] for page in library.pages]
    rows = [[row for row in of if row] for of in rows]
    rng = np.random.default_rng([seed, n_bags, half])
    sizes = rng.integers(rows_per_bag[0], rows_per_bag[1] + 1, n_bags)
    chosen: list[dict[int, float]] = []
    row_labels: list[int] = []
    for size in sizes:
        shown = rng.choice(len(rows), MODULES_PER_BAG, replace=False)
        for module in rng.choice(shown, size).tolist():
            row_labels.append(module)
            chosen.append(rows[module][int(rng.integers(len(rows[module])))])
    offsets = from_sizes(sizes)
    of_rows = np.array(row_labels, np.int32)
    labels = [np.unique(part) for part in np.split(of_rows, offsets[1:-1])]
    return BagBlock(
        bag_offsets=offsets,
        rows=SparseRows(
            from_sizes([len(row) for row in chosen]),
            np.array([column for row in chosen for column in row], np.uint32),
            np.array([value for row in chosen for value in row.values()], np.float32),
            len(library.vocabulary),
        ),
        label_offsets=from_sizes([len(of) for of in labels]),
        label_indices=np.concatenate(labels).astype(np.int32),
        row_labels=of_rows,
    )


def _row(library: Library, sentence: list[str]) -> dict[int, float]:
    """Columns and values of a sentence of length 1, columns ascending; none if it knows no word."""
    counts = Counter(library.weights[word] for word in sentence if word in library.weights)
    found = {column: count * weight for (column, weight), count in counts.items()}
    length = sum(value * value for value in found.values()) ** 0.5
    return {column: found[column] / length for column in sorted(found)} if length else {}
