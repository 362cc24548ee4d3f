"""One command from a fresh clone: build ``.venv``, install the project into it, run a job.

Needs only Python 3.11 with pip and venv; imports nothing but the standard library.

    python3 tools/run.py demo [ARGS]     the demo
    python3 tools/run.py test [ARGS]     the tests that are not slow, or what pytest's ARGS select
    python3 tools/run.py exec CMD ARGS   any command of the environment
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = "Scripts" if os.name == "nt" else "bin"


def environment(extra: str) -> Path:
    """Return the environment's folder of programs, installed anew when pyproject.toml changed."""
    folder = ROOT / ".venv"
    programs = folder / BIN
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    stamp = folder / f"installed-{extra}"
    if stamp.exists() and stamp.read_text() == wanted:
        return programs
    print(f"streammiml: installing into {folder}", file=sys.stderr, flush=True)
    if not (programs / "python").exists():
        venv.create(folder, with_pip=True)
    install = [str(programs / "python"), "-m", "pip", "install", "-qq"]
    install += ["--disable-pip-version-check", "--editable", f".[{extra}]"]
    subprocess.run(install, cwd=ROOT, check=True)
    stamp.write_text(wanted)
    return programs


def main(words: list[str]) -> int:
    """Run the job that the first word names; its exit code is ours."""
    if sys.version_info < (3, 11):  # noqa: UP036  whoever starts this may have an older one
        print(f"streammiml: needs Python 3.11 or newer, this is {sys.version.split()[0]}")
        return 2
    job, rest = (words[0], words[1:]) if words else ("", [])
    if job not in ("demo", "test", "exec") or (job == "exec" and not rest):
        print(__doc__, file=sys.stderr)
        return 2
    programs = environment("demo" if job == "demo" else "dev")
    command = {
        "demo": ["streammiml", "demo", *rest],
        "test": ["python", "-m", "pytest", "-n", "auto", *rest],
        "exec": rest,
    }[job]
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [programs / command[0], *command[1:]], cwd=ROOT, env={**os.environ, "PATH": path}
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
