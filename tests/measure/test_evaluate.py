import json
import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streammiml as sm
from streammiml._base import pool
from streammiml.bags.block import BagBlock
from streammiml.errors import StreammimlError
from streammiml.measure import evaluate as module
from streammiml.measure import score_pass
from streammiml.measure.evaluate import combined, evaluate, measured
from streammiml.measure.registry import METRICS, chosen
from streammiml.measure.scoring import scored_block
from streammiml.scorer import Scorer
from tests.clusters import outside_cluster
from tests.measure.models import made_model
from tests.stores import as_sparse, made_block, made_spec, plain, write_parts, write_store

MODEL = made_model()
N_BAGS = 60


@pytest.fixture(scope="module", params=["zarr", "parquet"])
def store(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluate") / f"made.{request.param}"
    block = made_block(N_BAGS)
    return write_parts(path, made_spec(), [block.slice(0, 25), block.slice(25, N_BAGS)])


def by_loop(model, bags, step):
    """The same figures without Dask: ``step`` bags at a time."""
    scorer, metrics = Scorer(model), chosen(None, row_labels=bags.has_row_labels)
    total = None
    for number, block in enumerate(bags.blocks(step)):
        numbers = np.arange(number * step, number * step + len(block))
        partials = measured(
            scored_block(scorer.rule, block, scorer.scores(block), numbers), metrics
        )
        total = partials if total is None else combined(metrics, total, partials)
    return module.finished(metrics, total, bags.label_names)


def test_evaluate__gives_the_promised_keys_as_plain_json(store):
    figures = evaluate(MODEL, store)
    assert json.loads(json.dumps(figures)) == figures
    promised = {"hamming_loss", "one_error", "coverage", "ranking_loss", "average_precision"}
    promised |= {"n_bags", "micro_f1", "macro_f1", "sample_f1", "subset_accuracy"}
    promised |= {f"{name}_at_{k}" for name in ("precision", "ndcg") for k in (1, 3, 5)}
    promised |= {"key_instance_accuracy", "per_label", "standard_errors"}
    assert promised <= set(figures)
    assert figures["n_bags"] == N_BAGS
    none = (np.diff(made_block(N_BAGS).label_offsets) == 0).sum()
    every = (np.diff(made_block(N_BAGS).label_offsets) == 4).sum()
    assert figures["n_bags_without_labels"] == none > 0
    assert figures["n_bags_with_all_labels"] == every > 0
    assert [row["name"] for row in figures["per_label"]] == ["sea", "sky", "sun", "tree"]


def test_evaluate__agrees_with_scores_in_double_precision(store):
    """From rows to figures by other code: NumPy in float64, and argmax instead of ranks."""
    block = made_block(N_BAGS)
    wrong_first, wrong, right, counted = 0, 0, 0, 0
    for bag in range(N_BAGS):
        rows = np.hstack(
            [block.rows_of(bag), np.ones((block.bag_offsets[bag + 1] - block.bag_offsets[bag], 1))]
        )
        by_row = np.einsum("nm,lkm->nlk", rows @ MODEL.shared.astype(float), MODEL.labels).max(
            axis=2
        )
        scores, truth = by_row.max(axis=0), np.zeros(4, bool)
        truth[block.labels_of(bag)] = True
        wrong_first += not truth[scores[:4].argmax()]
        predicted = scores[:4] > scores[4]
        predicted[scores[:4].argmax()] = True
        wrong += int((predicted != truth).sum())
        labels = block.row_labels[block.bag_offsets[bag] : block.bag_offsets[bag + 1]]
        for label in np.flatnonzero(truth):
            if label in labels:
                counted += 1
                right += labels[by_row[:, label].argmax()] == label
    figures = evaluate(MODEL, store)
    assert figures["one_error"] == wrong_first / N_BAGS
    assert figures["hamming_loss"] == wrong / (4 * N_BAGS)
    assert figures["key_instance_accuracy"] == right / counted
    assert figures["n_key_pairs"] == counted


@settings(max_examples=15)
@given(
    block_bytes=st.sampled_from([1, 100, 333, 2000, 1 << 20]),
    threads=st.integers(1, 4),
    step=st.integers(1, N_BAGS),
    seed=st.integers(0, 9),
)
def test_evaluate__is_the_same_to_the_bit_on_threads_in_any_cut_and_order(
    store, block_bytes, threads, step, seed
):
    plainly = by_loop(MODEL, store, step)
    assert evaluate(MODEL, store, threads=threads, block_bytes=block_bytes) == plainly
    shuffled = store.view(np.random.default_rng(seed).permutation(N_BAGS))
    assert evaluate(MODEL, shuffled, threads=threads, block_bytes=block_bytes) == plainly


def test_evaluate__does_not_depend_on_the_window(store, monkeypatch):
    plainly = by_loop(MODEL, store, 7)
    monkeypatch.setattr(pool, "WINDOW_OF_THREADS", 1)
    monkeypatch.setattr(score_pass, "LEAST_BYTES", 1)
    assert evaluate(MODEL, store, threads=2, block_bytes=200) == plainly


def test_evaluate__backends_and_sparse_rows_agree(tmp_path):
    block = made_block(30)
    names = {"label_names": ("a", "b", "c", "d")}
    one = write_store(tmp_path / "one.zarr", block, **names)
    two = write_store(tmp_path / "two.parquet", block, **names)
    three = write_store(tmp_path / "three.zarr", as_sparse(block), **names)
    assert evaluate(MODEL, one) == evaluate(MODEL, two)
    assert evaluate(MODEL, three)["ranking_loss"] == evaluate(MODEL, one)["ranking_loss"]
    joined = evaluate(MODEL, [tmp_path / "one.zarr", tmp_path / "one.zarr"])
    assert joined["n_bags"] == 60
    assert joined["average_precision"] == evaluate(MODEL, one)["average_precision"]


def test_evaluate__takes_paths_and_names_of_metrics(store, tmp_path):
    MODEL.save(tmp_path / "model.safetensors")
    figures = evaluate(
        tmp_path, store.name, metrics=["coverage", "ndcg_at_2", METRICS["one_error"]]
    )
    all_figures = evaluate(MODEL, store)
    assert figures["coverage"] == all_figures["coverage"]
    assert set(figures) == {
        *("coverage", "ndcg_at_2", "one_error", "standard_errors"),
        *("n_bags", "n_bags_without_labels", "n_bags_with_all_labels"),
    }


def test_evaluate__without_row_labels_leaves_key_instances_out(tmp_path):
    bags = write_store(tmp_path / "x.zarr", plain(made_block()), n_labels=4)
    figures = evaluate(MODEL, bags)
    assert "key_instance_accuracy" not in figures
    assert "name" not in figures["per_label"][0]


def test_evaluate__says_how_far_it_is(store):
    seen = []
    evaluate(MODEL, store, block_bytes=500, watch=seen.append)
    done = [progress.bags_done for progress in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, N_BAGS)
    assert {progress.n_bags for progress in seen} == {N_BAGS}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (made_model(n_features=4), "trained on rows of 4 features and .* has 3;"),
        (made_model(n_labels=5), "the model has 5 labels and .* has 4;"),
        (
            made_model(label_names=("sea", "sky", "sun", "house")),
            "label 3 is 'house' in the model and 'tree' in ",
        ),
    ],
)
def test_evaluate__refuses_another_models_store_before_reading(store, model, message, monkeypatch):
    monkeypatch.setattr(type(store), "read", lambda *_, **__: pytest.fail("rows were read"))
    with pytest.raises(StreammimlError, match=message):
        evaluate(model, store)


def test_evaluate__refuses_a_store_without_labels(tmp_path):
    bare = BagBlock.from_bags([np.ones((2, 3), np.float32)], [[]])
    for n_labels in (None, 4):
        bags = write_store(tmp_path / f"{n_labels}.zarr", bare, n_labels=n_labels)
        with pytest.raises(StreammimlError, match=f"^{bags.name} has no labels to compare"):
            evaluate(MODEL, bags)


def test_evaluate__names_a_bag_whose_score_is_no_number(tmp_path):
    block = made_block(12)
    block.rows[block.bag_offsets[7]] = 3e38
    bags = write_store(tmp_path / "x.zarr", block, n_labels=4)
    message = f"^{re.escape(bags.name)}: bag 7 has a score that is not a finite number"
    for block_bytes in (1, 400, 600, 900, 1 << 20):
        with pytest.raises(StreammimlError, match=message):
            evaluate(MODEL, bags, block_bytes=block_bytes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "^threads must be at least 1, got 0$"),
        ({"workers": -1}, "^workers must be at least 1, got -1$"),
        ({"workers": 2, "scheduler": "tcp://x:1"}, "^give one of --workers and --scheduler"),
        ({"block_bytes": "many"}, "^block_bytes must be a size such as"),
        ({"block_bytes": "0MiB"}, "^block_bytes must be at least 1 B, got '0MiB'$"),
        ({"metrics": ["haming"]}, "^no metric is called 'haming'; known: average_precision"),
        ({"scheduler": "http://x:1"}, r"^no Dask scheduler answers at http://x:1 \(unknown addr"),
        ({"scheduler": "nowhere"}, r"^no Dask scheduler answers at nowhere \(missing port"),
    ],
)
def test_evaluate__refuses_options_that_cannot_be(store, options, message):
    with pytest.raises(StreammimlError, match=message):
        evaluate(MODEL, store, **options)


@pytest.mark.slow
def test_evaluate__an_unreachable_scheduler_is_told_in_time(store):
    begun = time.monotonic()
    with pytest.raises(StreammimlError, match=r"^no Dask scheduler answers at tcp:"):
        evaluate(MODEL, store, scheduler="tcp://127.0.0.1:1")
    assert time.monotonic() - begun < 55


@pytest.mark.slow
def test_evaluate__is_the_same_to_the_bit_on_a_local_cluster(store, monkeypatch):
    monkeypatch.setattr(score_pass, "LEAST_BYTES", 1)
    seen = []
    figures = evaluate(MODEL, store, workers=2, block_bytes=300, watch=seen.append)
    assert figures == by_loop(MODEL, store, 7)
    assert seen[0].dashboard is None
    assert len(seen) > 5


@pytest.fixture(scope="module", params=["local", "outside"])
def scheduler(request):
    """The address of a cluster of two processes."""
    if request.param == "outside":
        with outside_cluster(2) as (address, _):
            yield address
        return
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=":0") as local:
        yield local.scheduler_address


@pytest.mark.slow
@settings(max_examples=10)
@given(
    block_bytes=st.sampled_from([100, 333, 2000, 1 << 20]),
    step=st.integers(1, N_BAGS),
    seed=st.integers(0, 9),
)
def test_evaluate__is_the_same_to_the_bit_on_clusters_in_any_cut_and_order(
    store, scheduler, block_bytes, step, seed
):
    shuffled = store.view(np.random.default_rng(seed).permutation(N_BAGS))
    for bags in (store, shuffled):
        figures = evaluate(MODEL, bags, scheduler=scheduler, block_bytes=block_bytes)
        assert figures == by_loop(MODEL, store, step)


@pytest.mark.slow
def test_evaluate__is_the_same_to_the_bit_on_an_outside_cluster_that_loses_a_worker(
    store, monkeypatch
):
    monkeypatch.setattr(score_pass, "LEAST_BYTES", 1)
    with outside_cluster(2) as (address, workers):

        def kill_one(progress):
            if progress.bags_done > N_BAGS // 3:
                workers[0].kill()

        shuffled = store.view(np.random.default_rng(0).permutation(N_BAGS))
        figures = evaluate(MODEL, shuffled, scheduler=address, block_bytes=300, watch=kill_one)
    assert figures == by_loop(MODEL, store, 7)


def test_public_names__evaluate_and_metrics():
    assert sm.evaluate is evaluate
    assert sm.METRICS is METRICS
