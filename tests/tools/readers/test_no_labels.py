"""Sources whose bags have no labels, or whose labels are not wanted: ``--label-columns none``."""

import json

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streammiml as sm
from streammiml.verbs.main import run
from streammiml_tools.readers import reader_of
from streammiml_tools.readers.base import SourceError, SourceOptions
from tests.measure.models import made_model
from tests.tools.readers.foreign import DATA, dense_rows, read_all

IDS = ("a", "b", "c")
SIZES = (2, 1, 3)
ROWS = np.arange(1, 19, dtype=np.float32).reshape(6, 3)
OF_ROW = np.repeat(np.arange(3), SIZES)
LABELS = (["sky"], ["sea", "sky"], [])
FORMATS = ("csv", "jsonl", "long.parquet", "nested.parquet", "npz", "flat.h5", "groups.h5", "svm")


def write(folder, form, labelled):
    """The same three bags in any form, with labels of bags and rows or without."""
    path = folder / f"bags.{form}"
    bags = np.split(ROWS, np.cumsum(SIZES)[:-1])
    numbers = [[("sea", "sky").index(name) for name in bag_labels] for bag_labels in LABELS]
    if form == "csv":
        names = "bag,x,y,z" + ",label_sea,label_sky,row_label" * labelled
        lines = []
        for bag, row in zip(OF_ROW, ROWS, strict=True):
            marks = [int(name in LABELS[bag]) for name in ("sea", "sky")]
            lines.append([IDS[bag], *row, *([*marks, -1] if labelled else [])])
        path.write_text("\n".join([names, *(",".join(map(str, line)) for line in lines)]) + "\n")
    elif form == "jsonl":
        records = []
        for name, rows, labels in zip(IDS, bags, LABELS, strict=True):
            labelling = {"labels": labels, "instance_labels": [None] * len(rows)}
            records.append(
                {"id": name, "instances": rows.tolist(), **(labelling if labelled else {})}
            )
        path.write_text("".join(json.dumps(one) + "\n" for one in records))
    elif form == "long.parquet":
        columns = {"bag": [IDS[i] for i in OF_ROW], "x": ROWS[:, 0], "y": ROWS[:, 1]}
        columns |= {"z": ROWS[:, 2]}
        if labelled:
            columns["label_sea"] = [int("sea" in LABELS[i]) for i in OF_ROW]
        pq.write_table(pa.table(columns), path)
    elif form == "nested.parquet":
        columns = {"bag_id": IDS, "instances": [rows.tolist() for rows in bags]}
        pq.write_table(pa.table(columns | ({"labels": LABELS} if labelled else {})), path)
    elif form in ("npz", "flat.h5"):
        arrays = {"instances": ROWS, "offsets": np.cumsum([0, *SIZES])}
        if labelled:
            arrays["targets"] = np.array([[0, 1], [1, 1], [0, 0]])
        if form == "npz":
            np.savez(path, **arrays, bag_ids=np.array(IDS))
        else:
            with h5py.File(path, "w") as file:
                for name, array in (arrays | {"bag_ids": [one.encode() for one in IDS]}).items():
                    file[name] = array
    elif form == "groups.h5":
        with h5py.File(path, "w") as file:
            for name, rows, indices in zip(IDS, bags, numbers, strict=True):
                file[f"{name}/instances"] = rows
                if labelled:
                    file[f"{name}/labels"] = np.array(indices, np.int64)
    else:
        lines = []
        for bag, row in zip(OF_ROW, ROWS, strict=True):
            prefix = ",".join(map(str, numbers[bag])) + " " if labelled else ""
            pairs = " ".join(f"{i + 1}:{value}" for i, value in enumerate(row))
            lines.append(f"{prefix}qid:{IDS[bag]} {pairs}\n")
        path.write_text("".join(lines))
    return path


def reader_for(form):
    called = {"svm": "svmlight", "npz": "npz", "csv": "csv", "jsonl": "jsonl"}
    name = called.get(form, "arrow" if form.endswith("parquet") else "hdf5")
    return reader_of(name)


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("form", FORMATS)
def test_none__gives_the_same_bags_without_labels(tmp_path, form, labelled):
    path, reader = write(tmp_path, form, labelled), reader_for(form)
    scan, block = read_all(reader, path, label_columns=("none",))
    np.testing.assert_array_equal(dense_rows(block), ROWS)
    assert np.diff(block.bag_offsets).tolist() == list(SIZES)
    assert block.bag_ids == list(IDS)
    assert (block.label_offsets.tolist(), len(block.label_indices)) == ([0] * 4, 0)
    assert (scan.label_names, scan.n_labels, scan.row_labels) == (None, None, False)
    assert block.row_labels is None
    named = read_all(reader, path, label_columns=("none",), labels=("sea", "sky", "sun"))
    assert named[0].label_names == ("sea", "sky", "sun")
    assert not len(named[1].label_indices)


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "svm"])
def test_labels__that_are_missing_are_refused_with_what_to_say(tmp_path, form):
    path = write(tmp_path, form, labelled=False)
    with pytest.raises(SourceError, match=r"--label-columns.* none"):
        reader_for(form).scan([path], SourceOptions())


def test_none__of_mimllearning_leaves_its_marks_out(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("2\nid,x,y,sea,sky\na,1,2,0,1\na,3,4,0,1\n")
    scan, block = read_all(reader_for("csv"), path, label_columns=("none",))
    assert (scan.n_features, block.rows.tolist()) == (2, [[1, 2], [3, 4]])
    assert not len(block.label_indices)


def test_none__and_labels_of_rows_contradict_each_other():
    with pytest.raises(
        sm.StreammimlError, match=r"^--label-columns none leaves labels out, but --r"
    ):
        SourceOptions(label_columns=("none",), row_label_column="y")


def test_none__is_refused_by_formats_that_always_have_labels(tmp_path, capsys):
    arff = next((DATA / "readers").rglob("*.arff"))
    words = ["convert", str(arff), str(tmp_path / "x.zarr"), "--label-columns", "none"]
    assert run(words) == 2
    assert (
        "labels are part of arff files; leave out --label-columns none" in capsys.readouterr().err
    )


def test_none__bags_to_predict_go_all_the_way(tmp_path, capsys):
    source, store = write(tmp_path, "csv", labelled=False), str(tmp_path / "x.zarr")
    assert run(["convert", str(source), store, "--label-columns", "none"]) == 0
    assert run(["verify", store, "--source", str(source), "--label-columns", "none"]) == 0
    made_model().save(tmp_path / "model.safetensors")
    summary = sm.predict(tmp_path / "model.safetensors", store, tmp_path / "out")
    assert summary["n_bags"] == 3
    capsys.readouterr()
    assert run(["evaluate", str(tmp_path / "model.safetensors"), store]) == 2
    assert "has no labels to compare predictions with" in capsys.readouterr().err
    assert run(["train", store, str(tmp_path / "run")]) == 2
    assert "label" in capsys.readouterr().err
