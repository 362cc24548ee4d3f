"""Progress of a conversion in words."""

import re

import pyarrow as pa

import streammiml as sm
from streammiml._base import display
from streammiml_tools.convert.progress import ConvertProgress, ConvertShow, line


def far(**changes):
    fields = {"stage": "store", "bags": 300, "n_bytes": 50 << 20, "total_bytes": 200 << 20}
    return ConvertProgress(**{**fields, "seconds": 2.0, "bytes_before": 10 << 20, **changes})


def test_line__says_share_speed_and_time_left():
    # 40 MiB in 2 s by this process; 150 MiB are left.
    assert line(far()) == "writing the store: 25%, 150 bags/s, 21.0 MB/s, 8 s left"
    assert line(far(n_bytes=10 << 20)).endswith("0 s left")


def test_line__of_tasks_has_no_megabytes():
    assert (
        line(far(n_bytes=3, total_bytes=12, bytes_before=0))
        == "writing the store: 25%, 150 bags/s, 6 s left"
    )


def test_show__prints_lines_where_nobody_watches(monkeypatch, capsys):
    monkeypatch.setattr(display, "SHOW_SECONDS", 0.0)
    with ConvertShow() as show:
        show.warn("something")
        show(far())
    out, err = capsys.readouterr()
    assert not out
    assert re.search(r"streammiml: something\nwriting the store: 25%", err)


def test_convert__from_python_shows_its_progress_if_asked(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(display, "SHOW_SECONDS", 0.0)
    table = pa.table({"doc": ["a", "a", "b"], "x": [0.0, 1.0, 2.0], "topic": ["p", "p", "q"]})
    seen = []
    for progress in (False, True):
        store = tmp_path / f"{progress}.zarr"
        sm.convert(table, store, bag="doc", labels="topic", progress=progress, watch=seen.append)
        assert ("100%, " in capsys.readouterr().err) == progress
    assert len(seen) >= 2
