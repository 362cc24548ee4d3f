"""What the README prints works as printed: the library example, then every command after it."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks():
    """(kind, text) of every block that can be run, in order."""
    return re.findall(r"```(console|python)\n(.*?)```", README, re.S)


def commands_in(text):
    lines = [line for line in text.splitlines() if line.startswith("$ ")]
    return [shlex.split(line[2:]) for line in lines]


def commands():
    return [words for kind, text in blocks() if kind == "console" for words in commands_in(text)]


def runnable(words):
    """The command as this interpreter runs it; None where it needs files of the reader's."""
    if words[0] == "streammiml":
        return [sys.executable, "-m", *words]
    if words[:3] == ["python", "-m", "streammiml_tools.synth"]:
        return [sys.executable, *words[1:]]
    return None


def test_readme__opens_with_the_two_commands():
    assert commands()[:2] == [
        ["python3", "tools/run.py", "demo"],
        ["python3", "tools/run.py", "test"],
    ]
    assert "python3 tools/run.py test" in (ROOT / ".ci" / "run").read_text()


def test_readme__its_examples_and_commands_run_in_order(tmp_path):
    ran = []
    for kind, text in blocks():
        lines = (
            [[sys.executable, "-c", text]] if kind == "python" else map(runnable, commands_in(text))
        )
        for line in filter(None, lines):
            done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, f"{line}: {done.stderr}"
            assert done.stdout or kind == "python"
            ran.append(line)
    assert len(ran) >= 10
    assert (tmp_path / "run" / "model.safetensors").exists()
