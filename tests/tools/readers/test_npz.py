"""NumPy arrays: every way to save them gives the same bags; what lies is refused unread."""

import io
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock
from streammiml.errors import StreammimlError
from streammiml_tools.readers import npz
from streammiml_tools.readers.base import BESIDE, Limits, SourceError, SourceOptions
from streammiml_tools.readers.npz import READER
from tests.stores import as_sparse, assert_same, made_block, plain, scratch
from tests.strategies import blocks
from tests.tools.source_files import arrays_of, save_npy, save_npz
from tests.traced import traced


def bags_in(*paths: Path, **options) -> BagBlock:
    """All bags of a source, in spans as small as they get."""
    asked = SourceOptions(**{"span_bytes": 40, **options})
    scan = READER.scan(paths, asked)
    parts = [block for span in scan.spans for block in READER.read(span, scan, asked)]
    assert sum(span.n_bags for span in scan.spans) == scan.n_bags
    return BagBlock.join(parts)


def assert_bags(got: BagBlock, want: BagBlock) -> None:
    assert got.bag_ids == want.bag_ids
    if not isinstance(want.rows, np.ndarray):
        rows = replace(got.rows, columns=got.rows.columns.astype(np.uint32))
        got = replace(got, rows=rows)
    assert_same(replace(got, bag_ids=None), replace(want, bag_ids=None))


@given(block=blocks(), how=st.sampled_from(["npz", "compressed", "folder"]))
def test_arrays__come_back_however_they_are_saved(block, how):
    # NumPy cuts zeros off the end of text.
    ids = block.bag_ids and [f"{name}." for name in block.bag_ids]
    block = replace(block, bag_ids=ids)
    with scratch() as folder:
        if how == "folder":
            path = save_npy(folder / "arrays", block)
        else:
            path = save_npz(folder / "data.npz", block, compressed=how == "compressed")
        assert_bags(bags_in(path), block)


def test_files_side_by_side__are_one_source(tmp_path):
    block = made_block()
    folder = save_npy(tmp_path / "arrays", block)
    files = sorted(folder.glob("*.npy"))
    assert_bags(bags_in(*files), block)
    scan = READER.scan(files, SourceOptions())
    assert scan.spans[0].path.split(BESIDE) == [str(file) for file in files]


def test_big_endian_and_fortran_order__are_read(tmp_path):
    block = plain(made_block())
    folder = save_npy(tmp_path / "a", block)
    np.save(folder / "instances.npy", np.asfortranarray(block.rows.astype(">f4")))
    np.save(folder / "offsets.npy", block.bag_offsets.astype(">i4"))
    assert_bags(bags_in(folder), block)


def test_bags_of_one_length__need_no_offsets(tmp_path):
    rows = np.random.default_rng(0).normal(size=(5, 4, 3)).astype(np.float32)
    targets = np.array([[1, -1], [-1, 1], [1, 1], [-1, -1], [1, -1]])
    np.savez(tmp_path / "d.npz", bags=rows, targets=targets)
    block = bags_in(tmp_path / "d.npz")
    assert np.array_equal(block.rows, rows.reshape(20, 3))
    assert [block.labels_of(bag).tolist() for bag in range(5)] == [[0], [1], [0, 1], [], [0]]
    np.savez(tmp_path / "f.npz", bags=np.asfortranarray(rows), targets=targets)
    assert np.array_equal(bags_in(tmp_path / "f.npz").rows, rows.reshape(20, 3))


def test_names__of_arrays_can_be_given(tmp_path):
    block = made_block()
    arrays = arrays_of(block)
    arrays["mine"] = arrays.pop("instances")
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(SourceError, match=r"d\.npz has no array of rows; name it one of insta"):
        bags_in(tmp_path / "d.npz")
    np.savez(tmp_path / "e.npz", **arrays, rows=np.zeros((1, 1)))
    folder = save_npy(tmp_path / "folder", block)
    (folder / "instances.npy").rename(folder / "mine.npy")
    assert_bags(bags_in(folder, variables=("mine",)), block)
    with pytest.raises(SourceError, match=r"has no array 'yours'; arrays: "):
        bags_in(folder, variables=("yours",))


def test_labels__by_name_in_the_order_asked_for(tmp_path):
    block = made_block()
    own = np.array(["sea", "sky", "sun", "tree"])
    save_npz(tmp_path / "d.npz", block, label_names=own)
    scan = READER.scan([tmp_path / "d.npz"], SourceOptions())
    assert scan.label_names == ("sea", "sky", "sun", "tree")
    order = ("tree", "sun", "moon", "sky", "sea")
    bags = bags_in(tmp_path / "d.npz", labels=order)
    back = {order.index(name): i for i, name in enumerate(own)}
    for bag in range(len(block)):
        mine = sorted(back[label] for label in bags.labels_of(bag).tolist())
        assert mine == block.labels_of(bag).tolist()
    known = [back[i] if i >= 0 else -1 for i in bags.row_labels.tolist()]
    assert known == block.row_labels.tolist()
    with pytest.raises(
        SourceError, match=r"label 'tree' is not known; known: sea, sky, sun; add it"
    ):
        bags_in(tmp_path / "d.npz", labels=("sea", "sky", "sun"))
    save_npz(tmp_path / "n.npz", block, n_labels=np.array(4))
    with pytest.raises(SourceError, match=r"4 label columns, but --labels gives 2 names"):
        bags_in(tmp_path / "n.npz", labels=("sea", "sky"))


def test_numbers_of_features_and_labels__are_as_the_file_says(tmp_path):
    block = as_sparse(plain(made_block()))
    save_npz(tmp_path / "d.npz", block, shape=np.array([block.n_rows, 70]), n_labels=np.array(9))
    scan = READER.scan([tmp_path / "d.npz"], SourceOptions())
    assert (scan.n_features, scan.n_labels, scan.sparse) == (70, 9, True)
    arrays = arrays_of(block)
    del arrays["shape"]
    np.savez(tmp_path / "e.npz", **arrays)
    scan = READER.scan([tmp_path / "e.npz"], SourceOptions())
    assert scan.n_features == 1 + int(block.rows.columns.max())
    assert READER.scan([tmp_path / "e.npz"], SourceOptions(n_features=99)).n_features == 99


def test_types__are_as_narrow_as_they_can_be(tmp_path):
    for dtype, want in (("float64", "float32"), ("uint8", "uint8"), ("bool", "uint8"),
                        ("int64", "float32"), ("float16", "float16")):  # fmt: skip
        rows = np.ones((2, 3), dtype)
        save_npz(tmp_path / "d.npz", BagBlock(np.arange(3), rows, np.arange(3), np.zeros(2, int)))
        assert READER.scan([tmp_path / "d.npz"], SourceOptions()).dtype == want


# Broken files.


def refused(path: Path, message: str) -> None:
    with pytest.raises(SourceError, match=message) as error:
        bags_in(path)
    assert isinstance(error.value, StreammimlError)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offsets": None}, "has no offsets of bags; save an array 'offsets'"),
        ({"offsets": np.array([0, 1])}, r"offsets end at 1, but there are \d+ rows"),
        ({"offsets": np.array([0, 5, 3, 30])}, "must begin with 0 and never fall; number 1 is 5"),
        ({"offsets": np.array([1, 5])}, "must begin with 0 and never fall; number 0 is 1"),
        ({"offsets": np.array([0.0, 1.0])}, r"offsets are float64 of shape \(2,\), expected a row"),
        ({"instances": np.zeros(4)}, r"rows are float64 of shape \(4,\), expected numbers of"),
        ({"instances": np.array([["a"]])}, r"rows are <U1 of shape \(1, 1\), expected numbers"),
        ({"label_indptr": None}, "has no labels; save label_indptr and label_indices, or targets"),
        ({"label_indptr": np.zeros(3, int)}, r"offsets end at 0, but there are \d+ labels"),
        ({"label_indices": np.zeros((2, 2))}, "label indices are float64 of shape"),
        ({"row_labels": np.zeros(3, int)}, r"has shape \(3,\), expected one for each of \d+ rows"),
        ({"bag_ids": np.zeros(3, "U3")}, r"has shape \(3,\), expected one for each of 12 bags"),
        ({"n_labels": np.zeros(3)}, "n_labels must be one integer"),
        ({"label_names": np.zeros((2, 2), "U1")}, r"label names are <U1 of shape \(2, 2\)"),
        (
            {"n_labels": np.array(4), "label_names": np.array(["a"])},
            "1 label names, but n_labels is 4",
        ),
        ({"bag_ids": np.array([b"\xff"] * 12)}, r"b'\\xff' is not UTF-8"),
    ],
)  # fmt: skip
def test_wrong_arrays__are_refused(tmp_path, changes, message):
    arrays = {**arrays_of(made_block()), **changes}
    np.savez(
        tmp_path / "d.npz", **{name: array for name, array in arrays.items() if array is not None}
    )
    refused(tmp_path / "d.npz", message)


def test_wrong_sparse_arrays__are_refused(tmp_path):
    arrays = arrays_of(as_sparse(made_block()))
    np.savez(tmp_path / "d.npz", **{**arrays, "indices": arrays["indices"][:-1]})
    refused(tmp_path / "d.npz", r"sparse rows have \(\d+,\) values and \(\d+,\) columns")
    np.savez(tmp_path / "e.npz", **{**arrays, "indices": arrays["indices"].astype(float)})
    refused(tmp_path / "e.npz", "columns are float64, expected integers")


def test_targets__of_another_count_or_kind__are_refused(tmp_path):
    rows = np.zeros((5, 4, 3), np.float32)
    np.savez(tmp_path / "d.npz", bags=rows, targets=np.zeros((4, 2)))
    refused(tmp_path / "d.npz", "5 bags, but labels for 4")
    np.savez(tmp_path / "e.npz", bags=rows, targets=np.full((5, 2), 0.5))
    refused(tmp_path / "e.npz", r"bags 0 to \d, bag 0: the mark of label 0 is 0.5")
    np.savez(tmp_path / "f.npz", bags=rows, targets=np.zeros(5))
    refused(tmp_path / "f.npz", r"targets are float64 of shape \(5,\), expected numbers of shape")


def test_objects__are_never_unpickled(tmp_path):
    np.savez(tmp_path / "d.npz", **{**arrays_of(made_block()), "bag_ids": np.array([{}] * 12)})
    refused(tmp_path / "d.npz", "holds Python objects, which could run code when read; save plain")


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    out = io.BytesIO()
    fields = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, fields)
    return out.getvalue()


def test_header_that_promises_too_much__is_refused_before_allocation(tmp_path):
    folder = save_npy(tmp_path / "a", plain(made_block()))
    (folder / "instances.npy").write_bytes(header((10**12, 10)) + bytes(80))
    refused(folder, r"declares \(1000000000000, 10\) float32, 40,000,000,000,000 bytes, but 80 are")
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("instances.npy", header((10**12, 10)) + bytes(80))
    refused(
        tmp_path / "bomb.npz", r"member instances\.npy is cut short or damaged: its header declar"
    )


def test_bomb_of_zeros__is_never_held(tmp_path, monkeypatch):
    # 64 MB of zeros in 64 kB: read in blocks, whatever it is; no block is larger than asked for.
    n_bags = 1 << 14
    arrays = {
        "instances": np.zeros((n_bags, 1024), np.float32),
        "offsets": np.arange(n_bags + 1),
        "label_indptr": np.zeros(n_bags + 1, np.int64),
        "label_indices": np.zeros(0, np.int32),
    }
    np.savez_compressed(tmp_path / "bomb.npz", **arrays)
    assert (tmp_path / "bomb.npz").stat().st_size < 1 << 19
    monkeypatch.setattr(npz, "BLOCK_BYTES", 1 << 20)
    options = SourceOptions()
    scan = READER.scan([tmp_path / "bomb.npz"], options)
    sizes = [block.rows.nbytes for block in READER.read(scan.spans[0], scan, options)]
    assert sum(sizes) == 64 << 20
    assert max(sizes) <= 2 << 20


@pytest.mark.parametrize("compressed", [False, True])
def test_cut_short__is_refused(tmp_path, compressed):
    path = save_npz(tmp_path / "d.npz", made_block(), compressed=compressed)
    raw = path.read_bytes()
    for size in (10, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:size])
        refused(path, r"d\.npz is not an npz, or is cut short|is not a NumPy array")
    folder = save_npy(tmp_path / "a", made_block())
    raw = (folder / "instances.npy").read_bytes()
    for size in (3, 50, len(raw) - 1):
        (folder / "instances.npy").write_bytes(raw[:size])
        refused(folder, r"is cut short or damaged|is not a NumPy array, or is damaged")


def test_compressed_member_with_a_flipped_bit__is_refused(tmp_path):
    rows = np.random.default_rng(0).normal(size=(200, 50)).astype(np.float32)
    block = BagBlock(np.arange(201), rows, np.arange(201), np.zeros(200, np.int32))
    path = save_npz(tmp_path / "d.npz", block, compressed=True)
    original, silent = path.read_bytes(), 0
    rng = np.random.default_rng(1)
    for _ in range(40):
        raw = bytearray(original)
        raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
        path.write_bytes(raw)
        try:
            got = bags_in(path)
        except SourceError:
            continue
        # Dates and the like may change without harm.
        silent += not np.array_equal(got.rows, rows)
    assert silent == 0


def with_byte(path: Path, member: str, place: int, byte: int) -> None:
    """Change a stored byte of a member; places below 0 count from its end."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
    raw = bytearray(path.read_bytes())
    lengths = struct.unpack_from("<HH", raw, info.header_offset + 26)
    raw[info.header_offset + 30 + sum(lengths) + place % info.compress_size] = byte
    path.write_bytes(raw)


@pytest.mark.parametrize("member", ["instances", "offsets", "label_indices"])
def test_stored_member_with_a_flipped_bit__is_refused_by_the_scan(tmp_path, member):
    path = save_npz(tmp_path / "d.npz", plain(made_block()))
    with_byte(path, f"{member}.npy", -1, 4)
    with pytest.raises(
        SourceError, match=rf"member {member}\.npy is damaged: Bad CRC-32; fetch it again"
    ):
        READER.scan([path], SourceOptions())


def test_checksums_of_stored_members__are_compared_once(tmp_path, monkeypatch):
    path = save_npz(tmp_path / "d.npz", plain(made_block(40)))
    with zipfile.ZipFile(path) as archive:
        size = sum(info.file_size for info in archive.infolist())
    unpacked: list[int] = []
    read = npz.MemberReader.read

    def counted(self, *given):
        piece = read(self, *given)
        unpacked.append(len(piece))
        return piece

    monkeypatch.setattr(npz.MemberReader, "read", counted)
    options = SourceOptions(span_bytes=40)
    scan = READER.scan([path], options)
    headers = 128 * len(arrays_of(plain(made_block())))
    assert size <= sum(unpacked) <= size + headers
    for span in scan.spans:
        list(READER.read(span, scan, options))
    # Only headers again, once for all spans, whatever they are.
    assert len(scan.spans) > 10
    assert sum(unpacked) <= size + 2 * headers


@pytest.mark.parametrize("how", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_members__are_compared_where_they_end_or_before(tmp_path, how):
    rows = np.random.default_rng(0).integers(0, 9, (500, 40)).astype(np.float32)
    block = BagBlock(np.arange(501), rows, np.arange(501), np.zeros(500, np.int32))
    path = repacked(save_npz(tmp_path / "d.npz", block), how)
    with zipfile.ZipFile(path) as archive:
        crc = archive.getinfo("instances.npy").CRC
    # Values are sound, and the checksum is not: only a comparison can tell.
    raw = path.read_bytes()
    path.write_bytes(raw.replace(crc.to_bytes(4, "little"), (crc ^ 1).to_bytes(4, "little")))
    options = SourceOptions()
    scan = READER.scan([path], options)
    with pytest.raises(SourceError, match=r"instances\.npy is damaged: Bad CRC-32; fetch it"):
        list(READER.read(scan.spans[0], scan, options))
    # Where a limit ends the reading early, the scan reads to the end.
    with pytest.raises(SourceError, match=r"instances\.npy is damaged: Bad CRC-32; fetch it"):
        READER.scan([path], SourceOptions(limits=Limits(reads_all=False)))


def repacked(path: Path, how: int) -> Path:
    """The same members, compressed in another way."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    "how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_any_damage_to_an_npz__is_one_line(tmp_path, how):
    rows = np.random.default_rng(0).integers(0, 9, (60, 10)).astype(np.float32)
    block = BagBlock(np.arange(61), rows, np.arange(61), np.zeros(60, np.int32))
    path = repacked(save_npz(tmp_path / "d.npz", block), how)
    sound = path.read_bytes()
    rng = np.random.default_rng(2)
    for number in range(150):
        raw = bytearray(sound)
        at = int(rng.integers(len(raw)))
        if number % 3 == 0:
            raw[at] ^= 1 << int(rng.integers(8))
        elif number % 3 == 1:
            raw[at : at + 4] = rng.bytes(4)
        else:
            raw[at : at + 1] = b""
        path.write_bytes(raw)
        message, got = "", None
        try:
            got = bags_in(path, span_bytes=1 << 20)
        except SourceError as error:
            message = str(error)
        assert np.array_equal(got.rows, rows) if got else str(path) in message
        assert "\n" not in message


def test_damage_that_a_decompressor_notices__says_which_member(tmp_path):
    # A block of a kind that is none, and a first byte that is never anything but 0.
    for how, place, reason in (
        (zipfile.ZIP_DEFLATED, 0, "Error -3 while decompressing data: invalid block type"),
        (zipfile.ZIP_LZMA, 9, "Corrupt input data"),
        (zipfile.ZIP_BZIP2, 4, "Invalid data stream"),
    ):
        path = repacked(save_npz(tmp_path / "d.npz", plain(made_block())), how)
        with_byte(path, "instances.npy", place, 0xFF)
        refused(path, rf"member instances\.npy is damaged: {reason}; fetch it again")


def zeros_npz(path: Path, **shapes) -> Path:
    """One bag without labels; arrays that are given by shape and type are zeros, small on disk.

    A shape of None leaves an array out.
    """
    shapes = {
        "instances": ((4, 2), "<f4"),
        "offsets": ((2,), "<i8"),
        "label_indptr": ((2,), "<i8"),
        "label_indices": ((0,), "<i4"),
        **shapes,
    }
    ends = {"offsets": "instances", "label_indptr": "label_indices"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, (shape, dtype) in shapes.items():
            if shape is None:
                continue
            content = bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize)
            if name in ends and shape == (2,):
                content = np.array([0, shapes[ends[name]][0][0]]).tobytes()
            archive.writestr(f"{name}.npy", header(shape, dtype) + content)
    return path


BIG = 24 << 20
HOSTILE = {
    "one bag": ({"instances": ((BIG // 8, 2), "<f4")}, r"member instances\.npy, elements 0 to "),
    "offsets": (
        {"offsets": ((BIG // 8,), "<i8")},
        r"member offsets\.npy declares 24 MiB in [\d,]+ compressed bytes and needs about",
    ),
    "marks": (
        {"targets": ((1, BIG), "|i1"), "label_indptr": (None, "")},
        r"member targets\.npy, elements 0 to 1 declares 24 MiB in [\d,]+ compressed bytes and",
    ),
    "labels": ({"label_indices": ((BIG,), "|i1")}, r"member label_indices\.npy, elements 0 to "),
    "names": ({"label_names": ((BIG // 8,), "|S8")}, r"member label_names\.npy declares 24 MiB"),
    "ids": ({"bag_ids": ((1,), f"|S{BIG}")}, r"member bag_ids\.npy, elements 0 to 1 declares 24"),
    "empty bags": ({"instances": ((1 << 40, 0, 5), "<f4")}, r"instances\.npy, \(1099511627776, 0,"),
    "many numbers": ({"n_labels": ((BIG // 8,), "<i8")}, r"n_labels must be one integer"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_small_file_that_declares_much__is_refused_before_allocation(tmp_path, case):
    shapes, message = HOSTILE[case]
    path = zeros_npz(tmp_path / "d.npz", **shapes)
    assert path.stat().st_size < 1 << 18
    limits = Limits(memory=16 << 20)
    with traced() as memory, pytest.raises(SourceError, match=message):
        bags_in(path, span_bytes=1 << 20, limits=limits)
    assert memory.peak < 8 << 20


def test_member_of_more_than_its_compression_can_hold__is_refused(tmp_path):
    path = zeros_npz(tmp_path / "d.npz", instances=((1 << 20, 2), "<f4"))
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("instances.npy")
    lie = (info.file_size * 8).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(info.file_size.to_bytes(4, "little"), lie))
    message = (
        rf"instances\.npy declares {info.file_size * 8:,} bytes in {info.compress_size:,} stored"
    )
    refused(path, message + " bytes, more than deflate can hold; it is damaged or a bomb")


def test_file_that_shrinks_while_it_is_read__is_an_error(tmp_path):
    folder = save_npy(tmp_path / "a", plain(made_block(40)))
    options = SourceOptions(span_bytes=40)
    scan = READER.scan([folder], options)
    path = folder / "instances.npy"
    corpus = npz.ArrayCorpus([folder], options, npz._arrays)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SourceError, match=r"is shorter than at the scan: it ends at byte"):
        corpus.block(0, 40, None)
    with pytest.raises(SourceError, match="is cut short or damaged"):
        list(READER.read(scan.spans[-1], scan, options))


def test_fortran_order_in_a_compressed_npz__is_refused_with_a_way_out(tmp_path):
    block = plain(made_block())
    rows = np.asfortranarray(block.rows)
    save_npz(tmp_path / "d.npz", replace(block, rows=rows), compressed=True)
    refused(tmp_path / "d.npz", "has Fortran order in a compressed npz and cannot be read row")


def test_several_npz__are_refused(tmp_path):
    for name in "ab":
        save_npz(tmp_path / f"{name}.npz", made_block())
    with pytest.raises(
        SourceError, match=r"a\.npz: one npz at a time is converted, or npy files of"
    ):
        READER.scan([tmp_path / "a.npz", tmp_path / "b.npz"], SourceOptions())
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    for name in "xy":
        np.save(tmp_path / name / "offsets.npy", np.arange(3))
    with pytest.raises(
        SourceError, match=r"two files are called offsets\.npy; name the files of one"
    ):
        READER.scan([tmp_path / "x", tmp_path / "y"], SourceOptions())


def test_scan__says_what_it_took(tmp_path):
    save_npz(tmp_path / "d.npz", made_block(), compressed=True)
    notes = " ".join(READER.scan([tmp_path / "d.npz"], SourceOptions()).notes)
    assert "rows from d.npz, member instances.npy" in notes
    assert "compressed members are read from front to end by one process" in notes
