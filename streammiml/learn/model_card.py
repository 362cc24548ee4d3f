"""The model card: a page of Markdown beside the model, for people who get the model from others.

It says which data the model was trained on, with which settings and why, how good it was on bags
that were held out, and what it cannot do. It has no time, host or path, so equal runs have equal
cards. Nothing reads a card: a run whose card is damaged or deleted writes it again when it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml._base.atomic import save_whole
from streammiml.bags.views import Bags
from streammiml.learn.begin import Ready
from streammiml.learn.run_folder import choice_reasons
from streammiml.learn.threshold import BINS_OF_ONE, LARGEST
from streammiml.learn.trained_model import label_rule, returned_weights
from streammiml.learn.validation import AllWeights
from streammiml.model import MODEL_FILE, Model
from streammiml.scorer import weights_of

I64 = NDArray[np.int64]

CARD_FILE = "model-card.md"
LABELS_SHOWN = 200
"""Most labels in the table of labels; those that most bags carry come first."""
FEW_BAGS = 10
"""Labels that fewer bags carry are named as rare."""
NAMED = 20
"""Most labels that a sentence names."""
_BAGS_AT_ONCE = 65536
_SPECIAL = "\\`*_{}[]()<>#+!|~&$"


def write_card(ready: Ready, model: Model, run: Path) -> None:
    """Write the card of a finished run into its folder, replacing an earlier one."""
    text = "\n".join(_lines(ready, model, choice_reasons(run))) + "\n"
    save_whole(run / CARD_FILE, [text.encode("utf-8", "backslashreplace")])


def _lines(ready: Ready, model: Model, reasons: list[str]) -> Iterator[str]:
    support, n_without = _support(ready.store)
    yield "# Model card"
    yield ""
    yield (
        f"A MIMLfast model in `{MODEL_FILE}`: it predicts the labels of a bag of rows, and which "
        "row shows each label. `streammiml predict` and `sm.predict` use it."
    )
    yield ""
    space = (
        f"{model.shared_dim:,} shared dimensions" if model.has_shared_space else "no shared space"
    )
    restarts = []
    if model.restarts > 1:
        restarts = [("restarts", f"{model.restarts:,}, whose row scores are averaged")]
    yield from _table(
        ("model", ""),
        [
            ("fingerprint of the model", model.fingerprint),
            ("features of a row", f"{model.n_features:,}, lifted to {model.n_lifted:,}"),
            ("labels", f"{model.n_labels:,}"),
            ("weights", f"{model.subconcepts:,} sub-concepts for each label, {space}"),
            *restarts,
            ("predicted labels", _rule_in_words(model)),
            ("probabilities", _probabilities_in_words(ready, model)),
        ],
    )
    yield from _data_lines(ready, model, support, n_without)
    yield from _setting_lines(model.settings, reasons)
    yield from _figure_lines(ready, model)
    yield from _limit_lines(ready, model, support)


def _data_lines(ready: Ready, model: Model, support: I64, n_without: int) -> Iterator[str]:
    store, validation = ready.store, ready.plan.validation
    held_out = "none"
    if validation is not None:
        is_own = validation.store is store
        held_out = f"{len(validation.bags):,}, {'of these' if is_own else 'of another store'}"
    kind = "sparse" if store.sparse else "dense"
    yield from ("", "## Data", "")
    yield from _table(
        ("data", ""),
        [
            ("bags", f"{store.n_bags:,}"),
            ("bags held out", held_out),
            ("rows", f"{store.n_rows:,}, {kind} {store.dtype}"),
            ("labels per bag", f"{store.n_label_entries / store.n_bags:.2f}"),
            ("bags without a label", f"{n_without:,}"),
            *((name.replace("_", " "), value) for name, value in _fingerprints(ready.fingerprints)),
        ],
    )
    order = np.argsort(-support, kind="stable")[:LABELS_SHOWN]
    yield ""
    yield from _table(
        ("label", "bags that carry it"),
        [(_name(model, label), f"{int(support[label]):,}") for label in order.tolist()],
    )
    if len(support) > LABELS_SHOWN:
        yield ""
        yield f"{len(support) - LABELS_SHOWN:,} more labels are carried by fewer bags."


def _fingerprints(entries: Mapping[str, Any]) -> list[tuple[str, str]]:
    names = {"fingerprint": "fingerprint of the store"}
    found = [(names.get(name, name), str(entries[name])) for name in entries if name != "sparse"]
    return [(name, value) for name, value in found if value != "None"]


def _setting_lines(settings: Mapping[str, Any], reasons: list[str]) -> Iterator[str]:
    yield from ("", "## Settings", "")
    if reasons:
        yield "Trials before the training chose some of the settings:"
        yield ""
        yield from (f"- {_escaped(reason)}" for reason in reasons)
        yield ""
    known = [(name, value) for name, value in sorted(settings.items()) if value is not None]
    yield from _table(("setting", "value"), [(name, str(value)) for name, value in known])


def _figure_lines(ready: Ready, model: Model) -> Iterator[str]:
    yield from ("", "## Figures", "")
    at, validation = ready.state.at, ready.plan.validation
    of_first = " of the first restart" if model.restarts > 1 else ""
    rows = [(f"steps of the training{of_first}", f"{at.step:,}")]
    if validation is None:
        yield from _table(("figure", ""), rows)
        yield ""
        yield (
            "The run held out no bags. `streammiml evaluate` measures the model on bags that it "
            "was not trained on."
        )
        return
    rows.append((f"steps of the returned weights{of_first}", f"{at.best_step:,}"))
    if at.best_loss is not None:
        rows.append((f"ranking loss{of_first}", f"{at.best_loss:.4f}"))
    if model.rule.name == "dummy":
        rows += _figures_of_predictions(ready, model)
    yield f"On the {len(validation.bags):,} bags held out:"
    yield ""
    yield from _table(("figure", ""), rows)
    yield ""
    yield (
        "Early stopping chose the weights by the ranking loss on these bags, so the figures are "
        "slightly too good. `streammiml evaluate` measures the model on other bags."
    )


def _figures_of_predictions(ready: Ready, model: Model) -> list[tuple[str, str]]:
    """Hamming loss, and micro-averaged precision, recall and F1, from counts of margins."""
    validation, deadline = ready.plan.validation, ready.plan.budget.read.deadline
    assert validation is not None, "the caller has asked"
    min_labels = label_rule(ready.store, ready.config).min_labels
    weights: AllWeights = returned_weights(ready)
    if model.restarts > 1:
        weights = weights_of(model)
    counts = validation.counts(ready.state.lift, weights, deadline, min_labels)
    place = round((model.rule.offset + LARGEST) * BINS_OF_ONE)
    wrong, right = counts[:, place + 1 :].sum(axis=1).tolist()
    relevant, pairs = int(counts[1].sum()), int(counts.sum())
    figures = {
        "Hamming loss": (wrong + relevant - right) / pairs,
        "micro precision": right / max(1, wrong + right),
        "micro recall": right / max(1, relevant),
        "micro F1": 2 * right / max(1, wrong + right + relevant),
    }
    return [(name, f"{value:.4f}") for name, value in figures.items()]


def _limit_lines(ready: Ready, model: Model, support: I64) -> Iterator[str]:
    yield from ("", "## Limits", "")
    yield (
        f"- Rows must have the same {model.n_features:,} features, made in the same way, as those "
        "of the training. Bags of another source may have other scores."
    )
    if model.calibration is None:
        yield "- Scores order the labels of a bag. They are not probabilities."
    else:
        yield (
            "- Probabilities hold for bags like those of the training, with as many bags of each "
            "label."
        )
    for condition, text in (
        (support == 0, "No bag carries these labels, so the model knows nothing of them"),
        ((support > 0) & (support < FEW_BAGS), f"Fewer than {FEW_BAGS} bags carry these labels"),
    ):
        labels = np.flatnonzero(condition)
        if len(labels):
            names = ", ".join(_name(model, label) for label in labels[:NAMED].tolist())
            more = f" and {len(labels) - NAMED:,} more" if len(labels) > NAMED else ""
            yield f"- {text}: {names}{more}."
    if model.lift.context:
        yield (
            "- The lift adds features of the whole bag to each of its rows, so key instances are "
            "less exact."
        )
    if ready.config.threads > 1:
        yield "- Several threads trained the model, so the same training gives other weights."
    yield (
        "- Labels of the training bags are taken as complete: a label that people forgot counts "
        "as absent."
    )


def _rule_in_words(model: Model) -> str:
    rule = model.rule
    words = {
        "dummy": "those above the dummy label's score",
        "margin": "those above the dummy label's score minus 1",
        "top-r": f"the {max(rule.r, rule.min_labels):,} with the highest scores",
    }[rule.name]
    if rule.offset:
        words += f", to which {rule.offset:g} is added"
    if rule.min_labels and rule.name != "top-r":
        words += f"; at least {rule.min_labels:,}"
    return words


def _probabilities_in_words(ready: Ready, model: Model) -> str:
    if model.calibration is None:
        return "none"
    n_isotonic = model.calibration.n_isotonic
    kinds = {"isotonic regression": n_isotonic, "Platt's method": model.n_labels - n_isotonic}
    parts = [f"{kind} for {count:,} labels" for kind, count in kinds.items() if count]
    bags = "folds of the training bags" if ready.plan.validation is None else "the held-out bags"
    return f"{', '.join(parts)}, fitted on {bags}"


def _support(store: Bags) -> tuple[I64, int]:
    """(L,) Number of bags that carry each label, and the number of bags without a label."""
    support, n_without = np.zeros(store.n_labels, np.int64), 0
    for start in range(0, store.n_bags, _BAGS_AT_ONCE):
        offsets, labels = store.labels(start, min(start + _BAGS_AT_ONCE, store.n_bags))
        support += np.bincount(labels, minlength=store.n_labels)
        n_without += int((np.diff(offsets) == 0).sum())
    return support, n_without


def _name(model: Model, label: int) -> str:
    return str(label) if model.label_names is None else _escaped(model.label_names[label])


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> Iterator[str]:
    yield f"| {head[0]} | {head[1]} |"
    yield "|---|---|"
    for name, value in rows:
        yield f"| {name} | {value} |"


def _escaped(text: str) -> str:
    """Text on one line that Markdown shows as it is; HTML has no effect."""
    line = " ".join(text.split())
    return "".join(f"\\{char}" if char in _SPECIAL else char for char in line)
