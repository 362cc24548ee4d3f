"""Where the replicas of a run take their turns; the result does not depend on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module

from streammiml._base.platform import usable_cores
from streammiml._base.pool_interface import Pool, PoolOptions
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.defaults import TURNS_AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainMachines:
    """Options of a run with replicas: on which machines they train."""

    workers: int | None = None
    """Train the replicas in this many processes of a local cluster, instead of threads."""
    scheduler: str | None = None
    """Address of a running Dask scheduler whose workers train the replicas. They need access to the
    same files."""
    worker_memory: str | int | None = None
    """Memory limit of each --workers process; by default an equal share of the machine's memory."""
    mixed_machines: bool = False
    """Accept workers whose processors compute other bits. Then the result depends on which worker
    trains which replica."""
    client: object = None
    """Use a ``distributed.Client``, which stays open, a Dask cluster object, or ``"active"``: the
    client that Dask uses by default. The command line does not have it."""

    def __post_init__(self) -> None:
        self.pool_options()

    @property
    def is_remote(self) -> bool:
        """Whether replicas train in other processes."""
        return any(where is not None for where in (self.workers, self.scheduler, self.client))

    def pool_options(self) -> PoolOptions:
        """Options of the pool; refuses those that contradict each other."""
        return PoolOptions(
            workers=self.workers,
            scheduler=self.scheduler,
            client=self.client,
            worker_memory=self.worker_memory,
        )

    def open_pool(self, config: TrainConfig) -> Pool:
        """Open the pool on which replicas take their turns."""
        options = self.pool_options()
        if not self.is_remote:
            n_threads = min(config.replicas, usable_cores(), TURNS_AT_ONCE)
            options = replace(options, threads=n_threads)
        # Loaded late: runs without replicas need no Dask.
        pool: Pool = import_module("streammiml._base.pool").open_pool(options, relief="--memory")
        pool.goes_on = "run the same command with --resume"
        return pool

    def check(self, config: TrainConfig) -> None:
        """Refuse a cluster for a run without replicas: nothing would run on it."""
        if config.replicas > 1 or not self.is_remote:
            return
        options = {"--workers": self.workers, "--scheduler": self.scheduler, "client=": self.client}
        name = next(name for name, value in options.items() if value is not None)
        raise StreammimlError(
            f"{name} trains the replicas of a run, and this run has one; give --replicas, two to "
            "four times the number of workers, or leave it out"
        )


HERE = TrainMachines()
"""Threads of this process."""
