"""The model card: what it says is true, equal runs have equal cards, and nothing depends on it."""

import re
import socket
from dataclasses import replace

import numpy as np
import pytest

from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.learn import defaults, model_card
from streammiml.learn.holdout import Holdout
from streammiml.learn.model_card import CARD_FILE
from streammiml.learn.train import train
from streammiml.measure.evaluate import evaluate
from tests.planted import planted
from tests.stores import write_store

SMALL = {"shared_dim": 8, "subconcepts": 2, "epochs": 3, "preset": "plain"}
NAMES = ("sea", "a|b", "<script>x</script>", "two\nlines", "*ü*")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("s") / "s.zarr"
    return write_store(path, planted(150), label_names=NAMES, chunk_bytes=256)


def card_of(run):
    return (run / CARD_FILE).read_text("utf-8")


def cells(text):
    """The tables of a card, as a dictionary from the first column to the second."""
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", text, re.M)
    return dict(rows)


def test_card__says_what_the_model_and_its_data_are(store, tmp_path):
    model = train(store, TrainConfig(**SMALL), run=tmp_path / "run")
    text = card_of(tmp_path / "run")
    table = cells(text)
    headings = ["Model card", "Data", "Settings", "Figures", "Limits"]
    assert re.findall(r"^#+ (.*)$", text, re.M) == headings
    assert table["bags"] == "150"
    assert table["bags held out"] == "none"
    assert table["rows"] == f"{store.n_rows:,}, dense float32"
    assert table["fingerprint of the store"] == store.fingerprint
    assert table["fingerprint of the model"] == model.fingerprint
    assert table["epochs"] == "3"
    assert table["scale"] == model.settings["scale"]
    assert table["steps of the training"] == "450"
    _, labels = store.labels(0, 150)
    assert table["sea"] == str((labels == 0).sum())
    assert "held out no bags" in text
    assert "They are not probabilities" in text


def test_card__figures_of_held_out_bags_are_those_of_evaluate(store, tmp_path):
    for name, settings in (("plain", {}), ("moved", {"threshold": "f1", "calibrate": "platt"})):
        config = TrainConfig(**SMALL, validation=0.3, validate_every=100, **settings)
        model = train(store, config, run=tmp_path / name)
        held_out = store.view(Holdout.of(0.3, 150).bags)
        figures = evaluate(model, held_out)
        text = card_of(tmp_path / name)
        table = cells(text)
        assert table["ranking loss"] == f"{figures['ranking_loss']:.4f}"
        assert table["Hamming loss"] == f"{figures['hamming_loss']:.4f}"
        assert table["micro F1"] == f"{figures['micro_f1']:.4f}"
        assert table["steps of the returned weights"] == f"{model.provenance['best_step']:,}"
        assert f"On the {held_out.n_bags} bags held out" in text
        assert table["bags held out"] == f"{held_out.n_bags}, of these"
    assert table["probabilities"] == "Platt's method for 5 labels, fitted on the held-out bags"
    assert f"to which {model.rule.offset:g} is added" in table["predicted labels"]
    assert "They are not probabilities" not in text


def test_card__names_do_no_harm_in_markdown(store, tmp_path):
    train(store, TrainConfig(**SMALL), run=tmp_path / "run")
    text = card_of(tmp_path / "run")
    assert "<script>" not in text
    for escaped in (r"a\|b", r"\<script\>", "two lines", r"\*ü\*"):
        assert escaped in text


def test_card__has_no_path_and_is_the_same_for_equal_runs(store, tmp_path):
    config = TrainConfig(**SMALL, calibrate="auto")
    for name in ("one", "other"):
        train(
            store, replace(config, memory="1GiB" if name == "one" else "2GiB"), run=tmp_path / name
        )
    text = card_of(tmp_path / "one")
    assert text == card_of(tmp_path / "other")
    for word in (str(tmp_path), str(store.name), socket.gethostname()):
        assert word not in text
    assert "fitted on folds of the training bags" in text


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00", None])
def test_card__damaged_or_deleted_is_written_again(store, tmp_path, damage):
    train(store, TrainConfig(**SMALL), run=tmp_path / "run")
    path = tmp_path / "run" / CARD_FILE
    before, model = path.read_bytes(), (tmp_path / "run" / "model.safetensors").read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    train(store, TrainConfig(), run=tmp_path / "run", resume=True)
    assert path.read_bytes() == before
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == model


def test_card__says_why_settings_were_chosen(store, tmp_path, monkeypatch):
    monkeypatch.setattr(defaults, "MOST_STEPS", 900)
    monkeypatch.setattr(defaults, "LOOK_EVERY", 200)
    model = train(store, TrainConfig(preset="plain"), run=tmp_path / "run")
    text = card_of(tmp_path / "run")
    assert "- Chosen by the lowest ranking loss on 3 folds, in 3 trials." in text
    assert f"- epochs = {model.settings['epochs']}" in text


def test_card__names_rare_labels_and_shows_a_bounded_number(tmp_path, monkeypatch):
    monkeypatch.setattr(model_card, "LABELS_SHOWN", 3)
    monkeypatch.setattr(model_card, "NAMED", 1)
    block = planted(60, n_labels=4)
    kept = ~np.isin(block.label_indices, [3]) | (np.arange(len(block.label_indices)) < 9)
    bag_of = np.repeat(np.arange(60), np.diff(block.label_offsets))[kept]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(bag_of, minlength=60))])
    block = replace(block, label_offsets=offsets, label_indices=block.label_indices[kept])
    config = TrainConfig(**SMALL, lift="context", threads=2, rule="top-r")
    train(MemoryBags(block, n_labels=7), config, run=tmp_path / "run")
    text = card_of(tmp_path / "run")
    assert "No bag carries these labels, so the model knows nothing of them: 4 and 2 more." in text
    assert "Fewer than 10 bags carry these labels: 3." in text
    assert "4 more labels are carried by fewer bags." in text
    assert "key instances are less exact" in text
    assert "Several threads trained the model" in text
    assert cells(text)["predicted labels"].endswith("with the highest scores")
