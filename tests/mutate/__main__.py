"""``python -m tests.mutate FILE… [--count N]``: do the tests notice small faults in a module?

Each mutant of a module is written into a copy of the project. The tests of the module's name run
first, then the tests of its folder; a mutant that all of them pass is printed as alive. Those that
behave like the module are listed in ``equivalent.txt``, with the reason.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutate.mutants import choose, mutants_of

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
COPIED = (
    "streammiml",
    "tools",
    "tests",
    "benchmarks",
    ".types",
    ".ci",
    ".github",
    "pyproject.toml",
)
COPIED += ("README.md", "CHANGELOG.md", "LICENSE", ".gitignore")
LONGEST = 300
"""Seconds that the tests of one mutant may take; a mutant that hangs counts as noticed."""


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 if a mutant lives that is not listed as equivalent."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--count", type=int, default=20, help="mutants of each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name-only", action="store_true", help="only the tests of its name")
    given = parser.parse_args(arguments)
    n_alive = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = copy_project(Path(folder))
        for file in given.files:
            path = (Path.cwd() / file).resolve().relative_to(ROOT)
            alive, n_mutants, n_equivalent = try_file(
                copy, path, given.count, given.seed, is_name_only=given.name_only
            )
            n_alive += alive
            noticed = n_mutants - n_equivalent - alive
            print(
                f"{path}: {noticed} of {n_mutants - n_equivalent} noticed, "
                f"{n_equivalent} equivalent",
                flush=True,
            )
    return int(n_alive > 0)


def copy_project(folder: Path) -> Path:
    """Copy the project's own files; links stay links."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "results")
            shutil.copytree(source, folder / name, symlinks=True, ignore=ignored)
        elif source.exists():
            shutil.copy2(source, folder / name)
    return folder


def try_file(
    copy: Path, path: Path, count: int, seed: int, *, is_name_only: bool = False
) -> tuple[int, int, int]:
    """Run the mutants of one file; how many live, how many there are, how many are equivalent."""
    groups = list(groups_for(path))
    if is_name_only:
        groups = groups[:1]
    original = (copy / path).read_text(encoding="utf-8")
    for tests in groups:
        if not passes(copy, path, tests):
            raise SystemExit(f"{', '.join(tests)}: fail without a mutant")
    (copy / path).write_text("raise RuntimeError('a mutant')\n", encoding="utf-8")
    if passes(copy, path, groups[0]):
        raise SystemExit(f"{', '.join(groups[0])}: pass without {path}")
    equivalent = known_equivalent(path)
    chosen = choose(mutants_of(original), count, seed)
    n_alive = n_equivalent = 0
    for mutant in chosen:
        if mutant.name in equivalent:
            n_equivalent += 1
            continue
        (copy / path).write_text(mutant.source, encoding="utf-8")
        if all(passes(copy, path, tests) for tests in groups):
            n_alive += 1
            print(f"alive  {path}:{mutant.line}  {mutant.name}", flush=True)
    (copy / path).write_text(original, encoding="utf-8")
    return n_alive, len(chosen), n_equivalent


def groups_for(path: Path) -> Iterator[Sequence[str]]:
    """The tests that run for a module, in groups: those of its name, then those of its folder."""
    top, *folders, _ = path.parts
    folder = Path("tests", *(["tools"] if top == "tools" else []), *folders)
    by_name = folder / f"test_{path.stem.lstrip('_')}.py"
    if (ROOT / by_name).exists():
        yield [str(by_name)]
    if folders:
        yield [str(folder)]
    elif not (ROOT / by_name).exists():
        raise SystemExit(f"{path}: no tests have its name")


def passes(copy: Path, path: Path, tests: Sequence[str]) -> bool:
    """Whether the tests pass in the copy."""
    settings = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(copy), str(copy / ".types")]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if "kernel" in path.parts:
        # Compiling anew for each mutant would take most of the time.
        settings["NUMBA_DISABLE_JIT"] = "1"
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(words, cwd=copy, env=settings, capture_output=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def known_equivalent(path: Path) -> set[str]:
    """Names of the mutants of a file that are listed as equivalent."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    entries = [line.partition(" | ") for line in lines if line and not line.startswith("#")]
    return {name.partition(" # ")[0] for file, _, name in entries if file == path.as_posix()}


if __name__ == "__main__":
    sys.exit(main())
