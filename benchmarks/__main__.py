"""``python -m benchmarks [NAME…] [--smoke]``: one JSON line a case, ratios from the same run.

A module ``bench_NAME.py`` yields its cases from ``cases(smoke)``. ``--smoke`` runs each at its
smallest size, so that none of them rots; its figures mean nothing. ``--sets`` and ``--splits`` are
for the benchmark *paper*.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
NAMES = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def commit() -> str:
    """The commit, and whether anything but results has changed since."""

    def said(*words: str) -> str:
        return subprocess.run(words, cwd=HERE, capture_output=True, text=True).stdout.strip()

    found = said("git", "describe", "--always", "--abbrev=7")
    here = (":/", f":(exclude,top){HERE.name}/results")
    changed = said("git", "status", "--porcelain", "--untracked-files=no", "--", *here)
    return (found or "unknown") + ("-dirty" if changed else "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--smoke", action="store_true", help="every case at its smallest size")
    parser.add_argument("--out", type=Path, help="write the lines to this file too")
    parser.add_argument("--sets", help="of paper: names or files, with commas")
    parser.add_argument("--splits", type=int, help="of paper: how many; 0 writes the page anew")
    options = parser.parse_args()
    wrong = set(options.names) - set(NAMES)
    if wrong:
        parser.error(f"no benchmark is called {sorted(wrong)[0]!r}; known: {', '.join(NAMES)}")
    more = {name: getattr(options, name) for name in ("sets", "splits")}
    more = {name: value for name, value in more.items() if value is not None}
    if more and options.names != ["paper"]:
        parser.error(f"--{next(iter(more))} is an option of the benchmark paper alone")
    here = commit()
    lines = []
    for name in options.names or NAMES:
        for case in import_module(f"benchmarks.bench_{name}").cases(options.smoke, **more):
            lines.append(json.dumps({"bench": name, **case, "commit": here}))
            print(lines[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
