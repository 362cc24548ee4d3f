"""Envelopes: compression and checksums around the content of files.

A mutant of the bytes of such a file only tests the checksum. So the fuzzer also unwraps a file to
pieces, mutates a piece, and wraps the pieces again with checksums that match.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from streammiml.bags import layout
from streammiml.model import load_tensors, save_tensors
from tests.fuzz.mutations import mutate, mutate_message
from tests.tools.readers import tf_messages

NEWEST = 99
ATTEMPTS = 4


Mutate = Callable[[bytes, Random, Sequence[bytes], Sequence[bytes]], bytes]


class Envelope(NamedTuple):
    """How a file is unwrapped to pieces, and how pieces are wrapped in the manner of a file.

    Both raise an exception for content that they do not understand.
    """

    unwrap: Callable[[bytes], list[bytes]]
    wrap: Callable[[bytes, list[bytes]], bytes]
    mutate: Mutate = mutate
    """How a piece is mutated."""
    is_compression: bool = False
    """Whether the one piece is a file of the name without its last suffix."""


def envelope_of(name: str, content: bytes) -> Envelope | None:
    """The envelope of a file, by its name and content; None if it has none."""
    if name.endswith(layout.MANIFEST):
        return MANIFEST
    if content[:19] == b"MATLAB 5.0 MAT-file":
        return MATLAB
    return BY_SUFFIX.get(Path(name).suffix)


def mutant(
    name: str, content: bytes, rng: Random, donors: Sequence[bytes], words: Sequence[bytes]
) -> bytes:
    """A mutant of a file: mostly of what is inside its envelope."""
    envelope = envelope_of(name, content)
    if envelope is not None and rng.random() > 0.1:
        for _ in range(ATTEMPTS):
            # The file, or the mutated piece, may be too damaged for its envelope.
            with suppress(Exception):
                return _wrapped_mutant(envelope, name, content, rng, donors, words)
    return mutate(content, rng, donors, words)


def _wrapped_mutant(
    envelope: Envelope,
    name: str,
    content: bytes,
    rng: Random,
    donors: Sequence[bytes],
    words: Sequence[bytes],
) -> bytes:
    pieces = envelope.unwrap(content)
    at = rng.randrange(len(pieces))
    if envelope.is_compression:
        pieces[at] = mutant(str(Path(name).with_suffix("")), pieces[at], rng, donors, words)
    elif (what := rng.random()) < 0.05:
        pieces.insert(at, rng.choice(pieces))
    elif what < 0.1 and len(pieces) > 1:
        del pieces[at]
    else:
        pieces[at] = envelope.mutate(pieces[at], rng, donors, words)
    return envelope.wrap(content, pieces)


# Compressed files.


def _unwrap_zstd(content: bytes) -> list[bytes]:
    with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
        return [bytes(stream.read())]


def _wrap_zstd(_: bytes, pieces: list[bytes]) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(b"".join(pieces))
    return bytes(out.getvalue())


GZIP = Envelope(
    lambda content: [gzip.decompress(content)],
    lambda _, pieces: gzip.compress(b"".join(pieces), 1, mtime=0),
    is_compression=True,
)
ZSTD = Envelope(_unwrap_zstd, _wrap_zstd, is_compression=True)


# Archives of arrays.


def _unwrap_zip(content: bytes) -> list[bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return [archive.read(name) for name in archive.namelist()]


def _wrap_zip(content: bytes, pieces: list[bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        members = old.infolist()
        for number, piece in enumerate(pieces):
            member = members[min(number, len(members) - 1)]
            name = member.filename if number < len(members) else f"more{number}.npy"
            info = zipfile.ZipInfo(name)
            new.writestr(info, piece, member.compress_type)
    return out.getvalue()


ZIP = Envelope(_unwrap_zip, _wrap_zip)


# Records with checksums.


def _unwrap_records(content: bytes) -> list[bytes]:
    pieces, at = [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        if length > len(content) - at - 16:
            raise ValueError("cut short")
        pieces.append(content[at + 12 : at + 12 + length])
        at += 16 + length
    return pieces


def _wrap_records(_: bytes, pieces: list[bytes]) -> bytes:
    return b"".join(map(tf_messages.record, pieces))


RECORDS = Envelope(_unwrap_records, _wrap_records, mutate_message)


# MATLAB 5: compressed variables.


def _unwrap_matlab(content: bytes) -> list[bytes]:
    pieces, at = [], 128
    while at + 8 <= len(content):
        kind, length = struct.unpack_from("<II", content, at)
        if kind != 15:
            raise ValueError("not compressed")
        pieces.append(zlib.decompress(content[at + 8 : at + 8 + length]))
        at += 8 + length
    return pieces


def _wrap_matlab(content: bytes, pieces: list[bytes]) -> bytes:
    compressed = [zlib.compress(piece, 1) for piece in pieces]
    return content[:128] + b"".join(struct.pack("<II", 15, len(c)) + c for c in compressed)


MATLAB = Envelope(_unwrap_matlab, _wrap_matlab)


# Models and checkpoints: JSON, and a piece for each tensor.


def _tensors_of(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(content)
        file.flush()
        kind = "checkpoint" if b'\\"kind\\":\\"checkpoint\\"' in content else "model"
        return load_tensors(file.name, kind=kind, version=NEWEST)


def _unwrap_tensors(content: bytes) -> list[bytes]:
    tensors, metadata = _tensors_of(content)
    pieces = [json.dumps([metadata, list(tensors)]).encode()]
    for tensor in tensors.values():
        out = io.BytesIO()
        np.save(out, tensor)
        pieces.append(out.getvalue())
    return pieces


def _wrap_tensors(_: bytes, pieces: list[bytes]) -> bytes:
    metadata, names = json.loads(pieces[0])
    arrays = [np.load(io.BytesIO(piece), allow_pickle=False) for piece in pieces[1:]]
    kind, version = metadata.pop("kind"), metadata.pop("format")
    tensors = dict(zip(names, arrays, strict=False))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        save_tensors(path, tensors, metadata, kind=kind, version=version)
        return path.read_bytes()


TENSORS = Envelope(_unwrap_tensors, _wrap_tensors)


# Manifests and stores.


def signed(body: dict[str, object]) -> bytes:
    """The bytes of a manifest with a checksum that matches."""
    body = {name: value for name, value in body.items() if name != "checksum"}
    return layout._dump({**body, "checksum": layout._checksum(body)})


def _wrap_manifest(_: bytes, pieces: list[bytes]) -> bytes:
    return signed(json.loads(pieces[0]))


MANIFEST = Envelope(lambda content: [content], _wrap_manifest)


def sealed(files: dict[str, bytes]) -> dict[str, bytes]:
    """A store whose checksums and sizes match its files, as if a writer had written these.

    Raises an exception if the manifest is too damaged for that.
    """
    files = dict(files)
    body = json.loads(files[layout.MANIFEST])
    keys = [key for key, _, _ in body["files"]]
    for name, entry in body["arrays"].items():
        key = layout.table_key(name)
        table = np.frombuffer(files[key], np.uint8)
        table = table[: len(table) // layout.RECORD.itemsize * layout.RECORD.itemsize]
        records = table.view(layout.RECORD).copy()
        for record in records:
            if record["file"] < len(keys):
                content = files.get(keys[record["file"]], b"")
                start = max(0, int(record["offset"]))
                record["crc"] = crc32c(content[start : start + int(record["nbytes"])])
        files[key] = records.tobytes()
        at = 0
        for page in entry["pages"]:
            n_bytes = page[2] * layout.RECORD.itemsize
            page[0] = crc32c(files[key][at : at + n_bytes])
            at += n_bytes
    for entry in body["files"]:
        content = files.get(entry[0], b"")
        entry[1:] = [len(content), crc32c(content)]
    for key, entry in body["metadata"].items():
        content = files.get(key, b"")
        # A description that is a file of its own, or the end of a file, goes to the end.
        entry[1] = max(0, len(content) - entry[0])
        entry[2] = crc32c(content[entry[0] : entry[0] + entry[1]])
    files[layout.MANIFEST] = signed(body)
    return files


BY_SUFFIX = {
    ".gz": GZIP,
    ".zst": ZSTD,
    ".npz": ZIP,
    ".tfrecord": RECORDS,
    ".safetensors": TENSORS,
}
