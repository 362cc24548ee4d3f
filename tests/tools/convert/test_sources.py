"""Sources: which files a name stands for, and which reader takes them."""

import h5py
import numpy as np
import pyarrow as pa
import pytest

from streammiml.errors import StreammimlError
from streammiml_tools.convert import convert
from streammiml_tools.convert.plan import work_folder
from streammiml_tools.convert.sources import find_sources
from streammiml_tools.readers.base import SourceError, SourceOptions
from tests.stores import (
    made_block,
    plain,
)
from tests.tools.source_files import save_npz


def test_sources__named_twice_are_refused_whatever_they_are_called(source, tmp_path):
    again = tmp_path / "again.zarr"
    again.symlink_to(source)
    with pytest.raises(
        SourceError, match=r"again.zarr is named twice, also as .*source.zarr; name"
    ):
        convert([source, again], tmp_path / "out.zarr")
    with pytest.raises(SourceError, match=r"source.zarr is named twice; name it once$"):
        convert([source, source], tmp_path / "out.zarr")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", r"a.jsonl is empty$"),
        ("a.json", b' \n[{"id": 1}]', r"a.json is one JSON array; convert reads JSON lines: jq -c"),
        (
            "images",
            b"\0\0\x08\x03",
            r"images is an idx file; python -m streammiml_tools.mnist makes",
        ),
    ],
)
def test_sources__that_are_known_not_to_be_read__say_what_to_do(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        convert(tmp_path / name, tmp_path / "out.zarr")


def test_sources__by_glob_folder_and_format(tmp_path):
    block = plain(made_block(6))
    save_npz(tmp_path / "data.npz", block)
    (tmp_path / "folder").mkdir()
    save_npz(tmp_path / "folder" / "data.npz", block)
    (tmp_path / "folder" / "README.md").write_text("words")
    want = convert(tmp_path / "data.npz", tmp_path / "a.zarr").store.fingerprint
    for i, named in enumerate(("dat*.npz", "folder", "folder/*.npz")):
        assert convert(str(tmp_path / named), tmp_path / f"{i}.zarr").store.fingerprint == want
    (tmp_path / "data.bin").write_bytes((tmp_path / "data.npz").read_bytes())
    with pytest.raises(
        SourceError, match=r"data\.bin is of no known format; give --format, one of arff"
    ):
        convert(tmp_path / "data.bin", tmp_path / "b.zarr")
    options = SourceOptions(format="npz")
    assert convert(tmp_path / "data.bin", tmp_path / "b.zarr", options=options).store.n_bags == 6


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("none.npz", r"none\.npz does not exist"),
        ("none*.npz", r"none\*\.npz matches no file"),
        ("empty", r"empty is a folder without files"),
        ("words", r"words: no file of a known format; known: .*npz"),
    ],
)
def test_sources__that_are_not_there__are_refused(tmp_path, named, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "README.md").write_text("words")
    with pytest.raises(SourceError, match=message):
        convert(str(tmp_path / named), tmp_path / "out.zarr")
    assert not work_folder(str(tmp_path / "out.zarr")).exists()


def test_sources__of_two_formats__are_refused(tmp_path, source):
    save_npz(tmp_path / "data.npz", plain(made_block(3)))
    with pytest.raises(
        SourceError, match=r"data\.npz is npz, but .*source\.zarr is store; convert"
    ):
        convert([tmp_path / "data.npz", source], tmp_path / "out.zarr")
    with pytest.raises(StreammimlError, match="no format is called 'xyz'; known:"):
        convert(source, tmp_path / "out.zarr", options=SourceOptions(format="xyz"))
    with pytest.raises(SourceError, match="no source was named"):
        convert([], tmp_path / "out.zarr")


def test_folder__of_save_to_disk_needs_no_format(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "state.json").write_text("{}")
    (folder / "dataset_info.json").write_text("{}")
    table = pa.table(
        {"id": ["a", "b"], "patches": [[[1.0, 2.0]], [[3.0, 4.0]]], "labels": [[0], [1]]}
    )
    for number in range(2):
        part = table.slice(number, 1)
        path = folder / f"data-0000{number}-of-00002.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, part.schema) as writer:
            writer.write_table(part)
    assert convert(folder, tmp_path / "o.zarr").store.bag_ids(0, 2) == ["a", "b"]
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["data"]}')
    with pytest.raises(
        SourceError, match=r"holds several data sets; name one of them: data, o\.zarr"
    ):
        convert(tmp_path, tmp_path / "p.zarr")


def write_slides(folder, suffix, n_bags=3):
    folder.mkdir()
    for number in range(n_bags):
        path, rows = folder / f"s{number}.{suffix}", np.full((2, 3), number, np.float32)
        if suffix == "h5":
            with h5py.File(path, "w") as file:
                file["features"], file["coords"] = rows, np.zeros((2, 2), int)
        elif suffix == "npy":
            np.save(path, rows)
        else:
            np.savez(path, features=rows, coords=np.zeros((2, 2), int))
    return folder


@pytest.mark.parametrize("suffix", ["h5", "npy", "npz"])
def test_slides__without_labels_are_told_by_their_arrays(tmp_path, suffix):
    folder = write_slides(tmp_path / "new", suffix)
    (folder / "readme.csv").write_text("who,when\nme,now\n")
    with pytest.raises(
        SourceError,
        match=r"new: each of 3 files holds the rows of one bag, without labels; give their table "
        r"as --bag-labels FILE, or --label-columns none",
    ):
        convert(folder, tmp_path / "o.zarr")
    options = SourceOptions(label_columns=("none",))
    store = convert(folder, tmp_path / "o.zarr", options=options).store
    assert (store.bag_ids(0, 3), store.n_labels) == (["s0", "s1", "s2"], 0)
    one = convert(folder / f"s1.{suffix}", tmp_path / "p.zarr", options=options).store
    assert (one.bag_ids(0, 1), one[0].rows.tolist()) == (["s1"], [[1.0] * 3] * 2)
    matches = find_sources([str(folder / "s*")], options)
    assert (matches.reader.name, len(matches.paths)) == ("files", 3)


@pytest.mark.parametrize("suffix", ["h5", "npy", "npz"])
def test_slide__alone_has_its_labels_in_the_table(tmp_path, suffix):
    path = write_slides(tmp_path / "new", suffix) / f"s1.{suffix}"
    (tmp_path / "l.csv").write_text("slide_id,label\ns0,a\ns1,b\n")
    options = SourceOptions(bag_labels=str(tmp_path / "l.csv"))
    store = convert(path, tmp_path / "o.zarr", options=options).store
    assert (store.bag_ids(0, 1), store.label_names) == (["s1"], ["a", "b"])


def test_corpora__are_not_taken_for_bags(tmp_path):
    rows, rows_of_bags = np.zeros((6, 2), np.float32), np.zeros((3, 2, 2), np.float32)
    labels = {"label_indptr": np.arange(4), "label_indices": np.zeros(3, int)}
    corpora = {
        "offsets": {"instances": rows, "offsets": np.arange(0, 7, 2), **labels},
        "blocks": {"X": rows_of_bags, "Y": np.ones((3, 1), int)},
    }
    none = SourceOptions(label_columns=("none",))
    for name, arrays in corpora.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for key, values in arrays.items():
                file[key] = values
        for options in (SourceOptions(), none):
            found = [find_sources([str(tmp_path / f"{name}.{s}")], options) for s in ("npz", "h5")]
            assert [sources.reader.name for sources in found] == ["npz", "hdf5"]
    folder = tmp_path / "flat"
    folder.mkdir()
    for key, values in corpora["offsets"].items():
        np.save(folder / f"{key}.npy", values)
    assert find_sources([str(folder)], none).reader.name == "npz"
    paths = [str(path) for path in folder.glob("*.npy")]
    assert find_sources(paths, none).reader.name == "npz"
    with h5py.File(tmp_path / "groups.h5", "w") as file:
        file["a/instances"], file["a/labels"] = rows, [0]
    assert find_sources([str(tmp_path / "groups.h5")], none).reader.name == "hdf5"
