"""The state of a run, and checkpoints: files in the run folder that hold a state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml._base.tensors import CHECKPOINT_TENSORS, check_tensors
from streammiml.config import (
    TRANSFORMS,
    LiftSpec,
    ModelConfig,
    ScaleSpec,
    TrainConfig,
    check_number,
    check_whole,
)
from streammiml.errors import StreammimlError
from streammiml.kernel.average import (
    STRIDE,
    Averages,
    averaged,
    iterates_before,
    make_averages,
)
from streammiml.kernel.lift import Lift, lift_width
from streammiml.kernel.score import PANEL_ROWS, Weights
from streammiml.kernel.sweep import Tally, make_tally, project_all
from streammiml.kernel.tile import aligned_zeros, padded, padded_width
from streammiml.model import load_tensors, save_tensors

CHECKPOINT_FORMAT = 2
"""The key of format 1 holds the fingerprint of the store and the seed only."""
KEPT = 2
"""Number of checkpoints that are kept."""


@dataclass(slots=True)
class Position:
    """How far a run has come, and its best loss so far; plain JSON values only."""

    epoch: int = 0
    place: int = 0
    step: int = 0
    best_loss: float | None = None
    best_step: int = 0
    bad_checks: int = 0
    history_bytes: int = 0
    scale: str = ""
    """The option ``scale``; if it was ``auto``, the scale that was chosen."""
    tally_counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    """Counts of the steps since the last line of the history; see ``kernel/sweep.py``."""
    tally_loss: float = 0.0
    seconds: float = 0.0
    """Seconds that the run took so far, summed over its processes."""
    replicas: list[list[int]] = field(default_factory=list)
    """Epoch and place of each replica; empty for a run without replicas."""
    arithmetic: str = ""
    """Checksum of what the machines of the replicas compute in a probe; see ``learn/probe.py``."""

    def recorded(self) -> dict[str, Any]:
        """Fields by name; without those of replicas if the run has none."""
        values = asdict(self)
        if not self.replicas:
            for name in REPLICA_FIELDS:
                del values[name]
        return values

    def check(self, n_places: int, n_replicas: int = 1) -> None:
        """Refuse numbers that no run can have; an epoch has ``n_places`` places."""
        check_whole("epoch", self.epoch, 0, 2**31)
        for name in ("step", "best_step", "bad_checks", "history_bytes"):
            check_whole(name, getattr(self, name), 0, 2**62)
        check_whole("place", self.place, 0, n_places)
        if n_replicas > 1:
            self._check_replicas(n_places, n_replicas)
        else:
            # A step visits one place, and places of skipped bags have no step.
            check_whole("step", self.step, 0, self.epoch * n_places + self.place)
        if self.best_loss is not None:
            check_number("best_loss", self.best_loss, zero=True)
        check_number("tally_loss", self.tally_loss, zero=True)
        check_number("seconds", self.seconds, zero=True)
        if not isinstance(self.tally_counts, list) or len(self.tally_counts) != 4:
            raise StreammimlError(f"tally_counts must be 4 numbers, got {self.tally_counts!r}")
        for count in self.tally_counts:
            check_whole("tally_counts", count, 0, 2**62)
        if not isinstance(self.scale, str):
            raise StreammimlError(f"scale must be text, got {self.scale!r}")
        ScaleSpec.parse(self.scale)

    def _check_replicas(self, n_places: int, n_replicas: int) -> None:
        """Refuse places of replicas that cannot be; there are none before the first round."""
        pairs = self.replicas
        lengths = {n_replicas} if self.step else {0, n_replicas}
        if not isinstance(pairs, list) or len(pairs) not in lengths:
            raise StreammimlError(f"replicas must be {n_replicas} pairs, got {pairs!r}")
        if not isinstance(self.arithmetic, str):
            raise StreammimlError(f"arithmetic must be text, got {self.arithmetic!r}")
        for pair in pairs:
            if not isinstance(pair, list) or len(pair) != 2:
                raise StreammimlError(f"replicas must be pairs of epoch and place, got {pair!r}")
            check_whole("epoch", pair[0], self.epoch, 2**31)
            check_whole("place", pair[1], 0, n_places)
            check_whole("step", self.step, 0, pair[0] * n_places + pair[1])


REPLICA_FIELDS = {"replicas", "arithmetic"}
"""Fields of a position that only runs with replicas have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Values that every checkpoint of a run must match."""

    key: Mapping[str, Any]
    """Fingerprints and settings that decide the result, by name."""
    sizes: Mapping[str, int]
    """Dimensions of the tensors, as ``CHECKPOINT_TENSORS`` names them."""
    n_places: int
    """Number of places in an epoch."""
    n_replicas: int = 1
    context: int
    """The field ``context`` of the lift; see ``LiftSpec``."""
    n_dims: int | None
    """Dimensions m that the padded vectors use; None without a shared space."""
    stride: int
    """Steps between two iterates that are averaged; 0 without averages."""


def checkpoint_sizes(config: ModelConfig, n_features: int, n_labels: int) -> dict[str, int]:
    """Dimensions of the tensors of a run's checkpoints."""
    lift = LiftSpec.parse(config.lift)
    n_lifted = lift.width(n_features)
    shared_rows = n_lifted if config.shared_space else 0
    return {
        "one": 1,
        "features": n_features,
        "fourier": lift.n_fourier,
        "lifted": shared_rows,
        "vectors": n_labels + 1,
        "subconcepts": config.subconcepts,
        "width": padded_width(config.shared_dim if config.shared_space else n_lifted),
        "averaged lifted": shared_rows if config.average else 0,
        "averaged vectors": n_labels + 1 if config.average else 0,
    }


@dataclass(slots=True)
class TrainState:
    """Everything that a checkpoint holds: weights, averages, best weights so far, position."""

    weights: Weights
    averages: Averages
    lift: Lift
    best: Weights | None
    at: Position

    def returned(self) -> Weights:
        """Weights that training would return now."""
        return Weights(*averaged(*self.weights, self.averages, self.at.step))


def new_state(config: ModelConfig, lift: Lift, n_labels: int) -> TrainState:
    """Begin with random weights: normal, standard deviation 1/√(width of the lift), projected."""
    width = lift_width(lift)
    rng = np.random.default_rng([config.seed, 0xB0])
    m = config.shared_dim if config.shared_space else width
    scale = width**-0.5
    shared = rng.normal(0, scale, (width if config.shared_space else 0, m)).astype(np.float32)
    labels = rng.normal(0, scale, (n_labels + 1, config.subconcepts, m)).astype(np.float32)
    return state_of(shared, labels, config, lift)


def state_of(
    shared: NDArray[np.float32], labels: NDArray[np.float32], config: ModelConfig, lift: Lift
) -> TrainState:
    """Begin with these weights, projected to the largest norm of ``config``."""
    weights = Weights(aligned(padded(shared)), aligned(padded(labels)))
    project_all(weights, config.max_norm)
    averages = make_averages(*weights, STRIDE if config.average else 0)
    return TrainState(weights, averages, lift, None, Position())


def aligned(array: NDArray[Any]) -> Any:
    """Copy an array to memory that kernels can use."""
    out = aligned_zeros(array.shape, array.dtype)
    out[...] = array
    return out


def n_weights(config: ModelConfig, n_lifted: int, n_labels: int) -> int:
    """Number of the weights of a training, with padding."""
    m = padded_width(config.shared_dim if config.shared_space else n_lifted)
    return m * ((n_labels + 1) * config.subconcepts + (n_lifted if config.shared_space else 0))


def state_bytes(config: ModelConfig, n_lifted: int, n_labels: int) -> int:
    """Bytes of weights, averages, best weights, and the copy with which a look scores bags."""
    width = config.shared_dim if config.shared_space else n_lifted
    values = n_weights(config, n_lifted, n_labels)
    # A look copies the label vectors into another layout: eight labels side by side.
    laid_out = width * -(-(n_labels + 1) // 8) * 8 * config.subconcepts
    return values * 4 * 3 + (values * 8 if config.average else 0) + laid_out * 4


def replica_bytes(config: ModelConfig, n_lifted: int, n_labels: int, n_at_once: int) -> int:
    """Bytes of the turns of replicas that run at the same time, and of the sums of their changes.

    A turn has weights (4 bytes a value) and means (8), its result has vectors and means (8). Two
    sums of changes have two numbers of 8 bytes for each value.
    """
    values = n_weights(config, n_lifted, n_labels)
    return values * ((12 + 8) * n_at_once + 2 * 16)


def panel_bytes(config: TrainConfig, n_lifted: int) -> int:
    """Bytes of the projected rows that each kernel thread, and a look, holds at a time."""
    width = config.shared_dim if config.shared_space else n_lifted
    return 4 * PANEL_ROWS * (width + 8) * (config.threads + 1)


def save_checkpoint(folder: Path, state: TrainState, key: dict[str, Any]) -> Path:
    """Write a checkpoint atomically, keep the previous checkpoint, and delete all others."""
    path = folder / f"step-{state.at.step:012d}.safetensors"
    tensors: dict[str, Any] = {
        "weights.shared": state.weights.shared,
        "weights.labels": state.weights.labels,
        "averages.shared": state.averages.shared,
        "averages.labels": state.averages.labels,
        "averages.shared_seen": state.averages.shared_seen,
        "averages.labels_seen": state.averages.labels_seen,
    }
    for name, value in state.lift._asdict().items():
        tensors[f"lift.{name}"] = np.asarray(value) if np.ndim(value) else np.array([value])
    if state.best is not None:
        tensors |= {"best.shared": state.best.shared, "best.labels": state.best.labels}
    content = {"position": state.at.recorded(), "stride": state.averages.stride, "key": key}
    save_tensors(path, tensors, content, kind="checkpoint", version=CHECKPOINT_FORMAT)
    # Checkpoints of later steps are damaged: otherwise the run would have resumed from them.
    newest_first = _checkpoints(folder)
    index = newest_first.index(path)
    for unneeded in newest_first[:index] + newest_first[index + KEPT :]:
        unneeded.unlink()
    return path


def has_checkpoint(folder: Path) -> bool:
    """Whether a run has written a checkpoint."""
    return bool(_checkpoints(folder))


def load_checkpoint(folder: Path, expected: Expected) -> TrainState | None:
    """Load the newest valid checkpoint; None if the folder has no checkpoints.

    A checkpoint that is damaged or does not fit the run is skipped if an older one is valid. A
    checkpoint of another run raises AnotherRun: ``save_checkpoint`` would delete it.
    """
    problem: StreammimlError | None = None
    for path in _checkpoints(folder):
        try:
            return _load(path, expected)
        except AnotherRun:
            raise
        except StreammimlError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return None


class AnotherRun(StreammimlError):
    """A checkpoint was written by a run with other settings, or on another store."""


def _checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, the newest first."""
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def _load(path: Path, expected: Expected) -> TrainState:
    tensors, content = load_tensors(path, kind="checkpoint", version=CHECKPOINT_FORMAT)
    try:
        for name in ("key", "position"):
            if not isinstance(content.get(name), dict):
                raise StreammimlError(f"its {name} is not a JSON object")
        _check_key(path, content["key"], expected.key, content["format"])
        check_tensors(tensors, CHECKPOINT_TENSORS, expected.sizes)
        known = {field.name for field in fields(Position)}
        if expected.n_replicas == 1:
            known -= REPLICA_FIELDS
        if unknown_field := next(iter(content["position"].keys() - known), None):
            raise StreammimlError(f"its position has an unknown field {unknown_field!r}")
        at = Position(**content["position"])
        at.check(expected.n_places, expected.n_replicas)
        if content["stride"] != expected.stride:
            raise StreammimlError(f"stride is {content['stride']!r}, expected {expected.stride}")
        _check_padding(tensors, expected)
        _check_best(tensors, at)
        # Copy one tensor at a time: two copies of all tensors would exceed the memory budget.
        arrays = {name: aligned(tensors.pop(name)) for name in list(tensors)}
        codes = ("transform", "unit", "context")
        transform, unit, context = (int(arrays[f"lift.{name}"][0]) for name in codes)
        check_whole("lift.transform", transform, 0, len(TRANSFORMS) - 1)
        check_whole("lift.unit", unit, 0, 1)
        check_whole("lift.context", context, expected.context, expected.context)
        lift = Lift(
            arrays["lift.shift"],
            arrays["lift.scale"],
            transform,
            unit,
            arrays["lift.frequencies"],
            arrays["lift.phases"],
            context,
        )
        best = None
        if "best.shared" in arrays:
            best = Weights(arrays["best.shared"], arrays["best.labels"])
        averages = Averages(
            arrays["averages.shared"],
            arrays["averages.labels"],
            arrays["averages.shared_seen"],
            arrays["averages.labels_seen"],
            content["stride"],
        )
        n_iterates = int(iterates_before(averages, at.step))
        for name in ("averages.shared_seen", "averages.labels_seen"):
            if (
                arrays[name].size
                and not 0 <= arrays[name].min() <= arrays[name].max() <= n_iterates
            ):
                raise StreammimlError(
                    f"{name} has a number of iterates that is not from 0 to {n_iterates}"
                )
        weights = Weights(arrays["weights.shared"], arrays["weights.labels"])
        return TrainState(weights, averages, lift, best, at)
    except AnotherRun:
        raise
    except StreammimlError as error:
        raise StreammimlError(f"{path} is not a checkpoint of this run: {error}") from None
    except KeyError as error:
        raise StreammimlError(f"{path} lacks a part of a checkpoint: {error}") from None


def _check_padding(tensors: Mapping[str, NDArray[Any]], expected: Expected) -> None:
    """Refuse vectors with values in their padding: their model has more dimensions."""
    if expected.n_dims is None:
        return
    for name, tensor in tensors.items():
        is_padded = CHECKPOINT_TENSORS[name].shape[-1] == "width"
        if is_padded and tensor[..., expected.n_dims :].any():
            raise StreammimlError(f"{name} has values beyond {expected.n_dims} dimensions")


def _check_best(tensors: Mapping[str, NDArray[Any]], at: Position) -> None:
    """Refuse best weights without a best loss, and a best loss without weights."""
    for name in ("best.shared", "best.labels"):
        if at.best_loss is None and name in tensors:
            raise StreammimlError(f"it has the tensor {name!r} and no best_loss")
        if at.best_loss is not None and name not in tensors:
            raise StreammimlError(f"it lacks the tensor {name!r}")


def _check_key(
    path: Path, written: Mapping[str, Any], expected: Mapping[str, Any], version: int
) -> None:
    """Refuse a checkpoint of another run, naming the first setting that differs.

    A setting that is missing in a checkpoint had its default: the option is newer than the file.
    """
    defaults = TrainConfig().recorded()
    old_names = {"fingerprint": None, "seed": None}
    names = {**written, **(old_names if version < 2 else expected)}
    for name in names:
        value, expected_value = (key.get(name, defaults.get(name)) for key in (written, expected))
        if value != expected_value:
            raise AnotherRun(
                f"{path} belongs to another run: its {name} is {value!r}, that of this run "
                f"{expected_value!r}; move the file away to go on without it"
            )


def tally_of(at: Position) -> Tally:
    """Rebuild the tally of the steps since the last line of the history."""
    tally = make_tally()
    tally.counts[:] = at.tally_counts
    tally.loss[0] = at.tally_loss
    return tally
