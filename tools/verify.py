"""``verify --source``: the foreign files read again, and compared with the store bag for bag."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray

from streammiml.bags.audit import scan_bags
from streammiml.bags.block import BagBlock
from streammiml.bags.block_facts import digests_of
from streammiml.bags.checks import clean
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.errors import StoreError, StreammimlError
from streammiml.verbs.verify import verify as verify_files
from streammiml_tools.choosing import shaped
from streammiml_tools.conversion import ConvertConfig, Plan
from streammiml_tools.convert import understood, with_label_file
from streammiml_tools.readers import reader_of
from streammiml_tools.readers.base import SourceOptions
from streammiml_tools.sources import find_sources


@dataclass(frozen=True, slots=True)
class Compared:
    """How a store and its source agree."""

    n_bags: int
    """Of the source, empty bags left out."""
    same: int
    different: int
    """In order: bags that differ. In any order: bags of the source that the store lacks."""
    surplus: int
    """Bags of the store that the source does not have."""
    first: str | None
    """The first bag that differs, and in what."""

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return not self.different and not self.surplus


def compare(
    store: str | os.PathLike[str] | Bags,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    options: SourceOptions | None = None,
    *,
    any_order: bool = False,
    subset: bool = False,
) -> Compared:
    """Read the sources again and compare them with a store, bag for bag.

    In the order of the source, or, for a store that was shuffled, in any order. ``subset``: the
    store need not hold all bags (it was split or filtered); implies any order.
    """
    bags = store if isinstance(store, Bags) else open_store(store)
    named = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    options = options or SourceOptions()
    if options.group:
        raise StreammimlError(
            "--group cannot be checked against a source whose rows are apart; check the counts "
            "that convert printed"
        )
    found = find_sources([os.fspath(each) for each in named], options)
    options = replace(options, sparse=bags.sparse)
    plan = understood(found, "compared.zarr", ConvertConfig(empty_bags="drop"), options, 1)
    _check_kind(bags, plan)
    source = _Source(plan, bags)
    return _unordered(bags, source, subset) if any_order or subset else _in_order(bags, source)


def _check_kind(bags: Bags, plan: Plan) -> None:
    """Refuse a comparison of things that cannot be alike."""
    if plan.scan.n_features != bags.n_features:
        raise StoreError(
            f"{bags.name} has {bags.n_features:,} features, the source {plan.scan.n_features:,}"
        )
    names = plan.scan.label_names
    if names is not None and bags.label_names is not None and list(names) != bags.label_names:
        raise StoreError(
            f"{bags.name} names its labels otherwise than the source, or in another order; "
            "give the --labels that it was converted with"
        )


class _Source:
    """Bags of the source, as the store would hold them."""

    def __init__(self, plan: Plan, bags: Bags) -> None:
        self._plan = plan
        self._with_rows = plan.scan.row_labels and bags.has_row_labels
        self.has_ids = plan.scan.bag_ids
        self.spec = replace(
            plan.spec,
            dtype=bags.dtype,
            n_labels=None,
            label_names=None,
            row_labels=self._with_rows,
            empty_bags="drop",
        )

    def blocks(self) -> Iterator[BagBlock]:
        """All bags that have rows, in order."""
        plan = self._plan
        for span in plan.scan.spans:
            for block in reader_of(plan.reader).read(span, plan.scan, plan.options):
                kept = shaped(block, sparse=plan.sparse)
                if not self._with_rows:
                    kept = replace(kept, row_labels=None)
                yield clean(kept, self.spec, span.path.split("\0")[0])[0]


class _Stored:
    """Bags of a store, taken from the front as many at a time as asked for."""

    def __init__(self, bags: Bags, *, row_labels: bool, ids: bool) -> None:
        self._bags, self._row_labels = bags, row_labels
        self._ids = ids and bags.has_bag_ids
        self.at = 0

    @property
    def left(self) -> int:
        """Bags that are not taken yet."""
        return self._bags.n_bags - self.at

    def take(self, count: int) -> BagBlock:
        """The next bags."""
        start, self.at = self.at, self.at + count
        block = self._bags.read(start, self.at)
        if not self._row_labels:
            block = replace(block, row_labels=None)
        return replace(block, bag_ids=self._bags.bag_ids(start, self.at) if self._ids else None)


def _in_order(bags: Bags, source: _Source) -> Compared:
    stored = _Stored(bags, row_labels=source.spec.row_labels, ids=source.has_ids)
    n_bags = same = different = 0
    first: str | None = None
    for whole in source.blocks():
        for at in range(0, len(whole), step := max(1, scan_bags(bags))):
            theirs = whole.slice(at, min(at + step, len(whole)))
            common = min(len(theirs), stored.left)
            mine = stored.take(common)
            wrong = _differing(mine, theirs.slice(0, common))
            missing = len(theirs) - common
            if first is None and (len(wrong) or missing):
                bag = int(wrong[0]) if len(wrong) else common
                what = difference(mine, theirs, bag) if len(wrong) else "is not in the store"
                first = f"{_named(theirs, bag, n_bags)} {what}"
            n_bags += len(theirs)
            different += len(wrong) + missing
            same += common - len(wrong)
    if first is None and stored.left:
        first = f"bag {stored.at} of the store is not in the source"
    return Compared(n_bags, same, different, stored.left, first)


def _differing(mine: BagBlock, theirs: BagBlock) -> NDArray[np.int64]:
    """Bags that are not the same; without looking at values where digests agree."""
    if not len(mine):
        return np.empty(0, np.int64)
    wrong = (digests_of(mine) != digests_of(theirs)).any(axis=1)
    if mine.bag_ids is not None and theirs.bag_ids is not None:
        pairs = zip(mine.bag_ids, theirs.bag_ids, strict=True)
        wrong |= np.array([one != two for one, two in pairs])
    return np.flatnonzero(wrong)


def _named(block: BagBlock, bag: int, before: int) -> str:
    name = "" if block.bag_ids is None else f" ({block.bag_ids[bag]!r})"
    return f"bag {before + bag}{name}"


def difference(mine: BagBlock, theirs: BagBlock, bag: int) -> str:
    """In what a bag of the store differs from that of the source, in words."""
    if (
        mine.bag_ids is not None
        and theirs.bag_ids is not None
        and (mine.bag_ids[bag] != theirs.bag_ids[bag])
    ):
        return f"is called {mine.bag_ids[bag]!r} in the store"
    one, two = mine.rows_of(bag), theirs.rows_of(bag)
    if len(one) != len(two):
        return f"has {len(one)} rows in the store and {len(two)} in the source"
    labels, wanted = mine.labels_of(bag).tolist(), theirs.labels_of(bag).tolist()
    if labels != wanted:
        return f"has labels {_short(labels)} in the store and {_short(wanted)} in the source"
    apart = one.astype(np.float32) != two.astype(np.float32)
    if apart.any():
        row, column = (int(i) for i in np.argwhere(apart)[0])
        return (
            f"has {one[row, column]} in row {row}, feature {column} in the store and "
            f"{two[row, column]} in the source ({int(apart.sum())} values differ)"
        )
    return "has other labels of rows in the store than in the source"


def _short(labels: list[Any]) -> str:
    return str(labels) if len(labels) <= 10 else f"{labels[:10]} and {len(labels) - 10} more"


def _unordered(bags: Bags, source: _Source, subset: bool) -> Compared:
    """By what is in the bags: 16 bytes of each bag of the store are held."""
    stored = _Stored(bags, row_labels=source.spec.row_labels, ids=False)
    left: Counter[bytes] = Counter()
    step = max(1, scan_bags(bags))
    while stored.left:
        for digest in digests_of(stored.take(min(step, stored.left))):
            left[digest.tobytes()] += 1
    n_bags = same = different = 0
    first: str | None = None
    for theirs in source.blocks():
        for bag, digest in enumerate(digests_of(theirs)):
            key = digest.tobytes()
            if left[key] > 0:
                left[key] -= 1
                same += 1
            elif not subset:
                different += 1
                first = first or f"{_named(theirs, bag, n_bags)} is not in the store"
        n_bags += len(theirs)
    surplus = sum(left.values())
    if first is None and surplus:
        first = f"{surplus:,} bags of the store are not in the source"
    return Compared(n_bags, same, different, surplus, first)


def verify_verb(
    store: str,
    /,
    *,
    source: Annotated[list[str] | None, Parameter(negative="", consume_multiple=True)] = None,
    any_order: bool = False,
    subset: bool = False,
    options: Annotated[SourceOptions | None, Parameter(name="*", negative_iterable="")] = None,
) -> int:
    """Read and check every file and every bag of a store; a line for each damaged file.

    Parameters
    ----------
    store
        Folder or URL.
    source
        Files that it was converted from: they are read again and compared bag for bag. Give the
        options that it was converted with.
    any_order
        Bags may come in another order than in the source: the store was shuffled.
    subset
        The store need not hold all bags of the source: it was split or filtered.
    """
    code = verify_files(store)
    if code or source is None:
        return code
    found = compare(
        store,
        source,
        with_label_file(options or SourceOptions()),
        any_order=any_order,
        subset=subset,
    )
    if found.is_same:
        print(f"{store}: {found.same:,} bags are as in the source")
        return 0
    print(
        f"{store}: {found.different:,} of {found.n_bags:,} bags differ from the source"
        + (f", {found.surplus:,} are not in it" if found.surplus else "")
        + f"; the first: {found.first}"
        + _hint(open_store(store).n_bags, found.n_bags, subset)
    )
    return 2


def _hint(n_bags: int, of_source: int, subset: bool) -> str:
    """What to try, where bags are missing from the store."""
    if subset or n_bags >= of_source:
        return ""
    return (
        f"; the store has {n_bags:,} bags, the source {of_source:,}: "
        "one that was split or filtered is compared with --subset"
    )
