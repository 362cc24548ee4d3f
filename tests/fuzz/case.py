"""An input of the fuzzer: the files that a target reads, and how it is called."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

CHOICE = "choice.json"
"""File beside a saved case: its target and its choice of options."""


@dataclass(frozen=True)
class Case:
    """Files by their relative paths; ``choice`` selects the options of the target.

    ``answer`` is the only result that a run may give instead of an error; None allows every result.
    """

    files: dict[str, bytes]
    choice: int = 0
    answer: str | None = None

    def write(self, folder: Path) -> None:
        """Write the files into a folder."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def load_folder(folder: Path) -> dict[str, bytes]:
    """All files below a folder, but locks."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("lock", "_lock")
    }


def save_case(folder: Path, target: str, case: Case, **about: object) -> None:
    """Save a case as ``files/`` and a description, for ``load_case``."""
    case.write(folder / "files")
    content = {"target": target, "choice": case.choice, "answer": case.answer, **about}
    (folder / CHOICE).write_text(json.dumps(content, indent=1) + "\n")


def load_case(folder: Path) -> tuple[str, Case]:
    """Target and case that ``save_case`` saved."""
    content = json.loads((folder / CHOICE).read_text())
    files = load_folder(folder / "files")
    return content["target"], Case(files, content["choice"], content["answer"])
