"""A comparison of methods on one store: cells run on a pool and are saved one by one.

Each cell is a method on a split. A killed comparison resumes with the cells that are missing, and
its folder can be given more methods or splits later.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streammiml._base.child_call import end_children
from streammiml._base.json_and_toml import parse_json
from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import Pool, PoolOptions
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.config import TrainConfig, parse_duration, parse_size
from streammiml.errors import StreammimlError
from streammiml.learn.run_folder import toml
from streammiml.measure.prediction_folder import PartFolder, atomic_file, write_json
from streammiml.measure.scoring import StoreLike
from streammiml.measure.tasks import all_bags
from streammiml.rivals.registry import Method
from streammiml.search.cells import CellResult, CellSettings, MethodCell, run_cell, training_bags
from streammiml.search.comparison_table import MethodComparison
from streammiml.search.contestants import Contestant, contestants
from streammiml.search.folds import Folds
from streammiml.search.grid import key_of
from streammiml.search.search_plan import is_in_memory

CELLS, LINES, TABLE, SETTINGS = "cells", "cells.jsonl", "table.md", "settings.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions(PoolOptions):
    """How methods are compared, and where cells run."""

    splits: int = 10
    """Number of random splits into two thirds for training and one third for testing."""
    folds: int = 3
    """Folds of the training bags on which every method chooses its settings."""
    time_limit: str = "10min"
    """Longest time for one method on one split, such as 90s, 10min or 2h; beyond it, the table has
    N/A."""
    memory: str = "4GiB"
    """Upper limit for the memory of one method beside the bags; a method that would need more has
    N/A."""
    sizes: str = ""
    """Numbers of training bags, such as 1000,5000: on so many bags of the first split, every method
    is also trained with its default settings, to measure time against bags."""
    seed: int = 0
    """Seed of the splits."""

    def __post_init__(self) -> None:
        # With slots, the decorator makes a new class, so super() without arguments would fail.
        PoolOptions.__post_init__(self)
        if self.splits < 1:
            raise StreammimlError(f"splits must be at least 1, got {self.splits}")
        if parse_duration(self.time_limit, option="time_limit") <= 0:
            raise StreammimlError(f"time_limit must be longer than 0, got {self.time_limit!r}")
        parse_size(self.memory, least=1)
        if not all(number.strip().isdecimal() for number in self.sizes.split(",") if self.sizes):
            raise StreammimlError(f"sizes must be numbers such as 1000,5000, got {self.sizes!r}")

    @property
    def size_list(self) -> list[int]:
        """``sizes`` as numbers, ascending and distinct."""
        return sorted({int(number) for number in self.sizes.split(",") if self.sizes})


@dataclass(frozen=True, slots=True)
class CompareProgress:
    """How far a comparison is, for progress lines."""

    cells_done: int
    n_cells: int
    title: str | None
    """Title of the method whose cell was just finished; None at the start."""
    result: CellResult | None
    dashboard: str | None


def run_comparison(
    store: StoreLike,
    out: str | os.PathLike[str],
    methods: str | Sequence[str | Method],
    config: TrainConfig | None,
    options: CompareOptions,
    *,
    watch: Callable[[CompareProgress], None],
    finish: Callable[[Path, Bags, MethodComparison], None],
) -> MethodComparison:
    """Measure all cells that are missing in the folder ``out``, and write the results there.

    ``finish`` is called with the folder, the store and the results before the folder is marked as
    complete.
    """
    store = store if isinstance(store, Bags) else open_store(store)
    base = config or TrainConfig()
    if base.bag_weights is not None:
        raise StreammimlError(
            f"compare takes no weights of bags, as other methods count every bag alike; leave "
            f"bag_weights {base.bag_weights!r} out"
        )
    competing = contestants(methods, base, options.memory)
    _check(store, options)
    cells = _cells(competing, options)
    with ExitStack() as stack:
        with open_pool(_pool_options(options), relief="--memory") as pool:
            # After the pool: a comparison that gets no pool must not leave a folder behind.
            folder = stack.enter_context(PartFolder(out, _record(store, options), "comparison"))
            folder.reopen()
            (folder.path / CELLS).mkdir(exist_ok=True)
            run = _Run(folder.path, pool, store, competing, options, watch)
            comparison = MethodComparison(
                {contestant.name: contestant.title for contestant in competing},
                options.splits,
                run.finish(cells),
            )
        _write(folder.path, store, options, comparison)
        finish(folder.path, store, comparison)
        folder.finish({"n_cells": len(cells)})
    return comparison


def _check(store: Bags, options: CompareOptions) -> None:
    """Refuse a store that cannot be split, or whose labels cannot be ranked."""
    if store.n_labels and not store.n_label_entries:
        raise StreammimlError(
            f"{store.name} has {store.n_labels} labels, none of them on any bag; methods are "
            "compared on bags whose labels are known"
        )
    if store.n_labels < 2:
        raise StreammimlError(
            f"{store.name} has {store.n_labels} labels, and methods are compared by the order of "
            "labels; at least 2 labels are needed"
        )
    n_train = training_bags(store.n_bags)
    if n_train < 2:
        raise StreammimlError(
            f"{store.name} has {store.n_bags} bags, too few to train on some and test on others"
        )
    Folds(n_train, options.folds)  # Raises for a number of folds that is not possible.
    for size in options.size_list:
        if not 2 <= size <= n_train:
            raise StreammimlError(
                f"sizes must be from 2 to {n_train}, the training bags of a split, got {size}"
            )


def _cells(
    competing: Sequence[Contestant], options: CompareOptions
) -> list[tuple[MethodCell, Contestant]]:
    """Cells in the order in which they begin: a stopped run has all methods on the same splits."""
    cells = [(MethodCell(c.name, split), c) for split in range(options.splits) for c in competing]
    fixed = [contestant for contestant in competing if contestant.has_fixed_settings]
    return [
        *cells,
        *((MethodCell(c.name, 0, size), c) for size in options.size_list for c in fixed),
    ]


def _pool_options(options: CompareOptions) -> PoolOptions:
    return PoolOptions(
        threads=options.threads,
        workers=options.workers,
        scheduler=options.scheduler,
        worker_memory=options.worker_memory,
        client=options.client,
    )


def _record(store: Bags, options: CompareOptions) -> dict[str, Any]:
    """Record of the folder; methods, splits and sizes may be added to it later."""
    names = ("seed", "folds", "time_limit", "memory")
    return {**{name: getattr(options, name) for name in names}, "store": store.fingerprint}


class _Run:
    """Loads finished cells from disk, runs missing cells, and saves each at once."""

    def __init__(
        self,
        folder: Path,
        pool: Pool,
        store: Bags,
        competing: Sequence[Contestant],
        options: CompareOptions,
        watch: Callable[[CompareProgress], None],
    ) -> None:
        self._folder, self._pool, self._watch = folder, pool, watch
        self._titles = {contestant.name: contestant.title for contestant in competing}
        # The name is used once, so that ending these processes ends no others.
        self._owner = secrets.token_hex(8)
        settings = CellSettings(
            seed=options.seed,
            folds=options.folds,
            time_limit=options.time_limit,
            owner=self._owner,
        )
        # Even a thread measures in another process, so the store is sent by its path if it has one.
        remote = pool.is_remote or not is_in_memory(store)
        self._shared = (all_bags(store, remote=remote), settings)
        self._results: dict[MethodCell, CellResult] = {}

    def finish(self, cells: Sequence[tuple[MethodCell, Contestant]]) -> list[CellResult]:
        """Results of all cells, in their order."""
        keys = {cell: key_of({"candidates": c.candidates}) for cell, c in cells}
        for cell, _ in cells:
            result = self._load(cell, keys[cell])
            if result is not None:
                self._results[cell] = result
        missing = [task for task in cells if task[0] not in self._results]
        n_cells = len(cells)

        def report(result: CellResult | None) -> None:
            title = None if result is None else self._titles[result.cell.method]
            done = len(self._results)
            self._watch(CompareProgress(done, n_cells, title, result, self._pool.dashboard))

        def keep(result: CellResult) -> None:
            write_json(self._path(result.cell), {**result.line(), "key": keys[result.cell]})
            self._results[result.cell] = result
            report(result)

        report(None)
        try:
            for _ in self._pool.map(run_cell, missing, *self._shared, seen=keep):
                pass
        finally:
            # Threads wait for their processes, and so would the end of the program.
            end_children(self._owner)
        return [self._results[cell] for cell, _ in cells]

    def _path(self, cell: MethodCell) -> Path:
        return self._folder / CELLS / f"{cell.name}.json"

    def _load(self, cell: MethodCell, key: str) -> CellResult | None:
        """Read a result from disk; None if the cell must run, again or for the first time."""
        try:
            line = parse_json(self._path(cell).read_bytes())
            result = CellResult.of_line(cell, line)
            return result if line["key"] == key and result.is_final else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _write(path: Path, store: Bags, options: CompareOptions, comparison: MethodComparison) -> None:
    """Write the lines of all cells, the table, and the settings."""
    with atomic_file(path / LINES) as file:
        for result in comparison.cells:
            file.write(json.dumps(result.line(), sort_keys=True).encode() + b"\n")
    with atomic_file(path / TABLE) as file:
        file.write(comparison.markdown().encode())
    names = ("splits", "folds", "time_limit", "memory", "seed")
    settings = {
        "methods": list(comparison.methods),
        **{name: getattr(options, name) for name in names},
        "sizes": options.sizes,
        "store": store.name,
        "fingerprint": store.fingerprint,
    }
    with atomic_file(path / SETTINGS) as file:
        file.write(toml(settings))
