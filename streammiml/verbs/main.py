"""The command ``streammiml``: finds a verb, runs it, and prints errors of users as one line."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points, version
from io import TextIOWrapper
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from cyclopts import App, CycloptsError, Group, UnknownOptionError
from cyclopts.completion.detect import ShellDetectionError

from streammiml._base.platform import is_thread_shortage, refuse_windows
from streammiml._base.terminal import guarded
from streammiml.errors import StreammimlError, unknown

ELSEWHERE = {
    **dict.fromkeys(("--lr", "--learning-rate", "--eta", "--eta0"), "--step-size"),
    **dict.fromkeys(("--n-epochs", "--num-epochs", "--max-epochs", "--max-iter"), "--epochs"),
    **dict.fromkeys(("--random-state", "--random-seed"), "--seed"),
    **dict.fromkeys(("--n-jobs", "--jobs", "--num-workers"), "--workers"),
    **dict.fromkeys(("--steps", "--num-steps"), "--max-steps"),
    **dict.fromkeys(("--embedding-dim", "--hidden-dim", "--dim"), "--shared-dim"),
    **dict.fromkeys(("--metrics", "--scoring"), "--metric"),
    **dict.fromkeys(("--weight-decay", "--norm"), "--max-norm"),
    **dict.fromkeys(("--topk", "--k"), "--top-k"),
}
"""Names that other programs have for our options; spelling alone would suggest others."""
_FRACTION = re.compile(r"[+-]?[0-9]*\.[0-9]+")
Shell = Literal["bash", "fish", "powershell", "zsh"]


class Verb(NamedTuple):
    """A verb of the command line."""

    help: str
    kind: str
    """Heading under which the list of verbs shows it."""
    arguments: str
    """Arguments, as the line of usage shows them."""
    example: str
    """A command, without the program's name; the examples of all verbs work one after another."""
    page: str
    """Page of the guide about the verb."""
    target: str | None = None
    """``module:function``, a string so that help loads no verb. None for verbs of
    ``streammiml_tools``, which the package finds by entry point."""
    is_resumable: bool = False
    """Whether the same command completes an interrupted one."""


START, BAGS, MODELS, ANSWERS = KINDS = ("Start here", "Bags", "Models", "Answers")
VERBS = {
    "demo": Verb(
        "Convert, train, evaluate and report on real data that needs no download.",
        START,
        "[OUT]",
        "demo",
        "start",
    ),
    "guide": Verb(
        "Show a page of the guide; start with the page start.",
        START,
        "[TOPIC]",
        "guide start",
        "start",
        "streammiml.verbs.guide:guide",
    ),
    "convert": Verb(
        "Convert foreign files to a store, or to several stores.",
        BAGS,
        "SOURCE... STORE",
        "convert bags.csv corpus.zarr --split train=0.7,test=0.3",
        "convert",
        is_resumable=True,
    ),
    "info": Verb(
        "Describe a store.",
        BAGS,
        "STORE",
        "info corpus-train.zarr",
        "stores",
        "streammiml.verbs.info:info",
    ),
    "verify": Verb(
        "Read and check every file of a store, or compare it with its source.",
        BAGS,
        "STORE",
        "verify corpus-train.zarr",
        "stores",
    ),
    "export": Verb(
        "Write a store as JSON lines, CSV or NumPy arrays, or a model as ONNX.",
        BAGS,
        "STORE OUT",
        "export corpus-test.zarr corpus-test.jsonl",
        "stores",
    ),
    "seal": Verb(
        "Check and complete a store that another program wrote.",
        BAGS,
        "STORE",
        "seal foreign.zarr",
        "format",
        "streammiml.verbs.seal:seal",
    ),
    "train": Verb(
        "Train a model on one or several stores.",
        MODELS,
        "STORE... RUN",
        "train corpus-train.zarr run",
        "train",
        "streammiml.verbs.train:train",
    ),
    "tune": Verb(
        "Find settings by cross validation.",
        MODELS,
        "STORE... RUN",
        "tune corpus-train.zarr search --folds 2",
        "tune",
        "streammiml.verbs.tune:tune",
        is_resumable=True,
    ),
    "compare": Verb(
        "Compare MIMLfast with other methods on random splits of a store.",
        MODELS,
        "STORE OUT",
        "compare corpus-train.zarr compared --methods mimlfast,forest --splits 2",
        "tune",
        "streammiml.verbs.compare:compare",
        is_resumable=True,
    ),
    "evaluate": Verb(
        "Compute the metrics of a model on a store.",
        ANSWERS,
        "MODEL STORE",
        "evaluate run corpus-test.zarr",
        "evaluate",
        "streammiml.verbs.evaluate:evaluate",
    ),
    "predict": Verb(
        "Write scores, labels and key instances of the bags of a store.",
        ANSWERS,
        "MODEL STORE OUT",
        "predict run corpus-test.zarr predictions",
        "predict",
        "streammiml.verbs.predict:predict",
        is_resumable=True,
    ),
    "explain": Verb(
        "Write key instances and sub-concepts: why each label was predicted.",
        ANSWERS,
        "MODEL STORE OUT",
        "explain run corpus-test.zarr why",
        "predict",
        "streammiml.verbs.explain:explain",
        is_resumable=True,
    ),
    "report": Verb(
        "Write one page about a run, or about several side by side.",
        ANSWERS,
        "RUN...",
        "report run --store corpus-test.zarr",
        "report",
        "streammiml.verbs.report:report",
    ),
}
"""All verbs, in the order of a user's week."""
SUMMARY = "Multi-instance multi-label learning on corpora far larger than memory."
FIRST_STEPS = """Start here: streammiml demo shows all of it on real data, in a minute.
Then streammiml guide start goes from your own file to a model and a page."""


BARE_OPTIONS = {"--calibrate": ("auto", ("auto", "isotonic", "none", "platt"))}
"""Options that may be given without a value: the value that this means, and all values."""


def build() -> App:
    """Build the command line; a verb loads when it is called."""
    app = App(
        name="streammiml",
        help=f"{SUMMARY}\n\n{FIRST_STEPS}",
        version=lambda: version("streammiml"),
        # The list of verbs has no markup, and the Markdown renderer would take a third longer.
        help_format="plaintext",
        help_flags=["--help", "-h"],
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        group_commands=Group("Options", sort_key=len(KINDS)),
    )
    groups = {kind: Group(kind, sort_key=place) for place, kind in enumerate(KINDS)}
    installed = {point.name: point.value for point in entry_points(group="streammiml.verbs")}
    for place, (name, verb) in enumerate(VERBS.items()):
        target = verb.target or installed.get(name)
        if target is not None:
            app.command(
                target,
                name=name,
                help=verb.help,
                help_format="markdown",
                help_formatter=partial(_draw, name),
                usage=f"Usage: streammiml {name} {verb.arguments} [OPTIONS]",
                help_epilogue=f"Example: `streammiml {verb.example}`\n\n"
                f"More: `streammiml guide {verb.page}`",
                group=groups[verb.kind],
                sort_key=place,
            )
    _offer_completion(app)
    return app


def _draw(verb: str, *panel: Any) -> None:
    # Loaded late: commands that print no help need none of it.
    import_module("streammiml.verbs.help_page").draw(verb, *panel)


def _offer_completion(app: App) -> None:
    def install(*, shell: Shell | None = None, output: Path | None = None) -> None:
        """Make the shell complete verbs and options, from its next start on.

        Parameters
        ----------
        shell
            Shell to install for; by default the one that this command runs in.
        output
            File for the completion script; by default where the shell looks for scripts.
        """
        try:
            path = app.install_completion(shell=shell, output=output)
        except ShellDetectionError:
            raise StreammimlError(
                "the shell cannot be identified; give --shell with one of "
                f"{', '.join(get_args(Shell))}"
            ) from None
        print(f"{path}: the shell completes verbs from its next start on")

    app.command(install, name="--install-completion")


def with_values(arguments: Sequence[str]) -> list[str]:
    """Complete options that were given without a value.

    The word after such an option is its value only if it is one of the option's values.

    >>> with_values(["train", "--calibrate", "bags.zarr", "run"])
    ['train', '--calibrate', 'auto', 'bags.zarr', 'run']
    """
    complete: list[str] = []
    for word, following in pairwise([*arguments, ""]):
        complete.append(word)
        value, values = BARE_OPTIONS.get(word, ("", ()))
        if value and following not in values:
            complete.append(value)
    return complete


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors of the user are printed, with code 2."""
    with guarded():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    try:
        refuse_windows()
        app = build()
        if arguments and not arguments[0].startswith("-") and arguments[0] not in app:
            raise unknown("verb", arguments[0], [name for name in app if not name.startswith("-")])
        _refuse_fractions(app, arguments)
        code = app(with_values(arguments), exit_on_error=False, print_error=False)
    except StreammimlError as error:
        return _complain(_with_page(error))
    except CycloptsError as error:
        cause = error.__cause__
        if isinstance(cause, StreammimlError):
            return _complain(_with_page(cause))
        return _complain(_meant(app, arguments, error) or str(error))
    except KeyboardInterrupt:
        verb = VERBS.get(arguments[0]) if arguments else None
        is_resumable = verb is not None and verb.is_resumable
        _complain(
            "interrupted" + ("; run the same command again to continue" if is_resumable else "")
        )
        return 130
    except BrokenPipeError:
        # The reader of a pipe left early (`| head`), which is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, MemoryError, RuntimeError) as error:
        if not (line := _shortage(error)):
            raise
        return _complain(line)
    return code if isinstance(code, int) else 0


def _refuse_fractions(app: App, arguments: Sequence[str]) -> None:
    """Refuse fractions for options that are whole numbers: the parser would round them."""
    words = [*arguments, ""]
    given = [
        (name, value or following)
        for word, following in pairwise(words)
        for name, _, value in [word.partition("=")]
        if name.startswith("--") and _FRACTION.fullmatch(value or following)
    ]
    if not given:
        return
    for argument in app[arguments[0]].assemble_argument_collection():
        for name, value in given:
            if name in argument.names and argument.hint in (int, int | None):
                raise StreammimlError(f"{name} must be a whole number, got {value}")


def _meant(app: App, arguments: Sequence[str], error: CycloptsError) -> str:
    """Name the option that another name stands for elsewhere; empty if there is none."""
    if not isinstance(error, UnknownOptionError):
        return ""
    given = (error.token.keyword or error.token.value).split("=")[0]
    meant = ELSEWHERE.get(given.lower().replace("_", "-"))
    known = {
        name for part in app[arguments[0]].assemble_argument_collection() for name in part.names
    }
    return f"Unknown option: {given}. Did you mean {meant}?" if meant in known else ""


def _shortage(error: Exception) -> str:
    """Describe a shortage of memory, files or threads; empty for errors of another kind."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{os.strerror(error.errno)}; raise the limit with ulimit -n 1024, and try again"
    if isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN):
        return f"{os.strerror(error.errno)}; raise the limits on memory and processes (ulimit -a)"
    if isinstance(error, MemoryError):
        details = " ".join(str(error).split())
        return (
            f"out of memory{f' ({details})' if details else ''}; lower --memory or --block-bytes "
            "if the verb has it, or raise the limit on memory (ulimit -v)"
        )
    if is_thread_shortage(error):
        return "no thread can be started; raise the limits on processes and memory (ulimit -a)"
    return ""


def _with_page(error: StreammimlError) -> str:
    """Message of an error, with the command that shows a page of the guide about it."""
    return f"{error} (streammiml guide {error.page})" if error.page is not None else str(error)


def _complain(message: str) -> int:
    """Print an error as one line on stderr; return the exit code 2."""
    print(f"streammiml: {' '.join(message.split())}", file=sys.stderr)
    return 2


class _Notices(logging.Handler):
    """Prints notices of the library, such as that kernels are being compiled, on stderr.

    Records of loggers below ``streammiml`` say when calls begin and end, which a display shows.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "streammiml" and record.levelno < logging.WARNING:
            return
        # If stderr is closed (2>&-), print would write to stdout, among the results.
        if sys.stderr is not None:
            print(f"streammiml: {record.getMessage()}", file=sys.stderr, flush=True)


def main() -> None:
    """Entry point of the installed command."""
    log = logging.getLogger("streammiml")
    log.addHandler(_Notices())
    log.setLevel(logging.INFO)
    for stream in (sys.stdout, sys.stderr):
        # Characters that the encoding of a terminal or pipe lacks are escaped.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))
