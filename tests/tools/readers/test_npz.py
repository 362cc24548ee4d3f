"""NumPy arrays: every way to save them gives the same bags; what lies is refused unread."""

import io
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
from streammiml_tools.readers.base import BESIDE, SourceError, SourceOptions
from streammiml_tools.readers.npz import READER
from tests.stores import as_sparse, assert_same, made_block, plain, scratch
from tests.strategies import blocks
from tests.tools.corpora import arrays_of, save_npy, save_npz


def bags_in(*paths: Path, **options) -> BagBlock:
    """All bags of a source, in spans as small as they get."""
    asked = SourceOptions(**{"span_bytes": 40, **options})
    scan = READER.scan(paths, asked)
    found = [block for span in scan.spans for block in READER.read(span, scan, asked)]
    assert sum(span.n_bags for span in scan.spans) == scan.n_bags
    return BagBlock.join(found)


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
    found = bags_in(tmp_path / "d.npz")
    assert np.array_equal(found.rows, rows.reshape(20, 3))
    assert [found.labels_of(bag).tolist() for bag in range(5)] == [[0], [1], [0, 1], [], [0]]
    np.savez(tmp_path / "f.npz", bags=np.asfortranarray(rows), targets=targets)
    assert np.array_equal(bags_in(tmp_path / "f.npz").rows, rows.reshape(20, 3))


def test_names__of_arrays_can_be_given(tmp_path):
    block = made_block()
    arrays = arrays_of(block)
    arrays["mine"] = arrays.pop("instances")
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(
        SourceError, match=r"d\.npz has no array of rows; it is called one of insta"
    ):
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
    found = bags_in(tmp_path / "d.npz", labels=order)
    back = {order.index(name): i for i, name in enumerate(own)}
    for bag in range(len(block)):
        mine = sorted(back[label] for label in found.labels_of(bag).tolist())
        assert mine == block.labels_of(bag).tolist()
    known = [back[i] if i >= 0 else -1 for i in found.row_labels.tolist()]
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
    with pytest.raises(SourceError, match=message) as found:
        bags_in(path)
    assert isinstance(found.value, StreammimlError)
    assert "\n" not in str(found.value)


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
    np.savez(tmp_path / "d.npz", **{name: of for name, of in arrays.items() if of is not None})
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
    said = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, said)
    return out.getvalue()


def test_header_that_promises_too_much__is_refused_before_allocation(tmp_path):
    folder = save_npy(tmp_path / "a", plain(made_block()))
    (folder / "instances.npy").write_bytes(header((10**12, 10)) + bytes(80))
    refused(folder, r"promises \(1000000000000, 10\) float32, 40,000,000,000,000 bytes, and 80 are")
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("instances.npy", header((10**12, 10)) + bytes(80))
    refused(tmp_path / "bomb.npz", r"member instances\.npy is cut short or lies: its header promis")


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
    whole = path.read_bytes()
    for size in (10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(path, r"d\.npz is no npz, or is cut short|is no NumPy array")
    folder = save_npy(tmp_path / "a", made_block())
    whole = (folder / "instances.npy").read_bytes()
    for size in (3, 50, len(whole) - 1):
        (folder / "instances.npy").write_bytes(whole[:size])
        refused(folder, r"is cut short or lies|is no NumPy array, or is damaged")


def test_compressed_member_with_a_flipped_bit__is_refused(tmp_path):
    rows = np.random.default_rng(0).normal(size=(200, 50)).astype(np.float32)
    block = BagBlock(np.arange(201), rows, np.arange(201), np.zeros(200, np.int32))
    path = save_npz(tmp_path / "d.npz", block, compressed=True)
    whole, silent = path.read_bytes(), 0
    rng = np.random.default_rng(1)
    for _ in range(40):
        raw = bytearray(whole)
        raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
        path.write_bytes(raw)
        try:
            got = bags_in(path)
        except SourceError:
            continue
        # Dates and the like may change without harm.
        silent += not np.array_equal(got.rows, rows)
    assert silent == 0


def test_file_that_shrinks_while_it_is_read__is_an_error(tmp_path):
    folder = save_npy(tmp_path / "a", plain(made_block(40)))
    options = SourceOptions(span_bytes=40)
    scan = READER.scan([folder], options)
    path = folder / "instances.npy"
    corpus = npz.Corpus([folder], options, npz._arrays)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(
        SourceError, match=r"is shorter than when it was looked at: it ends at byte"
    ):
        corpus.block(0, 40, None)
    with pytest.raises(SourceError, match="is cut short or lies"):
        list(READER.read(scan.spans[-1], scan, options))


def test_fortran_order_in_a_compressed_npz__is_refused_with_a_way_out(tmp_path):
    block = plain(made_block())
    rows = np.asfortranarray(block.rows)
    save_npz(tmp_path / "d.npz", replace(block, rows=rows), compressed=True)
    refused(
        tmp_path / "d.npz", "lies in Fortran's order in a compressed npz, and cannot be read row"
    )


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
