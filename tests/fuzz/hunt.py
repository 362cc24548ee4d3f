"""The hunt: mutates cases, sends them to a child, keeps those that reach new code, and findings."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.case import Case, save_case
from tests.fuzz.child import CRASHES, Outcome, serve
from tests.fuzz.envelopes import mutant
from tests.fuzz.targets import Target
from tests.stores import scratch

DEADLINE = 20.0
"""Seconds that reading one input may take."""
START_DEADLINE = 1200.0
END_DEADLINE = 10.0
INPUTS_PER_CHILD = 5000
MINIMISE_TRIES = 150
FRAME = re.compile(r'File "(.*)", line \d+ in (\w+)')


class Child:
    """A process that runs cases of a target; another one takes its place when it ends."""

    def __init__(
        self, target: Target, warm: Case | None = None, *, deadline: float = DEADLINE
    ) -> None:
        """``warm`` is a case of the corpus, which every child runs before it is ready."""
        self._target, self._deadline = target.name, deadline
        self._warm = target.corpus()[0] if warm is None else warm
        self._process: Any = None
        self._left = 0

    def run(self, case: Case) -> Outcome:
        """Run a case; a child that dies or hangs is an outcome too."""
        if self._process is None or not self._left:
            self._start()
        self._left -= 1
        with suppress(BrokenPipeError):
            self._pipe.send(case)
        if not self._has_answer():
            self._stop()
            return Outcome("hang", f"no answer in {self._deadline:g} s")
        try:
            outcome: Outcome = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(10)
            code, where = self._process.exitcode, self._last_frame()
            self._stop()
            return Outcome("died", f"exit code {code}", f"{code} {where}")
        if case.answer is not None and outcome.kind == "read" and outcome.answer != case.answer:
            text = f"the result is {outcome.answer}, expected {case.answer} or an error"
            return outcome._replace(kind="silent", text=text)
        return outcome

    def _has_answer(self) -> bool:
        """Wait for an answer; a busy machine does not count, so time of the processor is measured.

        A child that waits for something else is given ten times as long.
        """
        begun, used = time.monotonic(), processor_seconds(self._process.pid)
        while not self._pipe.poll(0.2):
            now = processor_seconds(self._process.pid)
            waited = time.monotonic() - begun
            busy = waited if used is None or now is None else now - used
            if busy > self._deadline or waited > 10 * self._deadline:
                return False
        return True

    def _start(self) -> None:
        self._stop(is_idle=True)
        # The folder is made here: a child that dies removes nothing.
        self._resources = ExitStack()
        self._folder = self._resources.enter_context(scratch())
        # A server has loaded the modules once; it has run nothing, so forking it is safe.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([serve.__module__])
        self._pipe, theirs = context.Pipe()
        arguments = (self._target, self._warm, self._folder, theirs)
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        if not self._pipe.poll(START_DEADLINE):
            self._stop()
            raise RuntimeError(f"the child of target {self._target} does not start")
        try:
            self._pipe.recv()
        except EOFError:
            self._stop()
            raise RuntimeError(f"the child of target {self._target} ends at its start") from None
        self._left = INPUTS_PER_CHILD

    def _last_frame(self) -> str:
        with suppress(OSError):
            frames = FRAME.findall((self._folder / CRASHES).read_text())
            ours = [f"{Path(file).name}:{name}" for file, name in frames if "site-pack" not in file]
            return ours[0] if ours else ""
        return ""

    def _stop(self, *, is_idle: bool = False) -> None:
        if self._process is not None:
            self._pipe.close()
            self._process.join(END_DEADLINE if is_idle else 0)
            self._process.kill()
            self._process.join()
            self._resources.close()
            self._process = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop(is_idle=True)


def processor_seconds(pid: int) -> float | None:
    """Time of the processor that a process has used; None where Linux is missing, or it ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Report:
    """What a hunt has tried and found."""

    target: str
    n_inputs: int = 0
    n_read: int = 0
    """Inputs that were read without an error."""
    n_lines: int = 0
    n_kept: int = 0
    """Mutants that reached new code, and are mutated in turn."""
    seconds: float = 0.0
    findings: dict[str, Outcome] = field(default_factory=dict)
    """The first finding of each signature."""

    def line(self) -> str:
        """The report on one line."""
        return (
            f"{self.target}: {self.n_inputs:,} inputs in {self.seconds:.0f} s, {self.n_read:,} "
            f"read, {self.n_lines:,} lines of code, {self.n_kept} kept, "
            f"{len(self.findings)} findings"
        )


def hunt(
    target: Target,
    *,
    seed: int,
    n_inputs: int | None = None,
    seconds: float | None = None,
    keep: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
    deadline: float = DEADLINE,
) -> Report:
    """Run mutants of a target's corpus until ``n_inputs`` or ``seconds`` are reached."""
    rng = Random(f"{seed} {target.name}")
    report, lines, begun = Report(target.name), set[tuple[str, int]](), time.monotonic()
    queue: list[Case] = []
    valid: list[Case] = []
    cases = target.cases()
    words = target.words_of(cases)
    with Child(target, cases[0], deadline=deadline) as child:

        def tried(case: Case) -> Outcome:
            outcome = child.run(case)
            report.n_inputs += 1
            report.n_read += outcome.kind == "read"
            if outcome.is_finding and outcome.signature not in report.findings:
                report.findings[outcome.signature] = outcome
                tell(f"{target.name}: {outcome.signature}\n{outcome.text}")
                if keep is not None:
                    _keep(keep, target.name, minimised(case, outcome, child), outcome)
            return outcome

        for case in cases:
            outcome = tried(case)
            lines |= outcome.lines
            if not outcome.is_finding:
                is_exact = target.is_exact and outcome.kind == "read"
                queue.append(replace(case, answer=outcome.answer if is_exact else None))
                if outcome.kind == "read":
                    valid.append(queue[-1])
        if not queue:
            raise RuntimeError(f"no case of target {target.name} can be run")
        while (n_inputs is None or report.n_inputs < n_inputs) and (
            seconds is None or time.monotonic() - begun < seconds
        ):
            # Half of the mutants are made of cases without an error. Of the others, late ones are
            # more likely: they reach deeper.
            late = int(len(queue) * max(rng.random(), rng.random()))
            parent = rng.choice(valid) if valid and rng.random() < 0.5 else queue[late]
            case = varied(target, parent, queue, rng, words)
            outcome = tried(case)
            if not outcome.is_finding and not outcome.lines <= lines:
                lines |= outcome.lines
                queue.append(case)
                if outcome.kind == "read":
                    valid.append(case)
                report.n_kept += 1
    report.n_lines, report.seconds = len(lines), time.monotonic() - begun
    return report


def varied(target: Target, parent: Case, queue: list[Case], rng: Random, words: Any) -> Case:
    """A mutant of a case: one file changed, sometimes two; sometimes other options."""
    files, choice, answer = dict(parent.files), parent.choice, parent.answer
    names = [name for name in files if target.may_change(name)]
    for _ in range(rng.choice((1, 1, 1, 2))):
        name = rng.choice(names)
        other = rng.choice(queue)
        donors = [content for content in other.files.values() if len(content) < 1 << 16]
        files[name] = mutant(name, files[name], rng, donors, words)
    if rng.random() < 0.02 and len(names) > 1:
        del files[rng.choice(names)]
    if rng.random() < 0.1:
        choice = rng.randrange(target.n_choices)
        answer = None if choice != parent.choice else answer
    if target.seal is not None and rng.random() < 0.5:
        with suppress(Exception):
            files, answer = target.seal(files), None
    return Case(files, choice, answer)


def minimised(case: Case, outcome: Outcome, child: Child) -> Case:
    """The case with parts of its files removed, where the finding stays the same."""
    tries = 0 if outcome.kind == "hang" else MINIMISE_TRIES
    for name in sorted(case.files, key=lambda name: -len(case.files[name])):
        size = len(case.files[name]) // 2
        while size and tries:
            at = 0
            while at < len(case.files[name]) and tries:
                content = case.files[name]
                files = {**case.files, name: content[:at] + content[at + size :]}
                smaller = replace(case, files=files)
                tries -= 1
                if child.run(smaller).signature == outcome.signature:
                    case = smaller
                else:
                    at += size
            size //= 2
    return case


def _keep(keep: Path, target: str, case: Case, outcome: Outcome) -> None:
    digest = hashlib.sha256(outcome.signature.encode()).hexdigest()[:8]
    folder = keep / f"{target}-{outcome.kind}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    save_case(folder, target, case, finding=outcome.signature, text=outcome.text[-1500:])
