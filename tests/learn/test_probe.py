"""The probe of a machine's arithmetic: the same every time, and other bits are noticed."""

import numpy as np
import pytest

from streammiml.learn import probe
from streammiml.learn.kernel_threads import Sweeper


@pytest.mark.parametrize("sparse", [False, True])
def test_arithmetic__is_the_same_every_time(sparse):
    first = probe.arithmetic(sparse=sparse)
    probe.arithmetic.cache_clear()
    assert probe.arithmetic(sparse=sparse) == first
    assert len(first) == 32


@pytest.mark.parametrize("sparse", [False, True])
def test_arithmetic__tells_the_last_bit_of_a_weight(sparse, monkeypatch):
    expected = probe.arithmetic(sparse=sparse)
    real = Sweeper.sweep

    def rounded_otherwise(self, *args):
        diverged = real(self, *args)
        labels = self._learner.weights.labels
        labels[0, 0, 0] = np.nextafter(labels[0, 0, 0], np.float32(np.inf))
        return diverged

    monkeypatch.setattr(Sweeper, "sweep", rounded_otherwise)
    probe.arithmetic.cache_clear()
    assert probe.arithmetic(sparse=sparse) != expected
    probe.arithmetic.cache_clear()
