"""Bags of MNIST's handwritten digits, any number of them, from the idx files of the set.

A bag holds some pictures; its labels are the digits on them, or the groups that these belong to.
The label of every row is known. The pictures (47 MB) are held; bags are drawn and written a part
at a time, each a function of the settings and its number.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.checks import StoreSpec
from streammiml.bags.offsets import from_sizes
from streammiml.bags.store import BagStore
from streammiml.bags.writer import BagWriter
from streammiml.cluster import open_pool
from streammiml.config import format_size
from streammiml.errors import StreammimlError, unknown
from streammiml_tools.command import run_command
from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.text import head
from streammiml_tools.synth import distinct

U8 = NDArray[np.uint8]
PART_BYTES = 16 << 20
MAX_BYTES = 1 << 30
"""No idx file may declare more."""
PARTS = {"train": ("train",), "test": ("t10k",), "all": ("train", "t10k")}
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def read_idx(path: Path) -> U8:
    """An array of an idx file, gzipped or not; its size is checked before it is read."""
    opening = head(path, 4)
    if len(opening) < 4 or opening[:3] != b"\0\0\x08" or not 1 <= opening[3] <= 4:
        raise SourceError(f"{path} is no idx file of bytes: it begins with {opening!r}")
    start = 4 + 4 * opening[3]
    sizes = head(path, start)[4:]
    if len(sizes) < start - 4:
        raise SourceError(f"{path} ends within its header; fetch it again")
    shape = tuple(np.frombuffer(sizes, ">u4").tolist())
    n_bytes = math.prod(shape)
    if n_bytes > MAX_BYTES:
        raise SourceError(f"{path} declares {format_size(n_bytes)}, more than 1 GiB")
    # One more, so that a file that is too long shows.
    content = head(path, start + n_bytes + 1)[start:]
    if len(content) != n_bytes:
        has = "more" if len(content) > n_bytes else "fewer"
        raise SourceError(f"{path} declares {n_bytes} values and has {has}; fetch it again")
    return np.frombuffer(content, np.uint8).reshape(shape)


@lru_cache(maxsize=1)
def load_pictures(folder: Path, part: str = "train") -> tuple[U8, NDArray[np.int32]]:
    """All pictures (n, 784) of the training set, the test set or both, and the digit on each."""
    if part not in PARTS:
        raise unknown("part of MNIST", part, PARTS)
    images, digits = [], []
    for name in PARTS[part]:
        pictures = read_idx(_found(folder, f"{name}-images-idx3-ubyte"))
        labels = read_idx(_found(folder, f"{name}-labels-idx1-ubyte"))
        if pictures.ndim != 3 or labels.ndim != 1 or len(pictures) != len(labels):
            raise StreammimlError(
                f"{folder}: {name} has pictures of shape {pictures.shape} and labels of shape "
                f"{labels.shape}, expected one label a picture"
            )
        if labels.size and labels.max() > 9:
            raise StreammimlError(f"{folder}: {name} has a label {labels.max()}, expected 0 to 9")
        images.append(pictures.reshape(len(pictures), -1))
        digits.append(labels.astype(np.int32))
    return np.concatenate(images), np.concatenate(digits)


def _found(folder: Path, name: str) -> Path:
    # Some copies write a dot for the second dash.
    names = [name, f"{name}.gz", name.replace("-idx", ".idx"), f"{name.replace('-idx', '.idx')}.gz"]
    for each in names:
        if (folder / each).is_file():
            return folder / each
    raise StreammimlError(f"{folder} has no {name} or {name}.gz; name the folder of the idx files")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """How bags are drawn."""

    n_bags: int
    seed: int = 0
    rows_per_bag: tuple[int, int] = (3, 9)
    """Fewest and most pictures of a bag."""
    digits_per_bag: int = 3
    """Different digits that a bag may show."""
    groups: tuple[str, ...] | None = None
    """Digits of each label, as ``02468``, which are then its sub-concepts; a label a digit if
    None."""

    def __post_init__(self) -> None:
        if self.n_bags < 1:
            raise StreammimlError(f"the number of bags must be at least 1, got {self.n_bags}")
        low, high = self.rows_per_bag
        if not 1 <= low <= high:
            raise StreammimlError(
                f"rows_per_bag must be two rising numbers from 1 on, got {low} and {high}"
            )
        if not 1 <= self.digits_per_bag <= 10:
            raise StreammimlError(f"digits_per_bag must be 1 to 10, got {self.digits_per_bag}")
        used = "".join(self.groups or ())
        if not set(used) <= set("0123456789") or len(set(used)) != len(used):
            said = ",".join(self.groups or ())
            raise StreammimlError(f"groups must be digits, each in one group at most, got {said}")

    @property
    def label_names(self) -> tuple[str, ...]:
        """A name for each label."""
        return NAMES if self.groups is None else self.groups

    def bags_per_part(self, width: int) -> int:
        """Bags of all parts but the last; a part takes about 16 MiB."""
        return max(1, int(PART_BYTES / (sum(self.rows_per_bag) / 2 * width)))


def drawn_part(drawn: Drawn, part: int, pictures: U8, digits: NDArray[np.int32]) -> BagBlock:
    """Bags of one part, with the label of every row (−1 for a digit in no group)."""
    rng = np.random.default_rng([drawn.seed, part])
    size = drawn.bags_per_part(pictures.shape[1])
    n_bags = min(size, drawn.n_bags - part * size)
    low, high = drawn.rows_per_bag
    sizes = rng.integers(low, high + 1, n_bags)
    bag = np.repeat(np.arange(n_bags), sizes)
    shown = distinct(10, drawn.digits_per_bag, n_bags, rng)
    row_digits = shown[bag, rng.integers(drawn.digits_per_bag, size=len(bag))]
    # Pictures sorted by digit, so that those of one digit are a range.
    by_digit = np.argsort(digits, kind="stable")
    ends = np.searchsorted(digits[by_digit], np.arange(11))
    counts = np.diff(ends)
    if not counts[np.unique(row_digits)].all():
        raise StreammimlError(f"no picture shows the digit {int((counts == 0).argmax())}")
    within = (rng.random(len(bag)) * counts[row_digits]).astype(np.int64)
    rows = by_digit[ends[row_digits] + within]
    row_labels = _group_of(drawn.groups)[row_digits]
    marks = np.zeros((n_bags, len(drawn.label_names)), bool)
    known = row_labels >= 0
    marks[bag[known], row_labels[known]] = True
    return BagBlock(
        bag_offsets=from_sizes(sizes),
        rows=pictures[rows],
        label_offsets=from_sizes(marks.sum(axis=1)),
        label_indices=np.nonzero(marks)[1].astype(np.int32),
        row_labels=row_labels,
    )


def _group_of(groups: Sequence[str] | None) -> NDArray[np.int32]:
    if groups is None:
        return np.arange(10, dtype=np.int32)
    found = np.full(10, -1, np.int32)
    for number, members in enumerate(groups):
        found[[int(digit) for digit in members]] = number
    return found


def write_bags(
    folder: Path,
    path: str | os.PathLike[str],
    drawn: Drawn,
    *,
    part: str = "train",
    codec: str = "auto",
    workers: int | None = None,
) -> BagStore:
    """Draw bags from the pictures in a folder and write them to a store; goes on after a kill."""
    pictures, digits = load_pictures(folder, part)
    spec = StoreSpec(
        n_features=pictures.shape[1],
        dtype="uint8",
        label_names=drawn.label_names,
        row_labels=True,
        codec=codec,
    )
    n_parts = -(-drawn.n_bags // drawn.bags_per_part(pictures.shape[1]))
    with BagWriter.begin(path, spec, source=f"mnist {part} {drawn}") as writer:
        missing = (number for number in range(n_parts) if not writer.has_part(number))
        if workers is None:
            for number in missing:
                writer.write_part(number, drawn_part(drawn, number, pictures, digits))
        else:
            with open_pool(workers=workers) as pool:
                said = (os.fspath(path), drawn, folder.resolve(), part)
                for _ in pool.map(_write_part, missing, *said):
                    writer.absorb()
        return writer.finish(n_parts)


def _write_part(number: int, path: str, drawn: Drawn, folder: Path, part: str) -> None:
    with BagWriter.join(path) as writer:
        writer.write_part(number, drawn_part(drawn, number, *load_pictures(folder, part)))


def mnist(
    folder: Path,
    store: Path,
    /,
    *,
    bags: int,
    seed: int = 0,
    part: str = "train",
    rows_per_bag: tuple[int, int] = (3, 9),
    digits_per_bag: int = 3,
    groups: str | None = None,
    codec: str = "auto",
    workers: int | None = None,
) -> None:
    """Draw bags of handwritten digits from the idx files in FOLDER and write them to STORE.

    Parameters
    ----------
    folder
        Holds train-images-idx3-ubyte and the like, gzipped or not.
    store
        What to write; its suffix decides: .zarr or .parquet.
    bags
        How many bags to draw.
    seed
        Another number draws other bags.
    part
        ``train``, ``test`` or ``all`` pictures.
    rows_per_bag
        Fewest and most pictures of a bag.
    digits_per_bag
        Different digits that a bag may show.
    groups
        Digits of each label, as 02468,13579; a label a digit unless given.
    codec
        ``none``, ``lz4`` or ``zstd``.
    workers
        Processes that write parts; this one alone unless given.
    """
    drawn = Drawn(
        n_bags=bags,
        seed=seed,
        rows_per_bag=rows_per_bag,
        digits_per_bag=digits_per_bag,
        groups=None if groups is None else tuple(groups.split(",")),
    )
    written = write_bags(folder, store, drawn, part=part, codec=codec, workers=workers)
    print(f"{written.name}: {written.n_bags:,} bags of {written.n_rows:,} digits")


if __name__ == "__main__":
    sys.exit(run_command(mnist))
