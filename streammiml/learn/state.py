"""What training changes, where it stands, and how both survive: checkpoints of a run folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.config import ModelConfig, TrainConfig
from streammiml.errors import StreammimlError
from streammiml.kernel.average import STRIDE, Averages, averaged, make_averages
from streammiml.kernel.lift import Lift, lift_width
from streammiml.kernel.score import PANEL_ROWS, Weights
from streammiml.kernel.sweep import Tally, make_tally, project_all
from streammiml.kernel.tile import aligned_zeros
from streammiml.model import load_tensors, padded, save_tensors

CHECKPOINT_FORMAT = 1
KEPT = 2


@dataclass(slots=True)
class Position:
    """How far a run is, and what it has found; plain numbers only."""

    epoch: int = 0
    place: int = 0
    step: int = 0
    best_loss: float | None = None
    best_step: int = 0
    bad_checks: int = 0
    history_bytes: int = 0
    scale: str = ""
    """The option of that name, with ``auto`` resolved by what was seen."""
    tally_counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    """What happened since the last line of the history."""
    tally_loss: float = 0.0
    seconds: float = 0.0
    """That the run took so far, in all processes that worked on it."""


@dataclass(slots=True)
class State:
    """Weights, means, the best model so far and the position: all that a checkpoint holds."""

    weights: Weights
    averages: Averages
    lift: Lift
    best: Weights | None
    at: Position

    def returned(self) -> Weights:
        """The weights that training would return now."""
        return Weights(*averaged(*self.weights, self.averages, self.at.step))


def new_state(config: ModelConfig, lift: Lift, n_labels: int) -> State:
    """Random weights: normal, standard deviation 1/√d', projected once."""
    width = lift_width(lift)
    rng = np.random.default_rng([config.seed, 0xB0])
    m = config.shared_dim if config.shared_space else width
    scale = width**-0.5
    shared = rng.normal(0, scale, (width if config.shared_space else 0, m)).astype(np.float32)
    labels = rng.normal(0, scale, (n_labels + 1, config.subconcepts, m)).astype(np.float32)
    return state_of(shared, labels, config, lift)


def state_of(
    shared: NDArray[np.float32], labels: NDArray[np.float32], config: ModelConfig, lift: Lift
) -> State:
    """A run at its first step, with these weights."""
    weights = Weights(_aligned(padded(shared)), _aligned(padded(labels)))
    project_all(weights, config.max_norm)
    averages = make_averages(*weights, STRIDE if config.average else 0)
    return State(weights, averages, lift, None, Position())


def _aligned(array: NDArray[Any]) -> Any:
    out = aligned_zeros(array.shape, array.dtype)
    out[...] = array
    return out


def state_bytes(config: ModelConfig, n_lifted: int, n_labels: int) -> int:
    """Bytes of weights, means, the best model and the copy that is looked at."""
    width = config.shared_dim if config.shared_space else n_lifted
    m = -(-width // 8) * 8
    values = m * ((n_labels + 1) * config.subconcepts + (n_lifted if config.shared_space else 0))
    # A look lays the labels' vectors out once more, eight labels side by side.
    laid_out = width * -(-(n_labels + 1) // 8) * 8 * config.subconcepts
    return values * 4 * 3 + (values * 8 if config.average else 0) + laid_out * 4


def panel_bytes(config: TrainConfig, n_lifted: int) -> int:
    """Bytes of the rows that each thread, and a look, has placed at a time."""
    width = config.shared_dim if config.shared_space else n_lifted
    return 4 * PANEL_ROWS * (width + 8) * (config.threads + 1)


def save_checkpoint(folder: Path, state: State, key: dict[str, Any]) -> Path:
    """Write a checkpoint, whole or not at all, and keep the one before it."""
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
    content = {"position": asdict(state.at), "stride": state.averages.stride, "key": key}
    save_tensors(path, tensors, content, kind="checkpoint", version=CHECKPOINT_FORMAT)
    # What claims a later step did not verify, or the run would have gone on from there.
    others = _checkpoints(folder)
    place = others.index(path)
    for old in others[:place] + others[place + KEPT :]:
        old.unlink()
    return path


def has_checkpoint(folder: Path) -> bool:
    """Whether a run has come as far as its first checkpoint."""
    return bool(_checkpoints(folder))


def load_checkpoint(folder: Path) -> tuple[State, dict[str, Any]] | None:
    """The newest checkpoint that verifies, with its key; None if there is none at all."""
    problem: StreammimlError | None = None
    for path in _checkpoints(folder):
        try:
            return _load(path)
        except StreammimlError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return None


def _checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, the newest first."""
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def _load(path: Path) -> tuple[State, dict[str, Any]]:
    tensors, content = load_tensors(path, kind="checkpoint", version=CHECKPOINT_FORMAT)
    try:
        # One after the other: two copies of everything would be more than training holds.
        kept = {name: _aligned(tensors.pop(name)) for name in list(tensors)}
        lift = Lift(
            kept["lift.shift"],
            kept["lift.scale"],
            int(kept["lift.transform"][0]),
            int(kept["lift.unit"][0]),
            kept["lift.frequencies"],
            kept["lift.phases"],
            int(kept["lift.context"][0]),
        )
        best = None
        if "best.shared" in kept:
            best = Weights(kept["best.shared"], kept["best.labels"])
        averages = Averages(
            kept["averages.shared"],
            kept["averages.labels"],
            kept["averages.shared_seen"],
            kept["averages.labels_seen"],
            content["stride"],
        )
        weights = Weights(kept["weights.shared"], kept["weights.labels"])
        return State(weights, averages, lift, best, Position(**content["position"])), content["key"]
    except (KeyError, TypeError, IndexError) as error:
        raise StreammimlError(f"{path} lacks a part of a checkpoint: {error}") from None


def tally_of(at: Position) -> Tally:
    """The running tally at a position."""
    tally = make_tally()
    tally.counts[:] = at.tally_counts
    tally.loss[0] = at.tally_loss
    return tally
