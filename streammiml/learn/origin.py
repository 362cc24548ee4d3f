"""Where a run came from and what it took: for people and pages; nothing depends on it.

Kept beside the settings and not among them, since equal runs on other machines differ in it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from streammiml._base.platform import peak_resident_bytes, resident_bytes
from streammiml.bags.views import Bags, JoinedStore
from streammiml.learn.progress import Progress
from streammiml.model import write_whole

ORIGIN = "origin.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The stores of a run by name, what they held, and the memory of the process."""

    stores: tuple[str, ...]
    """Absolute paths, or URLs."""
    n_bags: int
    n_rows: int
    n_features: int
    n_labels: int
    dtype: str
    sparse: bool
    peak_bytes: int | None = None
    """The most that the process held in memory, interpreter and libraries among it."""
    bytes_before: int | None = None
    """What it held when the first step began: libraries, weights and what was fitted."""

    @classmethod
    def of(cls, store: Bags) -> Origin:
        """What a run on a store should remember of it."""
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
        """Write it into the run's folder."""
        write_whole(run / ORIGIN, [json.dumps(asdict(self), indent=1).encode() + b"\n"])


def read_origin(run: Path) -> Origin | None:
    """What a run's folder says of its origin; None where it says nothing that can be read."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        found = json.loads((run / ORIGIN).read_text("utf-8"))
        known = {field.name for field in fields(Origin)}
        return Origin(
            **{
                **{k: v for k, v in found.items() if k in known},
                "stores": tuple(map(str, found["stores"])),
            }
        )
    return None


class Witness:
    """A watcher of training that writes the origin down: once it begins, and what it took."""

    def __init__(self, store: Bags, run: Path) -> None:
        self._origin, self._run = Origin.of(store), run
        self._bytes_before = 0
        self._saw = False

    def __call__(self, progress: Progress) -> None:
        """Training goes on; the first time, say where it came from."""
        if not self._saw and progress.done < 1:
            self._saw = True
            self._bytes_before = resident_bytes()
            earlier = read_origin(self._run)
            if earlier is not None:
                self._origin = replace(self._origin, peak_bytes=earlier.peak_bytes)
            self._origin.save(self._run)

    def finish(self) -> None:
        """Say what it took, unless there was nothing left to do; of several goes, the most."""
        # 0 where training had nothing left to do, or the system does not say.
        if not self._bytes_before:
            return
        most = max(self._origin.peak_bytes or 0, peak_resident_bytes())
        replace(self._origin, peak_bytes=most, bytes_before=self._bytes_before).save(self._run)


def _absolute(name: str) -> str:
    return name if "://" in name else str(Path(name).absolute())
