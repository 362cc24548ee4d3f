"""The public names are those listed, load late, and are what they say."""

import subprocess
import sys

import pytest

import streammiml


@pytest.mark.parametrize("name", streammiml.__all__)
def test_public_names__each_loads_and_has_its_own_name(name):
    value = getattr(streammiml, name)
    assert getattr(value, "__name__", name).rpartition(".")[2] == name


def test_public_names__listed_once_and_nothing_else_is_offered():
    # In what order they are written is the linter's affair: constants first.
    assert len(streammiml.__all__) == len(set(streammiml.__all__))
    assert dir(streammiml) == sorted(streammiml.__all__)


def test_public_names__a_wrong_one_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        streammiml.trian  # noqa: B018


def test_import__loads_nothing_heavy():
    heavy = {"numpy", "numba", "zarr", "dask", "sklearn"}
    code = f"import streammiml, sys; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


HEAVY = {"zarr", "numcodecs", "pyarrow", "dask", "distributed", "h5py", "matplotlib", "jinja2"}
HEAVY |= {"rich", "cyclopts", "obstore", "fsspec"}
# scikit-learn loads pandas where it is installed, and pandas loads pyarrow: not our imports.
NO_PANDAS = "import sys; sys.modules['pandas'] = None"
FIT = """
import numpy as np
bags = [np.random.default_rng(i).normal(size=(3, 4)) for i in range(30)]
names = [["high"] if bag.max() > 1.5 else ["low"] for bag in bags]
model = sm.MIMLfast(shared_dim=4, epochs=1).fit(bags, names)
model.predict(bags), model.score(bags, names), model.key_instances(bags)
"""


@pytest.mark.parametrize("then", ["", FIT], ids=["loaded", "fitted"])
def test_estimator__loads_nothing_that_only_stores_and_reports_need(then):
    tops = "{name.partition('.')[0] for name in sys.modules if sys.modules[name]}"
    code = f"{NO_PANDAS}\nimport streammiml as sm\nsm.MIMLfast\n{then}\nprint({tops} & {HEAVY})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
