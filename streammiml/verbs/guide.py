"""``streammiml guide``: the pages of the guide, in the terminal."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markdown import Markdown

from streammiml.tell.guide import PAGES, title
from streammiml.tell.guide import guide as text_of

WIDEST = 100
"""Most columns of a page; longer lines are hard to read."""


def guide(topic: str | None = None, /) -> None:
    """Show a page of the guide, or the list of pages.

    In a pipe, the page is printed as Markdown.

    Parameters
    ----------
    topic
        Name of a page; without it, all pages are listed.
    """
    if topic is None:
        print("streammiml guide TOPIC shows one of these pages:\n")
        for name in PAGES:
            print(f"{name:<14}{title(name)}")
        return
    text = text_of(topic)
    if not sys.stdout.isatty():
        print(text, end="")
        return
    console = Console()
    console.print(Markdown(text), width=min(console.width, WIDEST))
