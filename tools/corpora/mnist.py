"""Any number of bags of MNIST's handwritten digits, from the idx files of the set.

A bag holds some pictures. Its labels are the digits on them, or the groups of these digits. The
label of every row is known. All pictures (47 MB) are held in memory. Bags are drawn and written
part by part; a part depends only on the settings and its number.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import PoolOptions
from streammiml.bags.block import BagBlock
from streammiml.bags.offsets import from_sizes
from streammiml.bags.store import BagStore
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter
from streammiml.config import format_size
from streammiml.errors import StreammimlError, unknown
from streammiml_tools.corpora.synth import distinct
from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.text import head

U8 = NDArray[np.uint8]
PART_BYTES = 16 << 20
MAX_BYTES = 1 << 30
"""Upper limit of the size that an idx file may declare."""
PARTS = {"train": ("train",), "test": ("t10k",), "all": ("train", "t10k")}
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def read_idx(path: Path) -> U8:
    """Read the array of an idx file, gzipped or not; its size is checked before it is read."""
    opening = head(path, 4)
    if len(opening) < 4 or opening[:3] != b"\0\0\x08" or not 1 <= opening[3] <= 4:
        raise SourceError(f"{path} is not an idx file of bytes: it begins with {opening!r}")
    start = 4 + 4 * opening[3]
    sizes = head(path, start)[4:]
    if len(sizes) < start - 4:
        raise SourceError(f"{path} ends within its header; fetch it again")
    shape = tuple(np.frombuffer(sizes, ">u4").tolist())
    n_bytes = math.prod(shape)
    if n_bytes > MAX_BYTES:
        raise SourceError(f"{path} declares {format_size(n_bytes)}, more than 1 GiB")
    # Read one byte more, to notice a file that is too long.
    content = head(path, start + n_bytes + 1)[start:]
    if len(content) != n_bytes:
        more_or_fewer = "more" if len(content) > n_bytes else "fewer"
        raise SourceError(
            f"{path} declares {n_bytes} values and has {more_or_fewer}; fetch it again"
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


@lru_cache(maxsize=1)
def load_pictures(folder: Path, part: str = "train") -> tuple[U8, NDArray[np.int32]]:
    """Return the pictures (n, 784) of training set, test set or both, and the digit on each."""
    if part not in PARTS:
        raise unknown("part of MNIST", part, PARTS)
    images, digits = [], []
    for name in PARTS[part]:
        pictures = read_idx(_idx_path(folder, f"{name}-images-idx3-ubyte"))
        labels = read_idx(_idx_path(folder, f"{name}-labels-idx1-ubyte"))
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


def _idx_path(folder: Path, name: str) -> Path:
    # Some copies of the set have a dot instead of the second dash.
    spellings = [
        name,
        f"{name}.gz",
        name.replace("-idx", ".idx"),
        f"{name.replace('-idx', '.idx')}.gz",
    ]
    for spelling in spellings:
        if (folder / spelling).is_file():
            return folder / spelling
    raise StreammimlError(f"{folder} has no {name} or {name}.gz; name the folder of the idx files")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Settings of drawn bags; they decide every bag.

    The name of the class is part of the identity of a half-written store; see ``write_bags``.
    """

    n_bags: int
    seed: int = 0
    rows_per_bag: tuple[int, int] = (3, 9)
    """Fewest and most pictures of a bag."""
    digits_per_bag: int = 3
    """Upper limit of different digits in a bag."""
    groups: tuple[str, ...] | None = None
    """Digits of each label, such as ``02468``, which are then its sub-concepts. If None, every
    digit is a label."""

    def __post_init__(self) -> None:
        if self.n_bags < 1:
            raise StreammimlError(f"the number of bags must be at least 1, got {self.n_bags}")
        low, high = self.rows_per_bag
        if not 1 <= low <= high:
            raise StreammimlError(
                f"rows_per_bag must be two ascending numbers from 1 on, got {low} and {high}"
            )
        if not 1 <= self.digits_per_bag <= 10:
            raise StreammimlError(f"digits_per_bag must be 1 to 10, got {self.digits_per_bag}")
        used = "".join(self.groups or ())
        if not set(used) <= set("0123456789") or len(set(used)) != len(used):
            raise StreammimlError(
                "groups must be digits, each in one group at most, got "
                + ",".join(self.groups or ())
            )

    @property
    def label_names(self) -> tuple[str, ...]:
        """The name of each label."""
        return NAMES if self.groups is None else self.groups

    def bags_per_part(self, width: int) -> int:
        """Return the number of bags in each part but the last; a part takes about 16 MiB."""
        return max(1, int(PART_BYTES / (sum(self.rows_per_bag) / 2 * width)))


def drawn_part(drawn: Drawn, part: int, pictures: U8, digits: NDArray[np.int32]) -> BagBlock:
    """Return the bags of one part, with the label of every row (−1 for a digit in no group)."""
    rng = np.random.default_rng([drawn.seed, part])
    size = drawn.bags_per_part(pictures.shape[1])
    n_bags = min(size, drawn.n_bags - part * size)
    low, high = drawn.rows_per_bag
    sizes = rng.integers(low, high + 1, n_bags)
    bag = np.repeat(np.arange(n_bags), sizes)
    bag_digits = distinct(10, drawn.digits_per_bag, n_bags, rng)
    row_digits = bag_digits[bag, rng.integers(drawn.digits_per_bag, size=len(bag))]
    # Pictures are sorted by digit, so that the pictures of one digit are a range.
    by_digit = np.argsort(digits, kind="stable")
    ends = np.searchsorted(digits[by_digit], np.arange(11))
    counts = np.diff(ends)
    if not counts[np.unique(row_digits)].all():
        raise StreammimlError(f"no picture shows the digit {int((counts == 0).argmax())}")
    index_in_digit = (rng.random(len(bag)) * counts[row_digits]).astype(np.int64)
    rows = by_digit[ends[row_digits] + index_in_digit]
    row_labels = _group_of(drawn.groups)[row_digits]
    has_label = np.zeros((n_bags, len(drawn.label_names)), bool)
    in_group = row_labels >= 0
    has_label[bag[in_group], row_labels[in_group]] = True
    return BagBlock(
        bag_offsets=from_sizes(sizes),
        rows=pictures[rows],
        label_offsets=from_sizes(has_label.sum(axis=1)),
        label_indices=np.nonzero(has_label)[1].astype(np.int32),
        row_labels=row_labels,
    )


def _group_of(groups: Sequence[str] | None) -> NDArray[np.int32]:
    if groups is None:
        return np.arange(10, dtype=np.int32)
    group_of = np.full(10, -1, np.int32)
    for number, members in enumerate(groups):
        group_of[[int(digit) for digit in members]] = number
    return group_of


def write_bags(
    folder: Path,
    path: str | os.PathLike[str],
    drawn: Drawn,
    *,
    part: str = "train",
    codec: str = "auto",
    workers: int | None = None,
) -> BagStore:
    """Draw bags from the pictures in a folder and write them to a store.

    The same call again resumes a store that was begun before.
    """
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
            with open_pool(PoolOptions(workers=workers)) as pool:
                arguments = (os.fspath(path), drawn, folder.resolve(), part)
                for _ in pool.map(_write_part, missing, *arguments):
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
        Folder of the idx files, such as train-images-idx3-ubyte, gzipped or not.
    store
        Store to write; its suffix, .zarr or .parquet, decides the backend.
    bags
        Number of bags to draw.
    seed
        Seed of all draws.
    part
        ``train``, ``test`` or ``all`` pictures.
    rows_per_bag
        Fewest and most pictures of a bag.
    digits_per_bag
        Upper limit of different digits in a bag.
    groups
        Digits of each label, such as 02468,13579; by default every digit is a label.
    codec
        ``none``, ``lz4`` or ``zstd``.
    workers
        Number of processes that write parts; by default this process writes them.
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
