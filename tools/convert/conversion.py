"""``convert``: turns foreign files into a store, or resumes a conversion that was killed."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import Pool, PoolOptions
from streammiml.bags.store import BagStore
from streammiml.bags.summary import describe
from streammiml.bags.validate import backend_of
from streammiml.config import format_size, parse_size
from streammiml_tools.convert.plan import (
    ConversionFolder,
    ConversionPlan,
    ConvertConfig,
    check_disk,
    check_memory,
    check_spans,
    limits_of,
    new_plan,
    refuse_existing,
    targets_of,
)
from streammiml_tools.convert.progress import Watch
from streammiml_tools.convert.sources import (
    FileRecord,
    Sources,
    change_of,
    find_sources,
    records_of,
)
from streammiml_tools.readers.base import SourceError, SourceOptions

if TYPE_CHECKING:
    from streammiml_tools.convert.tasks import Facts

WARN_BYTES = 16 << 20
"""Warn of a source that must be loaded as a whole if it takes more memory than this."""


@dataclass(frozen=True, slots=True)
class Converted:
    """The result of a conversion: its stores, and counts of what was read and left out."""

    stores: tuple[BagStore, ...]
    facts: Facts
    seconds: float

    @property
    def store(self) -> BagStore:
        """The store, or the first store of a split."""
        return self.stores[0]

    def summary(self) -> dict[str, Any]:
        """Return counts, what was left out and why, and every store: the object of ``--json``."""
        facts = self.facts
        return {
            "source": {"n_bags": facts["bags"], "n_rows": facts["rows"]},
            "left_out": {
                "empty_bags": facts["empty"],
                "without_label": facts["unwanted"],
                "beyond_limit": facts["over"],
                "unknown_labels": facts["unknown_labels"],
                "with_unknown_labels": facts["with_unknown"],
            },
            "seconds": round(self.seconds, 3),
            "stores": [{"path": store.name, **describe(store)} for store in self.stores],
        }


_LOG = logging.getLogger("streammiml.convert")


def convert(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    store: str | os.PathLike[str],
    settings: ConvertConfig | None = None,
    options: SourceOptions | None = None,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    client: Any = None,
    worker_memory: str | int | None = None,
    watch: Watch | None = None,
    say: Callable[[str], None] | None = None,
) -> Converted:
    """Convert foreign files to a store. The same call again resumes a conversion that was killed.

    Parameters
    ----------
    sources
        Files, folders, globs, URLs or stores, all of one format.
    store
        Folder or URL. Its suffix, ``.zarr`` or ``.parquet``, decides the backend. With a split,
        ``corpus.zarr`` becomes ``corpus-train.zarr`` and so on.
    settings
        How the stores are written: type, codec, filters, split, order.
    options
        How the source is read: format, columns, labels.
    workers
        Number of processes of a local cluster that read and write parts.
    scheduler
        Address of a running Dask scheduler to use instead. Its workers must see the same files.
    client
        A ``distributed.Client``, which is used and stays open, a Dask cluster object, or
        ``"active"``, the client that Dask uses by default. Its workers must see the same files.
    worker_memory
        Memory limit of each of the ``workers``; by default an equal share of all memory.
    watch
        Called with the progress after every task.
    say
        Called with each warning before the work begins.
    """
    started = time.monotonic()
    settings, options = settings or ConvertConfig(), options or SourceOptions()
    pool_options = PoolOptions(
        workers=workers, scheduler=scheduler, client=client, worker_memory=worker_memory
    )
    names = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    destination = os.fspath(store)
    backend_of(destination)
    files = find_sources([os.fspath(name) for name in names], options)
    with ExitStack() as stack:
        folder = stack.enter_context(ConversionFolder(destination))
        pool = None
        if workers is not None or scheduler is not None or client is not None:
            pool = stack.enter_context(open_pool(pool_options, relief="--memory"))
        plan, records = _open_plan(folder, files, destination, settings, options, pool)
        _LOG.info("convert begins: %d files to %s", len(files.paths), destination)
        for warning in _warnings(plan, files):
            _LOG.info("convert: %s", warning)
            (say or _ignore)(warning)
        # Loaded late: the compiler takes longer to load than a refusal or a warning may take.
        running = import_module("streammiml_tools.convert.runner")
        runner = running.StageRunner(plan, folder, pool, watch)
        stack.callback(runner.close)
        try:
            facts = runner.run()
        except SourceError as error:
            # Only another source or other options can help, so the finished parts are useless.
            # Do not discard them under a scheduler: its workers may still be writing.
            is_outside = scheduler is not None or client is not None
            if not is_outside and not running.may_pass(error):
                folder.discard()
            raise
        change = change_of(records, records_of(files.watched))
        if change is not None:
            raise SourceError(
                f"{change} during the conversion; remove {folder.folder} and run again"
            )
        stores = runner.finish()
        folder.remove()
    seconds = time.monotonic() - started
    _LOG.info("convert ends: %s bags, %.1f s", f"{sum(s.n_bags for s in stores):,}", seconds)
    return Converted(stores, facts, seconds)


def _ignore(line: str) -> None:
    del line


def _warnings(plan: ConversionPlan, files: Sources) -> Iterator[str]:
    """Yield a line for each fact that a user may not expect."""
    if plan.scan.holds_bytes > WARN_BYTES:
        size = format_size(plan.scan.holds_bytes)
        yield f"{files.paths[0]} is loaded into memory as a whole: {size}"
    for path in files.left_out[:10]:
        yield f"{path} is skipped: no reader knows its format"
    yield from plan.scan.warnings
    if plan.label_map is not None and plan.label_map.note is not None:
        yield plan.label_map.note
    if any(plan.folder.glob("facts-*/*.json")):
        yield f"resuming the conversion to {plan.destination}"


def _open_plan(
    folder: ConversionFolder,
    files: Sources,
    destination: str,
    settings: ConvertConfig,
    options: SourceOptions,
    pool: Pool | None,
) -> tuple[ConversionPlan, list[FileRecord]]:
    """Return the plan of the conversion to resume, or a new plan, and records of the sources."""
    records = records_of(files.watched)
    n_processes = 1 if pool is None else pool.n_threads
    options = replace(options, limits=limits_of(settings, options, n_processes))
    plan = folder.load_plan(files, options, settings)
    if plan is not None:
        memory = parse_size(settings.memory)
        check_memory(plan.scan, memory, n_processes, files.name)
        check_spans(plan, memory, n_processes)
        return plan, records
    refuse_existing(targets_of(destination, settings))
    plan = new_plan(files, destination, settings, options, n_processes)
    check_disk(plan)
    with plan.writing():
        folder.clear()
        plan.save(records)
    return plan, records
