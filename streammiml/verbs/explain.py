"""``streammiml explain``: key instances and sub-concepts, as tables and pictures."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from streammiml.tell.explain import explain as explain_model
from streammiml.verbs.pool import PoolOptions, given
from streammiml.verbs.show import Show
from streammiml.verbs.tables import print_table, table_of

# Labels that the readable table shows; explanation.json has all of them.
LABELS_SHOWN = 30
BAGS_SHOWN = 3


def explain(
    model: str,
    store: str,
    out: str,
    /,
    *,
    typical: int = 10,
    image: str | None = None,
    jsonl: Annotated[bool, Parameter(negative="")] = False,
    json: bool = False,
    pool: Annotated[PoolOptions | None, Parameter(name="*")] = None,
) -> None:
    """Say which rows made each label fire, and what falls into each sub-concept.

    Parameters
    ----------
    model
        Run folder or model file.
    store
        Folder or URL.
    out
        Folder for tables and pictures.
    typical
        Bags named for each sub-concept, those of the highest scores.
    image
        Rows are images of this size, 28x28 or 32x32x3: draw contact sheets.
    jsonl
        Write the key instances of every bag as JSON lines too, in OUT/bags.jsonl.
    json
        Print everything as one JSON object, for machines.
    """
    with Show() as show:
        said = explain_model(
            model,
            store,
            out,
            image=image,
            typical=typical,
            jsonl=jsonl,
            **given(pool),
            watch=show,
        )
    if json:
        print(json_format.dumps(said))
        return
    print_table(readable(said))
    if len(said["labels"]) > LABELS_SHOWN:
        print(f"… {len(said['labels']):,} labels in all; {out}/explanation.json has every one")


def readable(said: Mapping[str, Any]) -> Table:
    """A line a sub-concept: its share, and the bags and rows most typical of it."""
    columns = ("label", "sub-concept", "bags", "share", "right", "most typical (bag:row)")
    table = table_of(columns, left=(columns[0], columns[-1]))
    for label in said["labels"][:LABELS_SHOWN]:
        name = str(label["label"] if label["name"] is None else label["name"])
        for concept in label["subconcepts"]:
            right = concept["n_bags_with_label"]
            shown = (f"{each['bag_id']}:{each['row']}" for each in concept["typical"][:BAGS_SHOWN])
            table.add_row(
                name,
                str(concept["subconcept"]),
                f"{concept['n_bags']:,}",
                f"{concept['share']:.1%}",
                "" if right is None else f"{right / concept['n_bags']:.1%}",
                ", ".join(shown),
            )
            name = ""
        if label["empty"]:
            table.add_row(name, "empty:", "", "", "", ", ".join(map(str, label["empty"])))
    return table
