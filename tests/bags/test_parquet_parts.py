"""Parts of a Parquet store: a data file and an index for each."""

from streammiml.bags.parquet_parts import staged_parts
from streammiml.bags.parquet_write import part_key
from tests.stores import made_spec, prepared


def test_part__exists_as_long_as_its_file_exists(staging):
    parts = staged_parts(staging, made_spec(), None, is_owner=True)
    parts.write(1, prepared(4, 8))
    assert (parts.has(0), parts.has(1), parts.n_begun()) == (False, True, 2)
    (staging / "store" / part_key(1)).unlink()
    assert parts.missing(2) == [0, 1]


def test_part_without_bags__has_no_file(staging):
    parts = staged_parts(staging, made_spec(), None, is_owner=True)
    parts.write(0, prepared(0, 0))
    assert parts.has(0)
    assert list((staging / "store").iterdir()) == []


def test_uploaded_part__is_removed_from_the_disk(staging):
    sent = []
    parts = staged_parts(staging, made_spec(), lambda key, _: sent.append(key), is_owner=True)
    parts.write(0, prepared(0, 4))
    assert sent == [part_key(0)]
    assert list((staging / "store").iterdir()) == []
    assert parts.has(0)


def test_finish__indexes_all_parts_and_may_be_repeated(staging):
    parts = staged_parts(staging, made_spec(), None, is_owner=True)
    for number, (start, stop) in enumerate([(0, 4), (4, 4), (4, 12)]):
        parts.write(number, prepared(start, stop))
    assert parts.missing(3) == []
    first, second = (parts.finish(3, made_spec()) for _ in range(2))
    assert first == second
    assert first.tally.n_bags == 12
    assert [file[0] for file in first.files[:2]] == [part_key(0), part_key(2)]
    assert [len(parts.id_hashes(number)) for number in range(3)] == [4, 0, 8]
