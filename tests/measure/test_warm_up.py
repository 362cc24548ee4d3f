"""After warming up, the first call neither compiles anything nor loads anything compiled."""

import json
import subprocess
import sys

import pytest

from streammiml.errors import StreammimlError
from tests.measure.models import made_model
from tests.measure.test_row_scores import MODELS

# Counts what all compiled functions of the package hold, after warming up or not, then after calls.
CODE = """
import gc, json, sys
import numpy as np
from numba.core.dispatcher import Dispatcher
import streammiml as sm

def compiled():
    ours = (d for d in gc.get_objects() if isinstance(d, Dispatcher))
    return sum(len(d.overloads) for d in ours if d.py_func.__module__.startswith("streammiml"))

model = sm.load_model("model.safetensors")
warm, dtype, form = json.loads(sys.argv[1])
if warm:
    model.warm_up(dtype, sparse=form == "sparse")
before, modules = compiled(), {*sys.modules}
bag = np.arange(15).reshape(5, 3).astype(dtype)
if form == "sparse":
    from scipy.sparse import csr_array
    bag = csr_array(bag)
sm.predict(model, [bag, bag[:2]]).labels
sm.row_scores(model, [bag, bag[1:2]], 0).above_dummy
ours = {name for name in {*sys.modules} - modules if name.startswith("streammiml")}
print(json.dumps([before, compiled(), sorted(ours)]))
"""


def counts(folder, *how):
    words = [sys.executable, "-c", CODE, json.dumps(how)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "dtype", "form"),
    [
        ("plain", "float32", "dense"),
        ("plain", "float64", "dense"),
        ("plain", "uint8", "dense"),
        ("plain", "float32", "sparse"),
        ("everything", "float32", "dense"),
        ("mean", "float32", "sparse"),
        ("no shared space", "float16", "dense"),
    ],
)
def test_warm_up__leaves_nothing_to_compile(tmp_path, name, dtype, form):
    MODELS[name].save(tmp_path / "model.safetensors")
    before, after, modules = counts(tmp_path, True, dtype, form)
    assert before == after > 0
    assert modules == []


def test_warm_up__without_it_the_first_call_has_to(tmp_path):
    MODELS["plain"].save(tmp_path / "model.safetensors")
    before, after, modules = counts(tmp_path, False, "float32", "dense")
    assert before < after
    assert "streammiml.scorer" in modules


@pytest.mark.parametrize("dtype", ["text", "U3", "complex64", "datetime64[s]"])
def test_warm_up__other_types_than_numbers_are_refused(dtype):
    with pytest.raises(
        StreammimlError, match=r"^dtype is '.*'; expected a type of numbers, such as"
    ):
        made_model().warm_up(dtype)


def test_warm_up__sparse_rows_are_refused_where_the_model_cannot_score_them():
    with pytest.raises(StreammimlError, match="trained on dense rows, which it centres or lifts"):
        MODELS["extremes"].warm_up(sparse=True)
