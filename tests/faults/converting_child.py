"""A process that converts in children of its own, and kills them where it is told.

As ``killing.py`` does for the writer: children are forked from a process that has everything loaded
and has started no threads of its own.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from streammiml.bags.fingerprint import digests_of
from streammiml_tools.convert import convert
from streammiml_tools.convert.plan import ConvertConfig
from streammiml_tools.readers import READERS, reader_of
from streammiml_tools.readers.base import SourceOptions
from tests.faults.killing import ChildOwner, kill_at, obey
from tests.stores import as_sparse, made_block

SPAN_BYTES = 200


def options(*, group: bool = False, labels: str | None = None) -> SourceOptions:
    """Spans of a few bags; ``labels`` is a table with the labels of files that are a bag each."""
    return SourceOptions(group=group, bag_labels=labels, span_bytes=SPAN_BYTES)


def work(order: dict[str, Any]) -> None:
    """One conversion, in the process that may be killed."""
    settings = {**order["settings"], "where_label": tuple(order["settings"]["where_label"])}
    asked = options(group=order["group"], labels=order["labels"])
    convert(order["source"], order["path"], ConvertConfig(**settings), asked)


def _run(order: dict[str, Any]) -> None:
    counter = [0]
    kill_at(order["at"], str(Path(order["path"]).parent), counter)
    work(order)
    Path(order["tally"]).write_text(str(counter[0]))


def serve() -> None:
    """Obey orders that come as lines of JSON; answer each with how the child ended."""
    # Compiled and loaded once here rather than in every child.
    for block in (made_block(), as_sparse(made_block())):
        digests_of(block)
    for name in READERS:
        reader_of(name)
    obey(_run)


class Converter(ChildOwner):
    """Converts in another process, which may be killed; a context manager."""

    def __init__(self, tally: Path) -> None:
        super().__init__("tests.faults.converting_child", tally)

    def convert(
        self,
        source: Path,
        path: Path,
        settings: ConvertConfig,
        *,
        group: bool = False,
        labels: str | None = None,
        at: int = 0,
        after: float = 0,
    ) -> bool:
        """Convert; die at the n-th change, or after seconds. Whether it was killed."""
        order = {"source": str(source), "path": str(path), "settings": asdict(settings)}
        return self._was_killed(**order, group=group, labels=labels, at=at, after=after)


if __name__ == "__main__":
    serve()
