"""Runs what a page of Markdown shows: its files, commands and snippets; compares what they print.

A block with ``title="FILE"`` is the content of a file. A ``console`` block has commands (``$ …``),
each followed by all that it prints; lines that begin with ``streammiml: `` are an error, with exit
code 2. In a ``python`` block, ``expression  # → result`` shows what an expression gives. In what is
shown, ``…`` stands for any text within a line, a line that is only ``…`` for any lines, and a
decimal number for one that is near it.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.S | re.M)
_DECIMAL = re.compile(r"\d[\d,]*\.\d+(?!…|\d|\.)")
_RESULT = re.compile(r"# → (.+)$")
_MARK = "result of line "


class Block(NamedTuple):
    """A fenced block of a page."""

    kind: str
    title: str
    text: str


def blocks_of(text: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    return [
        Block(kind, "".join(re.findall(r'title="([^"]+)"', words)), body)
        for kind, words, body in _FENCE.findall(text)
    ]


def commands_in(text: str) -> list[tuple[list[str], list[str]]]:
    """(words, lines of output that are shown) of each command of a console block."""
    return [
        (shlex.split(lines[0]), lines[1:])
        for lines in (part.splitlines() for part in re.split(r"^\$ ", text, flags=re.M)[1:])
    ]


def difference(shown: list[str], printed: str) -> str:
    """What differs between shown and printed lines; empty if nothing does.

    >>> difference(["loss 0.10 …", "…"], "loss 0.11 on 5 bags\\nand more\\n")
    ''
    """
    match = re.fullmatch(_pattern(shown), printed)
    if match is None:
        lines = "\n".join(shown)
        return f"shown:\n{lines}\nprinted:\n{printed}"
    expected = [float(number.replace(",", "")) for number in _DECIMAL.findall("\n".join(shown))]
    for wanted, got in zip(expected, match.groups(), strict=True):
        if abs(wanted - float(got.replace(",", ""))) > 0.02 + 0.1 * abs(wanted):
            return f"{wanted} is shown, {got} was printed, in\n{printed}"
    return ""


def _pattern(lines: list[str]) -> str:
    """A regular expression for shown lines, with a group for each decimal number."""
    parts = []
    for line in lines:
        if line.strip() == "…":
            parts.append(r"(?:.*\n)*?")
            continue
        texts = [re.escape(text).replace("…", ".*") for text in _DECIMAL.split(line.rstrip())]
        # Numbers of other lengths move what follows in a table.
        texts = [re.sub(r"(?:\\ )+", " +", text) for text in texts]
        parts.append(r"([\d,]*\.\d+)".join(texts) + r" *\n")
    return "".join(parts)


def run_block(block: Block, folder: Path, names: Mapping[str, str] | None = None) -> None:
    """Write the file, run the commands or run the snippet, and compare what is printed.

    ``names`` has what stands for addresses that the page uses, such as of a bucket.
    """
    for name, here in (names or {}).items():
        block = block._replace(text=block.text.replace(name, here))
    if block.title:
        path = folder / block.title
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.text)
    elif block.kind == "console":
        for words, shown in commands_in(block.text):
            _run_command(words, shown, folder)
    elif block.kind == "python":
        _run_snippet(block.text, folder)


def _run_command(words: list[str], shown: list[str], folder: Path) -> None:
    is_error = bool(shown) and shown[0].startswith("streammiml: ")
    done = _run(_runnable(words), folder)
    assert done.returncode == (2 if is_error else 0), f"{words}: {done.stderr}"
    assert shown, f"the page does not show what {words} prints: {done.stdout}"
    wrong = difference(shown, done.stderr if is_error else done.stdout)
    assert not wrong, f"{words}: {wrong}"


def _runnable(words: list[str]) -> list[str]:
    """The command as this interpreter runs it."""
    if words[0] == "streammiml":
        return [sys.executable, "-m", *words]
    assert words[0] == "python", words
    return [sys.executable, *words[1:]]


def _run_snippet(text: str, folder: Path) -> None:
    lines = text.splitlines()
    expected = {
        number: match[1] for number, line in enumerate(lines, 1) if (match := _RESULT.search(line))
    }
    tree = ast.fix_missing_locations(_Printing(expected).visit(ast.parse(text)))
    done = _run([sys.executable, "-c", ast.unparse(tree)], folder)
    assert done.returncode == 0, f"{done.stderr}\nin\n{text}"
    given = {}
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            number, result = line.removeprefix(_MARK).split(" ", 1)
            given[int(number)] = json.loads(result)
    assert set(given) == set(expected), f"{text}\nhas a result that is no expression's"
    for number, result in expected.items():
        wrong = difference([result], f"{given[number]}\n")
        assert not wrong, f"{lines[number - 1]}: {wrong}"


class _Printing(ast.NodeTransformer):
    """Prints the values of expressions that end on lines whose result is shown."""

    def __init__(self, expected: Mapping[int, str]) -> None:
        self._expected = expected

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if node.end_lineno not in self._expected:
            return node
        value = ast.unparse(node.value)
        line = f"' '.join(repr({value}).split())"
        mark = f"{_MARK}{node.end_lineno} "
        return ast.parse(f"print({mark!r} + __import__('json').dumps({line}))").body[0]


def _run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)
