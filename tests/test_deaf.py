"""The tests pass where signals are ignored, as in the background of a shell that runs a script."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# A shell without job control lets what it starts so ignore SIGINT; the trap adds SIGTERM.
DEAF = ["sh", "-c", "trap '' TERM; \"$@\" & wait $!", "sh", sys.executable]
TRAINER, FAULTS = "tests/learn/test_train.py", "tests/faults/test_training.py"
FOLDS = "test_signal__while_folds_are_tried_stops_the_run_and_it_can_be_begun_again"


def test_control__what_a_shell_starts_in_the_background_is_deaf():
    code = "import signal as s; print([s.getsignal(n) == s.SIG_IGN for n in (s.SIGINT, s.SIGTERM)])"
    done = subprocess.run([*DEAF, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[True, True]\n"


@pytest.mark.parametrize(
    ("words", "n_tests"),
    [
        ([f"{TRAINER}::{FOLDS}"], 2),
        ([f"{FAULTS}::test_signal__without_a_folder_is_a_keyboard_interrupt"], 1),
        pytest.param([TRAINER, FAULTS, "-k", "signal", "-n", "1"], 10, marks=pytest.mark.slow),
    ],
    ids=["this process", "children", "all"],
)
def test_signals__are_heard_by_tests_that_a_shell_started_in_the_background(
    words, n_tests, tmp_path
):
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        str(tmp_path / "inner"),
        *words,
    ]
    done = subprocess.run([*DEAF, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert re.search(rf"\b{n_tests} passed", done.stdout)
