"""CPU time of the first minute: compiling kernels for the first command, importing the library.

Every figure is the median CPU time of several new processes. A command that compiles its kernels is
compared with the same command after they are cached; an import of ours is compared with an import
of the third-party packages that it needs.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

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


def cases(smoke: bool) -> Iterator[dict]:
    rounds = 1 if smoke else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        yield from compiling_cases(Path(folder), rounds)
    yield from loading_cases(rounds)
