import numpy as np
import pytest

from streammiml.errors import StreammimlError
from streammiml.learn.choice_record import ChoiceRecord, ChoiceResult
from streammiml.learn.run_folder import RunFolder
from streammiml.learn.threshold import FORCED, empty_counts

KEY = {"seed": 3, "fingerprint": "f"}


@pytest.fixture
def folder(tmp_path):
    with RunFolder(tmp_path / "run", resume=True) as folder:
        yield folder


def test_record__is_read_back(folder):
    record = ChoiceRecord(folder, KEY)
    counts = empty_counts()
    counts[1, 5], counts[0, FORCED] = 7, 2**40
    result = ChoiceResult({10: 0.1, 20: 1 / 3}, is_cut=True, counts={20: counts})
    record.add("first", result, 1.5)
    again = ChoiceRecord(folder, KEY)
    assert again.result("first")[:2] == result[:2]
    np.testing.assert_array_equal(again.result("first").counts[20], counts)
    assert again.result("second") is None
    assert again.seconds == 1.5


def test_record__of_a_run_without_folder_is_kept_in_memory():
    record = ChoiceRecord(None, KEY)
    record.add("first", ChoiceResult({1: 0.5}), 1.0)
    assert record.result("first") == ChoiceResult({1: 0.5})


def test_record__refuses_another_key(folder):
    ChoiceRecord(folder, KEY).add("first", ChoiceResult({}), 0.0)
    with pytest.raises(StreammimlError, match=r"was begun with seed 3, not 4; give what it was"):
        ChoiceRecord(folder, {**KEY, "seed": 4})


@pytest.mark.parametrize("text", ["{", "{}", '{"format": 9}', "[]"])
def test_record__refuses_a_damaged_file(folder, text):
    folder.choice.write_text(text)
    with pytest.raises(StreammimlError, match=r"choice\.json cannot be read .* delete it, and"):
        ChoiceRecord(folder, KEY)
