"""Reads a page as a test needs it: its text, its tables, and what it would fetch."""

import json
import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Texts by element, addresses, and the rows of the tables of labels."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.raw = text
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._inside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.addresses += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v]
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, data):
        if not self._inside:
            self.words.append(data)

    @property
    def text(self) -> str:
        """The visible text, with runs of white space as one space."""
        return " ".join(" ".join(self.words).split())

    @property
    def label_rows(self) -> list:
        """The rows of each table of labels."""
        tables = re.findall(
            r'<script type="application/json" class="rows">(.*?)</script>', self.raw
        )
        return [json.loads(rows) for rows in tables]

    def with_class(self, name: str) -> list[dict[str, str | None]]:
        """Attributes of the elements of a class."""
        return [
            attributes
            for _, attributes in self.tags
            if name in (attributes.get("class") or "").split()
        ]
