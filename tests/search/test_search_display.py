"""Progress of searches and comparisons: a line for each tenth of a rung, and for each cell."""

from streammiml.search.cells import CellResult, MethodCell
from streammiml.search.comparison import CompareProgress
from streammiml.search.search_display import CompareDisplay, TuneDisplay
from streammiml.search.tune import TuneProgress


def test_tune_display__prints_a_line_for_each_tenth_of_a_rung(capsys):
    display = TuneDisplay()
    for done in range(41):
        display(TuneProgress(1, 3, done, 40, None if done < 4 else 0.25, "http://host/status"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["dashboard at http://host/status", "rung 2 of 3: 0 of 40 trials"]
    assert lines[2] == "rung 2 of 3: 4 of 40 trials, best ranking loss 0.2500"
    assert len(lines) == 12


def test_compare_display__prints_a_line_for_each_cell(capsys):
    display = CompareDisplay()
    cell, sizes = MethodCell("dba", 3), {"n_train": 20, "n_test": 10}
    times = {"choose_seconds": 1.0, "fit_seconds": 2.5, "score_seconds": 0.5}
    done = CellResult(cell=cell, figures={"ranking_loss": 0.125}, **times, **sizes)
    none = CellResult(cell=MethodCell("dba", 0, 20), state="not measured", reason="no", **sizes)
    display(CompareProgress(0, 9, None, None, "http://host/status"))
    display(CompareProgress(1, 9, "DBA", done, "http://host/status"))
    display(CompareProgress(2, 9, "DBA", none, "http://host/status"))
    assert capsys.readouterr().err.splitlines() == [
        "dashboard at http://host/status",
        "0 of 9 cells",
        "1 of 9 cells: DBA, split 3: ranking loss 0.1250, 4 s",
        "2 of 9 cells: DBA, split 0, 20 bags: N/A: no",
    ]
