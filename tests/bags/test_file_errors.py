"""Errors of reading one file: a class for missing files, and a message of one line."""

import errno

import pytest

from streammiml.bags.file_errors import MissingFile, Unreadable, reason, unreadable


@pytest.mark.parametrize("error", [FileNotFoundError(), NotADirectoryError()])
def test_unreadable__a_missing_file_has_its_own_class(error):
    assert isinstance(unreadable(error), MissingFile)
    assert str(unreadable(error)) == reason(error) == "is missing"


def test_unreadable__other_errors_say_why():
    error = unreadable(OSError(errno.EIO, "Input/output error"))
    assert type(error) is Unreadable
    assert str(error) == "cannot be read: Input/output error"


def test_reason__is_one_short_line():
    assert reason(IsADirectoryError()) == "is a folder, expected a file"
    assert reason(ValueError("two\n  lines")) == "cannot be read: two lines"
    assert reason(KeyError()) == "cannot be read: KeyError"
    assert len(reason(ValueError("x" * 1000))) < 330
