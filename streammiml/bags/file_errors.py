"""Errors of reading one file of a store, on a disk or under a URL."""

from __future__ import annotations


class Unreadable(Exception):
    """A file cannot be read, or ends too early; the message continues after the file's name.

    Readers try once more, then raise StoreError.
    """


class MissingFile(Unreadable):
    """There is no file of this name."""

    def __init__(self) -> None:
        super().__init__("is missing")


def reason(error: BaseException) -> str:
    """Say in one line why reading a file failed; the text continues after the file's name."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "is missing"
    if isinstance(error, IsADirectoryError):
        return "is a folder, expected a file"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    text = " ".join(str(error).split())
    return f"cannot be read: {text[:300] or type(error).__name__}"


def unreadable(error: OSError) -> Unreadable:
    """Turn an error of the operating system into Unreadable."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return MissingFile()
    return Unreadable(reason(error))
