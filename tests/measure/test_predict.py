import json
import os
import re
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas import DataFrame
from scipy.sparse import csr_array

import streammiml as sm
from streammiml._base.atomic import FolderLock
from streammiml._base.calibration import Calibration
from streammiml.bags.block import BagBlock
from streammiml.bags.memory import MemoryBags
from streammiml.bags.store import open_store
from streammiml.bags.validate import StoreSpec
from streammiml.errors import StreammimlError
from streammiml.measure import output_plan
from streammiml.measure.explain import explain_store
from streammiml.measure.part_checksums import complete_part
from streammiml.measure.predict import model_digest, predict, write_task
from streammiml.measure.predictions import Predictions
from streammiml.measure.tasks import all_bags
from streammiml.measure.write_parquet import part_path
from streammiml.model import LabelRule
from streammiml.scorer import Scorer
from streammiml.verbs.main import run
from tests.clusters import inside_client, outside_cluster
from tests.measure.models import made_model
from tests.stores import (
    as_sparse,
    content,
    made_block,
    made_spec,
    plain,
    scratch,
    with_kept,
    write_parts,
    write_store,
)

MODEL = made_model(rule=LabelRule())
N_BAGS = 60
NAMES = ("sea", "sky", "sun", "tree")
COUNTS = ("n_bags", "n_parts", "n_parts_kept", "labels_per_bag", "n_bags_without_label")


@pytest.fixture(scope="module", params=["zarr", "parquet"])
def store(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("predict") / f"made.{request.param}"
    block = made_block(N_BAGS)
    return write_parts(path, made_spec(), [block.slice(0, 25), block.slice(25, N_BAGS)])


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    path = tmp_path_factory.mktemp("predict") / "one.zarr"
    return write_parts(path, made_spec(), [made_block(N_BAGS)])


def cut_small(patch):
    """Many parts of few groups, from few bags."""
    patch.setattr(output_plan, "LEAST_PART_BYTES", 1)
    patch.setattr(output_plan, "N_PARTS", 9)
    patch.setattr(output_plan, "GROUP_BYTES", 200)


@pytest.fixture
def small(monkeypatch):
    cut_small(monkeypatch)


in_small_parts = pytest.mark.usefixtures("small")


def expected(model, block):
    """What each bag should get, by NumPy in float64, bag by bag."""
    for bag in range(len(block)):
        rows = np.asarray(block.rows_of(bag), float)
        rows = np.hstack([rows, np.ones((len(rows), 1))]) @ model.shared.astype(float)
        dots = np.einsum("nm,lkm->lnk", rows, model.labels.astype(float))
        scores = dots.max(axis=(1, 2))
        labels = np.flatnonzero(scores[:-1] > scores[-1])
        places = [np.unravel_index(dots[label].argmax(), dots[label].shape) for label in labels]
        yield scores, labels.tolist(), [int(a) for a, _ in places], [int(b) for _, b in places]


def records(out):
    return ds.dataset(out).to_table().to_pylist()


@in_small_parts
def test_predict__writes_what_a_plain_loop_says(store, tmp_path):
    summary = predict(MODEL, store, tmp_path / "out")
    bag_records = records(tmp_path / "out")
    assert [row["bag"] for row in bag_records] == list(range(N_BAGS))
    assert [row["bag_id"] for row in bag_records] == [f"bag-{i:04d}" for i in range(N_BAGS)]
    for row, (scores, labels, keys, subs) in zip(
        bag_records, expected(MODEL, made_block(N_BAGS)), strict=True
    ):
        np.testing.assert_allclose([*row["scores"], row["dummy_score"]], scores, rtol=1e-4)
        assert (row["labels"], row["key_instances"], row["subconcepts"]) == (labels, keys, subs)
        assert row["label_names"] == [NAMES[label] for label in labels]
    counts = [len(row["labels"]) for row in bag_records]
    assert summary["labels_per_bag"] == sum(counts) / N_BAGS
    assert summary["n_bags_without_label"] == counts.count(0) > 0
    assert summary["n_bags"] == N_BAGS
    assert summary["n_parts"] == len(list((tmp_path / "out").glob("*.parquet"))) > 5
    mark = json.loads((tmp_path / "out" / "_SUCCESS").read_text())
    assert (mark["n_bags"], mark["n_predicted"]) == (N_BAGS, sum(counts))


@in_small_parts
def test_predict__zarr_holds_the_same(store, tmp_path):
    predict(MODEL, store, tmp_path / "out", format="zarr")
    predict(MODEL, store, tmp_path / "records")
    arrays = zarr.open_group(tmp_path / "out" / "predictions.zarr", mode="r")
    assert arrays.attrs["label_names"] == list(NAMES)
    scores, chosen = arrays["scores"][:], arrays["predicted"][:]
    for bag, row in enumerate(records(tmp_path / "records")):
        assert scores[bag].tolist() == row["scores"]
        assert arrays["dummy_score"][bag] == np.float32(row["dummy_score"])
        assert np.flatnonzero(chosen[bag]).tolist() == row["labels"]
        assert arrays["key_instances"][bag][chosen[bag]].tolist() == row["key_instances"]
        assert arrays["subconcepts"][bag][chosen[bag]].tolist() == row["subconcepts"]
        assert (arrays["key_instances"][bag][~chosen[bag]] == -1).all()
    assert arrays["bag_id"][:].tolist() == [f"bag-{i:04d}" for i in range(N_BAGS)]


CALIBRATED = replace(
    MODEL,
    calibration=Calibration.of_knots(
        np.array([[1.0, 0.5], [2, -1], [0.5, 0], [3, -2]]),
        [None, (np.array([-1.0, 1]), np.array([0.25, 0.5])), None, None],
    ),
)


@pytest.mark.parametrize("top_k", [None, 3])
def test_predict__a_calibrated_model_writes_probabilities(one, tmp_path, top_k):
    predict(CALIBRATED, one, tmp_path / "table", top_k=top_k)
    predict(CALIBRATED, one, tmp_path / "arrays", format="zarr", top_k=top_k)
    predict(MODEL, one, tmp_path / "plain", top_k=top_k)
    table, plain = records(tmp_path / "table"), records(tmp_path / "plain")
    block = one.read(0, N_BAGS)
    whole = predict(CALIBRATED, block)
    margins = whole.scores.astype(float) - whole.dummy_score[:, None]
    lines = CALIBRATED.calibration.platt
    want = 1 / (1 + np.exp(-(margins * lines[:, 0] + lines[:, 1])))
    want[:, 1] = np.interp(margins[:, 1], [-1, 1], [0.25, 0.5])
    np.testing.assert_allclose(whole.probabilities, want, atol=1e-6)
    got = np.array([record["probabilities"] for record in table])
    labels = slice(None)
    if top_k is not None:
        labels = np.array([record["score_labels"] for record in table])
        want = np.take_along_axis(want, labels, axis=1)
    np.testing.assert_allclose(got, want, atol=1e-6)
    arrays = zarr.open_group(tmp_path / "arrays" / "predictions.zarr", mode="r")
    np.testing.assert_array_equal(arrays["probabilities"][:], got.astype(np.float32))
    # Apart from the column, nothing changes.
    for record in table:
        del record["probabilities"]
    assert table == plain
    assert predict(MODEL, block).probabilities is None
    with pytest.raises(StreammimlError, match=r"was begun with model '[0-9a-f]{32}', not '"):
        predict(CALIBRATED, one, tmp_path / "plain", top_k=top_k)


@in_small_parts
@pytest.mark.parametrize("format", ["parquet", "zarr"])
def test_predict__top_k_keeps_the_highest(one, tmp_path, format):
    predict(MODEL, one, tmp_path / "all")
    predict(MODEL, one, tmp_path / "out", format=format, top_k=2)
    if format == "parquet":
        bag_records = records(tmp_path / "out")
        pairs = [(row["score_labels"], row["scores"]) for row in bag_records]
    else:
        arrays = zarr.open_group(tmp_path / "out" / "predictions.zarr", mode="r")
        pairs = zip(arrays["score_labels"][:].tolist(), arrays["scores"][:].tolist(), strict=True)
    for (labels, scores), row in zip(pairs, records(tmp_path / "all"), strict=True):
        order = sorted(range(4), key=lambda label, s=row["scores"]: (-s[label], label))[:2]
        assert labels == order
        assert scores == [row["scores"][label] for label in order]


@settings(max_examples=6)
@given(
    block_bytes=st.sampled_from([1, 100, 333, 2000, 1 << 20]),
    threads=st.integers(1, 3),
    format=st.sampled_from(["parquet", "zarr"]),
)
def test_predict__is_the_same_to_the_byte_whatever_the_memory_and_threads(
    one, block_bytes, threads, format
):
    with pytest.MonkeyPatch.context() as patch, scratch() as folder:
        cut_small(patch)
        predict(MODEL, one, folder / "a", format=format, threads=1)
        predict(MODEL, one, folder / "b", format=format, threads=threads, block_bytes=block_bytes)
        assert content(folder / "a") == content(folder / "b")


def test_predict__bags_whose_labels_nobody_knows_yet(tmp_path):
    block = plain(made_block(20))
    known = write_store(tmp_path / "known.zarr", block, n_labels=4)
    bare = replace(block, label_offsets=np.zeros(21, np.int64), label_indices=np.empty(0, np.int32))
    unknown = write_store(tmp_path / "unknown.zarr", bare)
    assert unknown.n_labels == 0
    for store, name in ((known, "a"), (unknown, "b")):
        predict(MODEL, store, tmp_path / name)
    assert records(tmp_path / "a") == records(tmp_path / "b")
    explained = explain_store(MODEL, unknown, tmp_path / "why")
    assert len(explained["labels"]) == 4


def test_predict__rows_without_ids_or_names_and_sparse_ones(tmp_path):
    block = plain(made_block(20))
    dense = write_store(tmp_path / "x.zarr", block, n_labels=4)
    thin = write_store(tmp_path / "y.parquet", as_sparse(block), n_labels=4)
    predict(MODEL, dense, tmp_path / "dense")
    predict(MODEL, thin, tmp_path / "thin")
    bag_records = records(tmp_path / "dense")
    assert [row["bag_id"] for row in bag_records] == [str(i) for i in range(20)]
    assert {row["label_names"] for row in bag_records} == {None}
    other = records(tmp_path / "thin")
    assert [row["labels"] for row in other] == [row["labels"] for row in bag_records]


@in_small_parts
def test_predict__views_and_several_stores(one, tmp_path):
    predict(MODEL, one, tmp_path / "whole")
    all_records = records(tmp_path / "whole")
    order = np.random.default_rng(0).permutation(N_BAGS)[:31]
    predict(MODEL, one.view(order), tmp_path / "view", threads=2)
    bag_records = records(tmp_path / "view")
    assert [row["bag_id"] for row in bag_records] == [f"bag-{i:04d}" for i in order]
    assert [row["scores"] for row in bag_records] == [all_records[i]["scores"] for i in order]
    predict(MODEL, [one.name, one.name], tmp_path / "twice")
    twice = records(tmp_path / "twice")
    assert [row["scores"] for row in twice] == 2 * [row["scores"] for row in all_records]


@in_small_parts
@pytest.mark.parametrize("format", ["parquet", "zarr"])
def test_predict__goes_on_with_the_parts_that_are_missing(one, tmp_path, format):
    out = tmp_path / "out"
    predict(MODEL, one, tmp_path / "clean", format=format)
    n_parts = predict(MODEL, one, out, format=format)["n_parts"]
    if format == "parquet":
        (out / "part-000003.parquet").unlink()
        (out / "part-000005.parquet").write_bytes(b"PAR1 not whole")
    else:
        for number in ("000003", "000005"):
            (out / "_parts" / number).unlink()
        settings_before = json.loads((out / "_settings.json").read_text())
        chunk = 3 * settings_before["part_bags"] // settings_before["group_bags"]
        (out / "predictions.zarr" / "scores" / "c" / str(chunk) / "0").unlink()
    (out / "_SUCCESS").unlink()
    left = out / ".part-000003.parquet.12ab34cd.partial"
    left.write_bytes(b"half")
    seen = []
    summary = predict(MODEL, one, out, format=format, watch=seen.append)
    assert summary["n_parts_kept"] == n_parts - 2
    assert 0 < seen[0].bags_done < seen[-1].bags_done == N_BAGS
    assert content(out) == content(tmp_path / "clean")
    assert not left.exists()
    assert predict(MODEL, one, out, format=format)["n_parts_kept"] == n_parts


def flip(file):
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


@in_small_parts
@pytest.mark.parametrize("format", ["parquet", "zarr"])
@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_predict__writes_damaged_parts_again(one, tmp_path, format, damage):
    out = tmp_path / "out"
    n_parts = predict(MODEL, one, out, format=format)["n_parts"]
    before = content(out)
    names = [f"_parts/{0:06d}", f"_parts/{2:06d}", "part-000003.parquet"]
    if format == "zarr":
        names[2] = min(json.loads((out / "_parts/000003").read_bytes().split(b" ", 1)[1])["files"])
    for name in names:
        damage(out / name)
    seen = []
    summary = predict(
        MODEL,
        one,
        out,
        format=format,
        watch=lambda _: seen.append((out / "_SUCCESS").exists()),
    )
    assert summary["n_parts_kept"] == n_parts - 3
    assert not any(seen), "a folder counts as complete while parts of it are missing"
    assert content(out) == before


@in_small_parts
def test_predict__writes_parts_again_whose_marks_have_no_checksums(one, tmp_path):
    out = tmp_path / "out"
    predict(MODEL, one, out, format="zarr")
    before = content(out)
    (out / "_parts" / "000002").write_text("[3, 1, 2]")
    predict(MODEL, one, out, format="zarr")
    assert content(out) == before


@in_small_parts
def test_predict__believes_no_mark_whose_counts_were_changed(one, tmp_path):
    out = tmp_path / "out"
    predict(MODEL, one, out)
    before, mark = content(out), out / "_parts" / "000002"
    raw = mark.read_bytes()
    mark.write_bytes(raw.replace(b'"counts": [', b'"counts": [1'))
    assert mark.read_bytes() != raw
    assert predict(MODEL, one, out)["n_bags"] == N_BAGS
    assert content(out) == before


@in_small_parts
def test_explain__goes_on_over_a_damaged_part(one, tmp_path):
    out = tmp_path / "out"
    explained = explain_store(MODEL, one, out)
    before = content(out)
    flip(out / "bags" / "part-000004.parquet")
    assert explain_store(MODEL, one, out) == explained
    assert content(out) == before


@in_small_parts
def test_predict__refuses_to_mix_settings(one, tmp_path):
    out = tmp_path / "out"
    predict(MODEL, one, out)
    before = content(out)
    for change, message in [
        ({"top_k": 2}, "was begun with top_k None, not 2; name another folder"),
        ({"format": "zarr"}, "was begun with format 'parquet', not 'zarr'; name another folder"),
    ]:
        with pytest.raises(StreammimlError, match=message):
            predict(MODEL, one, out, **change)
    with pytest.raises(StreammimlError, match=r"was begun with model '[0-9a-f]{32}', not '"):
        predict(made_model(seed=1, rule=LabelRule()), one, out)
    with pytest.raises(StreammimlError, match=r"was begun with store '"):
        predict(MODEL, one.view(np.arange(N_BAGS)[::-1]), out)
    assert content(out) == before
    settings_before = json.loads((out / "_settings.json").read_text())
    (out / "_settings.json").write_text(json.dumps({**settings_before, "later": 1}))
    with pytest.raises(StreammimlError, match="was begun with later 1, not None; name another"):
        predict(MODEL, one, out)


def test_model_digest__tells_models_apart():
    rules = [LabelRule(), LabelRule(min_labels=1), LabelRule(name="margin")]
    models = [made_model(rule=rule) for rule in rules] + [made_model(seed=2, rule=rules[0])]
    models.append(replace(models[0], lift=models[0].lift._replace(unit=1)))
    assert len({model_digest(model) for model in models}) == len(models)
    assert model_digest(made_model()) == model_digest(made_model(label_names=NAMES))


def test_predict__refuses_what_it_cannot_write_to(one, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(StreammimlError, match="file is a file; name a folder for the predictions"):
        predict(MODEL, one, file)
    with pytest.raises(StreammimlError, match=r"holds other files \(file\) and no predictions;"):
        predict(MODEL, one, tmp_path)
    with pytest.raises(StreammimlError, match=r"file/x cannot be written: Not a directory; name"):
        predict(MODEL, one, file / "x")
    with pytest.raises(StreammimlError, match=r"^s3://a/b is a URL, and .* name a folder"):
        predict(MODEL, one, "s3://a/b")
    held = tmp_path / "held"
    held.mkdir()
    lock = FolderLock(held / "_lock", "it")
    with pytest.raises(StreammimlError, match=f"held is being written by process {os.getpid()} on"):
        predict(MODEL, one, held)
    lock.release()
    assert predict(MODEL, one, held)["n_bags"] == N_BAGS
    (held / "_settings.json").write_text("{")
    with pytest.raises(StreammimlError, match=r"_settings.json cannot be read \("):
        predict(MODEL, one, held)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_predict__refuses_a_read_only_folder(one, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StreammimlError, match="cannot be written: Permission denied; name another"):
        predict(MODEL, one, tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "csv"}, "^no format is called 'csv'; known: parquet, zarr$"),
        ({"top_k": 0}, "^top_k must be "),
        ({"block_bytes": "many"}, "^block_bytes must be a size such as"),
        ({"threads": 0}, "^threads must be at least 1, got 0$"),
        ({"out": None}, r"^predictions of a store need a folder: predict\("),
    ],
)
def test_predict__refuses_options_that_cannot_be(one, tmp_path, arguments, message):
    with pytest.raises(StreammimlError, match=message):
        predict(MODEL, one, **{"out": tmp_path / "out", **arguments})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (made_model(n_features=4), "trained on rows of 4 features and .* has 3;"),
        (made_model(n_labels=5), "the model has 5 labels and .* has 4;"),
    ],
)
def test_predict__refuses_another_models_store_before_anything(one, tmp_path, model, message):
    with pytest.raises(StreammimlError, match=message):
        predict(model, one, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_predict__names_a_bag_whose_score_is_no_number(tmp_path):
    block = made_block(12)
    block.rows[block.bag_offsets[7]] = 3e38
    bags = write_store(tmp_path / "x.zarr", block, n_labels=4)
    message = f"^{re.escape(bags.name)}: bag 7 has a score that is not a finite number"
    with pytest.raises(StreammimlError, match=message):
        predict(MODEL, bags, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*part*"))


@in_small_parts
@pytest.mark.parametrize("format", ["parquet", "zarr"])
def test_predict__a_full_disk_is_told_and_leaves_nothing_half(one, tmp_path, format):
    """Files may grow to 600 bytes: some parts are longer, as on a disk that is full."""
    out = tmp_path / "out"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    MODEL.save(tmp_path / "model.safetensors")
    code = (
        "import resource, signal, sys; from streammiml.verbs.main import run;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (700, {before[1]}));"
        "sys.exit(run(sys.argv[1:]))"
    )
    words = [str(tmp_path), one.name, "--format", format]
    # What is compiled is kept in files too: it must be there before files may not grow. Bytecode
    # (-B) is not written at all: Python would take the half of a module that fits for the whole.
    assert run(["predict", *words, str(tmp_path / "before")]) == 0
    words = ["-B", "-c", code, "predict", *words, str(out)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    message = (
        r"^streammiml: \S+ is not written: .*File too large.* "
        r"\(all parts take about [\d.]+ KiB, [\d.]+ .iB are free\); make"
    )
    assert re.search(message, done.stderr, re.M)
    assert len(done.stderr.splitlines()) == 1
    assert not list(out.rglob("*.partial"))
    assert not (out / "_SUCCESS").exists()


# In memory.


def test_predict__bags_in_memory_as_a_store_of_them(one, tmp_path):
    predict(MODEL, one, tmp_path / "out")
    block = made_block(N_BAGS)
    bags = [block.rows_of(bag) for bag in range(N_BAGS)]
    for given_bags in (bags, [bag.astype(np.float64) for bag in bags], block):
        predictions = predict(MODEL, given_bags)
        assert isinstance(predictions, Predictions)
        assert len(predictions) == N_BAGS
        for bag, row in enumerate(records(tmp_path / "out")):
            assert predictions.scores[bag].tolist() == row["scores"]
            assert predictions.labels[bag].tolist() == row["labels"]
            assert predictions.key_instances[bag].tolist() == row["key_instances"]
            assert predictions.subconcepts[bag].tolist() == row["subconcepts"]


def test_predict__arrays_of_bags_as_lists_of_them():
    bags = np.random.default_rng(0).normal(size=(5, 4, 3)).astype(np.float32)
    some = np.empty(2, object)
    some[:] = [bags[0], bags[1, :3]]
    for given_bags in (bags, some):
        got, want = predict(MODEL, given_bags), predict(MODEL, list(given_bags))
        assert len(got) == len(given_bags)
        assert got.scores.tobytes() == want.scores.tobytes()
    numbers = [bags[0].astype(object)]
    assert predict(MODEL, numbers).scores.tobytes() == predict(MODEL, bags[:1]).scores.tobytes()
    assert len(predict(MODEL, bags[:0])) == 0


def test_predict__one_bag_tables_and_sparse_matrices_as_lists_of_arrays():
    block = made_block(5)
    bags = [block.rows_of(bag) for bag in range(5)]
    want = predict(MODEL, bags)
    table = pa.table({name: bags[0][:, i] for i, name in enumerate("rgb")})
    for one_bag in (bags[0], table, csr_array(bags[0])):
        got = predict(MODEL, one_bag)
        assert len(got) == 1
        np.testing.assert_allclose(got.scores[0], want.scores[0], rtol=1e-5)
    for form in (lambda bag: DataFrame(bag, columns=[*"rgb"])[[*"rgb"]], csr_array):
        got = predict(MODEL, [form(bag) for bag in bags])
        assert [labels.tolist() for labels in got.labels] == [own.tolist() for own in want.labels]
        np.testing.assert_allclose(got.scores, want.scores, rtol=1e-5, atol=1e-6)
    with pytest.raises(StreammimlError, match="trained on rows of 3 features and a bag has 2;"):
        predict(MODEL, table.select(["r", "b"]))


def test_predict__from_four_threads_and_after_a_fork():
    block = made_block(N_BAGS)
    want = predict(MODEL, block).scores
    with ThreadPoolExecutor(4) as pool:
        for scores in pool.map(lambda _: predict(MODEL, block).scores, range(40)):
            assert scores.tobytes() == want.tobytes()
    child = os.fork()
    if not child:
        os._exit(int(predict(MODEL, block).scores.tobytes() != want.tobytes()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_predict__no_bags_in_memory():
    predictions = predict(MODEL, [])
    assert (len(predictions), predictions.labels) == (0, [])


@pytest.mark.parametrize(
    ("bags", "message"),
    [
        ([np.ones((2, 4))], "^the model was trained on rows of 3 features and a bag has 4;"),
        ([np.ones((2, 3)), np.ones((2, 4))], r"^bag 1 has shape \(2, 4\), expected \(rows, 3\)$"),
        ([np.ones(3)], r"^bag 0 has shape \(3,\), expected \(rows, features\)$"),
        ([np.ones((2, 3)), np.ones((0, 3))], "^bag 1 has no rows; leave it out$"),
        (
            [np.full((1, 3), np.nan)],
            "^bags in memory: bag 0 has a score that is not a finite number",
        ),
        ([np.ones((2, 3)), np.ones(3)], r"^bag 1 has shape \(3,\), expected \(rows, 3\)$"),
        (
            [np.ones((2, 3)), [[1, 2, 3]]],
            r"^bag 1 is a list, expected an array \(rows, features\)$",
        ),
        ([np.ones((2, 3)), "x.zarr"], r"^bag 1 is a str, expected an array \(rows, features\)$"),
        ([np.array([[1, 2, "a"]], object)], "^bag 0 holds object, expected numbers$"),
        ([np.array([["a", "b", "c"]])], "^bag 0 holds <U1, expected numbers$"),
        ([np.ones((1, 3), complex)], "^bag 0 holds complex128, expected numbers$"),
        (np.ones((1, 2, 2, 3)), r"^bag 0 has shape \(2, 2, 3\), expected \(rows, features\)$"),
        (np.ones((2, 0, 3)), "^bag 0 has no rows; leave it out$"),
        (
            np.ones(3),
            r"^an array of shape \(3,\) is neither a bag nor bags; a bag is an array \(rows, "
            r"features\): row\[None\] is a bag of one row$",
        ),
        (
            np.array(1.0),
            "^ndarray is neither a store nor bags; expected a store, paths of stores, or",
        ),
        (
            None,
            "^NoneType is neither a store nor bags; expected a store, paths of stores, or a list",
        ),
        (
            (bag for bag in [np.ones((2, 3))]),
            "^generator is neither a store nor bags; expected a store",
        ),
    ],
)
def test_predict__refuses_bags_in_memory_that_cannot_be(bags, message):
    with pytest.raises(StreammimlError, match=message):
        predict(MODEL, bags)


def test_predict__bags_in_memory_are_not_written(tmp_path):
    with pytest.raises(
        StreammimlError, match=r"^predictions of bags in memory are not written to a folder; omit"
    ):
        predict(MODEL, [np.ones((2, 3))], tmp_path / "out")


def test_public_names__predict():
    assert sm.predict is predict


# Others that read the folder.


@in_small_parts
def test_predict__is_read_by_pyarrow_file_by_file(one, tmp_path):
    predict(MODEL, one, tmp_path / "out")
    files = sorted((tmp_path / "out").glob("*.parquet"))
    tables = [pq.read_table(file, page_checksum_verification=True) for file in files]
    assert sum(len(table) for table in tables) == N_BAGS


@in_small_parts
@pytest.mark.parametrize("reader", ["pandas", "polars", "duckdb"])
def test_predict__is_read_by_others(one, tmp_path, reader):
    module = import_module(reader)
    predict(MODEL, one, tmp_path / "out")
    want = [row["labels"] for row in records(tmp_path / "out")]
    if reader == "pandas":
        labels_read = module.read_parquet(tmp_path / "out")["labels"].map(list).tolist()
    elif reader == "polars":
        labels_read = module.read_parquet(tmp_path / "out" / "*.parquet")["labels"].to_list()
    else:
        query = f"select labels from '{tmp_path}/out/*.parquet' order by bag"
        labels_read = [row[0] for row in module.sql(query).fetchall()]
    assert [list(map(int, labels)) for labels in labels_read] == want


@in_small_parts
def test_predict__a_task_of_several_parts_that_fails_keeps_those_before(tmp_path):
    block = plain(made_block(N_BAGS))
    block.rows[block.bag_offsets[N_BAGS // 2]] = 3e38
    bags = write_store(tmp_path / "x.zarr", block, n_labels=4)
    plan = output_plan.OutputPlan.of(bags, 4, None, None)
    task = output_plan.PartTask(tuple(range(plan.n_parts)), all_bags(bags, remote=False))
    (tmp_path / "out").mkdir()
    with pytest.raises(StreammimlError, match=f"bag {N_BAGS // 2} has a score that is not a fin"):
        write_task(task, Scorer(MODEL), plan, "parquet", tmp_path / "out", 1 << 20)
    complete = [complete_part(tmp_path / "out", n) is not None for n in range(plan.n_parts)]
    n_whole = N_BAGS // 2 // plan.part_bags
    assert n_whole > 1
    assert complete == [True] * n_whole + [False] * (plan.n_parts - n_whole)


# On clusters.


def test_predict__is_the_same_on_a_client_which_stays_open(one, tmp_path):
    predict(MODEL, one, tmp_path / "clean")
    with inside_client() as client:
        predict(MODEL, one, tmp_path / "out", client=client)
        assert client.status == "running"
    assert content(tmp_path / "out") == content(tmp_path / "clean")


@in_small_parts
def test_predict__is_the_same_where_a_task_has_several_parts(one, tmp_path, monkeypatch):
    summary = predict(MODEL, one, tmp_path / "clean")
    monkeypatch.setattr(output_plan, "USUAL_TASKS", 1)
    seen = []
    with inside_client() as client:
        again = predict(MODEL, one, tmp_path / "out", client=client, watch=seen.append)
        assert content(tmp_path / "out") == content(tmp_path / "clean")
        n_parts = summary["n_parts"]
        assert 2 < len(seen) <= 1 + -(-n_parts // (n_parts // 2))
        assert [again[name] for name in COUNTS] == [summary[name] for name in COUNTS]
        # Without some of its parts, which do not follow each other.
        for number in (0, 3, 4):
            part_path(tmp_path / "out", number).unlink()
        resumed = predict(MODEL, one, tmp_path / "out", client=client)
    assert resumed["n_parts_kept"] == n_parts - 3
    assert content(tmp_path / "out") == content(tmp_path / "clean")


@in_small_parts
@pytest.mark.slow
def test_predict__a_worker_killed_in_the_middle_changes_nothing(one, tmp_path):
    predict(MODEL, one, tmp_path / "clean")
    with outside_cluster(2) as (address, workers):

        def kill_one(progress):
            if progress.bags_done > N_BAGS // 3:
                workers[0].kill()

        shuffled = one.view(np.arange(N_BAGS))
        predict(MODEL, one, tmp_path / "out", scheduler=address, block_bytes=300, watch=kill_one)
        assert workers[0].poll() is not None
        assert content(tmp_path / "out") == content(tmp_path / "clean")
        predict(MODEL, shuffled, tmp_path / "view", scheduler=address)
    assert [row["scores"] for row in records(tmp_path / "view")] == [
        row["scores"] for row in records(tmp_path / "clean")
    ]


@pytest.mark.slow
def test_predict__a_worker_over_its_memory_says_so_and_which_option(tmp_path):
    """A block of 2.4 GB, for workers of 700 MiB, which do well with small ones."""
    n_rows = 300_000
    rows = np.ones((n_rows, 256), np.float32)
    # Few enough bags that all of them are one block.
    offsets = np.arange(0, n_rows + 1, 40)
    block = BagBlock(offsets, rows, np.zeros(len(offsets), np.int64), np.empty(0, np.int32))
    bags = write_parts(tmp_path / "x.zarr", StoreSpec(n_features=256, n_labels=4), 8 * [block])
    model = made_model(n_features=256)
    message = r"ran out of memory \(the smallest has 700 MiB\), lower --block-bytes, or give"
    options = {"workers": 1, "worker_memory": "700MiB"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_plan, "N_PARTS", 1)
        patch.setattr(output_plan, "PART_BYTES", 1 << 40)
        patch.setattr(output_plan, "GROUP_BYTES", 1 << 40)
        with pytest.raises(StreammimlError, match=message):
            predict(model, bags, tmp_path / "out", block_bytes="4GiB", **options)
        summary = predict(model, bags, tmp_path / "out", block_bytes="1MiB", **options)
    assert summary["n_bags"] == bags.n_bags


@pytest.mark.slow
def test_predict__an_unreachable_scheduler_is_told(one, tmp_path):
    with pytest.raises(StreammimlError, match=r"^no Dask scheduler answers at tcp:"):
        predict(MODEL, one, tmp_path / "out", scheduler="tcp://127.0.0.1:1")


@pytest.mark.parametrize("format", ["parquet", "zarr"])
@pytest.mark.parametrize("backend", ["zarr", "parquet"])
def test_predict__writes_kept_columns_at_key_instances(backend, format, tmp_path, monkeypatch):
    monkeypatch.setattr(output_plan, "LEAST_PART_BYTES", 1)
    monkeypatch.setattr(output_plan, "N_PARTS", 3)
    monkeypatch.setattr(output_plan, "GROUP_BYTES", 300)
    block = with_kept(made_block(N_BAGS))
    kept_store = write_store(tmp_path / f"x.{backend}", block, n_labels=4)
    summary = predict(MODEL, kept_store, tmp_path / "out", format=format)
    again = predict(MODEL, kept_store, tmp_path / "out", format=format)
    assert again["n_parts_kept"] == summary["n_parts"] > 1
    want = predict(MODEL, block)
    for bag, (rows, of_bag) in enumerate(zip(want.key_instances, want.kept["coords"], strict=True)):
        assert of_bag.tolist() == block.kept_of(bag)["coords"][rows].tolist()
    view = predict(MODEL, kept_store.view([5, 3]), tmp_path / "view", format="parquet")
    assert view["n_bags"] == 2
    records = pq.read_table(tmp_path / "view").to_pylist()
    assert records[1]["kept_note"] == want.kept["note"][3].tolist()
    if format == "parquet":
        table = pq.read_table(tmp_path / "out")
        assert table.column_names[-3:] == ["kept_coords", "kept_note", "kept_time"]
        for name, values in want.kept.items():
            lists = [of_bag.tolist() for of_bag in values]
            assert str(table[f"kept_{name}"].to_pylist()) == str(lists)
        return
    arrays = zarr.open_group(tmp_path / "out" / "predictions.zarr", mode="r")
    for name, values in want.kept_values.items():
        array = arrays[f"kept_{name}"][:]
        assert str(array[want.predicted].tolist()) == str(values.tolist())
        assert not array[~want.predicted].astype(bool).any()


@pytest.mark.parametrize("suffix", ["zarr", "parquet"])
def test_predict__other_kept_values_are_another_store(suffix, tmp_path):
    """The fingerprint leaves kept columns out, but predictions hold their values."""
    block = with_kept(made_block(6))
    first = write_store(tmp_path / f"a.{suffix}", block, n_labels=4)
    predict(MODEL, first, tmp_path / "out")
    assert predict(MODEL, first, tmp_path / "out")["n_parts_kept"] == 1
    moved = replace(block, kept={**block.kept, "coords": block.kept["coords"] + 1})
    second = write_store(tmp_path / f"b.{suffix}", moved, n_labels=4)
    bags = open_store(second) if isinstance(second, Path) else second
    assert bags.kept_digest != open_store(tmp_path / f"a.{suffix}").kept_digest
    with pytest.raises(StreammimlError, match="begun with kept_values"):
        predict(MODEL, second, tmp_path / "out")
    others = [bags, MemoryBags(block, n_labels=4), MemoryBags(moved, n_labels=4)]
    assert len({other.kept_digest for other in others}) == 3
    assert bags.view([1, 2]).kept_digest == bags.kept_digest


def test_predict__kept_columns_are_part_of_a_folders_record(tmp_path):
    block = made_block(6)
    predict(MODEL, write_store(tmp_path / "a.zarr", block, n_labels=4), tmp_path / "out")
    assert "kept" not in json.loads((tmp_path / "out" / "_settings.json").read_text())
    store = write_store(tmp_path / "b.zarr", with_kept(block), n_labels=4)
    with pytest.raises(StreammimlError, match=r"begun with kept None, not \[\['coords', 'int64'"):
        predict(MODEL, store, tmp_path / "out")
