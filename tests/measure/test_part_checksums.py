"""Records of parts: a part counts as complete only if every byte of its files is as it was."""

import pytest

from streammiml.measure import part_checksums
from streammiml.measure.output_plan import PredictionCounts
from streammiml.measure.part_checksums import RECORDS, complete_part, record_part

COUNTS = PredictionCounts(7, 5, 2)


@pytest.fixture
def folder(tmp_path):
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(b"content of " + file.name.encode())
    record_part(tmp_path, 3, COUNTS, files)
    return tmp_path


def test_complete_part__gives_the_counts_back(folder):
    assert complete_part(folder, 3) == COUNTS
    assert complete_part(folder, 3, read_files=False) == COUNTS
    assert complete_part(folder, 4) is None


def test_complete_part__notices_a_file_that_is_missing_cut_or_changed(folder):
    (folder / "a").write_bytes(b"Content of a")
    assert complete_part(folder, 3) is None
    assert complete_part(folder, 3, read_files=False) == COUNTS
    (folder / "a").write_bytes(b"content of")
    assert complete_part(folder, 3, read_files=False) is None
    (folder / "a").unlink()
    assert complete_part(folder, 3, read_files=False) is None


def test_complete_part__notices_any_changed_byte_of_the_record(folder):
    record = folder / RECORDS / "000003"
    good = record.read_bytes()
    for place in range(len(good)):
        record.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert complete_part(folder, 3) is None
    record.write_bytes(good)
    assert complete_part(folder, 3) == COUNTS


def test_complete_part__control_without_checksums_a_changed_file_passes(folder, monkeypatch):
    (folder / "a").write_bytes(b"Content of a")
    assert complete_part(folder, 3) is None
    monkeypatch.setattr(part_checksums, "crc32c", lambda *_: 0)
    record_part(folder, 3, COUNTS, [folder / "a", folder / "b"])
    (folder / "a").write_bytes(b"CONTENT OF A")
    assert complete_part(folder, 3) == COUNTS
