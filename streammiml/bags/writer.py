"""``BagWriter``: a store from parts, from several processes, in any order; absent or complete.

Everything is written into a hidden folder beside the destination and renamed at the end (under a
URL: the manifest is written last). Parts that come in order, from the process that began, go
straight into the arrays of a Zarr store; others are spooled first. A Parquet part is a file of
its own. After a kill, beginning again with the same settings goes on with what is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from streammiml.bags import parquet_rows
from streammiml.bags.assembly import (
    JOURNAL,
    SYNCED_JOURNAL,
    Assembled,
    ParquetAssembly,
    ZarrAssembly,
)
from streammiml.bags.block import BagBlock
from streammiml.bags.block_facts import digests_of, top_label
from streammiml.bags.checks import StoreSpec, backend_of, clean
from streammiml.bags.ids import refuse_twice
from streammiml.bags.layout import FOLDER, MANIFEST, OWNER, RECORD, Manifest
from streammiml.bags.parts import Lock, block_arrays, block_from, load_arrays, save_arrays
from streammiml.bags.place import (
    SCHEMES,
    LocalPlace,
    Place,
    free_bytes,
    open_place,
    sync_file,
    sync_folder,
    write_atomically,
)
from streammiml.bags.store import BagStore, open_one, staging_of
from streammiml.errors import StoreError

if TYPE_CHECKING:
    from streammiml.bags.remote import RemotePlace

SUBFOLDERS = ("store", "parts", "logs")


@dataclass(frozen=True, slots=True)
class Prepared:
    """Bags as a store holds them, checked; see :func:`prepare`."""

    block: BagBlock
    dropped: int
    """Empty bags that were left out."""
    digests: NDArray[np.uint64]

    def facts(self) -> dict[str, Any]:
        """What is noted of a part beside its arrays."""
        top = top_label(self.block) if len(self.block) else -1
        return {"dropped": self.dropped, "top_label": top}


def prepare(block: BagBlock, spec: StoreSpec, where: str) -> Prepared:
    """Check bags and bring them into the store's types: the part of writing that is arithmetic.

    Needs no writer, so that it can be done in another thread, ahead of the writing itself.
    ``where`` opens the message of a refusal.
    """
    kept, dropped = clean(block, spec, where)
    return Prepared(kept, dropped, digests_of(kept))


class BagWriter:
    """Writes one store; :meth:`begin`, then :meth:`write_part` for each, then :meth:`finish`.

    Other processes :meth:`join` and write parts too. A context manager: leaving it gives the
    folder free, and keeps what is written.

    >>> import numpy as np
    >>> from streammiml.bags.block import BagBlock
    >>> from streammiml.bags.checks import StoreSpec
    >>> spec = StoreSpec(n_features=2, label_names=("sea", "sky"))
    >>> with sm.BagWriter.begin("made.zarr", spec) as writer:
    ...     writer.write_part(0, BagBlock.from_bags([np.eye(2), np.ones((3, 2))], [[0], [0, 1]]))
    ...     store = writer.finish(1)
    >>> store.n_bags, store.n_rows, store.label_names
    (2, 5, ['sea', 'sky'])
    """

    def __init__(self, destination: str, spec: StoreSpec, staging: Path, lock: Lock | None) -> None:
        self.destination, self.spec = destination, spec
        self.backend = backend_of(destination)
        self._staging, self._lock = staging, lock
        self._root, self._parts = staging / "store", staging / "parts"
        self._remote = destination.startswith(SCHEMES)
        self._assembly: ZarrAssembly | None = None
        if lock is not None and self.backend == "zarr":
            self._assembly = self._resumed_assembly()

    @classmethod
    def begin(
        cls,
        destination: str | os.PathLike[str],
        spec: StoreSpec,
        *,
        source: str = "",
        staging: Path | None = None,
    ) -> BagWriter:
        """Begin a store, or go on with one begun before with the same settings and ``source``.

        ``source`` is any text that names what is converted: a change of it refuses to go on.
        """
        name = os.fspath(destination)
        folder = staging or _staging_for(name)
        _refuse_existing(name)
        wanted = json.dumps({"spec": asdict(spec), "source": source}, sort_keys=True)
        with _writing(name, folder.parent):
            folder.mkdir(parents=True, exist_ok=True)
            lock = Lock(folder / "lock", name)
        begun = folder / "begun.json"
        try:
            if not begun.exists():
                with _writing(name, folder):
                    # What lies here without it was being removed when a process was killed.
                    for journal in (JOURNAL, SYNCED_JOURNAL):
                        (folder / journal).unlink(missing_ok=True)
                    for sub in SUBFOLDERS:
                        shutil.rmtree(folder / sub, ignore_errors=True)
                    write_atomically(begun, wanted.encode())
            elif begun.read_text() != wanted:
                raise StoreError(
                    f"{name} was begun with other settings or another source; remove {folder} "
                    "to start anew"
                )
            with _writing(name, folder):
                for sub in SUBFOLDERS:
                    (folder / sub).mkdir(exist_ok=True)
            writer = cls(name, spec, folder, lock)
            if writer._remote:
                writer._claim()
            return writer
        except BaseException:
            lock.release()
            raise

    @classmethod
    def join(cls, destination: str | os.PathLike[str], *, staging: Path | None = None) -> BagWriter:
        """Write parts of a store that another process has begun and will finish."""
        name = os.fspath(destination)
        folder = staging or _staging_for(name)
        try:
            begun = json.loads((folder / "begun.json").read_text())
        except FileNotFoundError:
            raise StoreError(f"{name} has not been begun; nothing to join") from None
        kept: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in begun["spec"].items()
        }
        return cls(name, StoreSpec(**kept), folder, None)

    def __enter__(self) -> BagWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes in; what is written stays, and can be gone on with."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _resumed_assembly(self) -> ZarrAssembly:
        def make() -> ZarrAssembly:
            upload = self._put if self._remote else None
            return ZarrAssembly(self._root, self._staging / "logs", self.spec, upload)

        # The second is a little older, and outlives a power cut.
        for name in (JOURNAL, SYNCED_JOURNAL):
            assembly = make()
            if assembly.restore(self._staging / name) and self._has_ids(assembly.next_part):
                return assembly
        for sub in ("store", "logs"):
            shutil.rmtree(self._staging / sub, ignore_errors=True)
            (self._staging / sub).mkdir()
        return make()

    def _part(self, number: int) -> Path:
        return self._parts / f"part-{number:08d}"

    def has_part(self, number: int) -> bool:
        """Whether a part is written, whole."""
        if self.backend == "zarr" and number < self._absorbed():
            return True
        loaded = load_arrays(self._part(number))
        if loaded is None:
            return False
        if self.backend == "zarr" or self._remote or not len(loaded[0]["digests"]):
            return True
        # A store that was finished took the file along.
        wanted: int = loaded[1]["size"]
        return LocalPlace(self._root).size(parquet_rows.part_key(number)) == wanted

    def write_part(self, number: int, block: BagBlock | Prepared) -> None:
        """Write the bags of one part; parts are numbered from 0 and joined in that order.

        A part that is there already stays as it is, so a task that is run twice does no harm.
        """
        if number < 0:
            raise StoreError(f"{self.destination}: parts are numbered from 0, got {number}")
        if self.has_part(number):
            return
        if isinstance(block, BagBlock):
            block = prepare(block, self.spec, f"{self.destination}, part {number}")
        with _writing(self.destination, self._staging):
            if self.backend == "parquet":
                self._write_file(number, block)
            elif self._assembly is not None and number == self._assembly.next_part:
                self._append(self._assembly, block)
            else:
                arrays = {**block_arrays(block.block), "digests": block.digests}
                save_arrays(self._part(number), arrays, block.facts())

    def _absorbed(self) -> int:
        """Parts that are in the arrays of a Zarr store; another process may have put them there."""
        if self._assembly is not None:
            return self._assembly.next_part
        loaded = load_arrays(self._staging / JOURNAL)
        return 0 if loaded is None else int(loaded[1]["next_part"])

    def _append(self, assembly: ZarrAssembly, part: Prepared) -> None:
        # Until the part is in the journal a failure leaves arrays that do not match it.
        self._assembly = None
        self._log_ids(assembly, part.block)
        assembly.add(part.block, part.dropped, part.digests)
        assembly.save(self._staging)
        self._assembly = assembly
        self._absorb()

    def _absorb(self) -> None:
        """Take spooled parts whose turn has come into the arrays."""
        while self._assembly is not None:
            path = self._part(self._assembly.next_part)
            loaded = load_arrays(path)
            if loaded is None:
                return
            arrays, facts = loaded
            assembly, self._assembly = self._assembly, None
            block = block_from(arrays, self.spec.n_features)
            self._log_ids(assembly, block)
            assembly.add(block, facts["dropped"], arrays.get("digests"))
            assembly.save(self._staging)
            self._assembly = assembly
            path.unlink()

    def _has_ids(self, n_parts: int) -> bool:
        """Whether the ids of all parts that are in the arrays are still known."""
        paths = (self._parts / f"ids-{number:08d}" for number in range(n_parts))
        return not self.spec.bag_ids or all(path.exists() for path in paths)

    def _log_ids(self, assembly: ZarrAssembly, block: BagBlock) -> None:
        if block.bag_ids is not None:
            hashes = id_hashes(block.bag_ids)
            path = self._parts / f"ids-{assembly.next_part:08d}"
            path.write_bytes(hashes.tobytes())
            sync_file(path)

    def _write_file(self, number: int, prepared: Prepared) -> None:
        key, block, facts = parquet_rows.part_key(number), prepared.block, prepared.facts()
        arrays: dict[str, NDArray[Any]] = {"digests": prepared.digests}
        offsets = parquet_rows.block_offsets(block)
        arrays |= {f"offsets/{name}": values for name, values in offsets.items()}
        # A part that is written again must not be taken for the old one halfway.
        self._part(number).unlink(missing_ok=True)
        if len(block):
            beside = self._parts / f"{key}.{os.getpid()}.partial"
            part = parquet_rows.write_part(beside, block, self.spec)
            sync_file(beside)
            path = self._root / key
            beside.replace(path)
            if self._remote:
                self._put(key, path)
                path.unlink()
            arrays |= {f"records/{name}": of.view(np.uint8) for name, of in part.records.items()}
            facts |= {"plain": part.plain, "size": part.size, "crc": part.crc}
            facts["footer"] = part.footer
        if block.bag_ids is not None:
            arrays["ids"] = id_hashes(block.bag_ids)
        save_arrays(self._part(number), arrays, facts)

    def absorb(self) -> None:
        """Take parts that others have written into the arrays, as far as their turn has come."""
        with _writing(self.destination, self._staging):
            self._absorb()

    def finish(
        self,
        n_parts: int,
        *,
        label_names: tuple[str, ...] | None = None,
        n_labels: int | None = None,
    ) -> BagStore:
        """Complete the store from parts 0 to ``n_parts`` and make it visible.

        Names or number of the labels may be given here when they were not known at the beginning.
        """
        if self._lock is None:
            raise StoreError(f"{self.destination} is finished by the process that began it")
        spec = self.spec
        if label_names is not None or n_labels is not None:
            known = {"label_names": label_names, "n_labels": n_labels}
            given: Any = {name: value for name, value in known.items() if value is not None}
            spec = replace(spec, **given)
        self._absorb_all(n_parts)
        with _writing(self.destination, self._staging):
            assembled = self._assembled(n_parts, spec)
            n_labels = _label_count(spec, assembled, self.destination)
            manifest = assembled.manifest(spec, self.backend, n_labels)
            if self._remote:
                self._send_rest(manifest)
            self._refuse_twice(n_parts, manifest)
            self._commit(manifest)
        self.close()
        return open_one(self.destination)

    def _absorb_all(self, n_parts: int) -> None:
        if self.backend == "zarr" and self._assembly is None:
            self._assembly = self._resumed_assembly()
        while True:
            with _writing(self.destination, self._staging):
                self._absorb()
            missing = self._missing(n_parts)
            # Another process may deliver a part right now: of a Zarr store only what is in the
            # arrays counts.
            if missing or self._assembly is None or self._assembly.next_part >= n_parts:
                break
        if missing:
            some = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            raise StoreError(
                f"{self.destination} is unfinished: parts {some} of {n_parts} are missing; "
                "run streammiml convert again to finish it"
            )

    def _missing(self, n_parts: int) -> list[int]:
        """Parts that are not there; more of them than were told of is an error."""
        first = 0 if self._assembly is None else self._assembly.next_part
        spooled = [int(path.name[5:]) + 1 for path in self._parts.glob("part-" + "[0-9]" * 8)]
        found = max([first, *spooled])
        if found > n_parts:
            raise StoreError(f"{self.destination} has {found} parts, told of {n_parts}")
        return [number for number in range(first, n_parts) if not self.has_part(number)]

    def _assembled(self, n_parts: int, spec: StoreSpec) -> Assembled:
        if self._assembly is not None:
            # Finishing again, after an error, goes back to the journal.
            whole, self._assembly = self._assembly, None
            return whole.finish(said_of(spec, _counted(spec, whole.tally.top_label)))
        assembly = ParquetAssembly(self._root, spec)
        for number in range(n_parts):
            loaded = load_arrays(self._part(number))
            assert loaded is not None, "parts were counted before"
            key = parquet_rows.part_key(number)
            assembly.add(key, *_part_index(*loaded))
        return assembly.finish(said_of(spec, _counted(spec, assembly.tally.top_label)))

    def _refuse_twice(self, n_parts: int, manifest: Manifest) -> None:
        """Refuse two bags of one id, once all are known."""
        if not self.spec.bag_ids:
            return
        hashes = np.concatenate([self._ids_of(number) for number in range(n_parts)])
        store = BagStore(LocalPlace(self._root) if not self._remote else self._place, manifest)
        refuse_twice(hashes, lambda bag: store.bag_ids(bag, bag + 1)[0], self.destination)

    def _ids_of(self, number: int) -> NDArray[np.uint64]:
        if self.backend == "zarr":
            return np.fromfile(self._parts / f"ids-{number:08d}", np.uint64)
        loaded = load_arrays(self._part(number))
        assert loaded is not None, "parts were counted before"
        return loaded[0]["ids"]

    @cached_property
    def _place(self) -> RemotePlace:
        return cast("RemotePlace", open_place(self.destination))

    def _put(self, key: str, path: Path) -> None:
        self._place.put(key, path)

    def _claim(self) -> None:
        """Make the place under a URL ours: a second writer, or anything that lies there, is seen.

        The staging folder, which is locked, is what goes on with a store; so it is the owner.
        """
        host = socket.gethostname()
        token = hashlib.sha256(f"{host}\0{self._staging.absolute()}".encode()).hexdigest()
        place = self._place
        others = place.sizes().keys() - {OWNER}
        if others and place.size(OWNER) is None:
            raise StoreError(
                f"{self.destination} holds {len(others)} other objects, the first is "
                f"{min(others)!r}; remove them or choose another name"
            )
        said = json.dumps({"owner": f"process {os.getpid()} on {host}", "token": token})
        there = place.create(OWNER, said.encode())
        if token not in there.decode(errors="replace"):
            found = re.search(rb'"owner": "([^"]*)"', there)
            owner = found[1].decode(errors="replace") if found else "another process"
            raise StoreError(
                f"{self.destination} is being written by {owner}; wait for it, or remove "
                f"{self.destination}/{OWNER} if it is gone for good"
            )

    def _commit(self, manifest: Manifest) -> None:
        """Make the store visible: the manifest comes last, then the rename."""
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
        """Files that go under a URL only at the end, with their bytes."""
        sent = {key for key, _, _ in manifest.files if not key.startswith(FOLDER)}
        keys = set(LocalPlace(self._root).files()) - sent
        return {key: (self._root / key).stat().st_size for key in sorted(keys)}

    def _send_rest(self, manifest: Manifest) -> None:
        for key in self._unsent(manifest):
            self._place.put(key, self._root / key)

    def _publish(self, manifest: Manifest) -> None:
        """Write the manifest, once every object is seen to be there, whole and alone."""
        place = self._place
        found = place.sizes()
        if MANIFEST in found:
            raise _exists(self.destination)
        wanted = {key: size for key, size, _ in manifest.files} | self._unsent(manifest)
        for key, size in wanted.items():
            if found.get(key) != size:
                raise StoreError(
                    f"{self.destination}/{key} was written, but has {found.get(key, 0)} bytes "
                    f"instead of {size}; remove {self._staging} to start anew"
                )
        # Left by an attempt with other settings: all that lies here is ours.
        place.delete(found.keys() - wanted.keys() - {OWNER})
        content = manifest.to_bytes()
        if place.create(MANIFEST, content) != content:
            raise _exists(self.destination)
        with suppress(StoreError):  # The store is complete; the mark does no harm.
            place.delete([OWNER])


def _part_index(
    arrays: dict[str, NDArray[Any]], facts: dict[str, Any]
) -> tuple[parquet_rows.PartIndex, NDArray[np.uint64], int, int]:
    """A spooled index of a Parquet part, as its assembly takes it."""
    named = {
        kind: {
            name.removeprefix(f"{kind}/"): array
            for name, array in arrays.items()
            if name.startswith(f"{kind}/")
        }
        for kind in ("offsets", "records")
    }
    part = parquet_rows.PartIndex(
        offsets=named["offsets"],
        records={name: raw.view(RECORD) for name, raw in named["records"].items()},
        plain=facts.get("plain", {}),
        size=facts.get("size", 0),
        crc=facts.get("crc", 0),
        footer=tuple(facts.get("footer", (0, 0, 0))),
    )
    return part, arrays["digests"], facts["top_label"], facts["dropped"]


def said_of(spec: StoreSpec, n_labels: int) -> dict[str, Any]:
    """What a store says of itself to those who read it without us."""
    said = {
        "n_features": spec.n_features,
        "n_labels": n_labels,
        "label_names": spec.label_names,
        "feature_names": spec.feature_names,
    }
    return {key: value for key, value in said.items() if value is not None}


def id_hashes(names: list[str]) -> NDArray[np.uint64]:
    """64 bits of each name, to find names that come twice."""
    raw = b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(raw, np.uint64)


def _counted(spec: StoreSpec, top_label: int) -> int:
    known = spec.labels_known
    return top_label + 1 if known is None else known


def _label_count(spec: StoreSpec, assembled: Assembled, name: str) -> int:
    tally = assembled.tally
    if tally.n_bags == 0:
        raise StoreError(f"{name} would hold no bags ({tally.dropped_bags} empty ones dropped)")
    count = _counted(spec, tally.top_label)
    if tally.top_label >= count:
        what = "labels" if spec.label_names is None else "names"
        raise StoreError(f"{name}: label {tally.top_label} occurs, but there are {count} {what}")
    return count


def _staging_for(name: str) -> Path:
    if name.startswith(SCHEMES):
        key = hashlib.sha256(name.encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"streammiml-{key}.partial"
    return staging_of(Path(name))


def _refuse_existing(name: str) -> None:
    backend_of(name)
    place: Place = open_place(name)
    if isinstance(place, LocalPlace):
        if place.path.exists():
            raise _exists(name)
        if not place.path.absolute().parent.is_dir():
            raise StoreError(f"{name} cannot be written: there is no folder {place.path.parent}")
    elif name.startswith(("http://", "https://")):
        raise StoreError(f"{name} cannot be written: http is for reading only")
    elif place.size(MANIFEST) is not None:
        raise _exists(name)


def _exists(name: str) -> StoreError:
    return StoreError(f"{name} exists already; remove it or choose another name")


@contextmanager
def _writing(name: str, folder: Path) -> Iterator[None]:
    """Turn a failure of the disk into a line that says what is kept."""
    try:
        yield
    except OSError as error:
        there = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
        raise StoreError(
            f"{name} cannot be written: {error.strerror or error} "
            f"({free_bytes(there):,} bytes free); finished parts are kept, run again to go on"
        ) from error
