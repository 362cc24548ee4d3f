"""CPU time of the first minute: the first line of output, compiling kernels, importing the library.

The first line of a command is timed twice: with an empty folder of compiled code and bytecode, and
again. It is compared with Python alone in the same run. Every other figure is the median CPU time
of several new processes. A command that compiles its kernels is compared with the same command
after they are cached; an import of ours is compared with an import of the third-party packages that
it needs.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from streammiml_tools.convert.export import export
from streammiml_tools.corpora.synth import write_corpus

ROUNDS = 3
LOADS = {
    "sm.MIMLfast": ("import streammiml; streammiml.MIMLfast", "import numpy, numba, sklearn.base"),
    "sm.open_store": ("import streammiml; streammiml.open_store", "import numpy"),
    "streammiml --help": (
        "import sys; sys.argv[1:] = ['--help']; from streammiml.verbs.main import main; main()",
        "import cyclopts",
    ),
}


def cpu_seconds(*words: object, cwd: Path, **environment: str) -> float:
    """CPU seconds of a Python command, including the processes that it starts."""
    environ = {name: text for name, text in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**environ, "PYTHONPATH": str(Path.cwd()), **environment},
        check=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compiling_cases(folder: Path, rounds: int) -> Iterator[dict]:
    write_corpus(folder / "small.zarr", n_bags=2000, n_features=50)
    commands = {
        "train": ["train", "small.zarr", "run", "--epochs", "1"],
        "evaluate": ["evaluate", "run", "small.zarr"],
    }
    seconds: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        cache = {"XDG_CACHE_HOME": str(folder / f"cache-{number}")}
        for state in ("empty", "filled"):
            for verb, words in commands.items():
                taken = cpu_seconds("-m", "streammiml", *words, cwd=folder, **cache)
                seconds.setdefault((verb, state), []).append(taken)
            subprocess.run(["rm", "-r", str(folder / "run")], check=True)
    for verb in commands:
        empty, filled = (statistics.median(seconds[verb, state]) for state in ("empty", "filled"))
        yield {
            "what": "compiling",
            "case": {"verb": verb},
            "cpu_seconds": round(empty, 2),
            "cpu_seconds_compiled": round(filled, 2),
            "of_which_compiling": round(empty - filled, 2),
            "over_compiled": round(empty / filled, 2),
        }


def loading_cases(rounds: int) -> Iterator[dict]:
    for name, (ours, least) in LOADS.items():
        pairs = [
            [cpu_seconds("-c", words, cwd=Path.cwd()) for words in (ours, least)]
            for _ in range(rounds)
        ]
        taken, needed = (statistics.median(values) for values in zip(*pairs, strict=True))
        yield {
            "what": "loading",
            "case": {"name": name, "against": least},
            "cpu_seconds": round(taken, 2),
            "over_what_is_needed": round(taken / needed, 2),
        }


def first_line_seconds(*words: object, cwd: Path, **environment: str) -> tuple[float, float]:
    """CPU seconds and seconds until a command has written its first line; it is then ended."""
    environ = {name: text for name, text in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    started = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**environ, "PYTHONPATH": str(Path.cwd()), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert child.stdout is not None
    assert child.stdout.readline(), "the command has written no line"
    seconds = time.monotonic() - started
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:13]))
    child.kill()
    child.communicate()
    return ticks / os.sysconf("SC_CLK_TCK"), seconds


def first_line_cases(folder: Path, rounds: int) -> Iterator[dict]:
    """The first line of three verbs, cold and warm."""
    export(write_corpus(folder / "small.zarr", n_bags=500, n_features=20), folder / "bags.csv")
    # A model for predict.
    train = ["-m", "streammiml", "train", "small.zarr", "model", "--epochs", "1"]
    cpu_seconds(*train, cwd=folder)
    commands = {
        "convert": ["convert", "bags.csv", "new.zarr", "--dry-run"],
        "train": ["train", "small.zarr", "run", "--epochs", "1"],
        "predict": ["predict", "model", "small.zarr", "out"],
    }
    taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(rounds):
        cache = {"XDG_CACHE_HOME": str(folder / f"first-{number}"), "PYTHONDONTWRITEBYTECODE": ""}
        cache["PYTHONPYCACHEPREFIX"] = str(folder / f"bytecode-{number}")
        for state in ("cold", "warm"):
            for verb, words in commands.items():
                first = first_line_seconds("-m", "streammiml", *words, cwd=folder, **cache)
                taken.setdefault((verb, state), []).append(first)
                for name in ("run", "out"):
                    shutil.rmtree(folder / name, ignore_errors=True)
    alone = ["-c", "print('x')"]
    least = statistics.median(first_line_seconds(*alone, cwd=folder)[0] for _ in range(rounds))
    for verb in commands:
        cold, warm = (
            [statistics.median(values) for values in zip(*taken[verb, state], strict=True)]
            for state in ("cold", "warm")
        )
        yield {
            "what": "first line of output",
            "case": {"verb": verb, "against": "python -c pass"},
            "cpu_seconds_cold": round(cold[0], 2),
            "cpu_seconds": round(warm[0], 2),
            "seconds_cold": round(cold[1], 2),
            "seconds": round(warm[1], 2),
            "cpu_seconds_of_python": round(least, 2),
            "over_python": round(warm[0] / max(least, 0.01), 1),
        }


def cases(smoke: bool) -> Iterator[dict]:
    rounds = 1 if smoke else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        yield from first_line_cases(Path(folder), rounds)
    with tempfile.TemporaryDirectory() as folder:
        yield from compiling_cases(Path(folder), rounds)
    yield from loading_cases(rounds)
