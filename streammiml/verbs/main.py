"""Finds the verb, runs it, and turns what a user can put right into one line and exit code 2."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from io import TextIOWrapper
from pathlib import Path
from typing import Literal, get_args

from cyclopts import App, CycloptsError
from cyclopts.completion.detect import ShellDetectionError

from streammiml._base.platform import refuse_windows
from streammiml.errors import StreammimlError, unknown

Shell = Literal["bash", "fish", "powershell", "zsh"]
# Named by string, so that asking for help loads none of them.
VERBS = {
    "evaluate": ("streammiml.verbs.evaluate:evaluate", "Figures of a model on a store."),
    "explain": ("streammiml.verbs.explain:explain", "Key instances and sub-concepts, and why."),
    "info": ("streammiml.verbs.info:info", "What is in a store."),
    "predict": ("streammiml.verbs.predict:predict", "Scores, labels and key instances, to disk."),
    "report": ("streammiml.verbs.report:report", "One page on a run, or on several side by side."),
    "seal": ("streammiml.verbs.seal:seal", "Check a store written by others and complete it."),
    "train": ("streammiml.verbs.train:train", "Train a model on one store or several."),
    "tune": ("streammiml.verbs.tune:tune", "Settings by cross validation."),
    "verify": ("streammiml.verbs.verify:verify", "Read and check every file of a store."),
}
# Verbs that live in streammiml_tools, found by entry point: what they say in the list.
TOOL_HELP = {
    "convert": "Foreign files to a store, or to several by a split.",
    "demo": "Real digits, or text, to a model, its figures and a page.",
    "export": "A store to JSON lines, CSV or NumPy arrays.",
    "verify": "Read and check every file of a store, or compare it with its source.",
}

# Verbs that keep what is done, and find it again.
GO_ON = ("convert", "explain", "predict", "tune")


def build() -> App:
    """The command line; verbs load when they are called."""
    app = App(
        name="streammiml",
        help="Multi-instance multi-label learning on corpora far larger than memory.",
        version=lambda: version("streammiml"),
        # The list of verbs has no markup; loading the Markdown renderer would cost a third more.
        help_format="plaintext",
        help_flags=["--help", "-h"],
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    points = entry_points(group="streammiml.verbs")
    found = {point.name: (point.value, TOOL_HELP.get(point.name, "")) for point in points}
    # A tool may do more under the same name: verify, which knows sources.
    for name, (target, line) in sorted({**VERBS, **found}.items()):
        app.command(target, name=name, help=line, help_format="markdown")
    _offer_completion(app)
    return app


def _offer_completion(app: App) -> None:
    def install(*, shell: Shell | None = None, output: Path | None = None) -> None:
        """Let the shell complete verbs and options, from its next start on.

        Parameters
        ----------
        shell
            The one that this runs in unless given.
        output
            File for what the shell is told; where it looks for such files unless given.
        """
        try:
            path = app.install_completion(shell=shell, output=output)
        except ShellDetectionError:
            raise StreammimlError(
                f"which shell this is cannot be told; give --shell {', '.join(get_args(Shell))}"
            ) from None
        print(f"{path}: from the next start of the shell on")

    app.command(install, name="--install-completion")


def run(words: Sequence[str]) -> int:
    """Run one command; its exit code is returned, and errors of the user are printed."""
    try:
        refuse_windows()
        app = build()
        if words and not words[0].startswith("-") and words[0] not in app:
            raise unknown("verb", words[0], [name for name in app if not name.startswith("-")])
        code = app(words, exit_on_error=False, print_error=False)
    except StreammimlError as error:
        return _complain(str(error))
    except CycloptsError as error:
        cause = error.__cause__
        return _complain(str(cause if isinstance(cause, StreammimlError) else error))
    except KeyboardInterrupt:
        again = "; run the same command again to go on" if words[:1] and words[0] in GO_ON else ""
        _complain(f"interrupted{again}")
        return 130
    except BrokenPipeError:
        # The reader of a pipe left early (`| head`): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code if isinstance(code, int) else 0


def _complain(message: str) -> int:
    print(f"streammiml: {' '.join(message.split())}", file=sys.stderr)
    return 2


class _Notices(logging.Handler):
    """Prints what the library logs, such as that kernels are being compiled, as lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        # Without a stderr (2>&-), print would write to stdout, where results are.
        if sys.stderr is not None:
            print(f"streammiml: {record.getMessage()}", file=sys.stderr, flush=True)


def main() -> None:
    """What the installed command runs."""
    log = logging.getLogger("streammiml")
    log.addHandler(_Notices())
    log.setLevel(logging.INFO)
    for stream in (sys.stdout, sys.stderr):
        # A terminal or pipe that knows only ASCII shows other characters by their number.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))
