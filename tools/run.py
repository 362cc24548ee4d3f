"""One command from a fresh clone: build an environment, install the project into it, run a job.

Needs only Python 3.11 or newer with pip and venv; imports nothing but the standard library.

    python3 tools/run.py demo [ARGS]     the demo
    python3 tools/run.py test [ARGS]     the tests that are not slow, or what pytest's ARGS select
    python3 tools/run.py docs [OUT]      the site (guide, reference, examples), into site/
    python3 tools/run.py exec CMD ARGS   any command of the environment

The environment is the folder .venv. If .venv belongs to another version of Python, the environment
is named by the version that runs this script, such as .venv-3.13. With --lowest before the job, it
is .venv-lowest-3.11, where every dependency has the lowest version that pyproject.toml allows.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "pyproject.toml"
BIN = "Scripts" if os.name == "nt" else "bin"
PYTHON = "{}.{}".format(*sys.version_info)


class Refused(Exception):
    """An error that the user can put right; its message is one line."""


def version_of(folder: Path) -> str | None:
    """Return the version of an environment's Python, such as 3.11; None if there is none."""
    try:
        settings = (folder / "pyvenv.cfg").read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    # Environments that uv makes have version_info instead of version.
    match = re.search(r"^version(?:_info)? *= *(\d+\.\d+)", settings, re.M)
    return match[1] if match else None


def folder_for(*, lowest: bool) -> Path:
    """Return the folder of the environment for this Python."""
    if lowest:
        return ROOT / f".venv-lowest-{PYTHON}"
    default = ROOT / ".venv"
    return default if version_of(default) in (None, PYTHON) else ROOT / f".venv-{PYTHON}"


def lowest_versions() -> str:
    """Return a line name==version for each ``name>=version`` in pyproject.toml."""
    text = PROJECT.read_text(encoding="utf-8")
    floors = re.findall(r'"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?>=([0-9.]+)"', text)
    return "".join(f"{name}=={version}\n" for name, version in sorted(set(floors)))


def environment(extra: str, *, lowest: bool) -> Path:
    """Return the folder of the environment's programs; reinstall if pyproject.toml has changed."""
    folder = folder_for(lowest=lowest)
    programs = folder / BIN
    digest = hashlib.sha256(PROJECT.read_bytes()).hexdigest()
    stamp = folder / f"installed-{extra}"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        return programs
    print(f"streammiml: installing into {folder}", file=sys.stderr, flush=True)
    try:
        if not (programs / "python").exists():
            # Some builds for macOS find their library from a linked python, but not from a copy.
            venv.create(folder, with_pip=True, symlinks=True)
        python = str(programs / "python")
        has_pip = subprocess.run([python, "-m", "pip", "--version"], capture_output=True)
        if has_pip.returncode:
            # Environments of uv, and of an interrupted run of this script, have no pip.
            subprocess.run([python, "-m", "ensurepip"], check=True, capture_output=True)
        install = [python, "-m", "pip", "install", "-qq"]
        install += ["--disable-pip-version-check", "--editable", f".[{extra}]"]
        if lowest:
            constraints = folder / "lowest.txt"
            constraints.write_text(lowest_versions(), encoding="utf-8")
            install += ["--constraint", str(constraints)]
        subprocess.run(install, cwd=ROOT, check=True)
    except subprocess.CalledProcessError as error:
        if "ensurepip" in map(str, error.cmd):
            raise Refused(
                f"Python {PYTHON} cannot make an environment; install its venv and pip (on Debian "
                f"and Ubuntu: apt install python{PYTHON}-venv), delete {folder}, and try again"
            ) from None
        raise Refused(
            f"pip could not install into {folder}; see the last lines of pip above"
        ) from None
    except (OSError, ValueError) as error:
        raise Refused(f"{folder} cannot be made: {error}") from None
    stamp.write_text(digest, encoding="utf-8")
    return programs


def main(words: list[str]) -> int:
    """Run the job that the first word names, and return its exit code."""
    if sys.version_info < (3, 11):  # noqa: UP036  an older Python may run this file
        raise Refused(f"needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    if sys.platform == "win32":
        raise Refused(
            "Windows is not supported; use WSL, the Linux inside Windows: run wsl --install, and "
            "run this command there"
        )
    lowest = words[:1] == ["--lowest"]
    job, *rest = words[lowest:] or [""]
    if job not in ("demo", "docs", "test", "exec") or (job == "exec" and not rest):
        print(__doc__, file=sys.stderr)
        return 2
    programs = environment(job if job in ("demo", "docs") else "dev", lowest=lowest)
    command = {
        "demo": ["streammiml", "demo", *rest],
        "docs": ["python", "-m", "streammiml_tools.docs", *rest],
        "test": ["python", "-m", "pytest", "-n", "auto", *rest],
        "exec": rest,
    }[job]
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    settings = {**os.environ, "PATH": path}
    if lowest:
        settings["STREAMMIML_LOWEST"] = "1"
    return subprocess.run([programs / command[0], *command[1:]], cwd=ROOT, env=settings).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Refused as refusal:
        print(f"streammiml: {refusal}", file=sys.stderr)
        sys.exit(2)
