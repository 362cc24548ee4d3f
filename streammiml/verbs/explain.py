"""``streammiml explain``: key instances and sub-concepts, as tables and pictures."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from rich.table import Table

from streammiml.bags.kept_columns import shown as shown_values
from streammiml.measure.score_display import ScoreDisplay
from streammiml.measure.scoring import DEFAULTS, ScoreOptions
from streammiml.tell.explain import explain as explain_model
from streammiml.verbs.options import (
    FLAT,
    AsJson,
    Coordinates,
    Flag,
    ImageSize,
    ModelPath,
    StorePath,
)
from streammiml.verbs.tables import print_table, table_of

# Number of labels in the readable table; explanation.json has all of them.
LABELS_SHOWN = 30
BAGS_SHOWN = 3


def explain(
    model: ModelPath,
    store: StorePath,
    out: str,
    /,
    *,
    typical: int = 10,
    image: ImageSize = None,
    coordinates: Coordinates = None,
    jsonl: Flag = False,
    json: AsJson = False,
    scoring: Annotated[ScoreOptions, FLAT] = DEFAULTS,
) -> None:
    """Write which rows gave each label its score, and which bags fall into each sub-concept.

    Parameters
    ----------
    out
        Folder for tables and images. After an interruption, the same command completes it.
    typical
        Number of bags listed for each sub-concept, the highest scores first.
    jsonl
        Also write the key instances of every bag as JSON lines, to OUT/bags.jsonl.
    """
    with ScoreDisplay() as display:
        explanation = explain_model(
            model,
            store,
            out,
            image=image,
            coordinates=coordinates,
            typical=typical,
            jsonl=jsonl,
            **asdict(scoring),
            watch=display,
        )
    if json:
        print(json_format.dumps(explanation))
        return
    print_table(readable(explanation))
    n_labels = len(explanation["labels"])
    if n_labels > LABELS_SHOWN:
        print(f"… {n_labels:,} labels in all; {out}/explanation.json has every one")


def readable(explanation: Mapping[str, Any]) -> Table:
    """A row for each sub-concept: its share of the bags, and its most typical bags and rows."""
    columns = ("label", "sub-concept", "bags", "share", "right", "most typical (bag:row)")
    table = table_of(columns, left=(columns[0], columns[-1]))
    for label in explanation["labels"][:LABELS_SHOWN]:
        name = str(label["label"] if label["name"] is None else label["name"])
        for concept in label["subconcepts"]:
            right = concept["n_bags_with_label"]
            shown = map(_place, concept["typical"][:BAGS_SHOWN])
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


def _place(typical: Mapping[str, Any]) -> str:
    """Bag and row, with the values of kept columns in parentheses."""
    kept = f" ({shown_values(typical['kept'])})" if "kept" in typical else ""
    return f"{typical['bag_id']}:{typical['row']}{kept}"
