"""Runs one function of this folder as a command: ``python -m streammiml_tools.synth …``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from cyclopts import App, CycloptsError

from streammiml._base.platform import refuse_windows
from streammiml.errors import StreammimlError


def run_command(function: Callable[..., Any], words: Sequence[str] | None = None) -> int:
    """Call a function with options of the command line; 2 and one line for a user's error."""
    app = App(result_action="return_value", help_flags=["--help", "-h"], version_flags=[])
    app.default(function)
    try:
        refuse_windows()
        app(sys.argv[1:] if words is None else words, exit_on_error=False, print_error=False)
    except (StreammimlError, CycloptsError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, StreammimlError) else error
        print(f"streammiml: {' '.join(str(cause).split())}", file=sys.stderr)
        return 2
    return 0
