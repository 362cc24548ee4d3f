"""What the README prints works as printed: the library example, then every command after it."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", README, re.S)


def commands():
    lines = [line for block in blocks("console") for line in block.splitlines()]
    return [shlex.split(line[2:]) for line in lines if line.startswith("$ ")]


def test_readme__opens_with_the_two_commands():
    assert commands()[:2] == [
        ["python3", "tools/run.py", "demo"],
        ["python3", "tools/run.py", "test"],
    ]
    assert "python3 tools/run.py test" in (ROOT / ".ci" / "run").read_text()


def test_readme__its_example_and_commands_run_in_order(tmp_path):
    for code in blocks("python"):
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
    told = [words for words in commands() if words[0] == "streammiml"]
    assert len(told) >= 3
    for words in told:
        line = [sys.executable, "-m", *words]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        assert done.stdout
    assert (tmp_path / "run" / "model.safetensors").exists()
