"""Control characters that come from files are shown on a terminal, and never obeyed."""

import json
import sys
import unicodedata
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from rich.live import Live

from streammiml._base import terminal
from streammiml.verbs.main import run
from tests.measure.models import made_model
from tests.stores import made_block, made_spec, write_parts

# Clears the screen; the same as one C1 character; DEL; turns text around; separates lines.
HOSTILE = "\x1b[2J\x9b2J\x7f\u202e\u2028\u2066\x07\r"
SHOWN = "\\x1b[2J\\x9b2J\\u007f\\u202e\\u2028\\u2066\\x07\\x0d"


def controls_in(text):
    """Characters that a terminal would obey, but for line breaks."""
    kinds = ("Cc", "Cf", "Zl", "Zp")
    return {char for char in text if unicodedata.category(char) in kinds and char != "\n"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "model.safetensors"
    made_model(label_names=[f"{i}{HOSTILE}" for i in range(4)]).save(path)
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / f"{HOSTILE}.zarr"
    block = made_block(40)
    block = replace(block, bag_ids=[f"{i}{HOSTILE}" for i in range(40)])
    spec = made_spec(label_names=tuple(f"{i}{HOSTILE}" for i in range(4)))
    write_parts(path, spec, [block])
    return path


def words_of(verb, model, store, out):
    return {
        "info": ["info", store],
        "verify": ["verify", store],
        "evaluate": ["evaluate", model, store],
        "explain": ["explain", model, store, out],
        "predict": ["predict", model, store, out],
        "export": ["export", store, f"{out}.jsonl"],
        "missing": ["info", f"{store}{HOSTILE}"],
        "no verb": [HOSTILE],
        "no option": ["info", store, f"--{HOSTILE}"],
    }[verb]


VERBS = ["info", "verify", "evaluate", "explain", "predict", "export"]
SHOWS = {"info", "verify", "evaluate", "explain", "predict", "export", "missing"}


@pytest.mark.parametrize("verb", [*VERBS, "missing", "no verb", "no option"])
def test_verbs__print_no_control_characters(verb, model, store, tmp_path, capsys):
    words = words_of(verb, model, store, tmp_path / HOSTILE)
    assert run([str(word) for word in words]) == (0 if verb in VERBS else 2)
    out, err = capsys.readouterr()
    assert controls_in(out + err) == set()
    if verb in SHOWS:
        assert SHOWN[:15] in out + err


def test_verbs__without_the_guard_would_print_them(store, capsys, monkeypatch):
    """The control of the test above."""
    monkeypatch.setattr(terminal, "_ESCAPES", {})
    assert run(["info", str(store)]) == 0
    assert "\x1b[2J" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["info", "evaluate", "explain"])
def test_verbs__json_has_the_names_as_they_are(verb, model, store, tmp_path, capsys):
    words = [*words_of(verb, model, store, tmp_path / "out"), "--json"]
    assert run([str(word) for word in words]) == 0
    out = capsys.readouterr().out
    assert controls_in(out) == set()
    assert json.dumps(f"0{HOSTILE}") in json.dumps(json.loads(out))


def test_printable__other_text_stays_as_it_is():
    text = "größe 象 ± … 'a' [b] \\x1b\n"
    assert terminal.printable(text) == text


def test_guard__rich_draws_past_it_also_while_it_prints_for_others(monkeypatch):
    raw = StringIO()
    monkeypatch.setattr(sys, "stdout", raw)
    with terminal.guarded():
        with Live(console=Console(force_terminal=True, width=60), auto_refresh=False) as live:
            terminal.guard()
            print(f"a{HOSTILE}b")
            live.update("moved", refresh=True)
        print("after\x1b[2J")
    assert sys.stdout is raw
    text = raw.getvalue()
    assert f"a{SHOWN}b" in text.replace("\n", "")
    assert "\x1b[2J" not in text
    assert "\x1b[2K" in text
    assert text.endswith("after\\x1b[2J\n")
