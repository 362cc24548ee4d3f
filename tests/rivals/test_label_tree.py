"""LabelTree, with napkinXC where it is installed, and what to install where it is not."""

import subprocess
import sys

import numpy as np
import pytest

from streammiml.errors import StreammimlError
from streammiml.rivals.registry import METHODS


def test_label_tree__says_what_to_install_where_napkinxc_is_absent():
    code = "import sys; sys.modules['napkinxc'] = None\n"
    code += "import streammiml as sm; sm.rivals.LabelTree"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.rstrip().splitlines()[-1]
    assert "StreammimlError: LabelTree needs napkinXC" in last
    assert last.endswith("pip install 'streammiml[peers]'")


def test_label_tree__its_method_says_so_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "napkinxc", None)
    monkeypatch.delitem(sys.modules, "streammiml.rivals.label_tree", raising=False)
    with pytest.raises(StreammimlError, match="LabelTree needs napkinXC"):
        METHODS["plt"].make()


def test_label_tree__learns_labels_of_maxima():
    pytest.importorskip("napkinxc", reason="the extra peers is not installed")
    rng = np.random.default_rng(0)
    bags = rng.normal(size=(200, 3, 3))
    truth = bags.max(axis=1) > 1
    model = METHODS["plt"].make().fit(bags[:150], truth[:150].astype(int))
    assert (model.predict(bags[150:]) == truth[150:]).mean() > 0.85
