"""Runs a function as a command, for ``python -m streammiml_tools.synth`` and the like."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from cyclopts import App, CycloptsError

from streammiml._base.platform import refuse_windows
from streammiml.errors import StreammimlError


def run_command(function: Callable[..., Any], words: Sequence[str] | None = None) -> int:
    """Call a function with the options of the command line, and return the exit code.

    An error that the user can put right is printed as one line, with exit code 2.
    """
    name = function.__name__.removesuffix("_verb")
    app = App(
        # Some versions of cyclopts would show the name of the file.
        name=f"python -m streammiml_tools.{name}",
        result_action="return_value",
        help_flags=["--help", "-h"],
        version_flags=[],
    )
    app.default(function)
    try:
        refuse_windows()
        app(sys.argv[1:] if words is None else words, exit_on_error=False, print_error=False)
    except (StreammimlError, CycloptsError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, StreammimlError) else error
        print(f"streammiml: {' '.join(str(cause).split())}", file=sys.stderr)
        return 2
    return 0
