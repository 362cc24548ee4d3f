import json
import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn

import streammiml as sm
from streammiml._base import thread_pool
from streammiml._base.calibration import Calibration
from streammiml.bags.block import BagBlock
from streammiml.errors import StreammimlError
from streammiml.measure import areas, score_counts, score_pass
from streammiml.measure import evaluate as module
from streammiml.measure.evaluate import combined, evaluate, measured
from streammiml.measure.registry import METRICS, chosen
from streammiml.measure.scoring import scored_block
from streammiml.scorer import Scorer
from tests.clusters import inside_client, outside_cluster
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
    promised |= {"key_instance_accuracy", "per_label", "standard_errors", "labelled_bags"}
    promised |= {
        f"{kind}_{name}" for kind in ("macro", "micro") for name in ("auc", "average_precision")
    }
    promised |= {"gap_at_20", "perr", "hit_at_1", "hit_at_3", "hit_at_5"}
    assert promised <= set(figures)
    assert figures["n_bags"] == N_BAGS
    none = (np.diff(made_block(N_BAGS).label_offsets) == 0).sum()
    every = (np.diff(made_block(N_BAGS).label_offsets) == 4).sum()
    assert figures["n_bags_without_labels"] == none > 0
    assert figures["n_bags_with_all_labels"] == every > 0
    assert [row["name"] for row in figures["per_label"]] == ["sea", "sky", "sun", "tree"]


def calibrated_model():
    lines = np.array([[1.0, 0.5], [2, -1], [0.5, 0], [3, -2]])
    knots = [None, (np.array([-1.0, 1]), np.array([0.25, 0.5])), None, None]
    return made_model(calibration=Calibration.of_knots(lines, knots))


def test_evaluate__figures_of_probabilities_are_the_same_to_the_bit_in_any_cut(store):
    model, names = calibrated_model(), ["brier_score", "expected_calibration_error"]
    want = evaluate(model, store)
    assert all(0 < want[name] < 1 for name in names)
    assert want["standard_errors"]["brier_score"] > 0

    def without(figures):
        return {
            name: without(value) if isinstance(value, dict) else value
            for name, value in figures.items()
            if name not in names
        }

    plain = evaluate(made_model(), store)
    assert plain == without(want)
    assert plain == without(plain)
    for options in ({"threads": 1}, {"threads": 3, "block_bytes": 1}, {"block_bytes": "1kB"}):
        assert evaluate(model, store, **options) == want


def test_evaluate__figures_of_probabilities_are_the_same_on_workers(store):
    model = calibrated_model()
    assert evaluate(model, store, workers=2) == evaluate(model, store)
    with pytest.raises(StreammimlError, match=r"^brier_score needs a calibrated model; train wi"):
        evaluate(MODEL, store, metrics=["brier_score"])


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


@settings(max_examples=10)
@given(
    block_bytes=st.sampled_from([1, 100, 333, 1 << 20]),
    most_raw=st.sampled_from([1, 50, 1 << 20]),
    most_of_task=st.sampled_from([1, 40, 1 << 20]),
    seed=st.integers(0, 9),
)
def test_evaluate__with_bounds_is_the_same_to_the_bit_in_any_cut_and_order(
    store, block_bytes, most_raw, most_of_task, seed
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(areas, "MOST_SCORES", 80)
        patch.setattr(areas, "MOST_POOLED", 30)
        plainly = by_loop(MODEL, store, 60)
        assert {"macro_auc", "micro_average_precision", "gap_at_20"} <= set(plainly["bounds"])
        assert "auc_bounds" in plainly["per_label"][0]
        patch.setattr(score_counts, "MOST_RAW", most_raw)
        patch.setattr(score_pass, "MOST_SCORES", most_of_task)
        assert evaluate(MODEL, store, threads=2, block_bytes=block_bytes) == plainly
        shuffled = store.view(np.random.default_rng(seed).permutation(N_BAGS))
        assert evaluate(MODEL, shuffled, threads=3, block_bytes=block_bytes) == plainly


def test_evaluate__areas_agree_with_scikit_learn(store):
    block = made_block(N_BAGS)
    scores, truth = (
        Scorer(MODEL).scores(block).value[:, :-1].astype(float),
        np.zeros((N_BAGS, 4), bool),
    )
    truth[np.repeat(np.arange(N_BAGS), np.diff(block.label_offsets)), block.label_indices] = True
    figures = evaluate(MODEL, store, threads=2, block_bytes=300)
    for kind in ("macro", "micro"):
        auc = sklearn.roc_auc_score(truth, scores, average=kind)
        precision = sklearn.average_precision_score(truth, scores, average=kind)
        assert figures[f"{kind}_auc"] == pytest.approx(auc, abs=1e-12)
        assert figures[f"{kind}_average_precision"] == pytest.approx(precision, abs=1e-12)


def test_evaluate__over_labelled_bags_is_what_these_bags_alone_give(store):
    labelled = np.flatnonzero(np.diff(made_block(N_BAGS).label_offsets))
    figures, alone = evaluate(MODEL, store), evaluate(MODEL, store.view(labelled))
    beside = figures["labelled_bags"]
    assert beside["n_bags"] == len(labelled) < N_BAGS
    names = set(beside) - {"standard_errors"}
    assert {"one_error", "average_precision", "micro_f1", "ndcg_at_3", "hamming_loss"} <= names
    assert {name: beside[name] for name in names} == {name: alone[name] for name in names}
    errors = beside["standard_errors"]
    assert errors == {name: alone["standard_errors"][name] for name in errors}
    assert "one_error" in errors
    assert alone["labelled_bags"]["one_error"] == alone["one_error"]


def test_evaluate__a_perfect_model_has_no_error_over_labelled_bags(tmp_path):
    """Each row points at its label, and 16 of 90 bags carry none."""
    model = made_model(
        n_features=3,
        n_labels=3,
        shared=np.vstack([np.eye(3), np.zeros((1, 3))]),
        labels=np.concatenate([np.eye(3), np.zeros((1, 3))])[:, None, :],
        shared_dim=3,
        subconcepts=1,
    )
    labels = [[i % 3] if i >= 16 else [] for i in range(90)]
    rows = [
        np.eye(3, dtype=np.float32)[own] if own else -np.ones((1, 3), np.float32) for own in labels
    ]
    store = write_store(tmp_path / "x.zarr", BagBlock.from_bags(rows, labels), n_labels=3)
    figures = evaluate(model, store)
    assert figures["one_error"] == 16 / 90
    assert figures["n_bags_without_labels"] == 16
    beside = figures["labelled_bags"]
    assert beside["n_bags"] == 74
    assert (beside["one_error"], beside["coverage"], beside["average_precision"]) == (0, 0, 1)
    assert (figures["macro_auc"], figures["perr"], figures["hit_at_1"]) == (1, 1, 1)


def test_finished__without_labelled_bags_has_no_figures_over_them():
    bare = np.flatnonzero(np.diff(made_block(N_BAGS).label_offsets) == 0)
    total = measured(
        scored_block(
            MODEL.rule, block := made_block(N_BAGS).take(bare), Scorer(MODEL).scores(block)
        ),
        metrics := chosen(["one_error", "macro_auc"], row_labels=False),
    )
    figures = module.finished(metrics, total, None)
    assert (figures["one_error"], figures["macro_auc"]) == (1, None)
    assert figures["labelled_bags"] == {"n_bags": 0, "one_error": None, "standard_errors": {}}


def test_evaluate__does_not_depend_on_the_window(store, monkeypatch):
    plainly = by_loop(MODEL, store, 7)
    monkeypatch.setattr(thread_pool, "WINDOW_OF_THREADS", 1)
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
        *("coverage", "ndcg_at_2", "one_error", "standard_errors", "labelled_bags"),
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


def test_evaluate__is_the_same_to_the_bit_on_a_client_which_stays_open(store):
    with inside_client() as client:
        assert evaluate(MODEL, store, client=client) == by_loop(MODEL, store, 7)
        assert evaluate(MODEL, store, client=client.cluster) == by_loop(MODEL, store, 7)
        assert client.status == "running"


@pytest.mark.slow
def test_evaluate__an_unreachable_scheduler_is_told_in_time(store):
    begun = time.monotonic()
    with pytest.raises(StreammimlError, match=r"^no Dask scheduler answers at tcp:"):
        evaluate(MODEL, store, scheduler="tcp://127.0.0.1:1")
    assert time.monotonic() - begun < 55


@pytest.mark.slow
def test_evaluate__of_more_scores_than_it_keeps_is_the_same_on_threads_and_workers(tmp_path):
    """Bounds hold scikit-learn's figures."""
    rng, n_bags, n_labels = np.random.default_rng(0), 2000, 1200
    assert n_bags * n_labels > areas.MOST_SCORES
    truth = rng.random((n_bags, n_labels)) < 0.01
    rows = [rng.normal(size=(1, 3)).astype(np.float32) for _ in range(n_bags)]
    block = BagBlock.from_bags(rows, [np.flatnonzero(own).tolist() for own in truth])
    store = write_store(tmp_path / "x.zarr", block, n_labels=n_labels)
    model = made_model(n_labels=n_labels)
    figures = evaluate(model, store, threads=1)
    assert evaluate(model, store, threads=3, block_bytes="100KiB") == figures
    assert evaluate(model, store, workers=2) == figures
    scores = Scorer(model).scores(block).value[:, :-1].astype(float)
    for name, measure in (
        ("auc", sklearn.roc_auc_score),
        ("average_precision", sklearn.average_precision_score),
    ):
        of_labels = [measure(truth[:, i], scores[:, i]) for i in range(n_labels)]
        for figure, want in (
            (f"macro_{name}", np.mean(of_labels)),
            (f"micro_{name}", measure(truth.ravel(), scores.ravel())),
        ):
            low, high = figures["bounds"][figure]
            assert low - 1e-12 <= want <= high + 1e-12
            assert low - 1e-12 <= figures[figure] <= high + 1e-12
            assert high - low < 0.01
        for row, want in zip(figures["per_label"], of_labels, strict=True):
            low, high = row[f"{name}_bounds"]
            assert low - 1e-12 <= want <= high + 1e-12


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


def test_evaluate__matches_labels_by_name_whatever_their_order(store):
    names = store.label_names
    model = made_model(label_names=names)
    want = evaluate(model, store)
    order = [2, 0, 3, 1]
    other = made_model(
        label_names=[names[i] for i in order], labels=model.labels[[*order, len(names)]]
    )
    assert evaluate(other, store) == want
