"""The dry run finds what convert would refuse, and what it prints fits a screen."""

import json

import pytest

from streammiml.verbs.main import run
from streammiml_tools.convert.dry_run import (
    SAMPLED_SPANS,
    check_sample,
    check_targets,
    sampled_spans,
)
from streammiml_tools.convert.plan import ConvertConfig, new_plan
from streammiml_tools.convert.sources import find_sources
from streammiml_tools.readers.base import SourceError, SourceOptions
from tests.stores import made_block
from tests.tools.convert.cases import SMALL, said
from tests.tools.source_files import save_npz


def refused(tmp_path, capsys, source, *words):
    """What the dry run and convert itself say; both must refuse, and nothing may be written."""
    before = sorted(tmp_path.iterdir())
    words = ["convert", str(tmp_path / source), str(tmp_path / "x.zarr"), *words]
    assert run([*words, "--dry-run"]) == 2
    dry = said(capsys)[1]
    assert sorted(tmp_path.iterdir()) == before
    assert run(words) == 2
    assert dry == said(capsys)[1]
    return dry


def test_dry_run__row_labels_of_another_width_are_found(tmp_path, capsys):
    record = {"instances": [[1, 2], [3, 4]], "labels": ["a"], "instance_labels": ["a", "a", "a"]}
    (tmp_path / "d.jsonl").write_text(json.dumps(record) + "\n")
    assert "line 1: 'instance_labels' is 3 for 2 rows" in refused(tmp_path, capsys, "d.jsonl")


def test_dry_run__a_bad_cell_is_found(tmp_path, capsys):
    (tmp_path / "d.csv").write_text("bag,x,y,labels\na,1,2,p\nb,3,oh,q\n")
    assert "line 3: column 'y' is 'oh'" in refused(tmp_path, capsys, "d.csv")


def test_dry_run__mixed_feature_counts_are_found(tmp_path, capsys):
    lines = [{"instances": [[1, 2]], "labels": ["a"]}, {"instances": [[1, 2, 3]], "labels": ["a"]}]
    (tmp_path / "d.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "line 2" in refused(tmp_path, capsys, "d.jsonl")


def test_dry_run__ids_that_occur_twice_are_found(tmp_path, capsys):
    (tmp_path / "d.csv").write_text("bag,x,labels\na,1,p\nb,2,p\na,3,p\n")
    line = refused(tmp_path, capsys, "d.csv")
    assert "--group joins the rows of a bag" in line
    words = ["convert", str(tmp_path / "d.csv"), str(tmp_path / "x.zarr"), "--group", "--dry-run"]
    assert run(words) == 0


def test_dry_run__a_bag_that_the_table_of_labels_lacks_is_found(tmp_path, capsys):
    (tmp_path / "d.csv").write_text("bag,x\na,1\nb,2\n")
    (tmp_path / "t.csv").write_text("bag,sky\na,1\n")
    line = refused(tmp_path, capsys, "d.csv", "--bag-labels", str(tmp_path / "t.csv"))
    assert "bag 'b' not in" in line


def test_dry_run__a_value_that_the_dtype_does_not_hold_is_found_by_its_bag(tmp_path, capsys):
    (tmp_path / "d.csv").write_text("bag,x,labels\na,1,p\nb,300,p\n")
    assert "'b'" in refused(tmp_path, capsys, "d.csv", "--dtype", "uint8")
    record = json.dumps({"instances": [[300]], "labels": ["p"]})
    (tmp_path / "d.jsonl").write_text(f"{record.replace('300', '3')}\n{record}\n")
    assert "bag '1'" in refused(tmp_path, capsys, "d.jsonl", "--dtype", "uint8")


def test_dry_run__a_destination_that_convert_would_refuse_is_found(tmp_path, capsys):
    (tmp_path / "d.csv").write_text("bag,x,labels\na,1,p\n")
    (tmp_path / "x.zarr").mkdir()
    assert "x.zarr exists already" in refused(tmp_path, capsys, "d.csv")
    words = ["convert", str(tmp_path / "d.csv"), str(tmp_path / "none" / "x.zarr"), "--dry-run"]
    assert run(words) == 2
    assert "cannot be written: there is no folder" in said(capsys)[1]


def plan_of(tmp_path, n_bags, options=SMALL):
    source = save_npz(tmp_path / "d.npz", made_block(n_bags))
    files = find_sources([str(source)], options)
    return new_plan(files, str(tmp_path / "x.zarr"), ConvertConfig(), options, 1), files


def test_dry_run__says_how_much_was_checked(tmp_path, capsys):
    plan, files = plan_of(tmp_path, 40)
    assert len(plan.scan.spans) > SAMPLED_SPANS
    spans = sampled_spans(plan)
    assert (len(spans), spans[0], spans[-1]) == (SAMPLED_SPANS, 0, len(plan.scan.spans) - 1)
    sampled = check_sample(plan, files)
    assert not sampled.is_all
    assert 0 < sampled.n_bags < 40
    words = ["convert", str(tmp_path / "d.npz"), str(tmp_path / "x.zarr"), "--dry-run"]
    assert run(words) == 0
    assert said(capsys)[0].endswith("all 40 bags, without an error")
    assert run([*words, "--json"]) == 0
    facts = json.loads(said(capsys)[0])
    assert (facts["checked_bags"], facts["checked_all"]) == (40, True)
    check_targets(plan)


def test_sampled_spans__bags_that_no_message_could_name_are_left_out(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"instances": [[1]], "labels": ["a"]}\n' * 40)
    files = find_sources([str(tmp_path / "d.jsonl")], SMALL)
    plan = new_plan(files, str(tmp_path / "x.zarr"), ConvertConfig(), SMALL, 1)
    assert len(plan.scan.spans) > 1
    assert sampled_spans(plan) == [0]


def test_dry_run__300_names_fit_a_screen(tmp_path, capsys):
    names = [f"note_{i}_of_the_source" for i in range(300)]
    header = ",".join(["bag", "x", "labels", *names])
    cells = ",".join(["a", "1", "p", *["word"] * 300])
    (tmp_path / "d.csv").write_text(f"{header}\n{cells}\n")
    words = ["convert", str(tmp_path / "d.csv"), str(tmp_path / "x.zarr"), "--dry-run"]
    assert run(words) == 0
    out = said(capsys)[0]
    assert "(300 in all)" in out
    assert max(map(len, out.splitlines())) < 450
    assert len(out.splitlines()) < 30


def test_dry_run__300_files_of_no_format_fit_a_screen(tmp_path, capsys):
    (tmp_path / "d").mkdir()
    save_npz(tmp_path / "d" / "a.npz", made_block(4))
    for number in range(300):
        (tmp_path / "d" / f"{number}.md").write_text("words")
    words = ["convert", str(tmp_path / "d"), str(tmp_path / "x.zarr"), "--dry-run"]
    assert run(words) == 0
    out = said(capsys)[0]
    assert "and 290 more files" in out
    assert len(out.splitlines()) < 30


def test_check_sample__stops_where_its_bytes_are_used_up(tmp_path, monkeypatch):
    monkeypatch.setattr("streammiml_tools.convert.dry_run.SAMPLED_BYTES", 1)
    plan, files = plan_of(tmp_path, 40, SourceOptions())
    assert len(plan.scan.spans) == 1
    assert not check_sample(plan, files).is_all
    (tmp_path / "d.csv").write_text("bag,x,labels\na,1,p\na,2,q\n")
    with pytest.raises(SourceError):
        find_sources([str(tmp_path / "none.csv")], SourceOptions())
