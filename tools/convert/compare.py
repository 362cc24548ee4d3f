"""``verify --source``: reads the foreign files again and compares them with the store."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray

from streammiml._base.platform import usable_memory
from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import Kept, KeptColumn, kept_arrays
from streammiml.bags.store import open_store
from streammiml.bags.validate import clean
from streammiml.bags.verify import scan_bags
from streammiml.bags.views import Bags
from streammiml.errors import StoreError, StreammimlError
from streammiml.verbs.verify import verify as verify_files
from streammiml_tools.convert.plan import ConversionPlan, ConvertConfig, new_plan
from streammiml_tools.convert.sources import find_sources
from streammiml_tools.convert.split_and_filter import shaped
from streammiml_tools.convert.verb import with_label_file
from streammiml_tools.readers.base import SourceOptions


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far a store and its source agree."""

    n_bags: int
    """Bags of the source that have rows."""
    same: int
    different: int
    """Bags that differ. If any order is allowed: bags of the source that the store lacks."""
    surplus: int
    """Bags of the store that the source does not have."""
    first: str | None
    """The first bag that differs, and its difference."""

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return not self.different and not self.surplus


def digests_of(block: BagBlock) -> NDArray[np.uint64]:
    """Digest of each bag; the compiler is loaded for the first one."""
    digests: NDArray[np.uint64] = import_module("streammiml.bags.fingerprint").digests_of(block)
    return digests


def compare(
    store: str | os.PathLike[str] | Bags,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    options: SourceOptions | None = None,
    *,
    any_order: bool = False,
    subset: bool = False,
) -> Comparison:
    """Read the sources again and compare them with a store, bag for bag.

    Bags must come in the order of the source unless ``any_order`` is given, for a store that was
    shuffled. With ``subset``, for a store that was split or filtered, the store may lack bags of
    the source, and the order is free too.
    """
    bags = store if isinstance(store, Bags) else open_store(store)
    names = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    options = options or SourceOptions()
    if options.group:
        raise StreammimlError(
            "a store made with --group cannot be compared with its source, where the rows of a bag "
            "are apart; check the counts that convert printed"
        )
    files = find_sources([os.fspath(name) for name in names], options)
    options = replace(options, sparse=bags.sparse)
    # verify has no option --memory, so the plan may use all memory there is.
    settings = ConvertConfig(empty_bags="drop", memory=str(usable_memory()))
    plan = new_plan(files, "compared.zarr", settings, options, 1)
    _check_kind(bags, plan)
    source = _Source(plan, bags)
    return _unordered(bags, source, subset) if any_order or subset else _in_order(bags, source)


def _check_kind(bags: Bags, plan: ConversionPlan) -> None:
    """Refuse to compare a store with a source of other features or label names."""
    if plan.scan.n_features != bags.n_features:
        raise StoreError(
            f"{bags.name} has {bags.n_features:,} features, the source {plan.scan.n_features:,}"
        )
    names = plan.spec.label_names
    if names is not None and bags.label_names is not None and list(names) != bags.label_names:
        raise StoreError(
            f"{bags.name} has other label names than the source, or another order of labels; "
            "give the --labels of its conversion"
        )


class _Source:
    """Reads the bags of the source as the store would hold them."""

    def __init__(self, plan: ConversionPlan, bags: Bags) -> None:
        self._plan = plan
        self._with_row_labels = plan.scan.row_labels and bags.has_row_labels
        self.has_ids = plan.scan.bag_ids
        kept = {column.name for column in plan.scan.kept}
        self.kept = tuple(column for column in bags.kept_columns if column.name in kept)
        self.spec = replace(
            plan.spec,
            dtype=bags.dtype,
            n_labels=None,
            label_names=None,
            row_labels=self._with_row_labels,
            empty_bags="drop",
            kept=self.kept,
        )

    def blocks(self) -> Iterator[BagBlock]:
        """Yield all bags that have rows, in order."""
        plan = self._plan
        for span in plan.scan.spans:
            where = span.path.split("\0")[0]
            for block in plan.read(span):
                bags = shaped(plan.known(block, where).block, sparse=plan.sparse)
                if not self._with_row_labels:
                    bags = replace(bags, row_labels=None)
                kept = {column.name: bags.kept[column.name] for column in self.kept}
                bags = replace(bags, kept=kept)
                yield clean(bags, self.spec, where)[0]


class _Stored:
    """Reads the bags of a store from the first to the last, any number at a time."""

    def __init__(
        self, bags: Bags, *, row_labels: bool, ids: bool, kept: Sequence[KeptColumn]
    ) -> None:
        self._bags, self._row_labels, self._kept = bags, row_labels, kept
        self._ids = ids and bags.has_bag_ids
        self.at = 0

    @property
    def left(self) -> int:
        """Bags that are not read yet."""
        return self._bags.n_bags - self.at

    def take(self, count: int) -> BagBlock:
        """Read the next ``count`` bags."""
        start, self.at = self.at, self.at + count
        block = self._bags.read(start, self.at, kept=bool(self._kept))
        block = replace(block, kept={column.name: block.kept[column.name] for column in self._kept})
        if not self._row_labels:
            block = replace(block, row_labels=None)
        return replace(block, bag_ids=self._bags.bag_ids(start, self.at) if self._ids else None)


def _in_order(bags: Bags, source: _Source) -> Comparison:
    stored = _Stored(bags, row_labels=source.spec.row_labels, ids=source.has_ids, kept=source.kept)
    n_bags = same = different = 0
    first: str | None = None
    for block in source.blocks():
        for at in range(0, len(block), step := max(1, scan_bags(bags))):
            in_source = block.slice(at, min(at + step, len(block)))
            common = min(len(in_source), stored.left)
            in_store = stored.take(common)
            wrong = _differing(in_store, in_source.slice(0, common))
            missing = len(in_source) - common
            if first is None and (len(wrong) or missing):
                bag = int(wrong[0]) if len(wrong) else common
                what = difference(in_store, in_source, bag) if len(wrong) else "is not in the store"
                first = f"{_named(in_source, bag, n_bags)} {what}"
            n_bags += len(in_source)
            different += len(wrong) + missing
            same += common - len(wrong)
    if first is None and stored.left:
        first = f"bag {stored.at} of the store is not in the source"
    return Comparison(n_bags, same, different, stored.left, first)


def _differing(in_store: BagBlock, in_source: BagBlock) -> NDArray[np.int64]:
    """Return the bags whose digests, ids or kept columns differ."""
    if not len(in_store):
        return np.empty(0, np.int64)
    wrong = (digests_of(in_store) != digests_of(in_source)).any(axis=1)
    if in_store.bag_ids is not None and in_source.bag_ids is not None:
        pairs = zip(in_store.bag_ids, in_source.bag_ids, strict=True)
        wrong |= np.array([name != source_name for name, source_name in pairs])
    if in_store.kept:
        for bag in np.flatnonzero(~wrong).tolist():
            wrong[bag] = bool(_other_kept(in_store, in_source, bag))
    return np.flatnonzero(wrong)


def _other_kept(in_store: BagBlock, in_source: BagBlock, bag: int) -> str:
    """Name of the first kept column with other values; empty if there is none."""
    source_kept = in_source.kept_of(bag)
    for name, values in in_store.kept_of(bag).items():
        if _kept_bytes({name: values}) != _kept_bytes({name: source_kept[name]}):
            return name
    return ""


def _kept_bytes(kept: Kept) -> bytes:
    """Bytes of kept columns: equal if, and only if, the values are."""
    arrays = kept_arrays(kept)
    return b"".join(arrays[name].tobytes() for name in sorted(arrays))


def _keys(block: BagBlock) -> Iterator[bytes]:
    """Yield a key for each bag: its digest, and a hash of its kept columns."""
    for bag, digest in enumerate(digests_of(block)):
        kept = hashlib.blake2b(_kept_bytes(block.kept_of(bag)), digest_size=8).digest()
        yield digest.tobytes() + (kept if block.kept else b"")


def _named(block: BagBlock, bag: int, before: int) -> str:
    name = "" if block.bag_ids is None else f" ({block.bag_ids[bag]!r})"
    return f"bag {before + bag}{name}"


def difference(in_store: BagBlock, in_source: BagBlock, bag: int) -> str:
    """Say how a bag of the store differs from the same bag of the source."""
    if (
        in_store.bag_ids is not None
        and in_source.bag_ids is not None
        and (in_store.bag_ids[bag] != in_source.bag_ids[bag])
    ):
        return f"is called {in_store.bag_ids[bag]!r} in the store"
    rows, source_rows = in_store.rows_of(bag), in_source.rows_of(bag)
    if len(rows) != len(source_rows):
        return f"has {len(rows)} rows in the store and {len(source_rows)} in the source"
    labels, source_labels = in_store.labels_of(bag).tolist(), in_source.labels_of(bag).tolist()
    if labels != source_labels:
        return f"has labels {_short(labels)} in the store and {_short(source_labels)} in the source"
    unequal = rows.astype(np.float32) != source_rows.astype(np.float32)
    if unequal.any():
        row, column = (int(i) for i in np.argwhere(unequal)[0])
        return (
            f"has {rows[row, column]} in row {row}, feature {column} in the store and "
            f"{source_rows[row, column]} in the source ({int(unequal.sum())} values differ)"
        )
    name = _other_kept(in_store, in_source, bag) if in_store.kept else ""
    what = f"values of {name!r}" if name else "row labels"
    return f"has other {what} in the store than in the source"


def _short(labels: list[Any]) -> str:
    return str(labels) if len(labels) <= 10 else f"{labels[:10]} and {len(labels) - 10} more"


def _unordered(bags: Bags, source: _Source, subset: bool) -> Comparison:
    """Compare by digests of the bags. Each bag of the store takes 16 bytes of memory."""
    stored = _Stored(bags, row_labels=source.spec.row_labels, ids=False, kept=source.kept)
    unmatched: Counter[bytes] = Counter()
    step = max(1, scan_bags(bags))
    while stored.left:
        unmatched.update(_keys(stored.take(min(step, stored.left))))
    n_bags = same = different = 0
    first: str | None = None
    for in_source in source.blocks():
        for bag, key in enumerate(_keys(in_source)):
            if unmatched[key] > 0:
                unmatched[key] -= 1
                same += 1
            elif not subset:
                different += 1
                first = first or f"{_named(in_source, bag, n_bags)} is not in the store"
        n_bags += len(in_source)
    surplus = sum(unmatched.values())
    if first is None and surplus:
        first = f"{surplus:,} bags of the store are not in the source"
    return Comparison(n_bags, same, different, surplus, first)


def verify_verb(
    store: str,
    /,
    *,
    source: Annotated[list[str] | None, Parameter(negative="", consume_multiple=True)] = None,
    any_order: Annotated[bool, Parameter(negative="")] = False,
    subset: Annotated[bool, Parameter(negative="")] = False,
    options: Annotated[SourceOptions | None, Parameter(name="*", negative_iterable="")] = None,
) -> int:
    """Read and check every file and every bag of a store; print a line for each damaged file.

    Parameters
    ----------
    store
        Folder or URL.
    source
        Files that the store was converted from, to read again and compare bag for bag. Give the
        options of the conversion too.
    any_order
        Allow another order of bags than in the source, for a store that was shuffled.
    subset
        Allow bags of the source that the store lacks, for a store that was split or filtered.
    """
    code = verify_files(store)
    if code or source is None:
        return code
    comparison = compare(
        store,
        source,
        with_label_file(options or SourceOptions()),
        any_order=any_order,
        subset=subset,
    )
    if comparison.is_same:
        print(f"{store}: {comparison.same:,} bags are as in the source")
        return 0
    print(
        f"{store}: {comparison.different:,} of {comparison.n_bags:,} bags differ from the source"
        + (
            f", {comparison.surplus:,} bags of the store are not in it"
            if comparison.surplus
            else ""
        )
        + f"; the first: {comparison.first}"
        + _hint(open_store(store).n_bags, comparison.n_bags, subset)
    )
    return 2


def _hint(n_bags: int, n_source_bags: int, subset: bool) -> str:
    """Return the advice to give --subset, if the store has fewer bags than the source."""
    if subset or n_bags >= n_source_bags:
        return ""
    return (
        f"; the store has {n_bags:,} bags, the source {n_source_bags:,}: "
        "compare a store that was split or filtered with --subset"
    )
