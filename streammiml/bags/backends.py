"""Storage backends: functions in which Zarr and Parquet stores differ, and a table of backends.

To add a backend, write modules with the functions of the three protocols, enter them in
``BACKENDS`` below, and describe the files in ``layout.FORMATS``. Modules are loaded when they are
first needed: reading a Zarr store loads neither zarr nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.layout import Manifest
from streammiml.bags.location import LocalFolder, Location, Upload
from streammiml.bags.validate import StoreSpec
from streammiml.bags.verified_array import Decode
from streammiml.bags.views import Bags

if TYPE_CHECKING:  # Types only: these modules load a compiler, which reading does not need.
    from streammiml.bags.manifest_draft import ManifestDraft
    from streammiml.bags.prepared_bags import PreparedBags


@runtime_checkable
class ReadingBackend(Protocol):
    """Turns the bytes of chunks into values."""

    def decoders(self, location: Location, manifest: Manifest) -> dict[str, Decode]:
        """Make a function for each array that turns checked bytes of its chunks into values."""

    def unpackers(self) -> tuple[int, ...]:
        """Return addresses of two C functions: unpack a chunk, unpack a part of it; () if none."""

    def attributes(self, location: Location, manifest: Manifest) -> dict[str, Any]:
        """Read counts and names from the file that describes the store."""


class StagedParts(Protocol):
    """Parts of an unfinished store in its staging folder."""

    def has(self, number: int) -> bool:
        """Tell whether a part is completely written."""

    def write(self, number: int, bags: PreparedBags) -> None:
        """Write a part that does not exist yet."""

    def absorb(self) -> None:
        """Append spooled parts to the arrays in order, up to the first part that is missing."""

    def missing(self, n_parts: int) -> list[int]:
        """Absorb the parts below ``n_parts``; return the numbers of missing parts."""

    def n_begun(self) -> int:
        """Highest number of an existing part, plus one; 0 if no part exists."""

    def finish(self, n_parts: int, spec: StoreSpec) -> ManifestDraft:
        """Complete and describe the files of the store; may be repeated after a failure."""

    def id_hashes(self, number: int) -> NDArray[np.uint64]:
        """Hashes of the bag ids of a part."""


@runtime_checkable
class WritingBackend(Protocol):
    """Writes the parts of a store."""

    def staged_parts(
        self, staging: Path, spec: StoreSpec, upload: Upload | None, *, is_owner: bool
    ) -> StagedParts:
        """Open the parts in a staging folder.

        ``upload`` sends completed files to a URL; None for a local store. ``is_owner`` is True in
        the process that will finish the store.
        """


@runtime_checkable
class SealingBackend(Protocol):
    """Indexes data files that other programs wrote."""

    def index(
        self, folder: LocalFolder, scratch: Path, read: Callable[[Manifest], Bags]
    ) -> Manifest:
        """Check all data files of a folder, and return the manifest of the sealed store.

        New files are written below ``scratch``. ``read`` opens the folder as a store, given a
        manifest whose chunk tables are in ``scratch``.
        """


@dataclass(frozen=True, slots=True)
class Backend:
    """Names of the modules of a backend, by protocol."""

    reading: str
    writing: str
    sealing: str

    def reader(self) -> ReadingBackend:
        """Load the functions that read."""
        return cast("ReadingBackend", import_module(self.reading))

    def writer(self) -> WritingBackend:
        """Load the functions that write."""
        return cast("WritingBackend", import_module(self.writing))

    def sealer(self) -> SealingBackend:
        """Load the functions that seal."""
        return cast("SealingBackend", import_module(self.sealing))


BACKENDS = {
    "zarr": Backend(
        reading="streammiml.bags.zarr_read",
        writing="streammiml.bags.zarr_parts",
        sealing="streammiml.bags.zarr_seal",
    ),
    "parquet": Backend(
        reading="streammiml.bags.parquet_read",
        writing="streammiml.bags.parquet_parts",
        sealing="streammiml.bags.parquet_seal",
    ),
}
"""Backends by name, which is also the suffix of their stores."""
