"""Facts about a run for people and reports: its stores, and the memory it took.

The facts have a file of their own, because they differ between equal runs on two machines.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from streammiml._base.atomic import save_whole
from streammiml._base.json_and_toml import parse_json
from streammiml._base.platform import peak_resident_bytes, resident_bytes
from streammiml.bags.views import Bags, JoinedStore
from streammiml.learn.progress import TrainProgress

FACTS_FILE = "origin.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Names and sizes of the stores of a run, and the memory of the process."""

    stores: tuple[str, ...]
    """Absolute paths, or URLs."""
    n_bags: int
    n_rows: int
    n_features: int
    n_labels: int
    dtype: str
    sparse: bool
    peak_bytes: int | None = None
    """Peak memory of the process, with interpreter and libraries."""
    bytes_before: int | None = None
    """Memory of the process before its first step: libraries, weights, fitted scaler."""

    @classmethod
    def of(cls, store: Bags) -> RunFacts:
        """Collect the facts of a store."""
        parts = store.stores if isinstance(store, JoinedStore) else [store]
        return cls(
            stores=tuple(_absolute(part.name) for part in parts),
            n_bags=store.n_bags,
            n_rows=store.n_rows,
            n_features=store.n_features,
            n_labels=store.n_labels,
            dtype=store.dtype,
            sparse=store.sparse,
        )

    def save(self, run: Path) -> None:
        """Write the facts into the run folder."""
        save_whole(run / FACTS_FILE, [json.dumps(asdict(self), indent=1).encode() + b"\n"])


def read_run_facts(run: Path) -> RunFacts | None:
    """Read the facts of a run folder; None if there are none that can be read."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        content = parse_json((run / FACTS_FILE).read_text("utf-8"))
        known = {field.name for field in fields(RunFacts)}
        return RunFacts(
            **{
                **{name: value for name, value in content.items() if name in known},
                "stores": tuple(map(str, content["stores"])),
            }
        )
    return None


class FactsWriter:
    """A ``watch`` of training: writes the facts at the beginning, and the memory at the end."""

    def __init__(self, store: Bags, run: Path) -> None:
        self._facts, self._run = RunFacts.of(store), run
        self._bytes_before = 0
        self._is_written = False

    def __call__(self, progress: TrainProgress) -> None:
        """Write the facts at the first call, unless the run has ended already."""
        is_at_end = progress.done >= (progress.restart + 1) / progress.restarts
        if not self._is_written and not is_at_end:
            self._is_written = True
            self._bytes_before = resident_bytes()
            earlier = read_run_facts(self._run)
            if earlier is not None:
                self._facts = replace(self._facts, peak_bytes=earlier.peak_bytes)
            self._facts.save(self._run)

    def finish(self) -> None:
        """Record the highest peak memory of the processes of the run, if this process trained."""
        # 0 if there was nothing left to train, or the system does not report memory.
        if not self._bytes_before:
            return
        peak_bytes = max(self._facts.peak_bytes or 0, peak_resident_bytes())
        replace(self._facts, peak_bytes=peak_bytes, bytes_before=self._bytes_before).save(self._run)


def _absolute(name: str) -> str:
    return name if "://" in name else str(Path(name).absolute())
