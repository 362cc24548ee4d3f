"""The pages of the guide, which the package carries as Markdown files."""

from __future__ import annotations

from importlib.resources import files

from streammiml.errors import unknown

PAGES = {
    **{
        name: f"guide/{name}.md"
        for name in (
            "start",
            "convert",
            "formats",
            "slides",
            "videos",
            "tables",
            "buckets",
            "text",
            "stores",
            "train",
            "tune",
            "evaluate",
            "calibrate",
            "predict",
            "report",
            "clusters",
            "library",
            "estimator",
            "loader",
            "figures",
            "others",
            "trouble",
            "glossary",
        )
    },
    "format": "bags/FORMAT.md",
    "security": "SECURITY.md",
    "architecture": "ARCHITECTURE.md",
}
"""File of each page below the package, in the order of a user's week."""


def guide(topic: str) -> str:
    """Return the Markdown text of a page of the guide.

    >>> from streammiml.tell.guide import guide
    >>> guide("stores").splitlines()[0]
    '# What a store is'
    """
    if topic not in PAGES:
        raise unknown("page of the guide", topic, PAGES)
    return files("streammiml").joinpath(PAGES[topic]).read_text(encoding="utf-8")


def title(topic: str) -> str:
    """Return the heading of a page."""
    return guide(topic).partition("\n")[0].removeprefix("# ")
