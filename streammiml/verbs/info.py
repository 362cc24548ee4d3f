"""``streammiml info``: a description of a store."""

from __future__ import annotations

import json as json_format
from typing import Any

from streammiml.bags.store import open_one
from streammiml.bags.summary import describe
from streammiml.verbs.options import AsJson, StorePath


def info(store: StorePath, /, *, json: AsJson = False) -> None:
    """Print the counts, types and names of a store; no rows are read."""
    facts = describe(open_one(store))
    if json:
        print(json_format.dumps(facts))
        return
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<16} {_readable(value)}")


def _readable(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.3f}"
        case list():
            more = f", … ({len(value):,} in all)" if len(value) > 12 else ""
            return ", ".join(map(str, value[:12])) + more
    return str(value)
