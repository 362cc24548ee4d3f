"""Sizes that files declare: refused by ratio and by memory, with the option that would help."""

import bz2
import gzip
import lzma
import struct
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from streammiml_tools.convert import convert
from streammiml_tools.convert.plan import ConvertConfig
from streammiml_tools.readers.base import Limits, SourceError, SourceOptions
from streammiml_tools.readers.memory_checks import RATIOS, HeldBytes, check_fits, check_ratio
from tests.tools.readers.matlab_files import cell, write5, write73
from tests.traced import traced

MIB = 1 << 20


@pytest.mark.parametrize(
    ("method", "packed"),
    [
        ("deflate", lambda raw: zlib.compress(raw, 9)),
        ("lzma", lambda raw: lzma.compress(raw, lzma.FORMAT_ALONE, preset=9)),
        ("bzip2", lambda raw: bz2.compress(raw, 9)),
    ],
)
def test_ratios__are_more_than_zeros_come_to(method, packed):
    n_bytes = 16 * MIB
    check_ratio("d.npz", n_bytes, len(packed(bytes(n_bytes))), method)
    with pytest.raises(SourceError, match=rf"more than {method} can hold; it is damaged or a bomb"):
        check_ratio("d.npz", 100 * RATIOS[method] + 1, 100, method)


def test_ratio__of_few_bytes_or_an_unknown_method_is_not_judged():
    check_ratio("d.npz", 1024, 0, "deflate")
    check_ratio("d.npz", 1 << 40, 1, "zstd")


def test_check_fits__says_sizes_and_the_option_that_would_help():
    check_fits("d.npz", 8 * MIB, Limits(8 * MIB))
    with pytest.raises(SourceError) as refused:
        check_fits("d.npz", 9 * MIB, Limits(8 * MIB), declared=3 * MIB, stored=4567)
    assert str(refused.value) == (
        "d.npz declares 3 MiB in 4,567 compressed bytes and needs about 9 MiB, more than "
        "--memory 8 MiB; --memory 9MiB would be enough"
    )
    check_fits("d.npz", 9 * MIB, Limits(9 * MIB))


def test_check_fits__counts_every_process():
    check_fits("d.npz", 2 * MIB, Limits(8 * MIB, 4))
    with pytest.raises(
        SourceError,
        match=r"d\.npz needs about 3 MiB in each of 4 processes, more than --memory 8 MiB; "
        r"--memory 12MiB would be enough, or go$",
    ):
        check_fits("d.npz", 3 * MIB, Limits(8 * MIB, 4), instead=", or go")
    check_fits("d.npz", 3 * MIB, Limits(12 * MIB, 4))


def test_held__refuses_what_adds_up_to_more_than_memory():
    held = HeldBytes("d.csv", "ids of bags", Limits(MIB))
    for _ in range(1024):
        held.add(1024)
    with pytest.raises(
        SourceError,
        match=r"d\.csv: ids of bags must be held in memory, and need more than --memory 1 ",
    ):
        held.add(1)


# Hostile files, some for every reader: small ones that would take many times --memory.

MEMORY = 4 * MIB


def refused(tmp_path: Path, names: list[str], message: str, **options) -> None:
    """Convert under little memory: one line, and not much more than that is ever held."""
    paths = [tmp_path / name for name in names]
    assert sum(path.stat().st_size for path in paths) < MIB
    settings = ConvertConfig(memory=str(MEMORY))
    with traced() as memory, pytest.raises(SourceError, match=message) as error:
        convert(paths, tmp_path / "out.zarr", settings, SourceOptions(**options))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
    assert memory.peak < MEMORY + 64 * MIB


def numbered(line: bytes, count: int) -> bytes:
    return b"".join(line.replace(b"%", b"%d" % number) for number in range(count))


JSON_BEGIN = b'{"id": "a", "labels": [0], "instances": ['
SPARSE_END = b'"instances": [{"indices": [0], "values": [1]}]}\n'
ARFF = b"@relation x\n@attribute id {a}\n@attribute bag relational\n@attribute f numeric\n"
ARFF += b"@end bag\n@attribute y {0,1}\n@data\n"
LONG = r"longer than \d+ MiB, the limit for one line; .* More --memory allows longer lines"
TEXT = {
    "objects.jsonl.gz": (JSON_BEGIN + b"[]," * 400_000 + b"[]]}\n", "line 1: a line of .* needs"),
    "line.jsonl.gz": (JSON_BEGIN + b"[1]," * 5_000_000 + b"[1]]}\n", LONG),
    "ids.jsonl.gz": (
        numbered(b'{"id": "%' + b"-" * 1000 + b'", "labels": [0], ' + SPARSE_END, 4500),
        r"ids\.jsonl\.gz: ids of bags must be held in memory, and need more than --memory 4 MiB",
    ),
    "names.jsonl.gz": (
        numbered(b'{"id": "%", "labels": ["l%"], "instances": [[1]]}\n', 45_000),
        r"names\.jsonl\.gz: a list of [\d,]+ labels needs about .* would be enough",
    ),
    "ids.svmlight.gz": (
        numbered(b"0 qid:% 1:1\n", 45_000),
        r"ids\.svmlight\.gz: ids of bags and labels must be held in memory",
    ),
    "line.svmlight.gz": (b"0 qid:1 " + b"1:1 " * 1_000_000 + b"\n", LONG),
    "bag.svmlight.gz": (
        b"0 qid:1 1:1 2:1 3:1 4:1\n" * 50_000,
        r"bag '1': a block of [\d.]+ MiB needs about",
    ),
    "line.csv.gz": (b"bag,labels,f\na,0," + b"1" * 5_000_000 + b"\n", LONG),
    "columns.csv.gz": (
        b"bag,labels" + numbered(b",f%", 3000) + b"\na,0" + b",1" * 3000 + b"\n",
        r"columns\.csv\.gz: a line of 3,002 columns needs about 14\.3 MiB, more than --memory 4 M",
    ),
    "ids.csv.gz": (
        b"bag,labels,f\n" + numbered(b"%,0,1\n", 45_000),
        r"ids\.csv\.gz: ids of bags must be held in memory",
    ),
    "names.csv.gz": (
        b"bag,labels,f\n" + numbered(b"a,l%,1\n", 45_000),
        r"names\.csv\.gz: different ids and labels must be held in memory",
    ),
    "bag.csv.gz": (
        b"bag,labels,f,g,h\n" + b"a,0,1,1,1\n" * 600_000,
        r"bag\.csv\.gz, bag 'a': a block of [\d.]+ MiB needs about",
    ),
    "header.arff.gz": (
        b"@relation x\n" + numbered(b"@attribute a% numeric\n", 20_000) + b"@data\n",
        r"header\.arff\.gz: attributes must be held in memory",
    ),
    "columns.arff.gz": (
        b"@relation 'x -C 1'\n@attribute y {0,1}\n"
        + numbered(b"@attribute a% numeric\n", 3000)
        + b"@data\n1"
        + b",1" * 3000
        + b"\n",
        r"columns\.arff\.gz: a line of 3,001 columns needs about",
    ),
    "line.arff.gz": (ARFF + b'a,"1' + b"\\n1" * 1_000_000 + b'",1\n', LONG),
    "ids.arff.gz": (
        ARFF + numbered(b'a%,"1",1\n', 45_000),
        r"ids\.arff\.gz: ids of bags must be held in memory",
    ),
}


@pytest.mark.parametrize("name", TEXT)
def test_small_text__that_needs_much_memory_is_refused(tmp_path, name):
    content, message = TEXT[name]
    (tmp_path / name).write_bytes(gzip.compress(content, 6))
    refused(tmp_path, [name], message)


def test_small_triple__of_many_labels_is_refused(tmp_path):
    rows, labels = b"bag_id,f1,f2\n" + numbered(b"%,1,2\n", 30_000), b"bag_id,labels\n"
    (tmp_path / "features.txt.gz").write_bytes(gzip.compress(rows))
    (tmp_path / "bag_labels.txt.gz").write_bytes(gzip.compress(labels + numbered(b"%,x\n", 30_000)))
    message = r"bag_labels\.txt\.gz: labels of bags or rows must be held in memory"
    refused(tmp_path, ["features.txt.gz", "bag_labels.txt.gz"], message, format="csv")


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (b"1 2\n", b"1 -1\n", r"labels\.txt\.gz: labels of bags must be held in memory"),
        (b"1 2\n" * 200_000, None, r"rows\.txt\.gz, bag '0': a block of [\d.]+ MiB needs about"),
        (b"1 " * 3000 + b"1\n", None, r"rows\.txt\.gz: a line of 3,001 columns needs about"),
    ],
)
def test_small_proteins__that_need_much_memory_are_refused(tmp_path, rows, labels, message):
    count = 1 if labels is None else 20_000
    files = {"rows": rows, "labels": labels or b"1 -1\n"}
    for name, lines in files.items():
        content = numbered(b">%\n" + lines, count)
        (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress(content))
    refused(tmp_path, ["rows.txt.gz", "labels.txt.gz"], message, format="protein")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.svmlight", b"0 qid:1 1:1\n0 qid:2 4000000000:1\n"),
        (
            "d.jsonl",
            b'{"id": 1, "labels": [0], "instances": [{"indices": [4000000000], "values": [1]}]}\n',
        ),
        (
            "d.arff",
            b"@relation 'x -C 1'\n@attribute y {0,1}\n"
            + numbered(b"@attribute a% numeric\n", 1000)
            + b"@data\n"
            + b"{1 1}\n" * 10_000,
        ),
    ],
)
def test_high_feature__that_would_be_made_dense_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    message = r"features, made dense, needs about .* would be enough, or leave --no-sparse out"
    refused(tmp_path, [name], message, sparse=False)


def flat_hdf5(path: Path, **arrays) -> h5py.File:
    file = h5py.File(path, "w")
    plain = {"offsets": np.array([0, 8]), "label_indptr": np.array([0, 1]), "label_indices": [0]}
    plain["instances"] = np.ones((8, 16), np.float32)
    for name, values in (plain | arrays).items():
        if values is not None:
            file[name] = values
    return file


def test_small_hdf5__with_a_huge_chunk_is_refused(tmp_path):
    with flat_hdf5(tmp_path / "d.h5", instances=None) as file:
        options = {"maxshape": (None, 16), "chunks": (1 << 18, 16), "compression": "gzip"}
        file.create_dataset("instances", (8, 16), "f4", **options)[:] = 1
    message = r"d\.h5: a chunk of /instances declares 16 MiB in [\d,]+ compressed bytes and needs"
    refused(tmp_path, ["d.h5"], message)


def test_small_hdf5__with_a_huge_bag_is_refused(tmp_path):
    many = {"chunks": (1 << 12, 8), "compression": "gzip"}
    with flat_hdf5(tmp_path / "d.h5", instances=None, offsets=np.array([0, 1 << 20])) as file:
        file.create_dataset("instances", data=np.ones((1 << 20, 8), np.float32), **many)
    refused(tmp_path, ["d.h5"], r"d\.h5:instances, elements 0 to 1,048,576 declares 32 MiB and")
    with h5py.File(tmp_path / "groups.h5", "w") as file:
        file.create_dataset("a/instances", data=np.ones((1 << 20, 8), np.float32), **many)
        file["a/labels"] = [0]
    refused(tmp_path, ["groups.h5"], r"groups\.h5: bag 'a': a block of 32 MiB needs about 96 MiB")


def test_small_hdf5__whose_ids_all_name_one_long_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("streammiml_tools.readers.hdf5_access.BOMB_LINE", MIB)
    n_bags = 100
    ids = np.array(["x" * 300_000] + ["y"] * (n_bags - 1), h5py.string_dtype())
    offsets = np.arange(n_bags + 1)
    with flat_hdf5(
        tmp_path / "d.h5",
        instances=np.ones((n_bags, 2), np.float32),
        offsets=offsets,
        label_indptr=offsets,
        label_indices=np.zeros(n_bags, np.int32),
        bag_ids=ids,
    ) as file:
        at = file["bag_ids"].id.get_offset()
    raw = bytearray((tmp_path / "d.h5").read_bytes())
    # Every element is a length and a place; all of them become the first.
    raw[at : at + 16 * n_bags] = raw[at : at + 16] * n_bags
    (tmp_path / "d.h5").write_bytes(raw)
    refused(
        tmp_path, ["d.h5"], r"/bag_ids has more characters than the file has bytes; it is a bom"
    )


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matlab5_file(path: Path, name: bytes, kind: int, shape: tuple[int, int], body: bytes) -> None:
    """A file of version 5 with one compressed variable."""
    flags, sizes = struct.pack("<II", kind, 0), struct.pack("<ii", *shape)
    inner = element(6, flags) + element(5, sizes) + element(1, name) + body
    packed = zlib.compress(element(14, inner), 9)
    header = b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM"
    path.write_bytes(header + struct.pack("<II", 15, len(packed)) + packed)


def test_small_matlab__of_many_items_or_fields_is_refused(tmp_path):
    message = (
        r"d\.mat: names and shapes of variables must be held in memory, and need more than --mem"
    )
    matlab5_file(tmp_path / "d.mat", b"bags", 1, (60_000, 1), struct.pack("<II", 14, 0) * 60_000)
    refused(tmp_path, ["d.mat"], message)
    names = struct.pack("<HHI", 5, 4, 2) + element(1, b"ab" * 200_000)
    matlab5_file(tmp_path / "d.mat", b"s", 2, (0, 0), names)
    refused(tmp_path, ["d.mat"], message)
    with h5py.File(write73(tmp_path / "d.mat", {"Y": np.eye(2)}), "a") as file:
        target = file.create_dataset("#refs#/a", data=np.ones((2, 2)))
        refs = np.array([target.ref] * 60_000, h5py.ref_dtype)
        file.create_dataset("bags", data=refs[:, None], compression="gzip")
    refused(tmp_path, ["d.mat"], r"d\.mat: a cell of 60,000 items needs about")


def test_small_matlab__whose_struct_holds_more_than_is_asked_for_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("streammiml_tools.readers.matlab5.BOMB_RATIO", 10_000)
    fields = {"bags": cell([np.eye(2), np.eye(3)[:, :2]]), "Y": np.eye(2)[:, :1]}
    write5(tmp_path / "d.mat", {"DD": fields | {"other": np.zeros((1 << 20, 2))}})
    message = r"d\.mat: DD declares 16 MiB in [\d,]+ compressed bytes and needs about 32 MiB, more"
    refused(tmp_path, ["d.mat"], message)


def test_small_matlab73__of_a_large_matrix_is_refused(tmp_path):
    with h5py.File(write73(tmp_path / "d.mat", {"Y": np.eye(2)[:, :1]}), "a") as file:
        options = {"chunks": (2, 1 << 14), "compression": "gzip"}
        bag = file.create_dataset("#refs#/a", data=np.zeros((2, 1 << 20), "f4"), **options)
        bag.attrs["MATLAB_class"] = np.bytes_("single")
        file.create_dataset("bags", data=np.array([[bag.ref, bag.ref]], h5py.ref_dtype))
    refused(
        tmp_path, ["d.mat"], r"d\.mat, bags: a block of 8 MiB needs about 24 MiB", transposed=False
    )
