"""convert to and from URLs, against a server that the tests start themselves."""

import gzip
import shutil
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streammiml as sm
from streammiml.errors import StoreError, StreammimlError
from streammiml_tools.convert import convert
from streammiml_tools.convert.compare import compare
from streammiml_tools.convert.export import export
from streammiml_tools.convert.label_file import label_names_in
from streammiml_tools.convert.plan import ConvertConfig
from streammiml_tools.convert.sources import records_of
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.remote_files import MOST_WINDOW, forget_files, source_path
from tests.remote_servers import http_server
from tests.stores import made_block
from tests.tools.convert.cases import stop_at_once
from tests.tools.readers import tf_messages as tf
from tests.tools.readers.foreign import DATA
from tests.tools.readers.tar_files import write_tar
from tests.tools.source_files import arrays_of, bags_of, save_npz

obstore = pytest.importorskip("obstore")
from_url = pytest.importorskip("obstore.store").from_url

SMALL = SourceOptions(span_bytes=256)


def test_url__is_written_read_and_compared(s3, tmp_path, backend):
    source = save_npz(tmp_path / "d.npz", made_block(30))
    local = convert(source, tmp_path / "local.zarr").store
    far = convert(source, f"{s3}/far.{backend}", options=SMALL).store
    assert far.fingerprint == local.fingerprint
    assert not list((tmp_path / "tmp").glob("*/*"))
    assert compare(f"{s3}/far.{backend}", source).is_same
    back = convert(f"{s3}/far.{backend}", tmp_path / "back.zarr").store
    assert list(bags_of(back)) == list(bags_of(local))
    with pytest.raises(StoreError, match=rf"far\.{backend} exists already"):
        convert(source, f"{s3}/far.{backend}", options=SMALL)


def test_url__can_be_split_and_gone_on_with(s3, tmp_path, backend):
    source = save_npz(tmp_path / "d.npz", made_block(30))
    settings = ConvertConfig(split="a=.5,b=.5", shuffle=True)

    def stop(progress):
        if progress.stage == "store":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, f"{s3}/c.{backend}", settings, SMALL, watch=stop)
    convert(source, f"{s3}/c.{backend}", settings, SMALL)
    convert(source, tmp_path / f"c.{backend}", settings, SMALL)
    for name in "ab":
        far, near = f"{s3}/c-{name}.{backend}", tmp_path / f"c-{name}.{backend}"
        assert sm.open_store(far).fingerprint == sm.open_store(near).fingerprint


# Files under URLs as sources.


def put(s3, name, path):
    obstore.put(from_url(s3), name, path.read_bytes())
    return f"{s3}/{name}"


def write_sources(folder):
    """The same bags in each format that streams, and how each is read."""
    block = made_block(60)
    save_npz(folder / "d.npz", block)
    np.savez_compressed(folder / "packed.npz", **arrays_of(block))
    store = convert(folder / "d.npz", folder / "d.zarr").store
    export(store, folder / "d.jsonl.gz")
    export(store, folder / "d.jsonl")
    export(store, folder / "d.csv")
    export(store, folder / "d.csv.zst")
    rows, records = store.read(0, 60), []
    for bag in range(60):
        own = rows.rows[rows.bag_offsets[bag] : rows.bag_offsets[bag + 1]]
        labels = rows.labels_of(bag).tolist()
        records.append({"id": store.bag_ids(bag, bag + 1)[0], "instances": own.tolist(),
                        "labels": labels})  # fmt: skip
    table = pa.Table.from_pylist(records)
    pq.write_table(table, folder / "d.parquet", row_group_size=7)
    with (
        pa.OSFile(str(folder / "d.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=7)
    messages = [
        tf.sequence(
            {"id": record["id"].encode(), "labels": record["labels"] or [0]},
            {"rgb": [np.array(row, "<f4") for row in record["instances"]]},
        )
        for record in records
    ]
    tf.write(folder / "d.tfrecord", messages)
    members = {}
    for record in records:
        rows = np.array(record["instances"], np.float32)
        members |= {
            f"{record['id']}.npy": rows,
            f"{record['id']}.json": {"labels": record["labels"]},
        }
    write_tar(folder / "d.tar", members)
    write_tar(folder / "d.tgz", members)


FORMATS = ["d.npz", "packed.npz", "d.jsonl.gz", "d.jsonl", "d.csv", "d.csv.zst", "d.parquet"]
FORMATS += ["d.arrow", "d.tfrecord", "d.tar", "d.tgz"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_sources(folder)
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_source__under_a_url_gives_the_store_of_the_file(s3, files, tmp_path, name):
    # A header of tar alone has 512 bytes.
    options = SourceOptions(span_bytes=1 << 14) if "tgz" in name or "tar" in name else SMALL
    near = convert(files / name, tmp_path / "near.zarr", options=options)
    far = convert(put(s3, name, files / name), tmp_path / "far.zarr", options=options)
    assert far.store.n_bags == 60
    assert far.store.fingerprint == near.store.fingerprint
    assert list(bags_of(far.store)) == list(bags_of(near.store))
    assert far.summary()["source"] == near.summary()["source"]


@pytest.mark.parametrize("name", ["d.npz", "d.jsonl.gz", "d.csv", "d.parquet", "d.tfrecord"])
@pytest.mark.usefixtures("s3")
def test_source__under_http_gives_the_store_of_the_file(files, tmp_path, name):
    near = convert(files / name, tmp_path / "near.zarr").store
    with http_server(files) as url:
        far = convert(f"{url}/{name}", tmp_path / "far.zarr").store
    assert far.fingerprint == near.fingerprint


def test_source__of_svmlight_under_a_url_gives_the_store_of_the_file(s3, tmp_path):
    url = put(s3, "bags.svmlight", DATA / "readers/bags.svmlight")
    far = convert(url, tmp_path / "far.zarr").store
    near = convert(DATA / "readers/bags.svmlight", tmp_path / "near.zarr").store
    assert far.fingerprint == near.fingerprint


def test_source__under_a_url_is_read_by_workers(s3, files, tmp_path):
    url = put(s3, "d.csv", files / "d.csv")
    far = convert(url, tmp_path / "far.zarr", options=SMALL, workers=2).store
    assert far.fingerprint == convert(files / "d.csv", tmp_path / "near.zarr").store.fingerprint


def test_source__a_prefix_is_a_folder_of_bags_with_a_table_of_labels(s3, tmp_path):
    rng, lines = np.random.default_rng(0), ["slide_id,tumour"]
    (tmp_path / "slides").mkdir()
    for number in range(20):
        np.save(tmp_path / "slides" / f"s{number:02}.npy", rng.normal(size=(3, 4)))
        put(s3, f"slides/s{number:02}.npy", tmp_path / "slides" / f"s{number:02}.npy")
        lines.append(f"s{number:02},{number % 2}")
    (tmp_path / "labels.csv").write_text("\n".join([*lines, ""]))
    table = put(s3, "labels.csv", tmp_path / "labels.csv")
    near = SourceOptions(bag_labels=str(tmp_path / "labels.csv"))
    near = convert(tmp_path / "slides", tmp_path / "near.zarr", options=near).store
    for number, source in enumerate((f"{s3}/slides", f"{s3}/slides/", f"{s3}/slides/*.npy")):
        options = SourceOptions(bag_labels=table)
        far = convert(source, tmp_path / f"far{number}.zarr", options=options).store
        assert far.fingerprint == near.fingerprint
        assert far[3].id == "s03"
    far = sm.convert(f"{s3}/slides", tmp_path / "py.zarr", labels=table).store
    assert far.fingerprint == near.fingerprint
    # The names of a store under a URL serve as --labels.
    sm.convert(f"{s3}/slides", f"{s3}/named.zarr", labels=table)
    assert label_names_in(Path(f"{s3}/named.zarr")) == ("tumour",)


def test_source__that_changed_since_the_conversion_began_is_refused(s3, files, tmp_path):
    url = put(s3, "d.csv", files / "d.csv")
    stop_at_once(url, tmp_path / "x.zarr")
    obstore.put(from_url(s3), "d.csv", (files / "d.csv").read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(StoreError, match=r"d.csv has changed its content since the conversion beg"):
        convert(url, tmp_path / "x.zarr", options=SMALL)
    (tmp_path / "more.csv").write_bytes((files / "d.csv").read_bytes() + b"\n")
    put(s3, "d.csv", tmp_path / "more.csv")
    with pytest.raises(StoreError, match=r"d.csv has changed from [\d,]+ to [\d,]+ bytes since"):
        convert(url, tmp_path / "x.zarr", options=SMALL)
    put(s3, "d.csv", files / "d.csv")
    shutil.rmtree(tmp_path / ".x.zarr.partial")
    assert convert(url, tmp_path / "x.zarr", options=SMALL).store.n_bags == 60


def test_source__a_stopped_conversion_of_a_url_is_resumed(s3, files, tmp_path):
    urls = [put(s3, f"part-{i:02}.csv", files / "d.csv") for i in range(20)]
    assert [record[0] for record in records_of([source_path(url) for url in urls])] == urls
    url = put(s3, "d.csv", files / "d.csv")
    stop_at_once(url, tmp_path / "x.zarr")
    resumed = convert(url, tmp_path / "x.zarr", options=SMALL).store
    assert resumed.fingerprint == convert(files / "d.csv", tmp_path / "n.zarr").store.fingerprint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.csv", r"none\.csv does not exist$"),
        ("none", r"none does not exist$"),
        ("*.tsv", r"\*\.tsv matches no file$"),
        ("a.arff", r"a\.arff: arff files cannot be read from a URL; copy the file to a disk and"),
        ("a.h5", r"a\.h5: hdf5 files cannot be read from a URL; copy the file to a disk and"),
    ],
)
def test_source__of_a_url_that_cannot_be_read_is_refused(s3, tmp_path, name, message):
    content = b"@relation x\n@attribute a numeric\n@data\n1\n"
    obstore.put(from_url(s3), "a.arff", content)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["instances"], file["offsets"], file["targets"] = np.ones((2, 2)), [0, 2], [[1, 0]]
    put(s3, "a.h5", tmp_path / "a.h5")
    with pytest.raises(SourceError, match=message):
        convert(f"{s3}/{name}", tmp_path / "x.zarr")
    assert not (tmp_path / ".x.zarr.partial").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "bad.csv",
            b"bag,x,labels\na,1,p\nb,oh,p\n",
            r", line 3: column 'x' is 'oh', expected",
        ),
        ("cut.csv", b"bag,labels,x\na,p,1\nb,p,2", r", line 3: the last line has no line break"),
        ("cut.csv.gz", gzip.compress(b"bag,x,labels\na,1,p\n")[:-9], r" cannot be read: Truncated"),
        ("cut.parquet", b"PAR1" + bytes(40), r" is damaged or cut short"),
        ("cut.npz", b"PK\x03\x04" + bytes(40), r" is not an npz, or is cut short"),
        ("empty.csv", b"", r" is empty"),
    ],
)
def test_source__that_is_wrong_is_named_by_its_url(s3, tmp_path, name, content, message):
    obstore.put(from_url(s3), name, content)
    with pytest.raises(SourceError, match=rf"^{s3}/{name}{message}"):
        convert(f"{s3}/{name}", tmp_path / "x.zarr")


def write_slides(folder, suffix, n_bags=40):
    """Slides as CLAM and TRIDENT write them, with chunks; or .npy files, and a table of labels."""
    folder.mkdir()
    rng = np.random.default_rng(2)
    lines = ["slide_id,sky"]
    for number in range(n_bags):
        rows = rng.normal(size=(int(rng.integers(1, 80)), 64)).astype(np.float32)
        path = folder / f"s{number:02}.{suffix}"
        if suffix == "h5":
            with h5py.File(path, "w") as file:
                file.create_dataset("features", data=rows, chunks=(1, 64), maxshape=(None, 64))
                file["coords"] = np.arange(2 * len(rows)).reshape(-1, 2)
        elif suffix == "npz":
            np.savez_compressed(path, features=rows, coords=np.arange(2 * len(rows)).reshape(-1, 2))
        lines.append(f"s{number:02},{number % 2}")
    folder.with_name("labels.csv").write_text("\n".join([*lines, ""]))
    return SourceOptions(bag_labels=str(folder.with_name("labels.csv")), keep=("coords",))


@pytest.mark.parametrize("suffix", ["h5", "npz"])
@pytest.mark.parametrize("memory", ["1GiB", "4MiB"])
def test_source__of_slides_under_a_url_gives_the_store_of_the_files(s3, tmp_path, suffix, memory):
    options = write_slides(tmp_path / "slides", suffix)
    near = convert(tmp_path / "slides", tmp_path / "near.zarr", options=options).store
    for path in (tmp_path / "slides").iterdir():
        put(s3, f"slides/{path.name}", path)
    # Little memory makes files be read by ranges, and not be fetched as a whole.
    far = convert(f"{s3}/slides/", tmp_path / "far.zarr", ConvertConfig(memory=memory), options)
    assert far.store.fingerprint == near.fingerprint
    assert list(bags_of(far.store)) == list(bags_of(near))
    for one, other in zip(far.store, near, strict=True):
        assert one.kept["coords"].tolist() == other.kept["coords"].tolist()
    none = SourceOptions(label_columns=("none",))
    one = convert(f"{s3}/slides/s03.{suffix}", tmp_path / "one.zarr", options=none).store
    assert one.bag_ids(0, 1) == ["s03"]


def test_source__slides_under_a_url_read_nothing_outside_the_file(s3, tmp_path):
    options = write_slides(tmp_path / "slides", "h5", 3)
    with h5py.File(tmp_path / "slides" / "s01.h5", "r+") as file:
        del file["features"]
        file["features"] = h5py.ExternalLink("s00.h5", "/features")
    (tmp_path / "slides" / "s02.h5").write_bytes(
        (tmp_path / "slides" / "s02.h5").read_bytes()[:-99]
    )
    for path in (tmp_path / "slides").iterdir():
        put(s3, f"slides/{path.name}", path)
    with pytest.raises(SourceError, match=rf"{s3}/slides/s01.h5: 'features' is a link to another"):
        convert(f"{s3}/slides", tmp_path / "x.zarr", options=options)
    with pytest.raises(SourceError, match=rf"{s3}/slides/s02.h5 is damaged or cut short"):
        convert(f"{s3}/slides/s02.h5", tmp_path / "x.zarr", options=options)


@pytest.mark.usefixtures("s3")
def test_source__an_http_folder_says_to_name_each_file(files, tmp_path):
    with http_server(files) as url:
        with pytest.raises(SourceError, match="does not exist; name each file, as http cannot li"):
            convert(f"{url}/none", tmp_path / "x.zarr")
        with pytest.raises(SourceError, match=r"a URL with a query \(\?\) cannot be read; downlo"):
            convert(f"{url}/none.csv?key=1", tmp_path / "x.zarr")
        with pytest.raises(StoreError, match="cannot be listed: an http server has no list"):
            convert(f"{url}/*.csv", tmp_path / "x.zarr")
        with pytest.raises(SourceError, match=r"d\.csv is named twice; name it once"):
            convert([f"{url}/d.csv", f"{url}/d.csv"], tmp_path / "x.zarr")


def test_source__of_another_kind_of_url_or_without_obstore_is_refused(tmp_path, monkeypatch):
    with pytest.raises(StreammimlError, match=r"ftp://h/d.csv: no such kind of URL; known: s3://"):
        convert("ftp://h/d.csv", tmp_path / "x.zarr")
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "streammiml.bags.object_store")
    with pytest.raises(StreammimlError, match=r"needs obstore: pip install 'streammiml\[s3\]'"):
        convert("s3://bucket/d.csv", tmp_path / "x.zarr")


@pytest.mark.usefixtures("s3")
def test_source__a_url_holds_little_of_a_large_file(tmp_path):
    lines = [f"b{i // 4}," + ",".join([str(i % 7)] * 40) + ",p" for i in range(300_000)]
    names = ",".join(f"x{i}" for i in range(40))
    (tmp_path / "d.csv").write_text("\n".join([f"bag,{names},labels", *lines, ""]))
    size = (tmp_path / "d.csv").stat().st_size
    with http_server(tmp_path) as url:
        forget_files()
        file = source_path(f"{url}/d.csv").open("rb")
        most, total = 0, 0
        while piece := file.read(1 << 20):
            total += len(piece)
            most = max(most, len(file._window))
    assert total == size > 3 * MOST_WINDOW
    assert most == MOST_WINDOW
