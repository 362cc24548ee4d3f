"""``python -m tests.fuzz [TARGET…] --minutes N``: runs damaged inputs until the time is over."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.case import load_case
from tests.fuzz.hunt import Child, hunt
from tests.fuzz.targets import TARGETS, target_of


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--minutes", type=float, help="time in all, shared by the targets")
    amount.add_argument("--inputs", type=int, help="number of inputs of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for findings, made smaller")
    parser.add_argument("--case", type=Path, help="run one finding that was kept")
    given = parser.parse_args(arguments)
    if given.case is not None:
        name, case = load_case(given.case)
        with Child(target_of(name)) as child:
            outcome = child.run(case)
        print(f"{name}: {outcome.kind} {outcome.where}\n{outcome.text}")
        return int(outcome.is_finding)
    unknown = sorted({*given.targets} - {*TARGETS})
    if unknown:
        parser.error(f"no target is called {unknown[0]!r}; known: {', '.join(TARGETS)}")
    names = given.targets or list(TARGETS)
    minutes = given.minutes if given.minutes or given.inputs else 1.0
    seconds = None if minutes is None else 60 * minutes / len(names)
    n_findings = n_inputs = 0
    for name in names:
        report = hunt(
            target_of(name),
            seed=given.seed,
            n_inputs=given.inputs,
            seconds=seconds,
            keep=given.keep,
            tell=lambda text: print(text, flush=True),
        )
        print(report.line(), flush=True)
        n_findings += len(report.findings)
        n_inputs += report.n_inputs
    print(f"{n_inputs:,} inputs, {n_findings} findings")
    return int(n_findings > 0)


if __name__ == "__main__":
    sys.exit(main())
