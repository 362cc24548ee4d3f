"""``Model``: weights, scaler, lift, rule, label names; saved as safetensors, checked at every door.

The file is plain safetensors: an 8-byte length, a JSON header, the tensors. Everything but the
tensors is sorted JSON under one metadata key, so that equal models are equal bytes; it holds a
format version and a crc32c over itself and all tensors. Nothing in it is ever executed.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from streammiml.config import RULES, TRANSFORMS, LiftSpec, format_size
from streammiml.errors import StreammimlError, unknown
from streammiml.notebook import listed, table_html

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]

MODEL_FORMAT = 3
"""The highest version that is read. A file says the lowest that can read it: 2 knows a context of
Fourier features, 3 one that is the mean."""
MODEL_FILE = "model.safetensors"
LANES = 8
"""Kernels take the shared dimension padded with zeros to a multiple of this."""

_KEY = "streammiml"
_MAX_HEADER = 64 * 2**20
_DTYPES = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "|u1", "U64": "<u8"}
_CONTEXTS = (False, True, "all", "mean")
_CODES = {np.dtype(name): code for code, name in _DTYPES.items()}


class LiftArrays(NamedTuple):
    """How rows are lifted: the fields of ``kernel.lift.Lift``, which says what they mean."""

    shift: F32
    scale: F32
    transform: int
    unit: int
    frequencies: F32
    phases: F32
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRule:
    """Who is predicted; ``measure/rules.py`` applies it."""

    name: str = "dummy"
    """``dummy``: labels above the dummy label; ``margin``: above it less 1; ``top-r``: the r
    highest."""
    min_labels: int = 0
    """Labels predicted at least, the highest first."""
    r: int = 1
    """Labels that ``top-r`` predicts."""

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise unknown("rule", self.name, RULES)
        for name, least in (("min_labels", 0), ("r", 1)):
            if getattr(self, name) < least:
                raise StreammimlError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @classmethod
    def fitted(
        cls, name: str, min_labels: int | None, *, n_bags: int, n_pairs: int, n_unlabelled: int
    ) -> LabelRule:
        """Fill in what the training bags decide.

        ``r`` is the mean number of labels a bag (``n_pairs / n_bags``), to the nearest whole number
        and at least 1, as in the paper's V2; ``min_labels`` is 1 if no training bag is without a
        label, unless given.
        """
        r = max(1, (2 * n_pairs + n_bags) // (2 * n_bags))
        if min_labels is None:
            min_labels = int(n_unlabelled == 0)
        return cls(name=name, min_labels=min_labels, r=r)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Model:
    """A trained model: everything that scoring a bag needs, and where it came from.

    >>> model = sm.load_model("run")
    >>> model.label_names, model.shared.shape, model.labels.shape
    (('dog', 'car', 'tree'), (4, 10), (4, 2, 10))
    >>> model.save("copy.safetensors")
    """

    shared: F32
    """(d', m): W0 transposed, d' lifted features; (0, m) without a shared space, m being d'."""
    labels: F32
    """(L + 1, K, m): a vector for each sub-concept of each label, the dummy label last."""
    lift: LiftArrays
    """Scaler and lift; any tuple of these seven."""
    rule: LabelRule = LabelRule()
    label_names: tuple[str, ...] | None = None
    """L names, or None where the store had none."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What it was trained with, as plain JSON values."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Where it came from: ``fingerprint`` of the store, ``steps`` done; no time, host or path."""

    def __post_init__(self) -> None:
        lift = LiftArrays(*self.lift)
        lift = lift._replace(
            **{name: _plain_array(name, getattr(lift, name)) for name in _LIFT_ARRAYS},
            transform=int(lift.transform),
            unit=int(lift.unit),
            context=int(lift.context),
        )
        object.__setattr__(self, "lift", lift)
        for name in ("shared", "labels"):
            object.__setattr__(self, name, _plain_array(name, getattr(self, name)))
        if self.label_names is not None:
            object.__setattr__(self, "label_names", tuple(self.label_names))
        self._check_shapes()

    def _check_shapes(self) -> None:
        lift, n = self.lift, self.lift.phases.size
        if lift.context not in range(len(_CONTEXTS)):
            raise StreammimlError(f"context is {lift.context}, expected 0 to 3")
        width = self.n_lifted
        if self.labels.ndim != 3 or self.labels.shape[0] < 2 or 0 in self.labels.shape:
            raise StreammimlError(
                f"labels has shape {self.labels.shape}; a model needs (labels + 1, sub-concepts, "
                "shared dimensions), with one label at least"
            )
        n_vectors, k, m = self.labels.shape
        through = m if self.has_shared_space else width
        shapes = {
            "shared": (self.shared.shape, (width if self.has_shared_space else 0, through)),
            "labels": (self.labels.shape, (n_vectors, k, through)),
            "shift": (lift.shift.shape, lift.scale.shape),
            "scale": (lift.scale.shape, (max(1, lift.scale.size),)),
            "frequencies": (lift.frequencies.shape, (lift.scale.size, n)),
            "phases": (lift.phases.shape, (n,)),
        }
        for name, (shape, expected) in shapes.items():
            if shape != expected:
                raise StreammimlError(f"{name} has shape {shape}, expected {expected}")
        if not 0 <= lift.transform < len(TRANSFORMS):
            raise StreammimlError(f"transform has code {lift.transform}, known are 0, 1 and 2")
        if self.label_names is not None and len(self.label_names) != self.n_labels:
            raise StreammimlError(
                f"there are {len(self.label_names)} label names for {self.n_labels} labels"
            )

    @property
    def n_features(self) -> int:
        """Features d of a row as it is stored, before lift and constant."""
        return self.lift.scale.size

    @property
    def n_lifted(self) -> int:
        """Features d' of a lifted row."""
        return self.lift_spec.width(self.n_features)

    @property
    def lift_spec(self) -> LiftSpec:
        """How rows are lifted, but for the bandwidth."""
        return LiftSpec(n_fourier=self.lift.phases.size, context=self.lift.context)

    @property
    def n_labels(self) -> int:
        """Real labels L, without the dummy."""
        return len(self.labels) - 1

    @property
    def shared_dim(self) -> int:
        """Dimensions m of the label vectors; d' without a shared space."""
        return int(self.labels.shape[2])

    @property
    def subconcepts(self) -> int:
        """Sub-concepts K of each label."""
        return int(self.labels.shape[1])

    @property
    def has_shared_space(self) -> bool:
        """Whether rows go through W0."""
        return len(self.shared) > 0

    def __repr__(self) -> str:
        space = f"shared_dim={self.shared_dim}" if self.has_shared_space else "no shared space"
        parts = [f"{self.n_features} features"]
        parts += [f"{self.n_lifted} lifted", space, f"subconcepts={self.subconcepts}"]
        parts += [f"{self.n_labels} labels", f"rule={self.rule.name}"]
        if "scale" in self.settings:
            parts.append(f"scale={self.settings['scale']}")
        if "steps" in self.provenance:
            parts.append(f"{self.provenance['steps']} steps")
        return f"Model({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        weights = self.shared.nbytes + self.labels.nbytes
        return table_html(
            "Model",
            {
                "features of a row": f"{self.n_features:,}",
                "lifted to": f"{self.n_lifted:,}",
                "shared dimensions": f"{self.shared_dim:,}" if self.has_shared_space else "none",
                "labels": f"{self.n_labels:,}",
                "names": listed(self.label_names),
                "sub-concepts of each": self.subconcepts,
                "rule": f"{self.rule.name}, at least {self.rule.min_labels}",
                "scale": self.settings.get("scale"),
                "steps": self.provenance.get("steps"),
                "weights": format_size(weights),
                "fingerprint of the store": self.provenance.get("fingerprint"),
            },
        )

    def kernel_arrays(self) -> tuple[F32, F32]:
        """``shared`` and ``labels`` as kernels take them: m padded with zeros, fresh copies."""
        return padded(self.shared), padded(self.labels)

    def check_store(
        self,
        n_features: int,
        n_labels: int,
        label_names: Sequence[str] | None = None,
        *,
        sparse: bool = False,
        store: str = "the store",
    ) -> None:
        """Refuse a store of other features or labels, before any of its rows is read.

        Sparse rows are refused by a model that does what only dense ones can have done to them.
        """
        if n_features != self.n_features:
            raise StreammimlError(
                f"the model was trained on rows of {self.n_features} features and {store} has "
                f"{n_features}; use a store made the same way, or train on this one"
            )
        if n_labels != self.n_labels:
            raise StreammimlError(
                f"the model knows {self.n_labels} labels and {store} has {n_labels}; "
                "use a store with the same labels, or train on this one"
            )
        for i, (ours, theirs) in enumerate(
            zip(self.label_names or (), label_names or (), strict=False)
        ):
            if ours != theirs:
                raise StreammimlError(
                    f"label {i} is {ours!r} in the model and {theirs!r} in {store}; "
                    "use a store with the same labels in the same order"
                )

        if sparse and self.needs_dense_rows:
            raise StreammimlError(
                f"the model was trained on dense rows, which it centres or lifts, and {store} has "
                "sparse ones; convert to dense rows, or train on this one"
            )

    @property
    def needs_dense_rows(self) -> bool:
        """Whether rows are centred, or lifted as sparse ones are not."""
        return self.lift_spec.needs_dense_rows or bool(self.lift.shift.any())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model whole or not at all; returning means that it is on the disk."""
        tensors, content = self._parts()
        version = (1, 1, 2, 3)[self.lift.context]
        save_tensors(path, tensors, content, kind="model", version=version)

    def _parts(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Tensors and all else, as they are written."""
        lift = self.lift
        tensors: dict[str, Array] = {"shared": self.shared, "labels": self.labels}
        tensors |= {name: getattr(lift, name) for name in _LIFT_ARRAYS}
        content = {
            "label_names": self.label_names and list(self.label_names),
            "lift": {
                "context": _CONTEXTS[lift.context],
                "transform": TRANSFORMS[lift.transform],
                "unit": bool(lift.unit),
            },
            "provenance": dict(self.provenance),
            "rule": {"min_labels": self.rule.min_labels, "name": self.rule.name, "r": self.rule.r},
            "settings": dict(self.settings),
        }
        return tensors, content

    @property
    def fingerprint(self) -> str:
        """128 bits over everything that is saved."""
        tensors, content = self._parts()
        digest = blake2b(_canonical(content).encode(), digest_size=16)
        for name in sorted(tensors):
            digest.update(_canonical([name, tensors[name].shape]).encode())
            digest.update(
                np.ascontiguousarray(tensors[name]).data.cast("B") if tensors[name].size else b""
            )
        return digest.hexdigest()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Model:
        """Read a model file, or the one in a run folder, checking every byte of it."""
        path = Path(path)
        if path.is_dir():
            path = path / MODEL_FILE
        tensors, content = load_tensors(path, kind="model", version=MODEL_FORMAT)
        try:
            for name in ("shared", "labels", *_LIFT_ARRAYS):
                if tensors[name].dtype != np.float32:
                    raise StreammimlError(f"{name} is {tensors[name].dtype}, expected float32")
            lift = content["lift"]
            return cls(
                shared=tensors["shared"],
                labels=tensors["labels"],
                lift=LiftArrays(
                    **{name: tensors[name] for name in _LIFT_ARRAYS},
                    transform=TRANSFORMS.index(lift["transform"]),
                    unit=lift["unit"],
                    context=_CONTEXTS.index(lift["context"]),
                ),
                rule=LabelRule(**content["rule"]),
                label_names=content["label_names"],
                settings=content["settings"],
                provenance=content["provenance"],
            )
        except StreammimlError as error:
            raise StreammimlError(f"{path} is not a model that can be used: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StreammimlError(
                f"{path} lacks a part of a model ({type(error).__name__}: {error}); "
                "save it again with streammiml"
            ) from None


_LIFT_ARRAYS = ("shift", "scale", "frequencies", "phases")


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read a model file, or the one in a run folder, checking every byte of it.

    >>> sm.load_model("run").n_labels
    3
    """
    return Model.load(path)


def _plain_array(name: str, array: Array) -> F32:
    """Contiguous, writable float32: anything else would be another type to the compiler."""
    plain = np.require(array, np.float32, ["C", "W", "A"])
    if not np.isfinite(plain).all():
        raise StreammimlError(f"{name} holds values that are not finite: training diverged")
    return plain


def padded(weights: F32) -> F32:
    """A copy whose last axis is padded with zeros to a multiple of ``LANES``."""
    width = max(LANES, -(-weights.shape[-1] // LANES) * LANES)
    out = np.zeros((*weights.shape[:-1], width), np.float32)
    out[..., : weights.shape[-1]] = weights
    return out


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _checksum(content: str, tensors: Mapping[str, Array]) -> str:
    """crc32c over the content and every tensor with its name, type and shape, names in order."""
    crc = crc32c(content.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        crc = crc32c(_canonical([name, tensor.dtype.str, tensor.shape]).encode(), crc)
        crc = crc32c(tensor.data.cast("B") if tensor.size else b"", crc)
    return f"{crc:08x}"


def save_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Array],
    content: Mapping[str, Any],
    *,
    kind: str,
    version: int,
) -> None:
    """Write ``tensors`` and JSON ``content`` as one safetensors file, whole or not at all.

    Equal content gives equal bytes. Any failure, that of a sync or a rename too, is an error: what
    has the final name is complete and on the disk.
    """
    arrays = {name: np.require(tensors[name], requirements=["C"]) for name in sorted(tensors)}
    inside = {**content, "format": version, "kind": kind}
    inside["checksum"] = _checksum(_canonical(inside), arrays)
    header: dict[str, Any] = {"__metadata__": {_KEY: _canonical(inside)}}
    end = 0
    # Widest items first, as the safetensors library writes them: every tensor stays aligned.
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    for name in order:
        start, end = end, end + arrays[name].nbytes
        header[name] = {
            "dtype": _CODES[arrays[name].dtype],
            "shape": list(arrays[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    pieces = [struct.pack("<Q", len(text)), text]
    write_whole(
        path,
        [*pieces, *(arrays[name].data.cast("B") for name in order if arrays[name].size)],
    )


def write_whole(path: str | os.PathLike[str], pieces: Iterable[bytes | memoryview]) -> None:
    """Put ``pieces`` under ``path`` at once: temporary sibling, sync, rename, sync the folder."""
    path, pieces = Path(path), list(pieces)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        try:
            with partial.open("xb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        room = _room(path, sum(map(len, pieces))) if error.errno in _FULL else ""
        raise StreammimlError(
            f"{path} is not saved: {error.strerror or error}; {room}make room or choose another "
            "folder, and save again"
        ) from error


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _room(path: Path, needed: int) -> str:
    free = shutil.disk_usage(path.parent).free
    return f"it takes {format_size(needed)} and {format_size(free)} are free; "


def load_tensors(
    path: str | os.PathLike[str], *, kind: str, version: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read what ``save_tensors`` wrote; sizes are checked before anything is allocated for them."""
    path = Path(path)
    try:
        with path.open("rb", buffering=0) as file:
            return _read(file, path, kind, version)
    except FileNotFoundError:
        if (path.parent / "_streammiml").is_dir():
            said = f"{path.parent} is a store, and a {kind} is needed here; the model comes first"
            raise StreammimlError(said) from None
        if (path.parent / "trials").is_dir():
            raise StreammimlError(_no_model_of_search(path)) from None
        raise StreammimlError(f"{path} does not exist; a {kind} file is needed") from None
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "it does not fit in memory"
        raise StreammimlError(f"{path} cannot be read: {reason}") from error


def _no_model_of_search(path: Path) -> str:
    """What to give instead of the folder of a search."""
    winner = path.parent / "winner"
    if (winner / path.name).exists():
        return f"{path.parent} is a search by tune; its model is in {winner}"
    return f"{path.parent} is a search by tune without a model; tune --train makes {winner}"


def _read(
    file: Any, path: Path, kind: str, version: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise StreammimlError(f"{path} is not a file; a {kind} file is needed")
    header, start = _read_header(file, path, kind, status.st_size)
    metadata = header.pop("__metadata__", None)
    text = metadata.get(_KEY) if isinstance(metadata, dict) else None
    content = _parsed(text) if isinstance(text, str) else None
    if not isinstance(content, dict):
        raise StreammimlError(f"{path} is a safetensors file, but not a {kind} of streammiml")
    written = content.get("format")
    if isinstance(written, int) and written > version:
        raise StreammimlError(
            f"{path} was written by format {written}, this reads up to {version}; "
            "install a newer streammiml"
        )
    if not isinstance(written, int) or written < 1:
        raise _damaged(path, kind, f"its format is {written!r}")
    if content.get("kind") != kind:
        raise StreammimlError(f"{path} holds a {content.get('kind')!r}, a {kind!r} is needed")
    tensors = {}
    for name, array, offset in _layout(header, path, kind, status.st_size - start):
        file.seek(start + offset)
        _fill(file, array, path, kind)
        tensors[name] = array
    claimed = content.pop("checksum", None)
    inside = _canonical(content)
    if (
        claimed != _checksum(inside, tensors)
        or _canonical({**content, "checksum": claimed}) != text
    ):
        raise _damaged(path, kind, "its checksum does not match")
    return tensors, content


def _damaged(path: Path, kind: str, what: str) -> StreammimlError:
    return StreammimlError(
        f"{path} is damaged or not a {kind} file: {what}; take another copy or make it again"
    )


def _parsed(text: str | bytes) -> Any:
    """JSON, or None for anything that is not."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _read_header(file: Any, path: Path, kind: str, size: int) -> tuple[dict[str, Any], int]:
    """The header and the byte at which tensors begin."""
    if size < 8:
        raise _damaged(path, kind, f"it has {size} bytes")
    (length,) = struct.unpack("<Q", _bytes(file, 8, path, kind))
    if length > min(size - 8, _MAX_HEADER):
        raise _damaged(path, kind, f"it claims a header of {length} bytes in a file of {size}")
    header = _parsed(_bytes(file, length, path, kind))
    if not isinstance(header, dict):
        raise _damaged(path, kind, "its header is not JSON")
    return header, 8 + length


def _bytes(file: Any, count: int, path: Path, kind: str) -> bytes:
    array = np.empty(count, np.uint8)
    _fill(file, array, path, kind)
    return array.tobytes()


def _fill(file: Any, array: Array, path: Path, kind: str) -> None:
    """Read exactly the bytes of ``array`` into it."""
    if not array.size:
        return
    view = array.data.cast("B")
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise _damaged(path, kind, f"it ends {len(view) - done} bytes early")
        done += count


def _layout(
    header: dict[str, Any], path: Path, kind: str, room: int
) -> Iterator[tuple[str, Array, int]]:
    """Each tensor, empty, and its place; all must lie end to end and fill the file exactly."""
    entries = []
    for name, entry in header.items():
        try:
            dtype = np.dtype(_DTYPES[entry["dtype"]])
            shape = [int(count) for count in entry["shape"]]
            first, last = (int(place) for place in entry["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise _damaged(path, kind, f"its tensor {name!r} is not described as one") from None
        size = dtype.itemsize
        for count in shape:
            size *= count
        if len(shape) > 8 or min([*shape, first]) < 0 or last - first != size:
            raise _damaged(path, kind, f"its tensor {name!r} of shape {shape} has the wrong size")
        entries.append((first, last, name, dtype, shape))
    end = 0
    for first, last, *_ in sorted(entries, key=lambda entry: entry[:2]):
        if first != end:
            raise _damaged(path, kind, "its tensors do not lie end to end")
        end = last
    if end != room:
        raise _damaged(path, kind, f"it has {room} bytes of tensors, and {end} are described")
    for first, _, name, dtype, shape in entries:
        yield name, np.empty(shape, dtype), first
