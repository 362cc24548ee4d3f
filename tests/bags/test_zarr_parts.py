"""Parts of a Zarr store: appended in order, spooled until then, resumed from the journal."""

from streammiml.bags.spool import JOURNAL, part_path
from streammiml.bags.zarr_parts import staged_parts
from tests.stores import made_spec, prepared


def test_parts__are_spooled_until_they_are_next(staging):
    parts = staged_parts(staging, made_spec(), None, is_owner=True)
    parts.write(1, prepared(4, 8))
    assert part_path(staging, 1).exists()
    assert (parts.has(0), parts.has(1), parts.n_begun()) == (False, True, 2)
    assert parts.missing(3) == [0, 2]
    parts.write(0, prepared(0, 4))
    assert not part_path(staging, 1).exists()
    assert parts.has(1)
    assert parts.missing(3) == [2]


def test_owner__resumes_from_the_journal_and_others_read_it(staging):
    staged_parts(staging, made_spec(), None, is_owner=True).write(0, prepared(0, 4))
    for is_owner in (False, True):
        parts = staged_parts(staging, made_spec(), None, is_owner=is_owner)
        assert (parts.has(0), parts.has(1), parts.n_begun()) == (True, False, 1)
    (staging / JOURNAL).unlink()
    assert not staged_parts(staging, made_spec(), None, is_owner=True).has(0)


def test_finish__describes_all_parts_and_may_be_repeated(staging):
    parts = staged_parts(staging, made_spec(), None, is_owner=True)
    for number, (start, stop) in enumerate([(0, 4), (4, 12)]):
        parts.write(number, prepared(start, stop))
    drafts = []
    for _ in range(2):
        assert parts.missing(2) == []
        drafts.append(parts.finish(2, made_spec()))
    assert drafts[0] == drafts[1]
    assert drafts[0].tally.n_bags == 12
    assert [len(parts.id_hashes(number)) for number in (0, 1)] == [4, 8]
