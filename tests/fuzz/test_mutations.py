"""Mutants: equal seeds give equal ones, they differ from the original, and stay small."""

from random import Random

import numpy as np
import pytest

from tests.fuzz import mutations
from tests.fuzz.mutations import MAX_BYTES, mutate, mutate_message
from tests.tools.readers import tf_messages

TEXT = b'{"id": "a", "rows": [[1, 2.5], [3, 4]]}\n{"id": "b", "rows": []}\n'
MESSAGE = tf_messages.sequence({"id": b"a", "labels": [1, 2]}, {"rgb": [b"abcd", b"efgh"]})


@pytest.mark.parametrize("content", [b"", b"x", TEXT, MESSAGE, bytes(MAX_BYTES)])
@pytest.mark.parametrize("change", [mutate, mutate_message])
def test_mutants__follow_the_seed_and_stay_small(content, change):
    def mutants():
        return [change(content, Random(seed), [TEXT], [b"word"]) for seed in range(300)]

    first = mutants()
    assert first == mutants()
    assert max(map(len, first)) <= 2 * MAX_BYTES
    assert len({*first} - {content}) > (100 if len(content) > 1 else 20)


def test_message__is_taken_apart_and_joined_again():
    fields = mutations._message_fields(MESSAGE)
    assert len(fields) == 2
    assert b"".join(map(mutations._field_bytes, fields)) == MESSAGE
    assert mutations._message_fields(MESSAGE[:-1]) is None


def test_messages__mostly_stay_messages():
    mutants = [mutate_message(MESSAGE, Random(seed), [], []) for seed in range(300)]
    assert sum(mutations._message_fields(mutant) is not None for mutant in mutants) > 200


def test_arrays__mostly_stay_arrays(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(12.0).reshape(3, 4))
    content = (tmp_path / "a.npy").read_bytes()
    shapes = set()
    for seed in range(200):
        (tmp_path / "a.npy").write_bytes(mutate(content, Random(seed), [], []))
        try:
            shapes.add(np.load(tmp_path / "a.npy").shape)
        except Exception:
            shapes.add(None)
    assert len(shapes) > 8
