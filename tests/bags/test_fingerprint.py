"""The fingerprint: its definition in plain Python, changes that it must and must not notice."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags import fingerprint as fingerprints
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.fingerprint import Fingerprint, digests_of
from streammiml.bags.layout import CODECS
from tests.stores import (
    BACKENDS,
    as_sparse,
    made_block,
    plain,
    scratch,
    sizes,
    write_parts,
    write_store,
)
from tests.strategies import blocks, corpora, cuttings

WORD = 2**64 - 1
STEP = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


def words_of(block: BagBlock, bag: int) -> list[int]:
    """Every word that enters the digest of one bag."""
    start, stop = (int(at) for at in block.bag_offsets[bag : bag + 2])
    words = [mix(((stop - start) * STEP + 0x1000000000000001) & WORD)]
    for label in block.labels_of(bag).tolist():
        words.append(mix((label * STEP + 0x2000000000000003) & WORD))
    rows = block.rows_of(bag).astype(np.float32)
    for i in range(stop - start):
        key = mix((i + STEP) & WORD)
        for feature, value in enumerate(rows[i]):
            if value != 0:
                bits = int(value.view(np.uint32))
                words.append(mix((feature << 32 | bits) ^ key))
        known = -1 if block.row_labels is None else int(block.row_labels[start + i])
        if known >= 0:
            words.append(mix((known * STEP + 0x3000000000000005) & WORD ^ key))
    return words


def slow_digests(block: BagBlock) -> list[list[int]]:
    """Two sums for each bag, by the definition."""
    out = []
    for bag in range(len(block)):
        words = words_of(block, bag)
        second = [(z ^ (z >> 29)) * 0xD6E8FEB86659FD93 for z in words]
        out.append([sum(words) & WORD, sum(second) & WORD])
    return out


def slow_fingerprint(block: BagBlock) -> str:
    """32 hexadecimal digits, by the definition."""
    sums = [0, 0]
    for bag, words in enumerate(slow_digests(block)):
        key = mix((bag * STEP + STEP) & WORD)
        for lane in (0, 1):
            sums[lane] = (sums[lane] + mix(words[lane] ^ key)) & WORD
    return f"{sums[0]:016x}{sums[1]:016x}"


def fingerprint(block: BagBlock) -> str:
    total = Fingerprint()
    total.add(0, digests_of(block))
    return total.text()


@pytest.mark.parametrize("n_bytes", [1, 16, 50, 64])
def test_digests__do_not_depend_on_the_size_of_converted_pieces(n_bytes, monkeypatch):
    rows = np.random.default_rng(1).integers(0, 3, (40, 3)).astype(np.uint8)
    offsets, none = np.array([0, 7, 8, 33, 40]), np.zeros(5, np.int64)
    labels = (none, none[:0], None)
    expected = fingerprints.bag_digests(offsets, *labels, rows)
    monkeypatch.setattr(fingerprints, "_CONVERTED_BYTES", n_bytes)
    for same in (rows, rows.astype(np.float32)):
        assert (fingerprints.bag_digests(offsets, *labels, same) == expected).all()


@given(block=blocks())
def test_fingerprint__agrees_with_its_definition(block):
    assert digests_of(block).tolist() == slow_digests(block)
    assert fingerprint(block) == slow_fingerprint(block)


def test_fingerprint__is_that_of_earlier_versions():
    # Every manifest contains the fingerprint: another fingerprint would be another format.
    assert fingerprint(made_block()) == slow_fingerprint(made_block())
    rows = np.array([[1, 0, -2.5], [0, 0, 3]], np.float32)
    block = BagBlock.from_bags([rows, rows[:1]], [[0, 2], []], row_labels=[[1, -1], [0]])
    assert fingerprint(block) == "fa6dafb9d955821f16f1dd42ff61ccee"


@given(corpus=corpora(), backend=st.sampled_from(BACKENDS), cut=cuttings())
def test_fingerprint__does_not_depend_on_how_it_is_stored(corpus, backend, cut):
    with scratch() as folder, sizes(**cut):
        store = write_parts(folder / f"x.{backend}", corpus.spec, corpus.parts)
        assert store.fingerprint == slow_fingerprint(corpus.block)


@pytest.mark.parametrize("codec", CODECS)
def test_fingerprint__does_not_depend_on_the_type_of_values(backend, codec, tmp_path):
    fingerprints = set()
    for dtype in ("float32", "float16", "uint8", "int8", "int16"):
        block = made_block(dtype="uint8")
        dense = replace(block, rows=block.rows.astype(dtype))
        for kind, block in (("dense", dense), ("sparse", as_sparse(dense))):
            path = tmp_path / f"{dtype}-{kind}.{backend}"
            fingerprints.add(write_store(path, block, codec=codec).fingerprint)
    assert fingerprints == {slow_fingerprint(made_block(dtype="uint8"))}


@given(block=blocks(ids=True), names=st.permutations(range(7)))
def test_fingerprint__does_not_depend_on_ids(block, names):
    renamed = replace(block, bag_ids=[str(names[i]) for i in range(len(block))])
    assert fingerprint(renamed) == fingerprint(replace(block, bag_ids=None))


def test_fingerprint__ignores_the_sign_of_zero():
    block = plain(made_block())
    minus = replace(block, rows=np.where(block.rows == 0, np.float32(-0.0), block.rows))
    kept = np.ones(block.rows.shape, bool)
    counts = np.arange(len(kept) + 1) * 3
    columns = np.tile(np.arange(3, dtype=np.uint32), len(kept))
    explicit = replace(block, rows=SparseRows(counts, columns, minus.rows.reshape(-1), 3))
    assert fingerprint(minus) == fingerprint(explicit) == fingerprint(block)


def test_fingerprint__can_be_folded_in_any_order_of_parts():
    block = made_block()
    digests = digests_of(block)
    total = Fingerprint()
    total.add(7, digests[7:])
    again = Fingerprint(total.sums)
    again.add(0, digests[:7])
    assert again.text() == fingerprint(block)


@given(block=blocks(), data=st.data())
def test_fingerprint__notices_a_changed_value(block, data):
    rows = block.rows.dense() if isinstance(block.rows, SparseRows) else block.rows.copy()
    place = tuple(data.draw(st.integers(0, n - 1)) for n in rows.shape)
    rows[place] = 1 if rows[place] != 1 else 2
    assert fingerprint(replace(block, rows=rows)) != fingerprint(block)


def changed(block: BagBlock) -> dict[str, BagBlock]:
    """The block with one change each, by the name of the change."""
    order = np.arange(len(block))
    order[[2, 3]] = [3, 2]
    swapped = block.rows.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    moved = block.rows.copy()
    moved[0] = np.roll(moved[0], 1)
    flipped = block.rows.copy()
    flipped[1] = -flipped[1]
    labels = block.label_indices.copy()
    labels[0] += 1
    row_labels = block.row_labels.copy()
    row_labels[0] = row_labels[0] + 1
    traded = block.row_labels.copy()
    traded[[0, 1]] = [3, 1]
    traded_back = block.row_labels.copy()
    traded_back[[0, 1]] = [1, 3]
    label_ends, bag_ends = block.label_offsets.copy(), block.bag_offsets.copy()
    label_ends[1] -= 1
    bag_ends[1] += 1
    return {
        "as it was": block,
        "two bags swapped": block.take(order),
        "two rows of a bag swapped": replace(block, rows=swapped),
        "a value at another feature": replace(block, rows=moved),
        "a sign": replace(block, rows=flipped),
        "a label": replace(block, label_indices=labels),
        "a label of the next bag": replace(block, label_offsets=label_ends),
        "a row of the next bag": replace(block, bag_offsets=bag_ends),
        "a row label": replace(block, row_labels=row_labels),
        "row labels of two rows": replace(block, row_labels=traded),
        "row labels of two rows, swapped": replace(block, row_labels=traded_back),
        "no row labels": replace(block, row_labels=None),
        "one bag less": block.slice(0, len(block) - 1),
        "the first bag less": block.slice(1, len(block)),
        "twice the first bag": block.take(np.array([0, *range(len(block))])),
    }


def test_fingerprint__notices_every_change_of_content():
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(12, 4)).astype(np.float32)
    block = BagBlock.from_bags(
        [rows[i : i + 2] for i in range(0, 12, 2)],
        [[0, 1], [1], [2], [0, 2], [], [1, 2]],
        row_labels=rng.integers(-1, 3, (6, 2)).tolist(),
    )
    cases = changed(block)
    seen: dict[str, str] = {}
    for name, case in cases.items():
        digits = fingerprint(case)
        assert digits not in seen, f"{name} has the fingerprint of {seen.get(digits)}"
        seen[digits] = name
