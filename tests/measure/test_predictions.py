import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streammiml.measure.predictions import first_labels


@given(
    n=st.integers(0, 6), n_labels=st.integers(1, 7), k=st.integers(1, 9), seed=st.integers(0, 99)
)
def test_first_labels__are_sorted_by_score_then_number(n, n_labels, k, seed):
    scores = np.random.default_rng(seed).integers(0, 4, (n, n_labels)).astype(np.float32)
    for row, labels in zip(scores, first_labels(scores, k), strict=True):
        want = sorted(range(n_labels), key=lambda label, s=row: (-s[label], label))
        assert labels.tolist() == want[:k]
