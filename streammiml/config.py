"""Settings as frozen dataclasses, which check their values when they are made."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from streammiml.errors import StreammimlError, unknown

Rule = Literal["dummy", "margin", "top-r"]
RULES: tuple[Rule, ...] = ("dummy", "margin", "top-r")
Preset = Literal["auto", "plain", "paper"]
Prefer = Literal["both", "ranking", "keys"]
Threshold = Literal["none", "count", "hamming", "f1"]
Calibrate = Literal["none", "auto", "platt", "isotonic"]
SettingRole = Literal["speed", "end", "path"]
"""Role of a setting that does not change what a step does.

``speed``: changes how fast a run is, and how much work a kill loses. ``end``: decides when the run
ends. ``path``: may change between runs, as long as the fingerprint of the store or model stays
the same. All other settings have no role."""
ORDERS = ("blocks", "full", "uniform")
INITS = ("auto", "random", "means", "clusters")
LOSSES = ("warp", "pairs")
SCALES = ("auto", "none", "unit", "standard", "standard+unit", "maxabs")
TRANSFORMS = ("none", "sqrt", "log1p")

_SIZES = {"": 1, "b": 1}
_SIZES |= {unit + "ib": 1024**power for power, unit in enumerate("kmgt", 1)}
_SIZES |= {unit + "b": 1000**power for power, unit in enumerate("kmgt", 1)}
LEAST_MEMORY = 64 << 10
"""Smaller limits of memory, given without a unit, are taken for a forgotten unit."""
_DURATIONS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _number_and_unit(text: object) -> tuple[float, str]:
    """Split ``1.5 GiB`` into a number and a lower-case unit; the unit is ``?`` for other text."""
    pattern = r"\s*(\d{1,15}(?:\.\d{0,15})?)\s*([A-Za-z]*)\s*"
    match = re.fullmatch(pattern, text, re.ASCII) if isinstance(text, str) else None
    return (float(match[1]), match[2].lower()) if match else (0.0, "?")


def parse_size(text: str | int, *, option: str = "memory", least: int = 0) -> int:
    """Parse ``256MiB``, ``1.5GiB``, ``64kB`` or a plain number into bytes, rounded down.

    A size below ``least`` is refused.

    >>> parse_size("1.5GiB"), parse_size("64kB")
    (1610612736, 64000)
    """
    number, unit = _number_and_unit(str(text) if isinstance(text, int) else text)
    if unit not in _SIZES:
        raise StreammimlError(f"{option} must be a size such as 256MiB or 2GiB, got {text!r}")
    size = int(number * _SIZES[unit])
    if size < least:
        raise StreammimlError(f"{option} must be at least {least} B, got {text!r}")
    return size


def check_memory(text: str, *, option: str = "memory") -> None:
    """Refuse a limit of memory that is no size, or lacks a unit and is too small without one."""
    size = parse_size(text, option=option)
    if size < LEAST_MEMORY and re.fullmatch("[0-9]+", str(text)):
        likely = "GiB" if size < 64 else "MiB"
        raise StreammimlError(
            f"{option} {text} is in bytes, which is too little for anything; "
            f"did you mean {text}{likely}?"
        )


def format_size(n_bytes: int) -> str:
    """Write a size for people, such as ``400 MiB`` or ``1.5 GiB``, with about three digits."""
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if n_bytes >= 1024**power:
            amount = n_bytes / 1024**power
            return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"
    return f"{n_bytes} B"


def parse_duration(text: str, *, option: str = "checkpoint_every") -> float:
    """Parse ``90s``, ``10min``, ``1.5h`` or ``2d`` into seconds; the unit is required."""
    number, unit = _number_and_unit(text)
    if unit not in _DURATIONS:
        raise StreammimlError(f"{option} must be a time such as 90s, 10min or 2h, got {text!r}")
    return number * _DURATIONS[unit]


def parse_weights(text: str) -> list[float]:
    """Parse numbers separated by commas, such as ``2,1`` or ``1,0.25``."""
    weights = [_positive_number(part) for part in text.split(",")] if isinstance(text, str) else []
    if not weights or not all(value is not None and 0.001 <= value <= 1000 for value in weights):
        raise StreammimlError(
            "weights must be numbers from 0.001 to 1000, one for each store, such as 2,1; "
            f"got {text!r}"
        )
    return [value for value in weights if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSpec:
    """The parsed option ``scale``; ``learn/scaler.py`` fits each kind."""

    kind: str = "auto"
    """One of ``SCALES``."""
    transform: str = "none"
    """Function applied to each value first: ``none``, or ``sqrt`` or ``log1p`` for counts."""

    @classmethod
    def parse(cls, text: str) -> ScaleSpec:
        """Parse ``unit``, ``sqrt:unit``, ``log1p:standard+unit`` and the like."""
        head, colon, tail = text.rpartition(":")
        if colon and head not in TRANSFORMS[1:]:
            raise StreammimlError(
                f"scale {text!r} has an unknown transform {head!r}; known: log1p, sqrt"
            )
        if tail not in SCALES:
            raise unknown("scale", tail, SCALES)
        if head and tail == "auto":
            raise StreammimlError(
                f"scale {text!r}: auto chooses the transform itself; give auto alone, or name "
                f"a scale as in {head}:unit"
            )
        return cls(kind=tail, transform=head or "none")

    def __str__(self) -> str:
        return self.kind if self.transform == "none" else f"{self.transform}:{self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftSpec:
    """The parsed option ``lift``."""

    n_fourier: int = 0
    """Number of random Fourier features appended to each row."""
    bandwidth: float = 0.5
    """Bandwidth of the Gaussian kernel that the Fourier features approximate, as a multiple of the
    median distance of two rows."""
    context: int = 0
    """Statistics of the bag that are appended to each of its rows.

    0: none. 1, ``context``: maximum and minimum of each feature. 2, ``context:all``: maximum,
    minimum and mean of each feature, Fourier features included. 3, ``context:mean``: mean of each
    feature, scaled to norm 1 if rows have norm 1; the only kind for sparse rows. Context ranks
    better on several data sets and makes key instances less accurate, since every row then
    contains features of its whole bag."""

    @classmethod
    def parse(cls, text: str) -> LiftSpec:
        """Parse ``none``, ``fourier:N[:BANDWIDTH]`` or ``context[:all|:mean]``.

        The last two may be joined by a comma.
        """
        if text.strip() == "none":
            return cls()
        parsed: dict[str, Any] = {}
        for part in (part.strip() for part in text.split(",")):
            name, *values = part.split(":")
            key = {"fourier": "n_fourier", "context": "context"}.get(name)
            is_valid = part in CONTEXTS if name == "context" else len(values) <= 2
            if key is None or not is_valid:
                raise StreammimlError(
                    f"lift {text!r}: cannot read {part!r}; a lift is none, fourier:N[:BANDWIDTH], "
                    "context, context:all or context:mean; fourier and context may be joined by a "
                    "comma, as in fourier:1000,context"
                )
            if key in parsed:
                raise StreammimlError(f"lift {text!r} names {name} twice")
            if name == "context":
                parsed[key] = CONTEXTS.index(part)
                continue
            if not values or not re.fullmatch("[0-9]{1,7}", values[0]) or int(values[0]) < 1:
                raise StreammimlError(
                    f"lift {text!r}: fourier needs a number of features from 1 to 9999999, "
                    "as in fourier:1000"
                )
            parsed[key] = int(values[0])
            if len(values) == 2:
                parsed["bandwidth"] = _positive_number(values[1])
                if parsed["bandwidth"] is None:
                    raise StreammimlError(
                        f"lift {text!r}: the bandwidth must be a number above 0, "
                        f"got {values[1]!r}; 0.5 is the default"
                    )
        return cls(**parsed)

    def __str__(self) -> str:
        parts = [f"fourier:{self.n_fourier}:{self.bandwidth:g}"] if self.n_fourier else []
        parts += [CONTEXTS[self.context]] if self.context else []
        return ",".join(parts) or "none"

    def width(self, n_features: int) -> int:
        """Number of features of a lifted row, including the constant."""
        if self.context == 2:
            return 4 * (n_features + self.n_fourier) + 1
        return n_features * (1, 3, 4, 2)[self.context] + self.n_fourier + 1

    @property
    def needs_dense_rows(self) -> bool:
        """Whether only dense rows can be lifted this way."""
        return bool(self.n_fourier or self.context in (1, 2))


CONTEXTS = ("", "context", "context:all", "context:mean")


def _positive_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse anything but a whole number from ``least`` to ``most``, naming the option."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and least <= value and (most is None or value <= most):  # type: ignore[operator]
        return
    bound = f"at least {least}" if most is None else f"from {least} to {most}"
    raise StreammimlError(f"{name} must be a whole number {bound}, got {value!r}")


def check_number(name: str, value: object, *, zero: bool = False) -> None:
    """Refuse anything but a finite number above 0 (or at least 0), naming the option."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (0 < value < math.inf or (zero and value == 0)):  # type: ignore[operator]
        return
    bound = "at least" if zero else "above"
    raise StreammimlError(f"{name} must be a number {bound} 0, got {value!r}")


_SPEED, _END, _PATH = ({"role": role} for role in get_args(SettingRole))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Settings of a model and of its steps; options of the command line have the same names."""

    shared_dim: int = 100
    """Number of dimensions m of the space that all labels share."""
    subconcepts: int = 5
    """Number of linear models K of each label; superfluous ones stay empty."""
    max_norm: float = 10.0
    """Largest L2 norm C of the weights of a sub-concept and of a column of the shared space."""
    step_size: float = 0.02
    """Size γ0 of the first step; the default suits rows with a norm of about 1."""
    decay: float = 1e-5
    """Decay η of the step size, which is γ0 / (1 + η γ0 t) after t steps."""
    average: bool = True
    """Return the mean of the recent weights instead of the last weights."""
    shared_space: bool = True
    """Learn the shared space; without it, labels have linear models of the lifted row."""
    scale: str = "auto"
    """Scaling of features: auto, none, unit, standard, standard+unit or maxabs. For counts and
    histograms, put sqrt: or log1p: before the name, as in sqrt:unit."""
    fit_scaler: str = "64MiB"
    """Rows that the scaling is fitted to: a random sample of this size as float32, or full for all
    rows."""
    lift: str = "none"
    """Features added to each row while training reads it: fourier:N[:BANDWIDTH] for N random
    Fourier features; context, context:all or context:mean for statistics of the row's bag; or both,
    joined by a comma. For sparse rows only context:mean is possible."""
    init: str = "auto"
    """First weights: random numbers (random), what the bags of each label have in common (means),
    or that in as many clusters of rows as there are sub-concepts (clusters). By default clusters
    with --preset auto, if --memory is large enough for them, and random otherwise."""
    loss: str = "warp"
    """Weight of a step: higher the further down the drawn label ranks (warp), which favours the top
    of the ranking, or the same for all (pairs), as the ranking loss counts pairs of labels."""
    rule: Rule = "dummy"
    """Which labels are predicted: labels that score above the dummy label (dummy), labels above the
    dummy label's score minus 1 (margin), or the r labels with the highest scores, where r is the
    mean number of labels of a training bag (top-r)."""
    min_labels: int | None = None
    """Fewest labels predicted for a bag; by default 1 if every training bag has a label, else 0."""
    seed: int = 0
    """Seed of every random choice: order of bags, draws, start weights, splits."""

    def __post_init__(self) -> None:
        check_whole("shared_dim", self.shared_dim, 1)
        check_whole("subconcepts", self.subconcepts, 1)
        check_number("max_norm", self.max_norm)
        check_number("step_size", self.step_size)
        check_number("decay", self.decay, zero=True)
        for name in ("average", "shared_space"):
            if not isinstance(getattr(self, name), bool):
                raise StreammimlError(f"{name} must be true or false, got {getattr(self, name)!r}")
        for name in ("scale", "lift"):
            if not isinstance(getattr(self, name), str):
                raise StreammimlError(f"{name} must be text, got {getattr(self, name)!r}")
        ScaleSpec.parse(self.scale)
        if self.fit_scaler != "full" and parse_size(self.fit_scaler, option="fit_scaler") < 1:
            raise StreammimlError("fit_scaler must be full or a size above 0, got 0")
        LiftSpec.parse(self.lift)
        if self.init not in INITS:
            raise unknown("init", str(self.init), INITS)
        if self.loss not in LOSSES:
            raise unknown("loss", str(self.loss), LOSSES)
        if self.rule not in RULES:
            raise unknown("rule", self.rule, RULES)
        if self.min_labels is not None:
            check_whole("min_labels", self.min_labels, 0)
        check_whole("seed", self.seed, 0, 2**63 - 1)

    def recorded(self) -> dict[str, Any]:
        """Every setting by name, as plain values, for model files and run folders."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(ModelConfig):
    """All settings of training; options of the command line have the same names.

    >>> config = sm.TrainConfig(shared_dim=50, epochs=20)
    >>> config.given()
    {'shared_dim': 50, 'epochs': 20}
    >>> sm.TrainConfig(memory="plenty")
    Traceback (most recent call last):
    streammiml.errors.StreammimlError: memory must be a size such as 256MiB or 2GiB, got 'plenty'
    """

    preset: Preset = "auto"
    """What stands for settings that are not given. auto: if the length of the training is not given
    either, a few combinations of lift, shared space, K and (sparse rows) C are tried on bags that
    are held out, and the best is taken. plain: the defaults that this help names. paper: the
    paper's step size, and its last weights instead of a mean."""
    prefer: Prefer = "both"
    """What --preset auto prefers: good order of labels and good key instances (both), the best
    order of labels (ranking), which also tries lifts with context, or key instances (keys), which
    tries no lift."""
    threshold: Threshold | None = field(default=None, metadata=_END)
    """Offset of the dummy label's score, for the rule dummy, fitted on held-out bags or folds: so
    that as many labels are predicted as there are (count), for the lowest Hamming loss (hamming) or
    for the highest micro-averaged F1 (f1); or no offset (none). By default count with --preset auto
    where bags are held out or trials hold out folds, else none."""
    calibrate: Calibrate | None = field(default=None, metadata=_END)
    """Fit functions that turn scores into probabilities, one for each label, on held-out bags; or,
    for stores with fewer than 5000 bags that hold out none, on three folds, which takes two more
    trainings' time. A logistic function of the score (platt), a function that only rises
    (isotonic), or isotonic for labels with 500 bags of either kind and platt for others (auto,
    which --calibrate alone means). By default none."""
    restarts: int | None = None
    """Number of trainings with different seeds. Their models are joined to one, which averages the
    scores of each row: better and steadier, for as many times the training and the scoring. By
    default 5 with --preset auto where trials on folds choose the epochs, else 1."""
    time_limit: str | None = field(default=None, metadata=_END)
    """Time limit, such as 10min, for the trials that choose settings and epochs: when it is
    reached, the best setting so far is taken. The trainings on folds of --calibrate have the same
    limit of their own: when it is reached, the folds so far are used."""
    order: str = "blocks"
    """Order in which bags are visited: blocks (blocks of bags, mixed), full (a permutation of all
    bags) or uniform (independent draws)."""
    block_bags: int | None = None
    """Number of bags in a block, which are read together; by default a block has 64 to 256 KiB."""
    mix_blocks: int | None = None
    """Number of blocks that are mixed at a time; by default 512, or fewer if --memory requires."""
    weights: str | None = None
    """How often an epoch visits the bags of each store, separated by commas: 2,1 visits bags of the
    first store twice and bags of the second once; 1,0.5 visits each bag of the second store in
    about every other epoch."""
    bag_weights: str | None = None
    """Kept column with the weight of each bag, a number from 0 that all rows of the bag repeat.
    Steps on a bag are scaled by its weight: 1 changes nothing, and steps on a bag of weight 0
    change nothing. Weights are used as they are, so choose a mean of about 1. First weights,
    scaling, held-out bags, label rule and calibration count every bag alike."""
    max_vif: float | None = None
    """Upper limit for the variance of label counts in 256 consecutive bags, as a multiple of the
    variance after a full shuffle; as many blocks are mixed as this limit requires."""
    memory: str = field(default="1GiB", metadata=_SPEED)
    """Memory limit of training, not counting the interpreter and its libraries."""
    epochs: int | None = field(default=None, metadata=_END)
    """Upper limit for passes over the training bags. By default 100; for stores with fewer than
    5000 bags, cross validation chooses the number of passes."""
    max_steps: int | None = field(default=None, metadata=_END)
    """Upper limit for steps; by default only --epochs limits them."""
    validation: float | None = None
    """Share of the bags that is held out for early stopping, at most 4096 bags; 0 holds out none.
    By default a tenth; stores with fewer than 5000 bags have no held-out bags, because so few bags
    cannot show well when to stop, and training needs them."""
    validation_store: str | None = field(default=None, metadata=_PATH)
    """Store that early stopping uses instead of held-out bags, or several stores separated by
    commas; at most 4096 of their bags are used."""
    validate_every: int | None = None
    """Steps between two looks; a look measures the ranking loss of the held-out bags. By default at
    least 1000, and so many that looks need less than a tenth of the arithmetic of the steps."""
    patience: int = field(default=10, metadata=_END)
    """Training stops after this many looks (see --validate-every) without a lower ranking loss."""
    start: str | None = field(default=None, metadata=_PATH)
    """Model or run folder to start from: training continues from its weights, with its scaling and
    lift, on bags with the same features. Labels that the model lacks are appended to its labels.
    Of a model with restarts, each is trained on, or with --restarts 1 or --replicas the first."""
    threads: int = 1
    """Number of kernel threads. Several threads share the weights without locks, so that results
    vary from run to run."""
    replicas: int = 1
    """Number of replicas that train at the same time, each on its own share of the blocks, on the
    cores of this machine or on a cluster. The result depends on this number, but not on the number
    of cores, threads or workers."""
    round_steps: int | None = None
    """Upper limit for the steps of a round. All replicas start a round with the same weights, and
    their changes are joined at its end. By default 4096, or half of what a replica visits in an
    epoch if that is less. Rounds begin with 128 steps and grow."""
    checkpoint_every: str = field(default="10min", metadata=_SPEED)
    """Steps, such as 5000, or time, such as 10min, between two checkpoints."""

    def __post_init__(self) -> None:
        # With slots, the decorator makes a new class, so super() without arguments would fail.
        ModelConfig.__post_init__(self)
        numbers = ("block_bags", "mix_blocks", "epochs", "max_steps", "validate_every")
        for name in (*numbers, "round_steps"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)
        for name in ("patience", "threads", "replicas"):
            check_whole(name, getattr(self, name), 1)
        if self.replicas > 1 and self.threads > 1:
            raise StreammimlError(
                f"--threads {self.threads} and --replicas {self.replicas} cannot be given together:"
                " threads share weights without locks, so that replicas would not be reproducible;"
                " leave --threads out, replicas use all cores"
            )
        if self.restarts is not None:
            check_whole("restarts", self.restarts, 1)
        if self.replicas > 1 and self.n_restarts > 1:
            raise StreammimlError(
                f"--replicas {self.replicas} and --restarts {self.restarts} cannot be given "
                "together: replicas share one training; leave one of them out"
            )
        if self.round_steps is not None and self.replicas == 1:
            raise StreammimlError(
                f"--round-steps {self.round_steps} is for runs with --replicas 2 or more; give both"
            )
        for name, known in (("preset", get_args(Preset)), ("prefer", get_args(Prefer))):
            if getattr(self, name) not in known:
                raise unknown(name, str(getattr(self, name)), known)
        if self.threshold is not None and self.threshold not in get_args(Threshold):
            raise unknown("threshold", str(self.threshold), get_args(Threshold))
        if self.threshold not in (None, "none") and self.rule != "dummy":
            raise StreammimlError(
                f"--threshold {self.threshold} moves the threshold of --rule dummy, and --rule is "
                f"{self.rule}; leave one of them out"
            )
        if self.calibrate is not None and self.calibrate not in get_args(Calibrate):
            raise unknown("calibration", str(self.calibrate), get_args(Calibrate))
        if self.time_limit is not None:
            parse_duration(self.time_limit, option="time_limit")
        if self.order not in ORDERS:
            raise unknown("order", self.order, ORDERS)
        if self.max_vif is not None:
            check_number("max_vif", self.max_vif)
            if self.max_vif < 1:
                raise StreammimlError(f"max_vif must be at least 1, got {self.max_vif}")
        if self.weights is not None:
            parse_weights(self.weights)
        if self.bag_weights is not None and not (
            isinstance(self.bag_weights, str) and self.bag_weights
        ):
            raise StreammimlError(
                f"bag_weights must be the name of a kept column, got {self.bag_weights!r}"
            )
        if self.validation is not None:
            check_number("validation", self.validation, zero=True)
        if self.validation is not None and self.validation >= 1:
            raise StreammimlError(f"validation must be below 1, got {self.validation}")
        if self.validation_store is not None and not (
            isinstance(self.validation_store, str) and all(self.validation_store.split(","))
        ):
            raise StreammimlError(
                "validation_store must be a path or several separated by commas, "
                f"got {self.validation_store!r}"
            )
        if self.start is not None and not (isinstance(self.start, str) and self.start):
            raise StreammimlError(f"start must be the path of a model, got {self.start!r}")
        check_memory(self.memory)
        self.checkpoint_interval()

    def given(self) -> dict[str, Any]:
        """Settings that differ from their defaults."""
        defaults = TrainConfig()
        return {k: v for k, v in self.recorded().items() if v != getattr(defaults, k)}

    @property
    def n_epochs(self) -> int:
        """``epochs``, once it is filled in; see ``learn/defaults.py``."""
        assert self.epochs is not None, "epochs are filled in before a run begins"
        return self.epochs

    @property
    def n_restarts(self) -> int:
        """``restarts``; 1 as long as it is not filled in."""
        return self.restarts or 1

    def checkpoint_interval(self) -> tuple[int | None, float | None]:
        """(steps, seconds) between checkpoints; one of them is None."""
        if str(self.checkpoint_every).isdecimal():
            check_whole("checkpoint_every", int(self.checkpoint_every), 1)
            return int(self.checkpoint_every), None
        return None, parse_duration(self.checkpoint_every)


LATER_OPTIONS = {
    "loss": "warp",
    "init": "random",
    "calibrate": None,
    "bag_weights": None,
    "restarts": 1,
}
"""Options that old run folders, checkpoints and models lack, and the value that lacking them means.
Files of runs with these values are the same as those of older versions."""


def without_later(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the options of ``LATER_OPTIONS`` that have the value of old runs."""
    return {
        name: value
        for name, value in settings.items()
        if name not in LATER_OPTIONS or value != LATER_OPTIONS[name]
    }


def settings_with(*roles: SettingRole) -> tuple[str, ...]:
    """Names of the settings that have one of these roles."""
    return tuple(
        setting.name for setting in fields(TrainConfig) if setting.metadata.get("role") in roles
    )
