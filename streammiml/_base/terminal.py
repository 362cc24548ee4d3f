"""Escapes control characters in everything that verbs print.

Names of labels, bags and files may contain anything, such as sequences that clear the screen or
reverse the direction of text. All output of verbs passes through one stream that escapes them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

# C0, DEL and C1; then direction marks and line separators. Line breaks are kept.
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_MARKS = [0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
_ESCAPES = {number: f"\\x{number:02x}" for number in _CONTROLS if number != ord("\n")}
_ESCAPES |= {number: f"\\u{number:04x}" for number in _MARKS}
# json.dumps leaves DEL as it is, and JSON has no \x escapes.
_ESCAPES[0x7F] = "\\u007f"


def printable(text: str) -> str:
    r"""Escape control characters, except line breaks, as ``\x1b`` or ``\u202e``."""
    return text.translate(_ESCAPES)


class SafeStream:
    """A text stream that escapes what is written; all other attributes are those of the stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # Rich looks for this attribute and draws its bars and help directly to that stream; their
        # text is our own and needs no escapes. Streams of Rich have the attribute too, and would
        # send everything back to us.
        while hasattr(stream, "rich_proxied_file"):
            stream = stream.rich_proxied_file
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write the text, escaped."""
        self._stream.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write all lines, escaped."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _safe(stream: TextIO) -> TextIO:
    # sys.stderr is None if the shell closed it (2>&-).
    if stream is None or isinstance(stream, SafeStream):
        return stream
    return cast("TextIO", SafeStream(stream))


def guard() -> None:
    """Escape everything that is printed from now on to stdout and stderr."""
    sys.stdout, sys.stderr = _safe(sys.stdout), _safe(sys.stderr)


@contextmanager
def guarded() -> Iterator[None]:
    """Escape everything that is printed inside the block."""
    before = sys.stdout, sys.stderr
    guard()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
