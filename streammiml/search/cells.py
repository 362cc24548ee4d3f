"""One cell of a comparison: a method on a split, measured in a process of its own.

A cell is a pure function of the store and its settings, so it can run anywhere and any number of
times. Its process ends at the time limit, whatever the method is doing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml._base.child_call import ChildEndedError, OverTimeLimitError, call_in_child
from streammiml._base.hashing import mixed
from streammiml.bags.views import Bags
from streammiml.config import parse_duration
from streammiml.errors import StoreError, StreammimlError
from streammiml.measure.tasks import BagRange
from streammiml.search.contestants import Contestant
from streammiml.search.grid import Setting
from streammiml.search.tune import in_memory

I64 = NDArray[np.int64]
State = Literal["measured", "over the time limit", "not measured"]
_KEY = 0x59117
"""Seed of the hash; splits of old comparisons depend on it."""
TRAIN_SHARE = 2 / 3


class MethodCell(NamedTuple):
    """Which method is measured on which split."""

    method: str
    split: int
    n_train: int | None = None
    """Number of training bags, if not all are taken; settings are then not searched for."""

    @property
    def name(self) -> str:
        """Name of the cell's file."""
        size = "" if self.n_train is None else f"-{self.n_train}"
        return f"{self.split:05}-{self.method}{size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """Figures of a cell, or the reason why there are none."""

    cell: MethodCell
    figures: dict[str, float | None] = field(default_factory=dict)
    chosen: Setting = field(default_factory=dict)
    """Settings that cross validation chose."""
    n_train: int
    n_test: int
    choose_seconds: float | None = None
    fit_seconds: float | None = None
    score_seconds: float | None = None
    """Seconds to score and measure all test bags."""
    state: State = "measured"
    reason: str | None = None
    """Why there are no figures."""

    @property
    def is_final(self) -> bool:
        """Whether another attempt would end in the same way; a refusal may have been remedied."""
        return self.state != "not measured"

    def line(self) -> dict[str, Any]:
        """The result as plain values."""
        method, split, n_train = self.cell
        plain = asdict(self)
        del plain["cell"]
        return {"method": method, "split": split, "all_training_bags": n_train is None, **plain}

    @classmethod
    def of_line(cls, cell: MethodCell, line: dict[str, Any]) -> CellResult:
        """Make the result of a cell from what :meth:`line` returned."""
        values = {name: line[name] for name in cls.__slots__ if name != "cell"}
        return cls(cell=cell, **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSettings:
    """What all cells of a comparison share."""

    seed: int
    folds: int
    time_limit: str
    owner: str
    """Name under which all processes of the comparison can be ended."""


def split_of(n_bags: int, seed: int, split: int, n_train: int | None = None) -> tuple[I64, I64]:
    """Numbers of the training and of the test bags, ascending.

    Bags are sorted by a hash of (seed, split, bag number). The first two thirds are for training,
    or the first ``n_train`` of these; the last third is for testing.
    """
    order = np.argsort(mixed(np.arange(n_bags), _KEY, seed, split), kind="stable")
    cut = training_bags(n_bags)
    learn = order[:cut] if n_train is None else order[: min(cut, n_train)]
    return np.sort(learn), np.sort(order[cut:])


def training_bags(n_bags: int) -> int:
    """Number of training bags of a split."""
    return round(n_bags * TRAIN_SHARE)


class SplitFigures(NamedTuple):
    """What a method gave on one split."""

    figures: dict[str, float | None]
    chosen: Setting
    choose_seconds: float
    fit_seconds: float
    score_seconds: float


class Attempt(NamedTuple):
    """Result of a call with a time limit, or the reason why there is none."""

    result: Any
    state: State
    reason: str | None = None


def run_cell(
    task: tuple[MethodCell, Contestant], bag_range: BagRange, settings: CellSettings
) -> CellResult:
    """Measure a cell in a process of its own, and end the process at the time limit."""
    cell, contestant = task
    attempt = attempted(measure_cell, cell, contestant, bag_range, settings, settings=settings)
    if attempt.reason is None:
        assert isinstance(attempt.result, CellResult)
        return attempt.result
    learn, test = split_of(
        bag_range.stop - bag_range.start, settings.seed, cell.split, cell.n_train
    )
    return CellResult(
        cell=cell,
        n_train=len(learn),
        n_test=len(test),
        state=attempt.state,
        reason=attempt.reason,
    )


def attempted(function: Callable[..., Any], *arguments: Any, settings: CellSettings) -> Attempt:
    """Call a function in a process of its own; errors of a method become reasons.

    Errors of a store or of the system are raised: no method is to blame for them.
    """
    limit = parse_duration(settings.time_limit, option="time_limit")
    try:
        result = call_in_child(function, *arguments, seconds=limit, owner=settings.owner)
        return Attempt(result, "measured")
    except OverTimeLimitError:
        reason = f"over the time limit of {settings.time_limit}"
        return Attempt(None, "over the time limit", reason)
    except StoreError:
        raise
    except MemoryError:
        reason = "it ran out of memory"
    except ChildEndedError as error:
        reason = f"it failed: {error}"
    except StreammimlError as error:
        reason = str(error)
    return Attempt(None, "not measured", reason)


def measure_cell(
    cell: MethodCell, contestant: Contestant, bag_range: BagRange, settings: CellSettings
) -> CellResult:
    """Measure a cell in this process."""
    store = bag_range.bags()
    parts = split_of(store.n_bags, settings.seed, cell.split, cell.n_train)
    learn, test = (in_memory(store.view(bags)) for bags in parts)
    folds = settings.folds if cell.n_train is None else None
    measured = measure_split(contestant, learn, test, folds)
    return CellResult(cell=cell, n_train=learn.n_bags, n_test=test.n_bags, **measured._asdict())


def measure_split(
    contestant: Contestant, learn: Bags, test: Bags, folds: int | None
) -> SplitFigures:
    """Choose settings on the training bags, train on them, and measure on the test bags.

    Without ``folds`` there is no search, and the method has its default settings.
    """
    contestant.warm_up(learn)
    begin = time.perf_counter()
    chosen = {} if folds is None else contestant.choose(learn, folds)
    chose = time.perf_counter()
    fitted = contestant.fit(learn, chosen)
    fit = time.perf_counter()
    figures = contestant.figures(fitted, test)
    scored = time.perf_counter()
    return SplitFigures(figures, chosen, chose - begin, fit - chose, scored - fit)
