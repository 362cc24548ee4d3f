"""Predictions in Zarr: parts that are written alone make the arrays of all bags."""

import numpy as np
import zarr

from streammiml.bags.memory import MemoryBags
from streammiml.measure.output_plan import OutputPlan, scored_groups
from streammiml.measure.predictions import Predictions
from streammiml.measure.tasks import all_bags
from streammiml.measure.write_zarr import GROUP, begin, write
from streammiml.scorer import Scorer
from tests.measure.models import made_model
from tests.stores import content, made_block

BAGS = MemoryBags(made_block(20), n_labels=4)
SCORER = Scorer(made_model())
PLAN = OutputPlan(
    n_bags=20, n_labels=4, top_k=None, part_bags=8, group_bags=4, label_names=None,
    has_bag_ids=False,
)  # fmt: skip


def write_parts(folder, numbers):
    folder.mkdir()
    begin(folder, PLAN)
    everything = all_bags(BAGS, remote=False)
    for number in numbers:
        bags = everything.cut(*PLAN.bags_of(number))
        part = write(folder, number, PLAN, scored_groups(bags, SCORER, PLAN, 1 << 20))
        assert all(file.is_file() and file.name != "zarr.json" for file in part.files)


def test_write__parts_in_any_order_make_the_same_arrays(tmp_path):
    write_parts(tmp_path / "a", [0, 1, 2])
    write_parts(tmp_path / "b", [2, 0, 1])
    assert content(tmp_path / "a") == content(tmp_path / "b")
    want = Predictions.of(SCORER.rule, SCORER.scores(BAGS.read(0, 20)))
    arrays = zarr.open_group(tmp_path / "a" / GROUP, mode="r")
    np.testing.assert_array_equal(arrays["scores"][:], want.scores)
    np.testing.assert_array_equal(arrays["predicted"][:], want.predicted)
    keys = arrays["key_instances"][:]
    np.testing.assert_array_equal(keys[want.predicted], want.row_indices)
    assert (keys[~want.predicted] == -1).all()


def test_write__leaves_no_partial_folder(tmp_path):
    write_parts(tmp_path / "a", [0, 1, 2])
    assert [path.name for path in (tmp_path / "a").iterdir()] == [GROUP]
