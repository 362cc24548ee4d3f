"""Commands in a control group of little memory, where this process may make one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Group:
    """A control group; its memory includes the page cache of what runs in it."""

    path: Path
    procs: str = "cgroup.procs"

    def run(self, words: Sequence[object]) -> subprocess.CompletedProcess[str]:
        """Run a command in it; a kill for memory is a return code below 0 or 137."""
        enter = f'echo $$ > {self.path}/{self.procs} && exec "$@"'
        command = ["sh", "-c", enter, "sh", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True)

    def peak(self) -> int | None:
        """Most bytes that it ever held, where the kernel keeps them."""
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            if (self.path / name).exists():
                return int((self.path / name).read_text())
        return None


@contextmanager
def limited(n_bytes: int) -> Iterator[Group]:
    """A group that may hold so many bytes, without swap; skips where none can be made."""
    old = (ROOT / "memory" / "memory.limit_in_bytes").exists()
    name = f"streammiml-{os.getpid()}"
    path = ROOT / "memory" / name if old else ROOT / name
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no control group of memory can be made: {error}")
    try:
        try:
            if old:
                (path / "memory.limit_in_bytes").write_text(str(n_bytes))
            else:
                (path / "memory.max").write_text(str(n_bytes))
                (path / "memory.swap.max").write_text("0")
        except OSError as error:
            pytest.skip(f"no control group of memory can be limited: {error}")
        yield Group(path)
    finally:
        path.rmdir()
