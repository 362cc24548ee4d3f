"""Comparisons: the same table whatever runs it and however often; folders are not mixed."""

import json
import shutil
import tomllib

import numpy as np
import pytest

from streammiml.bags.block import BagBlock
from streammiml.bags.memory import MemoryBags
from streammiml.bags.store import open_store
from streammiml.config import TrainConfig
from streammiml.errors import StoreError, StreammimlError
from streammiml.search import comparison as module
from streammiml.search.cells import CellResult, measure_cell
from streammiml.search.comparison import CompareOptions, run_comparison
from tests.clusters import inside_client
from tests.planted import planted
from tests.search.contenders import contender
from tests.stores import write_store

CONFIG = TrainConfig(epochs=2, shared_dim=8)
GRID = tuple({"shift": shift} for shift in (2, 0, 1))
METHODS = ["mimlfast", contender("frequent", grid=GRID)]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("compare") / "x.zarr"
    return write_store(path, planted(60), n_labels=5)


@pytest.fixture
def here(monkeypatch):
    """Cells run in this process, which is quicker; the list has those that ran."""
    ran = []

    def run_here(task, bag_range, settings):
        ran.append(task[0])
        return measure_cell(*task, bag_range, settings)

    monkeypatch.setattr(module, "run_cell", run_here)
    return ran


def compare(store, out, methods=METHODS, config=CONFIG, *, watch=lambda _: None, **options):
    finished = []
    comparison = run_comparison(
        store,
        out,
        methods,
        config,
        CompareOptions(**{"splits": 3, "threads": 1, **options}),
        watch=watch,
        finish=lambda *arguments: finished.append(arguments),
    )
    assert [path for path, _, _ in finished] == [out]
    return comparison


def untimed(out):
    """Everything that a comparison wrote but times."""
    lines = [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]
    for line in lines:
        for name in ("choose_seconds", "fit_seconds", "score_seconds"):
            assert (line.pop(name) is None) == (line["state"] != "measured")
    table, _, _ = (out / "table.md").read_text().partition("## Seconds")
    return lines, table, (out / "settings.toml").read_text()


@pytest.fixture(scope="module")
def reference(store, tmp_path_factory):
    """A comparison whose cells ran in processes of their own, as they do for users."""
    out = tmp_path_factory.mktemp("compare") / "out"
    seen = []
    compare(store, out, sizes="10,20", watch=seen.append)
    return out, seen


def test_compare__writes_cells_table_and_settings(store, reference):
    out, _ = reference
    lines, table, settings = untimed(out)
    assert [(line["method"], line["split"], line["n_train"]) for line in lines] == [
        *[(name, split, 40) for split in range(3) for name in ("mimlfast", "frequent")],
        *[(name, 0, size) for size in (10, 20) for name in ("mimlfast", "frequent")],
    ]
    assert all(0 <= line["figures"]["ranking_loss"] < 1 for line in lines)
    assert lines[1]["chosen"] in GRID
    assert "| ranking loss ↓ |" in table
    assert tomllib.loads(settings) == {
        "methods": ["mimlfast", "frequent"],
        "splits": 3,
        "folds": 3,
        "time_limit": "10min",
        "memory": "4GiB",
        "seed": 0,
        "sizes": "10,20",
        "store": store.name,
        "fingerprint": store.fingerprint,
    }
    assert json.loads((out / "_SUCCESS").read_text()) == {"n_cells": 10}


def test_compare__reports_each_cell(reference):
    _, seen = reference
    assert [progress.cells_done for progress in seen] == list(range(11))
    assert {progress.n_cells for progress in seen} == {10}
    assert seen[0].result is None
    assert (seen[2].title, seen[2].result.cell.split) == ("The frequent", 0)


@pytest.mark.parametrize("threads", [1, 3])
def test_compare__is_the_same_on_any_number_of_threads(store, reference, tmp_path, here, threads):
    compare(store, tmp_path / "out", sizes="20,10,10", threads=threads)
    lines, table, _ = untimed(tmp_path / "out")
    assert (lines, table) == untimed(reference[0])[:2]
    assert len(here) == 10


@pytest.mark.usefixtures("here")
def test_compare__is_the_same_on_a_client_and_on_bags_in_memory(store, reference, tmp_path):
    with inside_client() as client:
        compare(store, tmp_path / "a", sizes="10,20", threads=None, client=client)
        assert client.status == "running"
    assert untimed(tmp_path / "a") == untimed(reference[0])
    bags = MemoryBags(store.read(0, 60), n_labels=5, name=store.name)
    compare(bags, tmp_path / "b", sizes="10,20")
    assert untimed(tmp_path / "b")[:2] == untimed(reference[0])[:2]


@pytest.mark.slow
def test_compare__is_the_same_in_two_processes(store, reference, tmp_path):
    compare(store, tmp_path / "out", sizes="10,20", threads=None, workers=2)
    assert untimed(tmp_path / "out") == untimed(reference[0])


@pytest.mark.usefixtures("here")
def test_compare__views_have_splits_of_their_own_bags(store, tmp_path):
    view = store.view(list(range(0, 60, 2)))
    compare(view, tmp_path / "out")
    lines, _, _ = untimed(tmp_path / "out")
    assert {(line["n_train"], line["n_test"]) for line in lines} == {(20, 10)}


def test_compare__goes_on_with_missing_and_damaged_cells(store, reference, tmp_path, here):
    out = tmp_path / "out"
    shutil.copytree(reference[0], out)
    cells = sorted((out / "cells").iterdir())
    cells[0].unlink()
    cells[5].write_bytes(b"{")
    (out / "_SUCCESS").unlink()
    compare(store, out, sizes="10,20")
    assert untimed(out) == untimed(reference[0])
    assert len(here) == 2


def test_compare__methods_splits_and_sizes_may_be_added(store, reference, tmp_path, here):
    out = tmp_path / "out"
    compare(store, out, METHODS[:1], splits=2, sizes="10")
    assert len(here) == 3
    compare(store, out, sizes="10,20")
    assert len(here) == 10
    assert untimed(out)[:2] == untimed(reference[0])[:2]
    # Another grid of a method, or another base of ours, is another method.
    compare(store, out, [METHODS[0], contender("frequent", grid=GRID[:2])])
    assert [cell.method for cell in here[10:]] == ["frequent"] * 3
    compare(store, out, METHODS[:1], TrainConfig(epochs=3, shared_dim=8))
    assert [cell.method for cell in here[13:]] == ["mimlfast"] * 3


def test_compare__folders_of_other_settings_are_refused(store, reference, tmp_path, here):
    out = tmp_path / "out"
    shutil.copytree(reference[0], out)
    for options, message in [
        ({"folds": 4}, "was begun with folds 3, not 4; name another folder"),
        ({"seed": 1}, "was begun with seed 0, not 1"),
        ({"time_limit": "1h"}, "was begun with time_limit '10min', not '1h'"),
        ({"memory": "1GiB"}, "was begun with memory '4GiB', not '1GiB'"),
    ]:
        with pytest.raises(StreammimlError, match=message):
            compare(store, out, **options)
    with pytest.raises(StreammimlError, match=r"was begun with store '[0-9a-f]+', not "):
        compare(store.view(slice(50)), out)
    (tmp_path / "file").write_text("")
    with pytest.raises(StreammimlError, match="file is a file; name a folder for the comparison"):
        compare(store, tmp_path / "file")
    assert not here


def test_compare__what_was_refused_has_its_reason_and_is_tried_again(store, tmp_path, monkeypatch):
    out, package = tmp_path / "out", tmp_path / "package"
    monkeypatch.setenv("CONTENDER_PACKAGE", str(package))
    methods = [contender("lacking"), contender("frequent")]
    first = compare(store, out, methods, splits=1)
    assert first.missing() == [
        "The lacking: N/A in 1 split (0): it needs a package: pip install 'streammiml[peers]'"
    ]
    package.write_text("")
    ran = []
    real = module.run_cell
    monkeypatch.setattr(module, "run_cell", lambda task, *_: ran.append(task[0]) or real(task, *_))
    second = compare(store, out, methods, splits=1)
    assert [cell.method for cell in ran] == ["lacking"]
    assert second.missing() == []
    assert second.values("lacking", "ranking_loss") == second.values("frequent", "ranking_loss")


def test_compare__what_took_too_long_is_not_tried_again(store, tmp_path, monkeypatch):
    out, ran = tmp_path / "out", []

    def over(task, *_):
        ran.append(task[0])
        state = {"state": "over the time limit", "reason": "over the time limit of 10min"}
        return CellResult(cell=task[0], n_train=40, n_test=20, **state)

    monkeypatch.setattr(module, "run_cell", over)
    for _ in range(2):
        comparison = compare(store, out, splits=1)
        assert len(comparison.missing()) == 2
        assert "N/A in 1 split (0): over the time limit of 10min" in comparison.missing()[0]
    assert len(ran) == 2


def test_compare__a_damaged_store_stops_it(store, tmp_path):
    with pytest.raises(StoreError, match=r"^the store is damaged$"):
        compare(store, tmp_path / "out", [contender("unreadable")])
    assert not (tmp_path / "out" / "table.md").exists()
    assert not list((tmp_path / "out" / "cells").iterdir())


def test_compare__an_interrupt_ends_the_processes_of_cells(store, tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(module, "end_children", ended.append)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(store, tmp_path / "out")
    assert len(ended) == 1


@pytest.mark.usefixtures("here")
def test_compare__one_split_has_no_spread_and_no_marks(store, tmp_path):
    comparison = compare(store, tmp_path / "out", splits=1)
    assert comparison.entry("frequent", "ranking_loss")["std"] is None
    assert "±" not in untimed(tmp_path / "out")[1].split("Mean ±")[0]


@pytest.mark.usefixtures("here")
def test_compare__row_labels_give_key_instance_accuracy(tmp_path):
    block = planted(60)
    rows = [[int(block.labels_of(i)[0])] * len(block.rows_of(i)) for i in range(60)]
    labelled = BagBlock.from_bags(
        [block.rows_of(i) for i in range(60)],
        [block.labels_of(i) for i in range(60)],
        row_labels=rows,
    )
    store = write_store(tmp_path / "rows.zarr", labelled, n_labels=5)
    methods = [*METHODS, contender("keyless", has_key_instances=False)]
    comparison = compare(store, tmp_path / "out", methods, splits=1)
    for name in ("mimlfast", "frequent"):
        assert 0 < comparison.entry(name, "key_instance_accuracy")["mean"] <= 1
    assert comparison.entry("keyless", "key_instance_accuracy")["mean"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": 0}, r"^splits must be at least 1, got 0$"),
        ({"time_limit": "soon"}, r"^time_limit must be a time such as 90s, 10min or 2h, got 's"),
        ({"time_limit": "0s"}, r"^time_limit must be longer than 0, got '0s'$"),
        ({"memory": "much"}, r"^memory must be a size such as"),
        ({"sizes": "10;20"}, r"^sizes must be numbers such as 1000,5000, got '10;20'$"),
        ({"sizes": "10,"}, r"^sizes must be numbers such as 1000,5000, got '10,'$"),
        ({"sizes": "41"}, r"^sizes must be from 2 to 40, the training bags of a split, got 41$"),
        ({"folds": 41}, r"^40 bags cannot be cut into 41 folds; --folds 40 is the largest"),
        ({"folds": 1}, r"^folds must be at least 2, got 1$"),
        (
            {"config": TrainConfig(bag_weights="weight"), "methods": "mimlfast"},
            r"^compare takes no weights of bags, as .*; leave bag_weights 'weight' out$",
        ),
        ({"methods": "mimlfast,knn"}, r"^no method is called 'knn'; known: all, dba, "),
    ],
)
def test_compare__bad_options_are_refused_before_anything_is_written(
    store, tmp_path, options, message
):
    with pytest.raises(StreammimlError, match=message):
        compare(store, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_compare__stores_that_cannot_be_compared_on_are_refused(tmp_path):
    def written(name, labels, n_labels):
        bags = [np.ones((1, 2), np.float32)] * len(labels)
        return write_store(tmp_path / name, BagBlock.from_bags(bags, labels), n_labels=n_labels)

    for name, labels, n_labels, message in [
        ("none.zarr", [[]] * 6, 3, r"none.zarr has 3 labels, none of them on any bag"),
        ("one.zarr", [[0]] * 6, 1, r"one.zarr has 1 labels, and methods are compared by the ord"),
        ("two.zarr", [[0], [1]], 2, r"two.zarr has 2 bags, too few to train on some and test on"),
    ]:
        store = open_store(written(name, labels, n_labels).name)
        with pytest.raises(StreammimlError, match=message):
            compare(store, tmp_path / "out")
