"""``BagWriter``: write a store part by part, from one or several processes, in any order.

Everything is written into a staging folder, which is renamed at the end; under a URL the manifest
is written last. So a store is either absent or complete. After a kill, a writer that begins with
the same settings keeps all complete parts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from streammiml._base.atomic import (
    FolderLock,
    sync_file,
    sync_folder,
    write_atomically,
)
from streammiml._base.json_and_toml import parse_json
from streammiml.bags.backends import BACKENDS
from streammiml.bags.block import BagBlock
from streammiml.bags.file_errors import writing
from streammiml.bags.ids import refuse_twice
from streammiml.bags.layout import FOLDER, MANIFEST, OWNER, Manifest
from streammiml.bags.location import SCHEMES, LocalFolder, Location, open_location
from streammiml.bags.manifest_draft import PartTally
from streammiml.bags.prepared_bags import PreparedBags, prepare
from streammiml.bags.spool import JOURNAL, SUBFOLDERS, SYNCED_JOURNAL
from streammiml.bags.staging import staging_for
from streammiml.bags.store import BagStore, open_one
from streammiml.bags.validate import StoreSpec, backend_of
from streammiml.errors import StoreError

if TYPE_CHECKING:
    from streammiml.bags.object_store import ObjectFolder


class BagWriter:
    """Writes one store: :meth:`begin`, then :meth:`write_part` for each part, then :meth:`finish`.

    Other processes :meth:`join` and write parts too. A writer is a context manager: leaving it
    releases the lock of the staging folder, and keeps all complete parts.

    >>> import numpy as np
    >>> from streammiml.bags.block import BagBlock
    >>> from streammiml.bags.validate import StoreSpec
    >>> spec = StoreSpec(n_features=2, label_names=("sea", "sky"))
    >>> with sm.BagWriter.begin("made.zarr", spec) as writer:
    ...     writer.write_part(0, BagBlock.from_bags([np.eye(2), np.ones((3, 2))], [[0], [0, 1]]))
    ...     store = writer.finish(1)
    >>> store.n_bags, store.n_rows, store.label_names
    (2, 5, ['sea', 'sky'])
    """

    def __init__(
        self,
        destination: str,
        spec: StoreSpec,
        staging: Path,
        lock: FolderLock | None,
        needed: int | None = None,
    ) -> None:
        self.destination, self.spec, self._needed = destination, spec, needed
        self.backend = backend_of(destination)
        self._staging, self._lock = staging, lock
        self._root = staging / "store"
        self._remote = destination.startswith(SCHEMES)
        self._parts = (
            BACKENDS[self.backend]
            .writer()
            .staged_parts(
                staging, spec, self._put if self._remote else None, is_owner=lock is not None
            )
        )

    @classmethod
    def begin(
        cls,
        destination: str | os.PathLike[str],
        spec: StoreSpec,
        *,
        source: str = "",
        staging: Path | None = None,
        needed: int | None = None,
    ) -> BagWriter:
        """Begin a store, or resume one that was begun with the same settings and ``source``.

        ``source`` is any text that identifies the source; resuming with another text is refused.
        ``needed`` is the estimated size in bytes, for the message of a full disk.
        """
        name = os.fspath(destination)
        folder = staging or staging_for(name)
        _refuse_existing(name)
        settings = json.dumps({"spec": _spec_record(spec), "source": source}, sort_keys=True)
        with writing(name, folder.parent, needed):
            folder.mkdir(parents=True, exist_ok=True)
            lock = FolderLock(folder / "lock", name)
        begun = folder / "begun.json"
        try:
            if not begun.exists():
                with writing(name, folder, needed):
                    # Without begun.json, files here are left from a removal that was interrupted.
                    for journal in (JOURNAL, SYNCED_JOURNAL):
                        (folder / journal).unlink(missing_ok=True)
                    for sub in SUBFOLDERS:
                        shutil.rmtree(folder / sub, ignore_errors=True)
                    write_atomically(begun, settings.encode())
            elif begun.read_text() != settings:
                raise StoreError(
                    f"{name} was begun with other settings or another source; remove {folder} "
                    "to start again"
                )
            with writing(name, folder, needed):
                for sub in SUBFOLDERS:
                    (folder / sub).mkdir(exist_ok=True)
            writer = cls(name, spec, folder, lock, needed)
            if writer._remote:
                writer._claim()
            return writer
        except BaseException:
            lock.release()
            raise

    @classmethod
    def join(
        cls,
        destination: str | os.PathLike[str],
        *,
        staging: Path | None = None,
        needed: int | None = None,
    ) -> BagWriter:
        """Write parts of a store that another process began and will finish."""
        name = os.fspath(destination)
        folder = staging or staging_for(name)
        try:
            begun = parse_json((folder / "begun.json").read_text())
        except FileNotFoundError:
            raise StoreError(f"{name} has not been begun; nothing to join") from None
        settings: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in begun["spec"].items()
        }
        return cls(name, StoreSpec(**settings), folder, None, needed)

    def __enter__(self) -> BagWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; complete parts stay, and a new writer can resume."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def has_part(self, number: int) -> bool:
        """Tell whether a part is completely written."""
        return self._parts.has(number)

    def write_part(self, number: int, block: BagBlock | PreparedBags) -> None:
        """Write the bags of one part; parts are numbered from 0 and joined in that order.

        Writing is idempotent: a part that is already there stays as it is.
        """
        if number < 0:
            raise StoreError(f"{self.destination}: parts are numbered from 0, got {number}")
        if self.has_part(number):
            return
        if isinstance(block, BagBlock):
            block = prepare(block, self.spec, f"{self.destination}, part {number}")
        with writing(self.destination, self._staging, self._needed or block.block.nbytes):
            self._parts.write(number, block)

    def absorb(self) -> None:
        """Append parts of other processes to the arrays in order, up to the first missing part."""
        with writing(self.destination, self._staging, self._needed):
            self._parts.absorb()

    def finish(
        self,
        n_parts: int,
        *,
        label_names: tuple[str, ...] | None = None,
        n_labels: int | None = None,
    ) -> BagStore:
        """Complete the store from its ``n_parts`` parts and make it visible.

        ``label_names`` or ``n_labels`` can be set here if they were unknown to :meth:`begin`.
        """
        if self._lock is None:
            raise StoreError(
                f"{self.destination} can only be finished by the process that began it"
            )
        spec = self.spec
        if label_names is not None or n_labels is not None:
            arguments = {"label_names": label_names, "n_labels": n_labels}
            changes: Any = {name: value for name, value in arguments.items() if value is not None}
            spec = replace(spec, **changes)
        self._refuse_unfinished(n_parts)
        with writing(self.destination, self._staging, self._needed):
            draft = self._parts.finish(n_parts, spec)
            n_labels = _label_count(spec, draft.tally, self.destination)
            manifest = draft.manifest(spec, self.backend, n_labels)
            if self._remote:
                self._send_rest(manifest)
            self._refuse_twice(n_parts, manifest)
            self._commit(manifest)
        self.close()
        return open_one(self.destination)

    def _refuse_unfinished(self, n_parts: int) -> None:
        """Refuse to finish while parts are missing, or if there are more than ``n_parts``."""
        with writing(self.destination, self._staging, self._needed):
            missing = self._parts.missing(n_parts)
            n_begun = self._parts.n_begun()
        if n_begun > n_parts:
            raise StoreError(f"{self.destination} has {n_begun} parts, expected {n_parts}")
        if missing:
            some = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            raise StoreError(
                f"{self.destination} is unfinished: parts {some} of {n_parts} are missing; "
                "run streammiml convert again to finish it",
                page="convert",
            )

    def _refuse_twice(self, n_parts: int, manifest: Manifest) -> None:
        """Refuse two bags with the same id."""
        if not self.spec.bag_ids:
            return
        hashes = np.concatenate([self._parts.id_hashes(number) for number in range(n_parts)])
        store = BagStore(LocalFolder(self._root) if not self._remote else self._location, manifest)
        refuse_twice(hashes, lambda bag: store.bag_ids(bag, bag + 1)[0], self.destination)

    @cached_property
    def _location(self) -> ObjectFolder:
        return cast("ObjectFolder", open_location(self.destination))

    def _put(self, key: str, path: Path) -> None:
        self._location.put(key, path)

    def _claim(self) -> None:
        """Claim the URL for this writer; refuse a URL with objects of another writer or program.

        The path of the locked staging folder identifies the owner: a writer can resume only with
        the files of that folder.
        """
        host = socket.gethostname()
        token = hashlib.sha256(f"{host}\0{self._staging.absolute()}".encode()).hexdigest()
        location = self._location
        other_keys = location.sizes().keys() - {OWNER}
        if other_keys and location.size(OWNER) is None:
            raise StoreError(
                f"{self.destination} holds {len(other_keys)} other objects, the first is "
                f"{min(other_keys)!r}; remove them or choose another name"
            )
        claim = json.dumps({"owner": f"process {os.getpid()} on {host}", "token": token})
        content = location.create(OWNER, claim.encode())
        if token not in content.decode(errors="replace"):
            match = re.search(rb'"owner": "([^"]*)"', content)
            owner = match[1].decode(errors="replace") if match else "another process"
            raise StoreError(
                f"{self.destination} is being written by {owner}; wait for it, or remove "
                f"{self.destination}/{OWNER} if that process no longer exists"
            )

    def _commit(self, manifest: Manifest) -> None:
        """Make the store visible: write the manifest, then rename the folder."""
        if self._remote:
            self._publish(manifest)
        else:
            path = self._root / MANIFEST
            path.write_bytes(manifest.to_bytes())
            sync_file(path)
            for folder in {file.parent for file in self._root.rglob("*")}:
                sync_folder(folder)
            target = Path(self.destination)
            _refuse_existing(self.destination)
            self._root.rename(target)
            sync_folder(target.parent)
        shutil.rmtree(self._staging, ignore_errors=True)

    def _unsent(self, manifest: Manifest) -> dict[str, int]:
        """Size in bytes, by key, of each file that is uploaded only at the end."""
        sent = {key for key, _, _ in manifest.files if not key.startswith(FOLDER)}
        keys = set(LocalFolder(self._root).files()) - sent
        return {key: (self._root / key).stat().st_size for key in sorted(keys)}

    def _send_rest(self, manifest: Manifest) -> None:
        """Upload the files that were not uploaded when they were completed."""
        for key in self._unsent(manifest):
            self._location.put(key, self._root / key)

    def _publish(self, manifest: Manifest) -> None:
        """Check that all objects exist, delete all others, and write the manifest."""
        location = self._location
        sizes = location.sizes()
        if MANIFEST in sizes:
            raise _exists(self.destination)
        expected = {key: size for key, size, _ in manifest.files} | self._unsent(manifest)
        for key, size in expected.items():
            if sizes.get(key) != size:
                raise StoreError(
                    f"{self.destination}/{key} was written, but has {sizes.get(key, 0)} bytes "
                    f"instead of {size}; remove {self._staging} to start again"
                )
        # We own the URL, so other objects are left from an attempt with other settings.
        location.delete(sizes.keys() - expected.keys() - {OWNER})
        content = manifest.to_bytes()
        if location.create(MANIFEST, content) != content:
            raise _exists(self.destination)
        with suppress(StoreError):  # The store is complete; a left-over claim does no harm.
            location.delete([OWNER])


def _spec_record(spec: StoreSpec) -> dict[str, Any]:
    """Fields of the spec; without kept columns, those of versions that knew none."""
    record = asdict(spec)
    return record if spec.kept else {name: record[name] for name in record if name != "kept"}


def _label_count(spec: StoreSpec, tally: PartTally, name: str) -> int:
    """Number of labels; refuse a store without bags, and labels outside this number."""
    if tally.n_bags == 0:
        raise StoreError(f"{name} would hold no bags ({tally.dropped_bags} empty ones dropped)")
    count = tally.n_labels(spec)
    if tally.top_label >= count:
        noun = "labels" if spec.label_names is None else "names"
        raise StoreError(f"{name}: label {tally.top_label} occurs, but there are {count} {noun}")
    return count


def _refuse_existing(name: str) -> None:
    backend_of(name)
    location: Location = open_location(name)
    if isinstance(location, LocalFolder):
        if location.path.exists():
            raise _exists(name)
        if not location.path.absolute().parent.is_dir():
            raise StoreError(f"{name} cannot be written: there is no folder {location.path.parent}")
    elif name.startswith(("http://", "https://")):
        raise StoreError(f"{name} cannot be written: http is for reading only")
    elif location.size(MANIFEST) is not None:
        raise _exists(name)


def _exists(name: str) -> StoreError:
    return StoreError(f"{name} exists already; remove it or choose another name")
