"""Predictions in Parquet: one row group for each group, and the same bytes every time."""

import pyarrow.parquet as pq

from streammiml.bags.memory import MemoryBags
from streammiml.measure.output_plan import OutputPlan, scored_groups
from streammiml.measure.tasks import all_bags
from streammiml.measure.write_parquet import part_path, write
from streammiml.scorer import Scorer
from tests.measure.models import made_model
from tests.stores import made_block

BAGS = MemoryBags(made_block(20), n_labels=4)


def written(folder, *, names=None, block_bytes=1 << 20):
    plan = OutputPlan(
        n_bags=20, n_labels=4, top_k=None, part_bags=20, group_bags=8, label_names=names,
        has_bag_ids=False,
    )  # fmt: skip
    folder.mkdir()
    groups = scored_groups(all_bags(BAGS, remote=False), Scorer(made_model()), plan, block_bytes)
    return write(folder, 0, plan, groups)


def test_write__has_a_row_group_for_each_group(tmp_path):
    part = written(tmp_path / "a")
    assert part.files == [part_path(tmp_path / "a", 0)]
    with pq.ParquetFile(part.files[0]) as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        records = file.read()
    assert sizes == [8, 8, 4]
    assert records["bag"].to_pylist() == [*range(20)]
    assert records["label_names"].null_count == 20
    n_predicted = sum(len(labels) for labels in records["labels"].to_pylist())
    assert part.counts[:2] == (20, n_predicted)


def test_write__the_bytes_do_not_depend_on_memory(tmp_path):
    first, other = written(tmp_path / "a"), written(tmp_path / "b", block_bytes=1)
    assert first.files[0].read_bytes() == other.files[0].read_bytes()


def test_write__names_the_predicted_labels(tmp_path):
    (path,) = written(tmp_path / "a", names=("a", "b", "c", "d")).files
    for record in pq.read_table(path).to_pylist():
        assert record["label_names"] == ["abcd"[label] for label in record["labels"]]
