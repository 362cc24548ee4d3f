"""Options of every verb that scores on Dask: where its tasks run, and what they may hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from streammiml.measure.scored import BLOCK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """As the library's calls take them, by the same names."""

    threads: int | None = None
    """Threads of this process; one a core unless given."""
    workers: int | None = None
    """Processes of a local cluster to start instead."""
    scheduler: str | None = None
    """Address of a running Dask scheduler to use instead; its workers write to OUT, if there is
    one."""
    worker_memory: str | None = None
    """What each of the --workers may take; an equal share of the machine's unless given."""
    block_bytes: str = BLOCK_BYTES
    """What a task reads at a time at most, and about a half of what it holds."""


def given(options: PoolOptions | None) -> dict[str, Any]:
    """The options, by name."""
    return asdict(options or PoolOptions())
