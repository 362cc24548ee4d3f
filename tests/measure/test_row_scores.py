"""Row scores of bags in memory and of stores: the scores of bags are their maxima, to the bit."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

import streammiml as sm
from streammiml.errors import StreammimlError
from streammiml.measure import row_scores as module
from streammiml.measure.predict import predict
from streammiml.measure.row_scores import row_scores
from streammiml.model import LabelRule
from tests.measure.models import made_model
from tests.stores import as_sparse, made_block, made_spec, plain, write_parts, write_store

NAMES = ("sea", "sky", "sun", "tree")
PLAIN = made_model(label_names=NAMES)
N_BAGS = 20
BLOCK = made_block(N_BAGS)


RNG = np.random.default_rng(3)


def lifted(context):
    """A model whose rows have a context; one more lifted feature for each number in it."""
    width = {1: 3, 2: 4, 3: 2}[context] * 3 + 1
    shared = np.random.default_rng(1).normal(size=(width, 5))
    return replace(PLAIN, shared=shared, lift=PLAIN.lift._replace(context=context))


MODELS = {
    "plain": PLAIN,
    "extremes": lifted(1),
    "everything": lifted(2),
    "mean": lifted(3),
    "no shared space": made_model(
        shared=np.zeros((0, 4)), labels=np.random.default_rng(2).normal(size=(5, 2, 4))
    ),
    "offset": made_model(rule=LabelRule(offset=0.5)),
    "restarts": made_model(subconcepts=6, restarts=3, shared=RNG.normal(size=(4, 15))),
    "restarts with context": replace(
        lifted(2), labels=RNG.normal(size=(5, 4, 5)), shared=RNG.normal(size=(13, 10)), restarts=2
    ),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_parts(tmp_path_factory.mktemp("rows") / "x.zarr", made_spec(), [BLOCK])


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("form", [plain, as_sparse], ids=["dense", "sparse"])
def test_row_scores__their_maximum_is_the_score_of_the_bag_to_the_last_bit(model, form):
    if form is as_sparse and model.needs_dense_rows:
        pytest.skip("sparse rows cannot be lifted so")
    bags = form(BLOCK)
    rows, predictions = row_scores(model, bags), predict(model, bags)
    best = np.array([rows[bag].max(axis=0) for bag in range(N_BAGS)])
    assert best.tobytes() == predictions.scores.tobytes()
    assert rows.dummy_score.tobytes() == predictions.dummy_score.tobytes()
    # Key instances and sub-concepts of the predictions are those of the highest rows.
    keys = [predictions.key_instances[bag] for bag in range(N_BAGS)]
    for bag, labels in enumerate(predictions.labels):
        assert rows[bag][:, labels].argmax(axis=0).tolist() == keys[bag].tolist()
        subs = rows.subconcepts[rows.bag_offsets[bag] + keys[bag], labels]
        assert subs.tolist() == predictions.subconcepts[bag].tolist()


def test_row_scores__of_some_labels_are_columns_of_all():
    everything, some = row_scores(PLAIN, BLOCK), row_scores(PLAIN, BLOCK, ["tree", 0])
    assert some.scores.tobytes() == np.ascontiguousarray(everything.scores[:, [3, 0]]).tobytes()
    assert (some.labels.tolist(), some.label_names) == ([3, 0], ("tree", "sea"))
    assert len(some) == N_BAGS
    assert some[-1].shape == (BLOCK.bag_offsets[-1] - BLOCK.bag_offsets[-2], 2)
    with pytest.raises(IndexError):
        some[N_BAGS]
    above = (
        everything.scores > np.repeat(everything.dummy_score, np.diff(BLOCK.bag_offsets))[:, None]
    )
    np.testing.assert_array_equal(everything.above_dummy, above)
    assert 0 < above.sum() < above.size


def test_row_scores__are_the_same_in_any_slices(monkeypatch):
    models = [PLAIN, MODELS["extremes"]]
    want = [row_scores(model, BLOCK).scores.tobytes() for model in models]
    monkeypatch.setattr(module, "BLOCK_BYTES", "1000B")
    assert [row_scores(model, BLOCK).scores.tobytes() for model in models] == want


def test_row_scores__as_tables_have_a_record_for_each_row_and_label():
    scores = row_scores(PLAIN, BLOCK, ["tree", "sea"])
    table = scores.to_arrow()
    records = table.to_pylist()
    starts = BLOCK.bag_offsets.tolist()
    want = [
        (bag, str(bag), row, label, NAMES[label])
        for bag, (start, stop) in enumerate(pairwise(starts))
        for row in range(stop - start)
        for label in (0, 3)
    ]
    names = ("bag", "bag_id", "row", "label", "label_name")
    assert [tuple(record[name] for name in names) for record in records] == want
    for record in records:
        at = starts[record["bag"]] + record["row"], int(record["label"] == 0)
        assert record["score"] == scores.scores[at]
        assert record["subconcept"] == scores.subconcepts[at]
        assert record["above_dummy"] == scores.above_dummy[at]
    nameless = row_scores(made_model(), BLOCK, 1).to_arrow()
    assert nameless["label_name"].null_count == nameless.num_rows == BLOCK.n_rows


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_row_scores__as_frames(package, monkeypatch):
    pytest.importorskip(package)
    scores = row_scores(PLAIN, BLOCK)
    frame = getattr(scores, f"to_{package}")()
    assert type(frame).__module__.startswith(package)
    assert list(frame["score"]) == scores.to_arrow()["score"].to_pylist()
    monkeypatch.setitem(sys.modules, package, None)
    message = f"^to_{package} needs {package}: pip install {package}$"
    with pytest.raises(StreammimlError, match=message):
        getattr(scores, f"to_{package}")()


def test_row_scores__one_bag_and_no_bags():
    bag = BLOCK.rows_of(0)
    one, block = row_scores(PLAIN, bag), row_scores(PLAIN, [bag])
    assert one.scores.tobytes() == block.scores.tobytes()
    assert (len(one), one[0].shape) == (1, (len(bag), 4))
    none = row_scores(PLAIN, [], "sea")
    assert (len(none), none.scores.shape, none.to_arrow().num_rows) == (0, (0, 1), 0)


@pytest.mark.parametrize("labels", [None, "tree,sea"])
def test_row_scores__of_a_store_are_those_of_its_bags(store, labels, monkeypatch):
    want = row_scores(PLAIN, BLOCK, labels).to_arrow()
    ids = pa.array([f"bag-{bag:04d}" for bag in want["bag"].to_pylist()])
    want = want.set_column(1, "bag_id", ids)
    for n_bytes in ("8MiB", "900B"):
        monkeypatch.setattr(module, "BLOCK_BYTES", n_bytes)
        for bags in (store, store.name, [store.name]):
            reader = row_scores(PLAIN, bags, labels)
            assert isinstance(reader, pa.RecordBatchReader)
            assert reader.read_all().combine_chunks() == want.combine_chunks()


def test_row_scores__of_a_store_are_read_lazily(store, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", "400B")
    read = []
    original = type(store).read

    def counted(self, start, stop, **options):
        read.append((start, stop))
        return original(self, start, stop, **options)

    monkeypatch.setattr(type(store), "read", counted)
    reader = row_scores(PLAIN, store)
    assert not read
    reader.read_next_batch()
    assert len(read) == 1
    reader.read_all()
    assert len(read) > 5


def test_row_scores__of_views_and_in_the_order_of_the_stores_labels(store):
    view = store.view([3, 1])
    table = row_scores(PLAIN, view, "sky").read_all()
    assert table["bag_id"].unique().to_pylist() == ["bag-0003", "bag-0001"]
    other = PLAIN.for_labels(NAMES[::-1])
    again = row_scores(other, view, "sky").read_all()
    assert again["label"].unique().to_pylist() == [1]
    assert again == table


def test_row_scores__bad_bags_and_labels_get_one_line(store, tmp_path):
    for bags in (BLOCK, store):
        with pytest.raises(StreammimlError, match=r"^no label is called 'moon'; known: sea, sky,"):
            row_scores(PLAIN, bags, "moon")
    with pytest.raises(StreammimlError, match="trained on rows of 3 features and a bag has 4;"):
        row_scores(PLAIN, np.ones((2, 4)))
    with pytest.raises(StreammimlError, match=r"trained on rows of 4 features and .* has 3;"):
        row_scores(made_model(n_features=4), store)
    huge = [np.ones((2, 3)), np.array([[1, 1, 1], [3e38, 3e38, 3e38]])]
    message = "^bags in memory: row 1 of bag 1 has a score that is not a finite number"
    with pytest.raises(StreammimlError, match=message):
        row_scores(PLAIN, huge)
    block = plain(made_block(5))
    block.rows[block.bag_offsets[3]] = -3e38
    bags = write_store(tmp_path / "x.zarr", block, n_labels=4)
    with pytest.raises(
        StreammimlError, match=r"x\.zarr: (row 0 of )?bag 3 has a score that is not"
    ):
        row_scores(PLAIN, bags).read_all()


def test_row_scores__is_public():
    assert sm.row_scores is row_scores


def test_row_scores__in_memory_load_nothing_of_others(tmp_path):
    code = (
        "import sys, numpy as np, streammiml as sm\n"
        "sm.row_scores('model.safetensors', np.ones((2, 3))).to_arrow()\n"
        "print({'dask', 'zarr', 'polars'} & {*sys.modules})"
    )
    PLAIN.save(tmp_path / "model.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.strip() == "set()", done.stderr
