"""What a verb has printed."""

import pytest


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Text on stdout and on stderr since the last call, without white space around it."""
    out, err = capsys.readouterr()
    return out.strip(), err.strip()
