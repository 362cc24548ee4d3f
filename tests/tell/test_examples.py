"""Example bags of a page: what is shown of a bag, and which bags are chosen."""

import numpy as np

from streammiml.bags.coordinates import coordinate_columns
from streammiml.bags.memory import MemoryBags
from streammiml.measure.full_evaluation import evaluate_fully
from streammiml.measure.predict import predict_bags
from streammiml.tell import examples as module
from streammiml.tell.examples import Viewer, chosen_bags, examples, most_predicted, subconcepts
from tests.measure.models import made_model
from tests.stores import as_sparse, made_block, with_kept

NAMES = ("sea", "sky", "sun", "tree")
BLOCK = made_block(30)
BAGS = MemoryBags(BLOCK, n_labels=4, label_names=NAMES)
MODEL = made_model()
SUMMARY = evaluate_fully(MODEL, BAGS, typical=3).subconcepts


def test_examples__sort_labels_into_right_wrong_and_missed():
    shown = examples(Viewer(BAGS, NAMES, None), MODEL, [4, 17])
    predictions = predict_bags(MODEL, BAGS.read_bags([4, 17]))
    for i, bag in enumerate((4, 17)):
        carried = {NAMES[label] for label in BLOCK.labels_of(bag)}
        predicted = {NAMES[label] for label in predictions.labels[i]}
        assert set(shown[i].right) == carried & predicted
        assert set(shown[i].wrong) == predicted - carried
        assert set(shown[i].missed) == carried - predicted
        keys = {row.number: set(row.keys) for row in shown[i].rows if row.keys}
        want = {}
        for label, row in zip(predictions.labels[i], predictions.key_instances[i], strict=True):
            want.setdefault(int(row), set()).add(NAMES[label])
        assert keys == want


def test_examples__of_a_long_bag_key_instances_stay(monkeypatch):
    monkeypatch.setattr(module, "ROWS_SHOWN", 1)
    for example in examples(Viewer(BAGS, NAMES, None), MODEL, [*range(10)]):
        assert len(example.rows) == 1
        assert example.rows[0].keys


def test_named__says_how_many_names_are_left_out(monkeypatch):
    monkeypatch.setattr(module, "NAMES_SHOWN", 2)
    viewer = Viewer(BAGS, NAMES, None)
    assert viewer.named([3, 0]) == ["tree", "sea"]
    assert viewer.named([3, 0, 1, 2]) == ["tree", "sea", "… and 2 more"]


def test_viewer__sparse_rows_are_the_same_pictures_as_dense_ones():
    dense, sparse = (Viewer(BAGS, NAMES, (1, 3)) for _ in range(2))
    pictures = [
        viewer.rows(block, 2, [0])[0].picture
        for viewer, block in ((dense, BLOCK), (sparse, as_sparse(BLOCK)))
    ]
    assert pictures[0] == pictures[1]
    assert pictures[0].startswith("data:image/png;base64,")


def test_subconcepts__count_the_bags_of_each_label():
    for label in subconcepts(Viewer(BAGS, NAMES, None), SUMMARY):
        counts = SUMMARY.predicted[NAMES.index(label.name)]
        assert label.n_bags == counts.sum()
        assert [concept.n_bags for concept in label.concepts] == sorted(
            counts[counts > 0].tolist(), reverse=True
        )
        assert label.n_empty == (counts == 0).sum()
        assert sum(concept.share for concept in label.concepts) == 1.0


def test_chosen_bags__are_typical_ones_then_ones_spread_over_the_store():
    bags = chosen_bags(BAGS, SUMMARY)
    assert len(set(bags)) == len(bags)
    assert {(2 * i + 1) * 30 // 12 for i in range(6)} <= {*bags}
    assert bags[0] in SUMMARY.typical.bag
    counts = SUMMARY.predicted.sum(axis=1)
    assert np.all(np.diff(counts[most_predicted(SUMMARY)]) <= 0)


def test_rows__show_kept_values_beside_key_instances():
    block = with_kept(BLOCK)
    bags = MemoryBags(block, n_labels=4, label_names=NAMES)
    viewer = Viewer(bags, NAMES, None)
    row = viewer.rows(block, 2, [1])[1]
    coords = block.kept_of(2)["coords"][1].tolist()
    assert f"coords {coords[0]}, {coords[1]}" in row.kept
    assert not Viewer(BAGS, NAMES, None).rows(BLOCK, 2, [1])[1].kept
    concepts = subconcepts(viewer, SUMMARY)
    assert all(row.kept for concept in concepts[0].concepts for _, row in concept.typical)


def test_examples__with_coordinates_map_the_predicted_then_the_missed_labels():
    bags = MemoryBags(with_kept(BLOCK), n_labels=4, label_names=NAMES)
    columns = coordinate_columns(bags, None)
    for example in examples(Viewer(bags, NAMES, None, columns), MODEL, [*range(10)]):
        named = [*example.right, *example.wrong, *example.missed]
        assert len(example.maps) == min(2, len(named))
        assert {picture.label for picture in example.maps} <= set(named)
        assert all(row.keys for row in example.rows)
    assert not examples(Viewer(bags, NAMES, None), MODEL, [0])[0].maps


def test_viewer__brightness_covers_the_values_of_all_bags_shown():
    viewer = Viewer(BAGS, NAMES, (1, 3))
    viewer.fit([4, 17])
    rows = BAGS.read_bags([4, 17]).rows
    assert (viewer._low, viewer._high) == (min(0.0, rows.min()), rows.max())
