"""The page: its contents are true, names from the data are escaped, and it fetches nothing."""

import json
import re
import shutil
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import streammiml as sm
from streammiml.bags.kept_columns import as_texts
from streammiml.errors import StreammimlError
from streammiml.learn.run_facts import FactsWriter
from tests.measure.models import made_model
from tests.planted import planted
from tests.stores import made_block, made_spec, plain, write_parts, write_store
from tests.tell.pages import Page

pytest.importorskip("jinja2", reason="pages need jinja2")
EVIL = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "{{ 7 * 7 }}", "a&b", "ü")


def made_run(folder, *, name="run", names=EVIL, remember=True, **options):
    """Train a run in ``folder`` on a store whose label names would break unescaped HTML."""
    path = folder / "x.zarr"
    if not path.exists():
        write_store(path, planted(300), label_names=names)
    run = folder / name
    store = sm.open_store(path)
    config = sm.TrainConfig(
        **{"epochs": 4, "validation": 0.1, "shared_dim": 8, "validate_every": 200, **options}
    )
    sm.train(store, config, run=run, watch=FactsWriter(store, run) if remember else lambda _: None)
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    made_run(folder)
    made_run(folder, name="other", subconcepts=2, seed=3)
    return folder


def page_of(path):
    return Page(path.read_text("utf-8"))


def test_report__tells_what_was_trained_and_how_it_did(folder, tmp_path):
    store = folder / "x.zarr"
    page = page_of(sm.report(folder / "run", tmp_path / "p.html", store=store))
    figures = sm.evaluate(folder / "run", store)
    assert f"{figures['ranking_loss']:.4f}" in page.text
    around = 1.959964 * figures["standard_errors"]["average_precision"]
    low, high = figures["average_precision"] - around, figures["average_precision"] + around
    assert f"{low:.4f} to {min(1, high):.4f}" in page.text
    assert f"{figures['macro_auc']:.4f}" in page.text
    assert "The same over the bags with labels alone." not in page.text
    assert f"{store}" in page.text
    assert "300 bags" in page.text
    assert sm.open_store(store).fingerprint in page.text
    (rows,) = page.label_rows
    want = {row["name"]: row for row in figures["per_label"]}
    assert {row[0] for row in rows} == set(EVIL)
    columns = ("precision", "recall", "f1", "auc", "average_precision")
    for name, bags, predicted, *shares in rows:
        row = want[name]
        assert [bags, predicted] == [row["support"], row["predicted"]]
        assert shares == [round(row[column], 4) for column in columns]
    assert [row[1] for row in rows] == sorted((row[1] for row in rows), reverse=True)


def test_report__shows_figures_over_labelled_bags_and_labels_of_no_bag(folder, tmp_path):
    """Label 4 is in no bag, and some bags have no label."""
    block = plain(made_block(40, n_features=6))
    store = write_store(tmp_path / "bare.zarr", block, label_names=EVIL)
    page = page_of(sm.report(folder / "run", tmp_path / "p.html", store=store))
    figures = sm.evaluate(folder / "run", store)
    beside = figures["labelled_bags"]
    assert beside["n_bags"] < figures["n_bags"]
    assert "The same over the bags with labels alone." in page.text
    assert beside["average_precision"] != figures["average_precision"]
    assert f"{beside['average_precision']:.4f}" in page.text
    (rows,) = page.label_rows
    assert next(row for row in rows if row[0] == EVIL[4])[-2:] == [None, None]
    assert '<td class="number">–</td>' in page.raw


def test_report__shows_the_reliability_of_a_calibrated_model(tmp_path):
    made_run(tmp_path, calibrate="platt")
    store = tmp_path / "x.zarr"
    page = page_of(sm.report(tmp_path / "run", tmp_path / "p.html", store=store))
    figures = sm.evaluate(tmp_path / "run", store)
    assert "Reliability of the probabilities" in page.text
    error, brier = figures["expected_calibration_error"], figures["brier_score"]
    assert (
        f"Expected calibration error {error:.4f}, Brier score {brier:.4f}, over 1,500" in page.text
    )
    made_run(tmp_path, name="plain")
    plain = page_of(sm.report(tmp_path / "plain", tmp_path / "q.html", store=store))
    assert "Reliability" not in plain.text


def test_report__says_what_was_tried_before_training(tmp_path):
    made_run(tmp_path)
    reasons = {"chosen": {"reasons": ["0.1 lift <none>, chosen"]}}
    (tmp_path / "run" / "choice.json").write_text(json.dumps(reasons))
    page = sm.report(tmp_path / "run", tmp_path / "page.html").read_text("utf-8")
    assert "What was tried before training" in page
    assert "0.1 lift &lt;none&gt;, chosen" in page


def test_report__escapes_everything_and_fetches_nothing(folder, tmp_path):
    out = sm.report(folder / "run", tmp_path / "p.html", title="<b>&", store=folder / "x.zarr")
    page = page_of(out)
    assert "<b>&" in page.text
    for name in EVIL:
        assert name in page.text
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 2
    assert not [
        attributes for _, attributes in page.tags if any(k.startswith("on") for k in attributes)
    ]
    assert all(re.match(r"#|data:", address) for address in page.addresses)
    assert "default-src 'none'" in page.raw
    assert not re.search(r"@import|url\(", page.raw)


def test_report__shows_kept_values_beside_key_instances(folder, tmp_path):
    block = planted(300)
    notes = as_texts(f"<i>note {row}</i>" for row in range(block.n_rows))
    path = tmp_path / "kept.zarr"
    write_store(path, replace(block, kept={"note": notes}), label_names=EVIL)
    page = page_of(sm.report(folder / "run", tmp_path / "p.html", store=path))
    assert len(re.findall(r"note <i>note \d+</i>", page.text)) > 10
    plain = page_of(sm.report(folder / "run", tmp_path / "q.html", store=folder / "x.zarr"))
    assert "note <i>" not in plain.text


def test_report__maps_row_scores_where_rows_lie_and_marks_the_key(folder, tmp_path):
    block = planted(300)
    places = np.arange(block.n_rows)
    kept = {"coords": np.column_stack([places % 40, places // 40]), "time": places}
    path = tmp_path / "kept.zarr"
    write_store(path, replace(block, kept=kept), label_names=EVIL)
    page = page_of(sm.report(folder / "run", tmp_path / "p.html", store=path))
    maps = [attributes for tag, attributes in page.tags if tag == "image"]
    assert len(maps) >= 12
    assert all(attributes["href"].startswith("data:image/png;base64,") for attributes in maps)
    assert len(page.with_class("ring")) == 2 * len(maps)
    labels = [a["aria-label"] for t, a in page.tags if t == "svg" and "where they lie" in str(a)]
    assert len(labels) == len(maps)
    assert any("<script>" in label for label in labels)
    lines = page_of(sm.report(folder / "run", tmp_path / "q.html", store=path, coordinates="time"))
    assert not [tag for tag, _ in lines.tags if tag == "image"]
    assert lines.with_class("over-time")
    none = page_of(sm.report(folder / "run", tmp_path / "r.html", store=path, coordinates="none"))
    assert not none.with_class("maps")


def test_report__refuses_columns_that_are_no_coordinates(folder, tmp_path):
    store = folder / "x.zarr"
    with pytest.raises(StreammimlError, match=r"and not 'coords': .*x.zarr keeps no columns"):
        sm.report(folder / "run", tmp_path / "p.html", store=store, coordinates="coords")


def test_report__the_command_it_prints_gives_the_same_model(folder, tmp_path):
    from streammiml.verbs.main import run as command  # noqa: PLC0415

    page = page_of(sm.report(folder / "other", tmp_path / "p.html"))
    line = re.search(r"streammiml train \S+ RUN [^\n]*?(?= Copy)", page.text)[0]
    words = line.replace(" RUN ", f" {tmp_path / 'again'} ").split()[1:]
    assert command(words) == 0
    models = [
        (path / "model.safetensors").read_bytes() for path in (folder / "other", tmp_path / "again")
    ]
    assert models[0] == models[1]


def test_report__without_a_store_held_out_bags_are_scored(folder, tmp_path):
    page = page_of(sm.report(folder / "run", tmp_path / "p.html"))
    assert "bags of " in page.text
    assert "that were held out" in page.text
    history = (folder / "run" / "history.jsonl").read_text().splitlines()
    best = min(json.loads(line)["validation_loss"] for line in history)
    # The page shows the loss by which early stopping chose the model.
    cells = re.search(r"ranking loss ↓ ([0-9.]+)", page.text)
    assert float(cells[1]) == pytest.approx(best, abs=5e-5)


@pytest.mark.parametrize("kind", ["gone", "changed", "unknown", "none held out", "unfinished"])
def test_report__says_plainly_why_figures_are_missing(tmp_path, kind):
    options = {"validation": 0.0} if kind == "none held out" else {}
    run = made_run(tmp_path, remember=kind != "unknown", **options)
    if kind in ("gone", "changed"):
        shutil.rmtree(tmp_path / "x.zarr")
    if kind == "changed":
        write_store(tmp_path / "x.zarr", planted(300, seed=9), label_names=EVIL)
    if kind == "unfinished":
        (run / "model.safetensors").unlink()
    page = page_of(sm.report(run, tmp_path / "p.html"))
    message = {
        "gone": "x.zarr can no longer be opened. Give --store",
        "changed": "is not what it was when this run began",
        "unknown": "does not say where its store is. Give --store",
        "none held out": "held out no bags, so there are none to score. Give --store",
        "unfinished": "has no finished model yet",
    }[kind]
    assert message in page.text
    assert page.with_class("warning")
    assert not page.label_rows
    assert "Settings to repeat the run" in page.text
    if kind != "none held out":
        assert "Ranking loss of held-out bags" in page.text


def test_report__several_runs_stand_side_by_side(folder, tmp_path):
    runs = [folder / "run", folder / "other"]
    page = page_of(sm.report(runs, tmp_path / "p.html", store=folder / "x.zarr"))
    figures = [sm.evaluate(run, folder / "x.zarr") for run in runs]
    (rows,) = page.label_rows
    for row in rows:
        label = EVIL.index(row[0])
        assert row[2:] == [round(run["per_label"][label]["f1"], 4) for run in figures]
    values = [run["ranking_loss"] for run in figures]
    best = re.findall(r'class="best">([0-9.]+)<', page.raw)
    assert f"{min(values):.4f}" in best
    assert len(page.with_class("line")) == 6
    assert "different bags" not in page.text
    # Both show the same bags.
    bags = re.findall(r'class="bag-name">Bag (\d+)<', page.raw)
    assert len(bags) > 10
    assert bags[: len(bags) // 2] == bags[len(bags) // 2 :]


def test_report__runs_on_different_bags_are_not_compared(folder, tmp_path):
    apart = made_run(tmp_path)
    shutil.rmtree(tmp_path / "x.zarr")
    shutil.rmtree(apart)
    write_store(tmp_path / "x.zarr", planted(200, seed=5), label_names=EVIL)
    apart = made_run(tmp_path)
    page = page_of(sm.report([folder / "run", apart], tmp_path / "p.html"))
    assert "different bags" in page.text
    assert len(page.label_rows) == 2
    # Two runs of the same name are told apart by their folders.
    assert f"{tmp_path.name}/run" in page.text


def test_report__others_stand_beside_the_run(folder, tmp_path):
    others = {"guessing": {"ranking_loss": 0.5, "average_precision": 0.25}}
    out = sm.report(folder / "run", tmp_path / "p.html", store=folder / "x.zarr", others=others)
    assert "guessing" in page_of(out).text
    assert "0.5000" in page_of(out).text
    assert re.search(r"best.>0\.\d{4}<", out.read_text())


def test_report__shows_pictures_and_marks_key_rows(tmp_path):
    block = made_block(30, n_features=12)
    write_parts(tmp_path / "x.zarr", made_spec(n_features=12, feature_names=None), [block])
    run = made_run(tmp_path)
    out = sm.report(run, tmp_path / "p.html", store=tmp_path / "x.zarr", image="3x4")
    page = page_of(out)
    pictures = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert len(pictures) > 10
    assert all(src.startswith("data:image/png;base64,") for src in pictures)
    model = sm.load_model(run)
    shown = {
        name
        for tag, attributes in page.tags
        if tag == "img"
        for name in re.findall("key of (.*)", attributes["alt"])
    }
    assert shown
    assert {name for names in shown for name in names.split(", ")} <= set(model.label_names)


def test_report__names_the_words_of_rows_that_are_no_images(tmp_path):
    words = tuple(f"word{i}" for i in range(6))
    write_store(tmp_path / "x.zarr", planted(200, sparse=True), feature_names=words)
    run = made_run(tmp_path)
    page = page_of(sm.report(run, tmp_path / "p.html", store=tmp_path / "x.zarr"))
    assert page.with_class("words")
    assert "word3" in page.text
    assert not [tag for tag, _ in page.tags if tag == "img"]


def many_labels(folder, n_labels):
    """A run whose model is replaced by one with ``n_labels`` labels, and a small store for it."""
    run = made_run(folder)
    names = tuple(f"label <{i}> of many" for i in range(n_labels))
    made_model(n_features=6, n_labels=n_labels, label_names=names).save(run / "model.safetensors")
    path = folder / "many.zarr"
    write_store(path, planted(40, n_labels=n_labels), label_names=names)
    return run, path


def test_report__ten_thousand_labels_make_a_small_page(tmp_path):
    run, store = many_labels(tmp_path, 10_000)
    out = sm.report(run, tmp_path / "p.html", store=store)
    assert out.stat().st_size < 2_000_000
    page = page_of(out)
    assert len(page.label_rows[0]) == 10_000
    assert page.raw.count("<tr>") < 300


@pytest.mark.slow
def test_report__beyond_what_a_page_holds_the_most_frequent_are_kept_and_it_says_so(tmp_path):
    run, store = many_labels(tmp_path, 30_000)
    page = page_of(sm.report(run, tmp_path / "p.html", store=store))
    assert "The 20,000 labels that most bags carry, of 30,000" in page.text
    assert len(page.label_rows[0]) == 20_000


def test_report__replaces_its_own_pages_and_nothing_else(folder, tmp_path):
    out = tmp_path / "p.html"
    for _ in range(2):
        sm.report(folder / "run", out)
    (tmp_path / "thesis.html").write_text("years of work")
    with pytest.raises(StreammimlError, match="exists and is not a page of an earlier report"):
        sm.report(folder / "run", tmp_path / "thesis.html")
    assert (tmp_path / "thesis.html").read_text() == "years of work"


def test_report__the_same_run_gives_the_same_page(folder, tmp_path):
    first = sm.report(folder / "run", tmp_path / "1.html", store=folder / "x.zarr", threads=1)
    second = sm.report(folder / "run", tmp_path / "2.html", store=folder / "x.zarr", threads=2)
    same = first.read_bytes() == second.read_bytes()
    assert same, "two pages of one run differ"


def test_report__a_model_that_does_not_fit_the_store_is_refused(folder, tmp_path):
    other = write_store(tmp_path / "y.zarr", planted(30, n_features=4))
    with pytest.raises(StreammimlError, match=r"trained on rows of 6 features and .* has 4"):
        sm.report(folder / "run", tmp_path / "p.html", store=other)


def test_report__says_what_pages_need(folder, tmp_path, monkeypatch):
    for name in [*sys.modules]:
        if name.split(".")[0] == "jinja2" or name == "streammiml.tell.page":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(StreammimlError, match=r"^a page needs jinja2: pip install 'streammiml"):
        sm.report(folder / "run", tmp_path / "p.html")


@pytest.mark.parametrize("n_runs", [1, 2])
def test_report__is_accessible_where_a_parser_can_tell(folder, tmp_path, n_runs):
    runs = [folder / "run", folder / "other"][:n_runs]
    page = page_of(sm.report(runs, tmp_path / "p.html"))
    assert ("html", {"lang": "en"}) in page.tags
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    for tag, attributes in page.tags:
        if tag == "th":
            assert attributes.get("scope") in ("row", "col")
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
        if tag == "img":
            assert attributes["alt"]
        if "scroll" in (attributes.get("class") or ""):
            assert attributes["tabindex"] == "0"
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {a[1:] for a in page.addresses if a.startswith("#")} <= set(ids)


def test_report__a_damaged_model_is_refused(folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    raw = bytearray((run / "model.safetensors").read_bytes())
    raw[-3] ^= 1
    (run / "model.safetensors").write_bytes(raw)
    with pytest.raises(StreammimlError, match=r"model.safetensors"):
        sm.report(run, tmp_path / "p.html")
