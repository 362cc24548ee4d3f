"""``Model``: weights, scaler, lift, rule and label names; saved as safetensors, checked on loading.

The file is plain safetensors: an 8-byte length, a JSON header, the tensors. Everything but the
tensors is sorted JSON under one metadata key, so that equal models give equal bytes. This JSON has
a format version and a crc32c of itself and of all tensors. Loading a file never executes code.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from streammiml._base.atomic import local_input, local_path, save_whole
from streammiml._base.calibration import Calibration
from streammiml._base.html_table import listed, table_html
from streammiml._base.tensors import MODEL_TENSORS, check_tensors
from streammiml.config import CONTEXTS, RULES, TRANSFORMS, LiftSpec, check_whole, format_size
from streammiml.errors import StreammimlError, unknown

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]

MODEL_FORMAT = 6
"""Highest format version that can be read. A file is written with the lowest version that has what
it needs: version 2 added the context of Fourier features, version 3 the mean as context,
version 4 the offset of the threshold, version 5 the functions that give probabilities, version 6
several restarts."""
MODEL_FILE = "model.safetensors"

_KEY = "streammiml"
_MAX_HEADER = 64 * 2**20
_VALUE_BYTES = 100
"""Upper estimate of the memory that one parsed JSON value takes."""
_DTYPES = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "|u1", "U64": "<u8"}
_CONTEXTS = tuple(
    {"": False, "context": True}.get(option, option.removeprefix("context:")) for option in CONTEXTS
)
"""JSON value of each context: false, true, "all", "mean"."""
_CODES = {np.dtype(name): code for code, name in _DTYPES.items()}


class LiftArrays(NamedTuple):
    """How rows are lifted; ``kernel.lift.Lift`` has the same fields and describes them.

    A class of its own, so that loading a model does not load the compiler.
    """

    shift: F32
    scale: F32
    transform: int
    unit: int
    frequencies: F32
    phases: F32
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRule:
    """The rule that says which labels are predicted; ``measure/rules.py`` applies it."""

    name: str = "dummy"
    """``dummy``: labels that score above the dummy label; ``margin``: above the dummy's score minus
    1; ``top-r``: the r highest scores."""
    min_labels: int = 0
    """Least number of labels to predict; if too few pass, labels with the next scores are added."""
    r: int = 1
    """Number of labels that ``top-r`` predicts."""
    offset: float = 0.0
    """Number that is added to the score of the dummy label; see ``learn/threshold.py``."""

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise unknown("rule", self.name, RULES)
        check_whole("min_labels", self.min_labels, 0)
        check_whole("r", self.r, 1)
        if not isinstance(self.offset, int | float) or not math.isfinite(self.offset):
            raise StreammimlError(f"offset must be a finite number, got {self.offset!r}")

    @classmethod
    def fitted(
        cls, name: str, min_labels: int | None, *, n_bags: int, n_pairs: int, n_unlabelled: int
    ) -> LabelRule:
        """Complete a rule from counts of the training bags.

        ``r`` is the mean number of labels per bag (``n_pairs / n_bags``), rounded, and at least 1,
        as in the paper's variant V2. If ``min_labels`` is None, it becomes 1 if every training bag
        has a label, else 0.
        """
        r = max(1, (2 * n_pairs + n_bags) // (2 * n_bags))
        if min_labels is None:
            min_labels = int(n_unlabelled == 0)
        return cls(name=name, min_labels=min_labels, r=r)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Model:
    """A trained model: everything that is needed to score a bag, and how the model was made.

    >>> model = sm.load_model("run")
    >>> model.label_names, model.shared.shape, model.labels.shape
    (('dog', 'car', 'tree'), (4, 10), (4, 2, 10))
    >>> model.save("copy.safetensors")
    """

    shared: F32
    """(d', m) W0 transposed, for d' lifted features; (0, d') without a shared space. With R
    restarts (d', R m): those of all restarts side by side."""
    labels: F32
    """(L + 1, K, m) A vector for each sub-concept of each label; the dummy label is last. With R
    restarts (L + 1, R K, m): the sub-concepts of the first restart, then those of the next."""
    lift: LiftArrays
    """Scaler and lift; any tuple of these seven fields is accepted."""
    rule: LabelRule = LabelRule()
    label_names: tuple[str, ...] | None = None
    """L names, or None if the store has no names."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the training, as plain JSON values."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """``fingerprint`` of the store, number of ``steps`` and more; no time, host or path."""
    calibration: Calibration | None = None
    """Functions that turn scores into probabilities; None if the model is not calibrated."""
    restarts: int = 1
    """Number R of trainings whose row scores are averaged. The score of a row is the mean over
    restarts of the maximum over their sub-concepts; the score of a bag is the maximum of its rows'.
    """

    def __post_init__(self) -> None:
        lift = LiftArrays(*self.lift)
        lift = lift._replace(
            **{name: _plain_array(getattr(lift, name)) for name in _LIFT_ARRAYS},
            transform=int(lift.transform),
            unit=int(lift.unit),
            context=int(lift.context),
        )
        object.__setattr__(self, "lift", lift)
        for name in ("shared", "labels"):
            object.__setattr__(self, name, _plain_array(getattr(self, name)))
        if self.label_names is not None:
            object.__setattr__(self, "label_names", tuple(self.label_names))
        self._check_shapes()

    def _check_shapes(self) -> None:
        lift, n_fourier = self.lift, self.lift.phases.size
        if lift.context not in range(len(_CONTEXTS)):
            raise StreammimlError(f"context is {lift.context}, expected 0 to 3")
        width = self.n_lifted
        if self.labels.ndim != 3 or self.labels.shape[0] < 2 or 0 in self.labels.shape:
            raise StreammimlError(
                f"labels has shape {self.labels.shape}; a model needs (labels + 1, sub-concepts, "
                "shared dimensions), with one label at least"
            )
        n_vectors, k, m = self.labels.shape
        check_whole("restarts", self.restarts, 1)
        if k % self.restarts:
            raise StreammimlError(
                f"{k} sub-concepts of {self.restarts} restarts do not divide evenly"
            )
        vector_width = m if self.has_shared_space else width
        sizes = {
            "features": max(1, lift.scale.size),
            "fourier": n_fourier,
            "lifted": width if self.has_shared_space else 0,
            "vectors": n_vectors,
            "subconcepts": k,
            "width": vector_width,
            "shared width": m * self.restarts if self.has_shared_space else width,
            "labels": self.n_labels,
            "line": 2,
            "knot bounds": n_vectors,
            "knots": 0 if self.calibration is None else len(self.calibration.margins),
        }
        check_tensors(self._tensors(), MODEL_TENSORS, sizes)
        if not 0 <= lift.transform < len(TRANSFORMS):
            raise StreammimlError(f"transform has code {lift.transform}, known are 0, 1 and 2")
        if self.label_names is not None and len(self.label_names) != self.n_labels:
            raise StreammimlError(
                f"there are {len(self.label_names)} label names for {self.n_labels} labels"
            )

    @property
    def n_features(self) -> int:
        """Features d of a row as it is stored, before it is lifted."""
        return self.lift.scale.size

    @property
    def n_lifted(self) -> int:
        """Features d' of a lifted row."""
        return self.lift_spec.width(self.n_features)

    @property
    def lift_spec(self) -> LiftSpec:
        """How rows are lifted; a model does not store its bandwidth, which has its default here."""
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
        """Sub-concepts K of each label, in each restart."""
        return int(self.labels.shape[1]) // self.restarts

    @property
    def has_shared_space(self) -> bool:
        """Whether rows are multiplied by W0."""
        return len(self.shared) > 0

    def restart(self, number: int) -> Model:
        """Return the model of one restart, numbered from 0; it is not calibrated."""
        k, m = self.subconcepts, self.shared_dim
        shared = (
            self.shared[:, number * m : (number + 1) * m] if self.has_shared_space else self.shared
        )
        labels = self.labels[:, number * k : (number + 1) * k]
        return replace(self, shared=shared, labels=labels, restarts=1, calibration=None)

    def __repr__(self) -> str:
        space = f"shared_dim={self.shared_dim}" if self.has_shared_space else "no shared space"
        parts = [f"{self.n_features} features"]
        parts += [f"{self.n_lifted} lifted", space, f"subconcepts={self.subconcepts}"]
        parts += [f"{self.n_labels} labels", f"rule={self.rule.name}"]
        if self.restarts > 1:
            parts.append(f"{self.restarts} restarts")
        if "scale" in self.settings:
            parts.append(f"scale={self.settings['scale']}")
        if "steps" in self.provenance:
            parts.append(f"{self.provenance['steps']} steps")
        return f"Model({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """Table for notebooks."""
        weights = self.shared.nbytes + self.labels.nbytes
        return table_html(
            "Model",
            {
                "features of a row": f"{self.n_features:,}",
                "lifted to": f"{self.n_lifted:,}",
                "shared dimensions": f"{self.shared_dim:,}" if self.has_shared_space else "none",
                "labels": f"{self.n_labels:,}",
                "names": listed(self.label_names),
                "sub-concepts per label": self.subconcepts,
                "restarts": self.restarts if self.restarts > 1 else None,
                "rule": f"{self.rule.name}, at least {self.rule.min_labels}",
                "probabilities": None if self.calibration is None else "calibrated",
                "scale": self.settings.get("scale"),
                "steps": self.provenance.get("steps"),
                "weights": format_size(weights),
                "fingerprint of the store": self.provenance.get("fingerprint"),
            },
        )

    def for_labels(self, label_names: Sequence[str] | None) -> Model:
        """Return the model with its labels in the order of ``label_names``.

        The model itself is returned if it has other names than these, or no names, or their order.
        """
        own = self.label_names or ()
        names = tuple(label_names or ())
        if names == own or sorted(names) != sorted(own):
            return self
        places = {name: place for place, name in enumerate(own)}
        order = [*(places[name] for name in names), self.n_labels]
        calibration = self.calibration and self.calibration.of_labels(order[:-1])
        labels = self.labels[order]
        return replace(self, labels=labels, label_names=names, calibration=calibration)

    def warm_up(self, dtype: str = "float32", *, sparse: bool = False) -> None:
        """Compile and load what ``predict`` and ``row_scores`` of bags in memory need.

        A service calls this before it takes requests: otherwise the first request waits for the
        compiler, some seconds on a machine that has not scored before. ``dtype`` is that of the
        rows that will come (all float64 and int64 rows are scored as float32); ``sparse`` is for
        SciPy matrices. Call it once for each kind of rows.

        >>> model = sm.load_model("run")
        >>> model.warm_up()
        """
        # Scoring stands on models, not the other way round: this loads it only when it is called.
        import_module("streammiml.measure.warm_up").warm_up(self, dtype, sparse=sparse)

    def check_store(
        self,
        n_features: int,
        n_labels: int,
        label_names: Sequence[str] | None = None,
        *,
        sparse: bool = False,
        store: str = "the store",
    ) -> None:
        """Refuse a store with other features or labels, before any row is read.

        Sparse rows are refused if the model centres rows, or lifts them in a way that needs dense
        rows.
        """
        if n_features != self.n_features:
            raise StreammimlError(
                f"the model was trained on rows of {self.n_features} features and {store} has "
                f"{n_features}; use a store made the same way, or train on this one",
                page="predict",
            )
        if n_labels != self.n_labels:
            raise StreammimlError(
                f"the model has {self.n_labels} labels and {store} has {n_labels}; "
                "use a store with the same labels (convert --labels RUN), or train on this one",
                page="convert",
            )
        for i, (ours, theirs) in enumerate(
            zip(self.label_names or (), label_names or (), strict=False)
        ):
            if ours != theirs:
                raise StreammimlError(
                    f"label {i} is {ours!r} in the model and {theirs!r} in {store}; "
                    "use a store with the same labels (convert --labels RUN)",
                    page="convert",
                )

        if sparse and self.needs_dense_rows:
            raise StreammimlError(
                f"the model was trained on dense rows, which it centres or lifts, and {store} has "
                "sparse ones; convert to dense rows, or train on this one"
            )

    @property
    def needs_dense_rows(self) -> bool:
        """Whether rows are centred, or lifted in a way that sparse rows cannot be."""
        return self.lift_spec.needs_dense_rows or bool(self.lift.shift.any())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model atomically; when this returns, the file is on the disk."""
        path = local_path(path, "models", "file")
        tensors, content = self._parts()
        version = 4 if self.rule.offset else (1, 1, 2, 3)[self.lift.context]
        version = version if self.calibration is None else 5
        version = version if self.restarts == 1 else 6
        save_tensors(path, tensors, content, kind="model", version=version)

    def _parts(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Tensors, and everything else as JSON values, as they are saved."""
        lift, rule = self.lift, self.rule
        # Files of models without an offset are the same as before there were offsets.
        offset = {"offset": float(rule.offset)} if rule.offset else {}
        restarts = {"restarts": self.restarts} if self.restarts > 1 else {}
        content = {
            **restarts,
            "label_names": self.label_names and list(self.label_names),
            "lift": {
                "context": _CONTEXTS[lift.context],
                "transform": TRANSFORMS[lift.transform],
                "unit": bool(lift.unit),
            },
            "provenance": dict(self.provenance),
            "rule": {"min_labels": rule.min_labels, "name": rule.name, "r": rule.r, **offset},
            "settings": dict(self.settings),
        }
        return self._tensors(), content

    def _tensors(self) -> dict[str, Array]:
        arrays = {name: getattr(self.lift, name) for name in _LIFT_ARRAYS}
        calibrated = {} if self.calibration is None else self.calibration.tensors()
        return {"shared": self.shared, "labels": self.labels, **arrays, **calibrated}

    @property
    def fingerprint(self) -> str:
        """128-bit digest of everything that is saved."""
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
        """Read a model file, or the model file of a run folder; every byte is checked."""
        path = local_input(path, "runs and models")
        if path.is_dir():
            path = path / MODEL_FILE
        tensors, content = load_tensors(path, kind="model", version=MODEL_FORMAT)
        try:
            check_tensors(tensors, MODEL_TENSORS)
            _check_content(content)
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
                calibration=Calibration.from_tensors(tensors),
                restarts=content.get("restarts", 1),
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
    """Read a model file, or the model file of a run folder; every byte is checked.

    >>> sm.load_model("run").n_labels
    3
    """
    return Model.load(path)


def _plain_array(array: Array) -> F32:
    """Convert to contiguous, writable float32; numba would compile again for any other type."""
    return np.require(array, np.float32, ["C", "W", "A"])


_CONTENT = {"lift": dict, "provenance": dict, "rule": dict, "settings": dict}


def _check_content(content: Mapping[str, Any]) -> None:
    """Refuse metadata whose types are not those that ``Model.save`` writes."""
    for name, kind in _CONTENT.items():
        if not isinstance(content[name], kind):
            raise StreammimlError(f"its {name} is {content[name]!r:.60}, expected a JSON object")
    names = content["label_names"]
    if names is not None and not (
        isinstance(names, list) and all(isinstance(name, str) for name in names)
    ):
        raise StreammimlError("its label names are not a list of texts")


def _canonical(value: Any) -> str:
    """JSON in one fixed form, so that equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _checksum(content: str, tensors: Mapping[str, Array]) -> str:
    """crc32c of the content and of every tensor with its name, type and shape, sorted by name."""
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
    """Write ``tensors`` and JSON ``content`` atomically as one safetensors file.

    Equal content gives equal bytes. Any failure raises, also of a sync or a rename: a file
    with the final name is complete and on the disk.
    """
    arrays = {name: np.require(tensors[name], requirements=["C"]) for name in sorted(tensors)}
    metadata = {**content, "format": version, "kind": kind}
    metadata["checksum"] = _checksum(_canonical(metadata), arrays)
    header: dict[str, Any] = {"__metadata__": {_KEY: _canonical(metadata)}}
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
    save_whole(
        path,
        [*pieces, *(arrays[name].data.cast("B") for name in order if arrays[name].size)],
    )


def load_tensors(
    path: str | os.PathLike[str], *, kind: str, version: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read a file of ``save_tensors``; sizes are checked before memory is allocated for them."""
    path = Path(path)
    try:
        with path.open("rb", buffering=0) as file:
            return _read(file, path, kind, version)
    except FileNotFoundError:
        if (path.parent / "_streammiml").is_dir():
            raise StreammimlError(
                f"{path.parent} is a store, and a {kind} is needed here; give the model before "
                "the store"
            ) from None
        if (path.parent / "trials").is_dir():
            raise StreammimlError(_no_model_of_search(path)) from None
        raise StreammimlError(f"{path} does not exist; a {kind} file is needed") from None
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "it does not fit in memory"
        raise StreammimlError(f"{path} cannot be read: {reason}") from error


def _no_model_of_search(path: Path) -> str:
    """Message for the folder of a search: where its model is, or how to make one."""
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
    content = _parsed(_utf8(text), status.st_size) if isinstance(text, str) else None
    if not isinstance(content, dict):
        raise StreammimlError(f"{path} is a safetensors file, but not a {kind} of streammiml")
    file_version = content.get("format")
    if isinstance(file_version, int) and file_version > version:
        raise StreammimlError(
            f"{path} was written by format {file_version}, this reads up to {version}; "
            "install a newer streammiml"
        )
    if not isinstance(file_version, int) or file_version < 1:
        raise _damaged(path, kind, f"its format is {file_version!r}")
    if content.get("kind") != kind:
        raise StreammimlError(f"{path} holds a {content.get('kind')!r}, a {kind!r} is needed")
    tensors = {}
    for name, array, offset in _layout(header, path, kind, status.st_size - start):
        file.seek(start + offset)
        _fill(file, array, path, kind)
        tensors[name] = array
    # Compare the text before the checksum: other text was not written by save_tensors.
    if _rewritten(content) != text:
        raise _damaged(path, kind, "its metadata is not as streammiml writes it")
    recorded_checksum = content.pop("checksum", None)
    if recorded_checksum != _checksum(_canonical(content), tensors):
        raise _damaged(path, kind, "its checksum does not match")
    return tensors, content


def _damaged(path: Path, kind: str, reason: str) -> StreammimlError:
    return StreammimlError(
        f"{path} is damaged or not a {kind} file: {reason}; take another copy or make it again"
    )


def _parsed(text: bytes, file_size: int) -> Any:
    """Parse JSON; None if it is not JSON, or would take far more memory than the file.

    A value can take up to fifty times the memory of its text: ``[],`` has three bytes.
    """
    if _n_values(text) * _VALUE_BYTES > 8 * file_size + (16 << 20):
        return None
    try:
        return json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None


def _utf8(text: str) -> bytes:
    # An escape in JSON may be half of a surrogate pair, which plain UTF-8 refuses.
    return text.encode("utf-8", "surrogatepass")


def _n_values(text: bytes, piece: int = 1 << 20) -> int:
    """Upper bound of the number of JSON values: brackets and commas outside of strings."""
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    count, in_string = 1, 0
    for start in range(0, len(bare), piece):
        part = np.frombuffer(bare, np.uint8, min(piece, len(bare) - start), start)
        # The number of quotes so far, modulo 256, is odd inside a string.
        quotes = np.cumsum(part == ord('"'), dtype=np.uint8) + np.uint8(in_string)
        begins = (part == ord(",")) | (part == ord("[")) | (part == ord("{"))
        count += int((begins & (quotes % 2 == 0)).sum())
        in_string = int(quotes[-1]) % 2
    return count


def _rewritten(content: Mapping[str, Any]) -> str | None:
    """The content as ``save_tensors`` writes it; None for content with NaN or nested too deep."""
    try:
        return _canonical(content)
    except (ValueError, RecursionError):
        return None


def _read_header(file: Any, path: Path, kind: str, size: int) -> tuple[dict[str, Any], int]:
    """Read the header; also returns the byte at which the tensors begin."""
    if size < 8:
        raise _damaged(path, kind, f"it has {size} bytes")
    (length,) = struct.unpack("<Q", _bytes(file, 8, path, kind))
    if length > min(size - 8, _MAX_HEADER):
        raise _damaged(path, kind, f"it claims a header of {length} bytes in a file of {size}")
    header = _parsed(_bytes(file, length, path, kind), size)
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
    header: dict[str, Any], path: Path, kind: str, n_bytes: int
) -> Iterator[tuple[str, Array, int]]:
    """Yield the name of each tensor, an empty array for it, and its offset.

    Tensors that do not lie end to end, or do not fill the file exactly, are refused.
    """
    entries = []
    for name, entry in header.items():
        try:
            dtype = np.dtype(_DTYPES[entry["dtype"]])
            shape = list(entry["shape"])
            first, last = entry["data_offsets"]
            if {*map(type, [*shape, first, last])} - {int}:
                raise TypeError
        except (KeyError, TypeError, ValueError):
            raise _damaged(path, kind, f"its tensor {name!r} has a malformed description") from None
        size = dtype.itemsize * math.prod(shape)
        # NumPy refuses lengths beyond 63 bits, even if the array has no elements.
        beyond = dtype.itemsize * math.prod(count for count in shape if count) >= 2**63
        if len(shape) > 8 or min([*shape, first]) < 0 or last - first != size or beyond:
            raise _damaged(path, kind, f"its tensor {name!r} of shape {shape} has the wrong size")
        entries.append((first, last, name, dtype, shape))
    end = 0
    for first, last, *_ in sorted(entries, key=lambda entry: entry[:2]):
        if first != end:
            raise _damaged(path, kind, "its tensors do not lie end to end")
        end = last
    if end != n_bytes:
        raise _damaged(path, kind, f"it has {n_bytes} bytes of tensors, and {end} are described")
    for first, _, name, dtype, shape in entries:
        yield name, np.empty(shape, dtype), first
