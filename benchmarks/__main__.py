"""``python -m benchmarks [NAME…] [--smoke]``: print one JSON line for each case.

Both sides of a ratio are measured in the same run. A module ``bench_NAME.py`` yields its cases from
``cases(smoke)``. ``--smoke`` runs every case at its smallest size, to test that the code still
works; the figures of a smoke run mean nothing. ``--sets`` and ``--splits`` are options of the
benchmark *paper*.
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
    """The checked-out commit; ``-dirty`` if a tracked file outside ``results`` has changed."""

    def git_output(*words: str) -> str:
        command = ["git", *words]
        return subprocess.run(command, cwd=HERE, capture_output=True, text=True).stdout.strip()

    name = git_output("describe", "--always", "--abbrev=7")
    all_but_results = (":/", f":(exclude,top){HERE.name}/results")
    changes = git_output("status", "--porcelain", "--untracked-files=no", "--", *all_but_results)
    return (name or "unknown") + ("-dirty" if changes else "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"benchmarks to run: {', '.join(NAMES)}; default: all",
    )
    parser.add_argument("--smoke", action="store_true", help="run every case at its smallest size")
    parser.add_argument("--out", type=Path, help="also write the lines to this file")
    parser.add_argument("--sets", help="paper only: names or files, separated by commas")
    parser.add_argument(
        "--splits", type=int, help="paper only: number of splits; 0 only rewrites the page"
    )
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark is called {sorted(unknown)[0]!r}; known: {', '.join(NAMES)}")
    paper_options = {name: getattr(options, name) for name in ("sets", "splits")}
    paper_options = {name: value for name, value in paper_options.items() if value is not None}
    if paper_options and options.names != ["paper"]:
        parser.error(f"--{next(iter(paper_options))} works only with the benchmark paper alone")
    commit_name = commit()
    lines = []
    for name in options.names or NAMES:
        for case in import_module(f"benchmarks.bench_{name}").cases(options.smoke, **paper_options):
            lines.append(json.dumps({"bench": name, **case, "commit": commit_name}))
            print(lines[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
