"""Settings as frozen dataclasses, checked where they are made."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import Any, Literal

from streammiml.errors import StreammimlError, unknown

Rule = Literal["dummy", "margin", "top-r"]
RULES: tuple[Rule, ...] = ("dummy", "margin", "top-r")
ORDERS = ("blocks", "full", "uniform")
SCALES = ("auto", "none", "unit", "standard", "standard+unit", "maxabs")
TRANSFORMS = ("none", "sqrt", "log1p")

_SIZES = {"": 1, "b": 1}
_SIZES |= {unit + "ib": 1024**power for power, unit in enumerate("kmgt", 1)}
_SIZES |= {unit + "b": 1000**power for power, unit in enumerate("kmgt", 1)}
_DURATIONS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _number_and_unit(text: str) -> tuple[float, str] | None:
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{0,15})?)\s*([A-Za-z]*)\s*", text, re.ASCII)
    return (float(match[1]), match[2].lower()) if match else None


def parse_size(text: str | int, *, option: str = "memory", least: int = 0) -> int:
    """Bytes of ``256MiB``, ``1.5GiB``, ``64kB`` or a plain number; fractions of a byte are cut.

    Fewer than ``least`` are refused.

    >>> parse_size("1.5GiB"), parse_size("64kB")
    (1610612736, 64000)
    """
    found = _number_and_unit(str(text)) if isinstance(text, str | int) else None
    if found is None or found[1] not in _SIZES:
        raise StreammimlError(f"{option} must be a size such as 256MiB or 2GiB, got {text!r}")
    size = int(found[0] * _SIZES[found[1]])
    if size < least:
        raise StreammimlError(f"{option} must be at least {least} B, got {text!r}")
    return size


def format_size(n_bytes: int) -> str:
    """Write a size for people, ``400 MiB``: three digits or whole, in the largest fitting unit."""
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if n_bytes >= 1024**power:
            amount = n_bytes / 1024**power
            return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"
    return f"{n_bytes} B"


def parse_duration(text: str, *, option: str = "checkpoint_every") -> float:
    """Seconds of ``90s``, ``10min``, ``1.5h`` or ``2d``; a unit is required."""
    found = _number_and_unit(text) if isinstance(text, str) else None
    if found is None or found[1] not in _DURATIONS:
        raise StreammimlError(f"{option} must be a time such as 90s, 10min or 2h, got {text!r}")
    return found[0] * _DURATIONS[found[1]]


def parse_weights(text: str) -> list[float]:
    """Numbers of ``2,1`` or ``1,0.25``."""
    found = [_positive_number(part) for part in text.split(",")] if isinstance(text, str) else []
    if not found or not all(value is not None and 0.001 <= value <= 1000 for value in found):
        raise StreammimlError(
            f"weights must be numbers from 0.001 to 1000, one a store, such as 2,1; got {text!r}"
        )
    return [value for value in found if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSpec:
    """The option ``scale``, taken apart; see ``learn/scaler.py`` for what each kind fits."""

    kind: str = "auto"
    """One of ``SCALES``."""
    transform: str = "none"
    """``sqrt`` or ``log1p`` of each value first, for counts."""

    @classmethod
    def parse(cls, text: str) -> ScaleSpec:
        """Read ``unit``, ``sqrt:unit``, ``log1p:standard+unit`` and the like."""
        head, colon, tail = text.rpartition(":")
        if colon and head not in TRANSFORMS[1:]:
            raise StreammimlError(
                f"scale {text!r} has an unknown transform {head!r}; known: log1p, sqrt"
            )
        if tail not in SCALES:
            raise unknown("scale", tail, SCALES)
        if head and tail == "auto":
            raise StreammimlError(
                f"scale {text!r}: auto chooses the transform itself; say auto, or name a scale "
                f"as in {head}:unit"
            )
        return cls(kind=tail, transform=head or "none")

    def __str__(self) -> str:
        return self.kind if self.transform == "none" else f"{self.transform}:{self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftSpec:
    """The option ``lift``, taken apart."""

    n_fourier: int = 0
    """Random Fourier features joined to each row; 0 for none."""
    bandwidth: float = 0.5
    """Of the Gaussian kernel they stand for, as a multiple of the median distance of two rows."""
    context: int = 0
    """1, ``context``: join the bag's maximum and minimum of each feature to each of its rows.
    2, ``context:all``: join maximum, minimum and mean, of Fourier features too.
    3, ``context:mean``: join the mean of each feature, of norm 1 where rows are; also of sparse
    rows. Better ranking on several sets, at some cost in key-instance accuracy, since every row
    then carries its bag."""

    @classmethod
    def parse(cls, text: str) -> LiftSpec:
        """Read ``none``, or ``fourier:N[:BANDWIDTH]`` and ``context[:all|:mean]`` with a comma."""
        if text.strip() == "none":
            return cls()
        found: dict[str, Any] = {}
        for part in (part.strip() for part in text.split(",")):
            name, *values = part.split(":")
            key = {"fourier": "n_fourier", "context": "context"}.get(name)
            fits = part in _CONTEXTS if name == "context" else len(values) <= 2
            if key is None or not fits:
                raise StreammimlError(
                    f"lift {text!r}: cannot read {part!r}; it is none, or fourier:N[:BANDWIDTH] "
                    "and context, context:all or context:mean joined by a comma, as in "
                    "fourier:1000,context"
                )
            if key in found:
                raise StreammimlError(f"lift {text!r} names {name} twice")
            if name == "context":
                found[key] = _CONTEXTS.index(part)
                continue
            if not values or not re.fullmatch("[0-9]{1,7}", values[0]) or int(values[0]) < 1:
                raise StreammimlError(
                    f"lift {text!r}: fourier needs a number of features from 1 to 9999999, "
                    "as in fourier:1000"
                )
            found[key] = int(values[0])
            if len(values) == 2:
                found["bandwidth"] = _positive_number(values[1])
                if found["bandwidth"] is None:
                    raise StreammimlError(
                        f"lift {text!r}: the bandwidth must be a number above 0, "
                        f"got {values[1]!r}; 0.5 is the default"
                    )
        return cls(**found)

    def __str__(self) -> str:
        parts = [f"fourier:{self.n_fourier}:{self.bandwidth:g}"] if self.n_fourier else []
        parts += [_CONTEXTS[self.context]] if self.context else []
        return ",".join(parts) or "none"

    def width(self, n_features: int) -> int:
        """Features of a lifted row, the constant among them."""
        if self.context == 2:
            return 4 * (n_features + self.n_fourier) + 1
        return n_features * (1, 3, 4, 2)[self.context] + self.n_fourier + 1

    @property
    def needs_dense_rows(self) -> bool:
        """Whether sparse rows cannot be lifted so."""
        return bool(self.n_fourier or self.context in (1, 2))


_CONTEXTS = ("", "context", "context:all", "context:mean")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What a model is and how a step changes it; the command line has the same names."""

    shared_dim: int = 100
    """Dimensions m of the space that all labels share."""
    subconcepts: int = 5
    """Linear models K of each label; ones that are not needed stay empty."""
    max_norm: float = 10.0
    """Largest L2 norm C of a label's weights and of a column of the shared space."""
    step_size: float = 0.02
    """Size γ0 of the first step; rows are scaled to a norm of about 1 for it."""
    decay: float = 1e-5
    """η in γ0 / (1 + η γ0 t), t steps done."""
    average: bool = True
    """Return a mean of the recent iterates instead of the last one."""
    shared_space: bool = True
    """Learn the shared space; without it each label is a linear model of the lifted row."""
    scale: str = "auto"
    """How features are scaled: auto, none, unit, standard, standard+unit or maxabs, with sqrt: or
    log1p: before it for counts and histograms."""
    fit_scaler: str = "64MiB"
    """Rows that the scaler looks at: a size as float32, taken as a seeded sample, or full."""
    lift: str = "none"
    """Features added in flight: fourier:N[:BANDWIDTH], and context, context:all or context:mean,
    which joins its bag to each row; both with a comma. Of sparse rows, context:mean alone."""
    rule: Rule = "dummy"
    """Who is predicted: labels above the dummy label, above it less a margin of 1, or the top r."""
    min_labels: int | None = None
    """Labels predicted at least; 1 if every training bag has a label, else 0, unless given."""
    seed: int = 0
    """Of everything random."""

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
        if self.rule not in RULES:
            raise unknown("rule", self.rule, RULES)
        if self.min_labels is not None:
            check_whole("min_labels", self.min_labels, 0)
        check_whole("seed", self.seed, 0, 2**63 - 1)

    def recorded(self) -> dict[str, Any]:
        """Every setting by name, as plain values: what a model file and a run folder keep."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(ModelConfig):
    """Everything that a run of training can be told; the command line has the same names.

    >>> config = sm.TrainConfig(shared_dim=50, epochs=20)
    >>> config.given()
    {'shared_dim': 50, 'epochs': 20}
    >>> sm.TrainConfig(memory="plenty")
    Traceback (most recent call last):
    streammiml.errors.StreammimlError: memory must be a size such as 256MiB or 2GiB, got 'plenty'
    """

    order: str = "blocks"
    """Order of visits: blocks (mixed), full (a permutation), uniform (independent draws)."""
    block_bags: int | None = None
    """Bags read together; 64 to 256 KiB of them unless given."""
    mix_blocks: int | None = None
    """Blocks mixed at any time; 512, or what --memory allows, unless given."""
    weights: str | None = None
    """How often bags of each store are visited an epoch, with commas: 2,1 visits those of the first
    store twice and those of the second once, 1,0.5 those of the second in every other epoch."""
    max_vif: float | None = None
    """Mix until label counts of 256 bags vary at most this much more than in a full shuffle."""
    memory: str = "1GiB"
    """What training may hold beyond the interpreter and its libraries."""
    epochs: int | None = None
    """Passes over the training bags at most. Unless given, 100; of fewer than 5000 bags, as many as
    cross validation finds best."""
    max_steps: int | None = None
    """Steps at most."""
    validation: float | None = None
    """Share of bags held out for early stopping, 4096 at most; 0 trains on all of them. Unless
    given, a tenth of 5000 bags or more, and of fewer none: they say little, and are missed."""
    validation_store: str | None = None
    """Store whose bags are looked at instead, 4096 at most; several with commas. No bag of the
    training stores is held out then."""
    validate_every: int | None = None
    """Steps between looks at the held-out bags, 1000 at least unless given: as many as keep the
    multiplications of looks below a tenth of those of the steps."""
    patience: int = 10
    """Looks without a lower ranking loss after which training stops."""
    start: str | None = None
    """Model, or run folder, to go on from: its weights, scaling and lift, on other bags of the same
    features. Labels that it does not know come after those that it knows."""
    threads: int = 1
    """Kernel threads; more than one share weights without locks, and results vary."""
    checkpoint_every: str = "10min"
    """Between checkpoints: steps (5000) or time (10min)."""

    def __post_init__(self) -> None:
        # Slotted dataclasses are made anew by the decorator, so super() would not find its class.
        ModelConfig.__post_init__(self)
        for name in ("block_bags", "mix_blocks", "epochs", "max_steps", "validate_every"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)
        for name in ("patience", "threads"):
            check_whole(name, getattr(self, name), 1)
        if self.order not in ORDERS:
            raise unknown("order", self.order, ORDERS)
        if self.max_vif is not None:
            check_number("max_vif", self.max_vif)
            if self.max_vif < 1:
                raise StreammimlError(f"max_vif must be at least 1, got {self.max_vif}")
        if self.weights is not None:
            parse_weights(self.weights)
        if self.validation is not None:
            check_number("validation", self.validation, zero=True)
        if self.validation is not None and self.validation >= 1:
            raise StreammimlError(f"validation must be below 1, got {self.validation}")
        if self.validation_store is not None and not (
            isinstance(self.validation_store, str) and all(self.validation_store.split(","))
        ):
            raise StreammimlError(
                "validation_store must be a path or several with commas, "
                f"got {self.validation_store!r}"
            )
        if self.start is not None and not (isinstance(self.start, str) and self.start):
            raise StreammimlError(f"start must be the path of a model, got {self.start!r}")
        parse_size(self.memory)
        self.checkpoint_interval()

    def given(self) -> dict[str, Any]:
        """Settings that were asked for: those that differ from the default, unless it is known."""
        usual = TrainConfig()
        return {k: v for k, v in self.recorded().items() if v != getattr(usual, k)}

    @property
    def n_epochs(self) -> int:
        """``epochs``, which must have been filled in; see ``learn/usual.py``."""
        assert self.epochs is not None, "what a run is not told is filled in before it begins"
        return self.epochs

    def checkpoint_interval(self) -> tuple[int | None, float | None]:
        """(steps, seconds) between checkpoints; one of them is None."""
        if str(self.checkpoint_every).isdecimal():
            check_whole("checkpoint_every", int(self.checkpoint_every), 1)
            return int(self.checkpoint_every), None
        return None, parse_duration(self.checkpoint_every)
