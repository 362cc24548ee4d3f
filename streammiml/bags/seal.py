"""Sealing: add the index, manifest and fingerprint to a store that another program wrote.

All data files are read and checked, and none is changed. The folder ``_streammiml`` is written
elsewhere, and renamed when all checks have passed. Just before, our key is added to
``_common_metadata`` of a Parquet store, a file without bags.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from streammiml._base.atomic import sync_file, sync_folder
from streammiml.bags.backends import BACKENDS
from streammiml.bags.layout import FOLDER, FORMATS, MANIFEST, Manifest
from streammiml.bags.location import SCHEMES, LocalFolder
from streammiml.bags.page_cache import OpenFile
from streammiml.bags.store import BagStore, open_one
from streammiml.errors import StoreError


def seal(where: str | os.PathLike[str]) -> BagStore:
    """Check a store written by another program, complete it, and open it."""
    path = Path(where)
    if os.fspath(where).startswith(SCHEMES):
        raise StoreError(f"{where} cannot be sealed: seal a local copy, then upload its {FOLDER}")
    if not path.is_dir():
        raise StoreError(f"{path} does not exist" if not path.exists() else f"{path} is no folder")
    if (path / ".zgroup").exists():
        raise StoreError(f"{path} is a Zarr 2 group; write its arrays with zarr_format=3")
    if (path / MANIFEST).exists():
        raise StoreError(f"{path} is sealed already; to seal it again, remove {path / FOLDER}")
    scratch = path / f"{FOLDER}.partial"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        sealer = BACKENDS[_backend_in(path)].sealer()
        manifest = sealer.index(
            LocalFolder(path), scratch, lambda draft: BagStore(_Overlay(path, scratch), draft)
        )
        _move_in(scratch, path, manifest)
    except OSError as error:
        raise StoreError(f"{path} cannot be sealed: {error.strerror or error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return open_one(path)


def _backend_in(path: Path) -> str:
    """Name of the backend of a folder, recognised by its files."""
    for name, backend_format in FORMATS.items():
        if any(path.glob(backend_format.marker)):
            return name
    markers = " nor ".join(backend_format.marker for backend_format in FORMATS.values())
    raise StoreError(f"{path} is no store: it holds neither {markers} (see FORMAT.md)")


def _move_in(scratch: Path, path: Path, manifest: Manifest) -> None:
    """Move the new files from the scratch folder into the store, ``_streammiml`` last."""
    folder = scratch / FOLDER
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    for file in folder.iterdir():
        sync_file(file)
    sync_folder(folder)
    for file in scratch.iterdir():
        if file.is_file():
            file.replace(path / file.name)
    folder.rename(path / FOLDER)
    sync_folder(path)


class _Overlay(LocalFolder):
    """The folder of a store whose ``_streammiml`` is still in a scratch folder."""

    def __init__(self, path: Path, scratch: Path) -> None:
        super().__init__(path)
        self._scratch = LocalFolder(scratch)

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from a file of the store or of the scratch folder."""
        if key.startswith(f"{FOLDER}/"):
            self._scratch.read_into(key, offset, buffer)
        else:
            super().read_into(key, offset, buffer)

    def opened(self, key: str) -> OpenFile | None:
        """Open a file of the store or of the scratch folder."""
        is_new = key.startswith(f"{FOLDER}/")
        return self._scratch.opened(key) if is_new else super().opened(key)
