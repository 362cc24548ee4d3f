"""The hunt: every kind of fault is found, made small and kept; equal seeds hunt alike."""

import subprocess
import sys
from dataclasses import replace

import pytest

from streammiml_tools.readers import READERS
from tests.fuzz.__main__ import main
from tests.fuzz.case import Case, load_case, save_case
from tests.fuzz.child import GROWTH_LIMIT, ROOT
from tests.fuzz.corpora import FOUND
from tests.fuzz.hunt import Child, hunt, minimised
from tests.fuzz.targets import GROWTH, TARGETS, target_of


def control(word, answer=None):
    return Case({"a": word.encode()}, answer=answer)


def test_faults__of_every_kind_are_findings():
    assert 8 * GROWTH > GROWTH_LIMIT
    with Child(target_of("control"), deadline=2) as child:
        for word, kind in (
            ("read", "read"),
            ("refuse", "refused"),
            ("foreign", "foreign"),
            ("memory", "memory"),
            ("huge", "memory"),
            ("hang", "hang"),
            ("read", "read"),
            ("die", "died"),
        ):
            outcome = child.run(control(word))
            assert outcome.kind == kind, outcome
            assert outcome.is_finding == (kind not in ("read", "refused"))
        assert child.run(control("other", answer="read")).kind == "silent"
        assert child.run(control("read", answer="read")).kind == "read"
        assert child.run(control("refuse", answer="read")).kind == "refused"
        noisy = Case({"a": b"foreign", "b": bytes(1000)})
        small = minimised(noisy, child.run(noisy), child)
        assert small == Case({"a": b"foreign", "b": b""})


def test_findings__are_kept_and_run_again(tmp_path, capsys):
    save_case(tmp_path / "x", "control", replace(control("foreign"), choice=3))
    assert load_case(tmp_path / "x") == ("control", replace(control("foreign"), choice=3))
    assert main(["--case", str(tmp_path / "x")]) == 1
    assert "KeyError in targets.py:run_control" in capsys.readouterr().out


def test_hunt__tries_as_many_inputs_as_asked_and_reaches_new_code():
    # Which lines run first depends on caches too, so two hunts of one seed may differ a little.
    report = hunt(target_of("jsonl"), seed=3, n_inputs=80)
    assert not report.findings, report.findings
    assert report.n_inputs == 80
    assert report.n_kept > 3
    assert report.n_read > 5


def test_targets__include_every_reader():
    assert {*READERS} < {*TARGETS}


def test_targets__that_are_unknown_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["xls"])
    assert "no target is called 'xls'; known: arff, arrow," in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted({load_case(path)[0] for path in FOUND.glob("*")}))
def test_cases_that_were_findings__are_none_any_more(name):
    folders = [path for path in sorted(FOUND.glob("*")) if load_case(path)[0] == name]
    with Child(target_of(name)) as child:
        for folder in folders:
            outcome = child.run(load_case(folder)[1])
            assert not outcome.is_finding, f"{folder.name}: {outcome}"


MADE_TWICE = """
import hashlib
from tests.fuzz.targets import TARGETS
for name, target in TARGETS.items():
    content = repr([sorted(case.files.items()) for case in target.corpus()])
    print(name, hashlib.sha256(content.encode()).hexdigest())
"""


def test_corpora__have_the_same_bytes_in_every_process():
    words = [sys.executable, "-c", MADE_TWICE]
    one, other = (
        subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        for _ in range(2)
    )
    assert one.splitlines() == other.splitlines()
    assert len(one.splitlines()) == len(TARGETS)
