"""Tables lose nothing, in a pipe or in a narrow terminal."""

import re
from collections import Counter

import pytest

from streammiml.verbs.explain import readable as explained
from streammiml.verbs.tables import print_table, table_of
from streammiml.verbs.tune import readable as tuned

IDS = [f"a/long/path/to/recording-{i:04d}.wav" for i in range(3)]
NAMES = ["[sky] :smile: of a name that is longer than any column", "sea"]


def explanation():
    def concept(number):
        typical = [{"bag_id": name, "row": 7} for name in IDS]
        return {"subconcept": number, "n_bags": 1234, "share": 0.1, "n_bags_with_label": 617} | {
            "typical": typical
        }

    labels = [
        {"label": i, "name": name, "subconcepts": [concept(k) for k in range(10)]}
        for i, name in enumerate(NAMES)
    ]
    return {"labels": [{**label, "empty": list(range(10, 20))} for label in labels]}


def search():
    row = {f"a_setting_of_a_long_name_{i}": f"value {i}" for i in range(8)}
    row |= {"finished": True, "folds": 3, "standard_error": 0.001, "setting": 0}
    row |= dict.fromkeys(("ranking_loss", "hamming_loss", "average_precision"), 0.25)
    return {"table": [row]}


def squeezed(text):
    """Without spaces and line breaks, and without what colours a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m|\s", "", text)


def test_print_table__takes_the_width_it_needs_in_a_pipe(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    print_table(explained(explanation()))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 2 * 11
    assert sum(", ".join(f"{name}:7" for name in IDS) in line for line in lines) == 20
    assert lines[1].startswith(NAMES[0])
    assert ", ".join(map(str, range(10, 20))) in lines[11]
    print_table(tuned(search()))
    head, row = capsys.readouterr().out.splitlines()
    assert all(f"a_setting_of_a_long_name_{i}" in head for i in range(8))
    assert "0.2500 ± 0.0010" in row


@pytest.mark.parametrize("width", [30, 60])
def test_print_table__folds_into_a_terminal_and_loses_nothing(monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    table = table_of(["label", "bags", "typical"], left=["label", "typical"])
    table.add_row(NAMES[0], "1,234,567", ", ".join(IDS))
    print_table(table)
    text = capsys.readouterr().out
    assert "…" not in text
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in text.splitlines()) <= width
    cells = "".join(["label", "bags", "typical", NAMES[0], "1,234,567", ", ".join(IDS)])
    assert Counter(squeezed(text)) == Counter(squeezed(cells))
