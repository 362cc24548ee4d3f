"""Multi-instance multi-label learning on corpora far larger than memory.

The public names are listed in ``__all__``. They load on first use, so that importing is cheap.

>>> import streammiml as sm
>>> store = sm.open_store("corpus.zarr")
>>> store
<BagStore corpus.zarr: 500 bags, 1,786 rows of 3 features (float32), 3 labels>
>>> store.read(0, 2).labels_of(1).tolist()
[1]
>>> config = sm.TrainConfig(shared_dim=10, subconcepts=2, epochs=5)
>>> model = sm.train(store, config, run="run-2")
>>> model
Model(3 features, 4 lifted, shared_dim=10, subconcepts=2, 3 labels, rule=dummy, scale=standard, ...)
>>> sm.evaluate(model, "test.zarr")["ranking_loss"] < 0.05
True
>>> sorted(sm.METRICS)[:3]
['average_precision', 'brier_score', 'coverage']
>>> sm.open_store("nowhere.zarr")
Traceback (most recent call last):
streammiml.errors.StoreError: ...
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import streammiml.rivals as rivals
    from streammiml.bags.store import open_store as open_store
    from streammiml.bags.write_store import write_store as write_store
    from streammiml.bags.writer import BagWriter as BagWriter
    from streammiml.blocks.loader import stream as stream
    from streammiml.config import TrainConfig as TrainConfig
    from streammiml.errors import StreammimlError as StreammimlError
    from streammiml.estimator import MIMLfast as MIMLfast
    from streammiml.learn.train import train as train
    from streammiml.measure.evaluate import evaluate as evaluate
    from streammiml.measure.predict import predict as predict
    from streammiml.measure.registry import METRICS as METRICS
    from streammiml.measure.row_scores import row_scores as row_scores
    from streammiml.model import Model as Model
    from streammiml.model import load_model as load_model
    from streammiml.search.tune import tune as tune
    from streammiml.tell.compare import compare as compare
    from streammiml.tell.explain import explain as explain
    from streammiml.tell.report import report as report
    from streammiml_tools.convert.from_python import convert as convert

# Silent until a program that uses the library adds a handler of its own.
logging.getLogger("streammiml").addHandler(logging.NullHandler())

_HOMES = {
    "METRICS": "streammiml.measure.registry",
    "BagWriter": "streammiml.bags.writer",
    "MIMLfast": "streammiml.estimator",
    "Model": "streammiml.model",
    "StreammimlError": "streammiml.errors",
    "TrainConfig": "streammiml.config",
    "compare": "streammiml.tell.compare",
    "evaluate": "streammiml.measure.evaluate",
    "explain": "streammiml.tell.explain",
    "load_model": "streammiml.model",
    "open_store": "streammiml.bags.store",
    "predict": "streammiml.measure.predict",
    "report": "streammiml.tell.report",
    "row_scores": "streammiml.measure.row_scores",
    "stream": "streammiml.blocks.loader",
    "train": "streammiml.learn.train",
    "tune": "streammiml.search.tune",
    "write_store": "streammiml.bags.write_store",
}
# Names of other packages, which offer them by entry points of this group.
_OFFERED, _GROUP = ("convert",), "streammiml.library"

__all__ = [
    "METRICS",
    "BagWriter",
    "MIMLfast",
    "Model",
    "StreammimlError",
    "TrainConfig",
    "compare",
    "convert",
    "evaluate",
    "explain",
    "load_model",
    "open_store",
    "predict",
    "report",
    "rivals",
    "row_scores",
    "stream",
    "train",
    "tune",
    "write_store",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES and name not in _OFFERED and name != "rivals":
        raise AttributeError(f"module 'streammiml' has no attribute {name!r}")
    # Code that only catches the error may run on Windows too.
    if name != "StreammimlError":
        import_module("streammiml._base.platform").refuse_windows()
    if name == "rivals":
        return import_module("streammiml.rivals")
    if name in _OFFERED:
        # Loaded late: it would take as long as everything else here.
        points = import_module("importlib.metadata").entry_points(group=_GROUP, name=name)
        return next(iter(points)).load()
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
