"""The gallery: examples that are run, so that their pages show what they print and draw."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from streammiml.errors import StreammimlError

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ("slides", "documents", "video", "digits")
"""Scripts in ``tools/examples``, each with a page of its name in the gallery."""


def script_of(name: str) -> Path:
    """Return the file of an example."""
    return ROOT / "tools" / "examples" / f"{name}.py"


def run_examples(folder: Path) -> list[Path]:
    """Run the examples whose output is not there, each in a folder of its name; return these."""
    folders = [folder / name for name in EXAMPLES]
    for name, out in zip(EXAMPLES, folders, strict=True):
        digest = _digest(script_of(name))
        stamp = out / "made-from.txt"
        if not (stamp.exists() and stamp.read_text(encoding="utf-8") == digest):
            print(f"streammiml: running the example {name}", file=sys.stderr, flush=True)
            _run(name, out)
            stamp.write_text(digest, encoding="utf-8")
    return folders


def _run(name: str, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, str(script_of(name)), str(out)],
        capture_output=True,
        text=True,
        env={**os.environ, "MPLBACKEND": "agg"},
    )
    if done.returncode:
        raise StreammimlError(f"the example {name} failed:\n{done.stderr[-2000:]}")
    (out / "printed.txt").write_text(done.stdout, encoding="utf-8")


def _digest(script: Path) -> str:
    """Return a hash of the example and of the library: either may change what it shows."""
    total = hashlib.sha256(script.read_bytes())
    for path in sorted((ROOT / "streammiml").rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()
