"""Phrases of messages: lists of names are cut, exceptions fit on one line."""

from streammiml_tools.readers.messages import MAX_NAMES, MAX_REASON, listed, reason_of


def test_listed__names_all_or_the_first_and_their_number():
    names = [f"f{i}" for i in range(MAX_NAMES + 1)]
    assert listed(iter(names[:2])) == "f0, f1"
    assert listed(names[:-1]) == ", ".join(names[:-1])
    assert listed(names) == f"{', '.join(names[:-1])}, … ({len(names)} in all)"


def test_reason_of__is_one_short_line_and_never_empty():
    assert reason_of(ValueError("bad\n   bytes")) == "bad bytes"
    assert len(reason_of(ValueError("x" * 1000))) == MAX_REASON
    assert reason_of(EOFError()) == "EOFError"
