"""Progress of scoring: bags that are done, and the time left."""

import time

from streammiml._base import display as displays
from streammiml.measure.evaluate import evaluate
from streammiml.measure.predict import predict
from streammiml.measure.score_display import ScoreDisplay
from streammiml.measure.scoring import ScoreProgress
from tests.measure.models import made_model
from tests.planted import planted
from tests.stores import write_store


def test_score_display__elsewhere_than_on_a_terminal_names_only_the_dashboard(capsys):
    with ScoreDisplay() as display:
        display(ScoreProgress(0, 10, None))
        display(ScoreProgress(5, 10, "http://host/status"))
        display(ScoreProgress(10, 10, "http://host/status"))
    assert capsys.readouterr() == ("", "dashboard at http://host/status\n")


def test_score_display__prints_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr(displays, "SHOW_SECONDS", 0.0)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with ScoreDisplay() as display:
        display(ScoreProgress(1000, 5000, None))
        now[0] += 30
        display(ScoreProgress(2000, 5000, None))
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["1,000 of 5,000 bags", "2,000 of 5,000 bags, 90 s left"]


def test_calls__show_their_progress_if_asked(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(displays, "SHOW_SECONDS", 0.0)
    store = write_store(tmp_path / "s.zarr", planted(60))
    model = made_model(store.n_features, store.n_labels)
    evaluate(model, store)
    assert capsys.readouterr().err == ""
    evaluate(model, store, progress=True)
    assert capsys.readouterr().err.endswith("60 of 60 bags, 0 s left\n")
    seen = []
    predict(model, store, tmp_path / "out", progress=True, watch=seen.append)
    assert capsys.readouterr().err.endswith("60 of 60 bags, 0 s left\n")
    assert seen[-1].bags_done == 60
