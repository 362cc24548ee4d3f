"""What README and guide print works as printed: examples and commands, in the order of the pages.

Blocks marked ``console`` are commands (``$ …``) and, where lines follow, what they print; ``…``
stands for any text within a line, and a line that is only ``…`` for any lines. Blocks marked
``python`` are run too. Blocks marked ``text`` or ``py`` need files or packages of the reader's.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from streammiml.tell.guide import PAGES, guide

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
WRITTEN = [name for name, path in PAGES.items() if path.startswith("guide/")]


def blocks(text):
    """(kind, text) of every block that can be run, in order."""
    return re.findall(r"```(console|python)\n(.*?)```", text, re.S)


def commands_in(text):
    """(words, lines of output that are shown) of each command of a block."""
    return [
        (shlex.split(lines[0]), lines[1:])
        for lines in (part.splitlines() for part in re.split(r"^\$ ", text, flags=re.M)[1:])
    ]


def runnable(words):
    """The command as this interpreter runs it."""
    if words[0] == "streammiml":
        return [sys.executable, "-m", *words]
    assert words[:2] == ["python", "-m"], words
    return [sys.executable, *words[1:]]


def pattern_of(lines):
    """A regular expression for output that is shown with dots."""
    parts = []
    for line in lines:
        text = re.escape(line.rstrip()).replace("…", ".*")
        parts.append(r"(?:.*\n)*?" if line.strip() == "…" else rf"{text} *\n")
    return "".join(parts)


def run_block(kind, text, folder):
    if kind == "python":
        run([sys.executable, "-c", text], folder)
        return
    for words, shown in commands_in(text):
        output = run(runnable(words), folder)
        assert output, words
        if shown:
            assert re.fullmatch(pattern_of(shown), output), f"{words} printed\n{output}"


def run(words, folder):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def test_pattern__dots_stand_for_any_text():
    pattern = pattern_of(["a … c", "…", "end"])
    assert re.fullmatch(pattern, "a b c\nx\ny\nend\n")
    assert re.fullmatch(pattern, "a b c\nend\n")
    assert not re.fullmatch(pattern, "a b c\nend\nmore\n")
    assert not re.fullmatch(pattern, "a b d\nend\n")


def test_readme__opens_with_the_two_commands():
    commands = [words for kind, text in blocks(README) for words, _ in commands_in(text)]
    assert commands == [
        ["python3", "tools/run.py", "demo"],
        ["python3", "tools/run.py", "test"],
    ]
    assert "python3 tools/run.py test" in (ROOT / ".ci" / "run").read_text()


def test_readme__is_two_screens():
    assert len((ROOT / "README.md").read_bytes()) <= 9000


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The folder of a reader who did what the page *start* says, as the other pages expect."""
    folder = tmp_path_factory.mktemp("reader")
    for kind, text in blocks(guide("start")):
        run_block(kind, text, folder)
    return folder


def test_start__ends_with_a_model_and_a_page(started):
    assert (started / "run" / "model.safetensors").exists()
    assert (started / "report.html").stat().st_size > 10_000


def test_readme__its_commands_are_those_of_the_page_start():
    typed = re.search(r"```text\n(streammiml convert .*?)```", README, re.S)[1].splitlines()
    told = [
        shlex.join(words)
        for kind, text in blocks(guide("start"))
        if kind == "console"
        for words, _ in commands_in(text)
    ]
    assert typed == told
    assert len(typed) == 5


def test_readme__its_example_runs(tmp_path):
    [(_, example)] = [block for block in blocks(README) if block[0] == "python"]
    shown = "\nprint(predictions.labels[1].tolist(), predictions.key_instances[1].tolist())"
    assert run([sys.executable, "-c", example + shown], tmp_path) == "[0, 1] [0, 0]\n"
    assert (tmp_path / "mine.html").exists()


@pytest.mark.slow
def test_guide__examples_and_commands_run_in_order(started):
    n_blocks = 0
    for name in WRITTEN[1:]:
        for kind, text in blocks(guide(name)):
            run_block(kind, text, started)
            n_blocks += 1
    assert n_blocks > 20


@pytest.mark.parametrize("name", PAGES)
def test_guide__links_lead_somewhere(name):
    links = re.findall(r"\]\(([^)]+)\)", guide(name))
    folder = (ROOT / "streammiml" / PAGES[name]).parent
    assert all("://" in link or (folder / link).exists() for link in links)
    for page in re.findall(r"`streammiml guide (\w+)`", guide(name)):
        assert page in PAGES


def test_readme__links_to_every_page():
    assert set(re.findall(r"\]\((streammiml/guide/[^)]+)\)", README)) >= {
        f"streammiml/{PAGES[name]}" for name in WRITTEN if name != "start"
    }
