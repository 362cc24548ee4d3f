"""Examples in docstrings do what they say, and every public name has one."""

import doctest
import inspect
import pkgutil
import random
from importlib import import_module

import numpy as np
import pytest

import streammiml as sm
from streammiml.bags.block import BagBlock
from tests.stores import write_store

NAMES = ("dog", "car", "tree")
# Shown in the docstring of the package.
SHOWN_TOGETHER = {"open_store", "train", "METRICS", "StreammimlError"}
# Without what an extra brings, a module cannot be loaded at all.
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(sm.__path__, "streammiml.")
    if module.name != "streammiml.__main__"
)


def made_bags(n_bags, seed):
    """Rows that show a label have a high value in its column; others have none."""
    draw, bags, labels = random.Random(seed), [], []
    for _ in range(n_bags):
        own = sorted(draw.sample(range(3), draw.randint(1, 2)))
        bags.append(
            np.array([[draw.gauss(4 * (j == i), 1) for j in range(3)] for i in [*own, None, None]])
        )
        labels.append(own)
    return BagBlock.from_bags([bag.astype(np.float32) for bag in bags], labels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where examples run: two stores and a run are there."""
    folder = tmp_path_factory.mktemp("examples")
    for name, n_bags in (("corpus", 500), ("test", 100)):
        write_store(folder / f"{name}.zarr", made_bags(n_bags, n_bags), label_names=NAMES)
    config = sm.TrainConfig(shared_dim=10, subconcepts=2, epochs=20)
    sm.train(folder / "corpus.zarr", config, run=folder / "run")
    return folder


def examples_of(name):
    try:
        module = import_module(name)
    except ImportError as error:
        if (error.name or "").startswith("streammiml"):
            raise
        pytest.skip(f"{name} needs {error.name}")
    except sm.StreammimlError as error:
        if "pip install 'streammiml[" not in str(error):
            raise
        pytest.skip(str(error))
    tests = doctest.DocTestFinder(exclude_empty=True).find(module, name, extraglobs={"sm": sm})
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("name", ["streammiml", *MODULES])
def test_examples__do_what_they_say(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    failures = []
    for test in examples_of(name):
        doctest.DocTestRunner(optionflags=flags).run(test, out=failures.append)
    assert not failures, "".join(failures)


def test_examples__every_public_name_has_one():
    lacking = {
        name
        for name in sm.__all__
        if ">>>" not in (inspect.getdoc(getattr(sm, name)) or "") and name not in SHOWN_TOGETHER
    }
    assert lacking == set()
    for name in SHOWN_TOGETHER:
        assert name in sm.__doc__ or name == "StreammimlError"
