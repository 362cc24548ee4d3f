"""Dry runs of scoring: their numbers are those of the call, and they write nothing."""

import pytest

from streammiml._base.pool import open_pool
from streammiml.bags.memory import MemoryBags
from streammiml.errors import StoreError, StreammimlError
from streammiml.measure import dry_run as dry_runs
from streammiml.measure import score_pass
from streammiml.measure.dry_run import dry_evaluate, dry_predict
from streammiml.measure.evaluate import evaluate
from streammiml.measure.predict import predict
from streammiml.measure.scoring import ScoreOptions
from tests.measure.models import made_model
from tests.planted import planted
from tests.stores import write_store

SMALL = {"threads": 2, "block_bytes": 4096}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("s") / "s.zarr", planted(300), n_labels=5)


@pytest.fixture(scope="module")
def model(store):
    return made_model(store.n_features, store.n_labels)


def test_dry_evaluate__foretells_the_tasks_and_the_bytes(store, model, monkeypatch):
    monkeypatch.setattr(score_pass, "LEAST_BYTES", 1024)
    run = dry_evaluate(model, store, options=ScoreOptions(**SMALL))
    moments = []
    evaluate(model, store, **SMALL, watch=moments.append)
    # The first moment is before the first task.
    assert run.n_tasks == len(moments) - 1 > 2
    assert (run.n_bags, run.n_rows, run.tasks_at_once) == (300, store.n_rows, 2)
    assert run.sampled_bags == 300
    assert run.read_bytes > 0
    assert 2 * 2 * 4096 < run.memory < 20 * 4096
    assert run.seconds_on_one_core == pytest.approx(2 * run.seconds)


def test_dry_evaluate__scales_the_time_of_a_sample_to_the_store(store, model, monkeypatch):
    monkeypatch.setattr(dry_runs, "SAMPLE_SECONDS", 0.0)
    times = iter([100.0, 102.0, 102.0, *[103.0] * 9])
    monkeypatch.setattr(dry_runs.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(dry_runs, "measure_task", lambda *_: None)
    run = dry_evaluate(model, store, options=ScoreOptions(**SMALL))
    assert 0 < run.sampled_bags < 300
    n_rows = store.bag_sizes(0, run.sampled_bags).sum()
    assert run.seconds_on_one_core == pytest.approx(2.0 * store.n_rows / n_rows)


def test_dry_run__of_a_cluster_starts_none_and_gives_the_time_of_a_core(store, model, monkeypatch):
    monkeypatch.setattr(dry_runs, "SAMPLE_SECONDS", 0.0)
    away = dry_evaluate(model, store, options=ScoreOptions(scheduler="tcp://127.0.0.1:9"))
    assert (away.tasks_at_once, away.seconds) == (None, None)
    assert away.seconds_on_one_core > 0
    three = dry_evaluate(model, store, options=ScoreOptions(workers=3))
    assert three.tasks_at_once == 3
    bags = MemoryBags(planted(20), n_labels=5)
    with pytest.raises(StoreError, match="cannot be sent to workers; use threads instead"):
        dry_evaluate(model, bags, options=ScoreOptions(workers=3))


@pytest.mark.parametrize("format", ["parquet", "zarr"])
def test_dry_predict__foretells_the_parts_and_writes_nothing(store, model, tmp_path, format):
    out = tmp_path / "out"
    run = dry_predict(model, store, out, format=format, top_k=2)
    assert not out.exists()
    assert run.n_parts == predict(model, store, out, format=format, top_k=2)["n_parts"]
    assert run.write_bytes > 300 * 2 * 8
    before = sorted(out.rglob("*"))
    again = dry_predict(model, store, out, format=format, top_k=2)
    assert sorted(out.rglob("*")) == before
    assert again.n_parts == run.n_parts


def test_dry_runs__refuse_what_the_calls_refuse(store, model, tmp_path):
    out = tmp_path / "out"
    predict(model, store, out, top_k=2)
    other = made_model(store.n_features + 1, store.n_labels)
    (tmp_path / "file").write_text("")
    for words, call in (
        ("no metric is called", lambda: dry_evaluate(model, store, metrics=["best"])),
        ("features", lambda: dry_evaluate(other, store)),
        ("features", lambda: dry_predict(other, store, tmp_path / "new")),
        ("no format is called 'csv'", lambda: dry_predict(model, store, out, format="csv")),
        ("top_k must be", lambda: dry_predict(model, store, out, top_k=0)),
        ("labels says which", lambda: dry_predict(model, store, out, labels="0")),
        ("was begun with top_k 2, not 3", lambda: dry_predict(model, store, out, top_k=3)),
        ("file is a file", lambda: dry_predict(model, store, tmp_path / "file")),
        ("holds other files", lambda: dry_predict(model, store, tmp_path)),
        ("is a URL, and pred", lambda: dry_predict(model, store, "s3://b/out")),
    ):
        with pytest.raises(StreammimlError, match=words):
            call()
    assert not (tmp_path / "new").exists()


def test_dry_run__finds_scores_that_are_not_finite(store):
    broken = made_model(store.n_features, store.n_labels)
    broken.labels[:] = 3e38
    with pytest.raises(StreammimlError, match="a score that is not a finite number"):
        dry_evaluate(broken, store)


def test_tasks_at_once__are_those_of_the_pool():
    for options in (ScoreOptions(), ScoreOptions(threads=3)):
        with open_pool(options) as pool:
            assert dry_runs._tasks_at_once(options) == (pool.n_threads, pool.is_remote)
