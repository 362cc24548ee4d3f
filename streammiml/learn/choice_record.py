"""The record of the trials that choose settings: a JSON file in the run folder.

The file is replaced after each trial, so a run that is killed while it chooses loses one trial at
most. It stays in the folder: it says why the run has its settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml._base.atomic import save_whole
from streammiml._base.json_and_toml import parse_json
from streammiml.config import TrainConfig, check_number
from streammiml.errors import StreammimlError
from streammiml.learn.run_folder import RunFolder
from streammiml.learn.threshold import empty_counts

I64 = NDArray[np.int64]

CHOICE_FORMAT = 1
Curve = dict[int, float]
"""Loss by step."""


class ChoiceResult(NamedTuple):
    """What a trial measured."""

    curve: Curve
    """Loss of the bags that were held out, by step; empty if training diverged."""
    is_cut: bool = False
    """Whether the time limit ended the trial before its last step."""
    counts: Mapping[int, I64] = MappingProxyType({})
    """Counts of margins by step, where the offset of the threshold may be fitted."""


class ChoiceRecord:
    """Results of trials by name, kept in the run folder if the run has one."""

    def __init__(self, folder: RunFolder | None, key: Mapping[str, Any]) -> None:
        """Load the record of a run with this key; refuse that of a run with another key."""
        self._folder, self._key = folder, dict(key)
        self._results: dict[str, ChoiceResult] = {}
        self.seconds = 0.0
        """Seconds that all finished trials took."""
        if folder is not None and folder.choice.exists():
            self._load(folder)

    def _load(self, folder: RunFolder) -> None:
        try:
            content = parse_json(folder.choice.read_bytes())
            if content["format"] != CHOICE_FORMAT:
                raise ValueError(f"its format is {content['format']!r}")
            written, seconds = dict(content["key"]), content["seconds"]
            check_number("seconds", seconds, zero=True)
            for entry in content["trials"]:
                curve = {int(step): float(loss) for step, loss in entry["curve"]}
                counts = {int(step): _dense(pairs) for step, pairs in entry["counts"]}
                result = ChoiceResult(curve, bool(entry["is_cut"]), counts)
                self._results[str(entry["trial"])] = result
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise StreammimlError(
                f"{folder.choice} cannot be read ({type(error).__name__}: {error}); delete it, and "
                "--resume begins to choose settings again"
            ) from None
        defaults = TrainConfig().recorded()
        for name in {**written, **self._key}:
            before, now = (key.get(name, defaults.get(name)) for key in (written, self._key))
            if before != now:
                raise StreammimlError(
                    f"{folder.path} was begun with {name} {before!r}, not {now!r}; give what it "
                    "was begun with, or name another folder"
                )
        self.seconds = float(seconds)

    def result(self, trial: str) -> ChoiceResult | None:
        """Result of a finished trial; None if the trial has not run."""
        return self._results.get(trial)

    def add(self, trial: str, result: ChoiceResult, seconds: float) -> None:
        """Record the result of a trial that took these seconds."""
        self._results[trial] = result
        self.seconds += seconds
        self._save({})

    def finish(self, chosen: Mapping[str, Any]) -> None:
        """Record what was chosen, and why."""
        self._save({"chosen": dict(chosen)})

    def _save(self, more: Mapping[str, Any]) -> None:
        if self._folder is None:
            return
        trials = [
            {
                "trial": name,
                "is_cut": result.is_cut,
                "curve": list(result.curve.items()),
                "counts": [[step, _pairs(counts)] for step, counts in result.counts.items()],
            }
            for name, result in self._results.items()
        ]
        content = {"format": CHOICE_FORMAT, "key": self._key, "seconds": self.seconds, **more}
        text = json.dumps({**content, "trials": trials}, ensure_ascii=True)
        save_whole(self._folder.choice, [text.encode() + b"\n"])


def _pairs(counts: I64) -> list[list[int]]:
    """The places and the values of the counts that are not zero."""
    places = np.flatnonzero(counts)
    return [places.tolist(), counts.ravel()[places].tolist()]


def _dense(pairs: list[list[int]]) -> I64:
    counts = empty_counts()
    counts.ravel()[pairs[0]] = pairs[1]
    return counts
