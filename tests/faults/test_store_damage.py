"""Stores that came to harm: nothing is silently wrong, and every error names the file.

Reading everything either raises StoreError naming the file, or returns exactly what was written;
the whole check always reports the file. The controls show that the tests would notice silence.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

import streammiml as sm
from streammiml.bags import layout, store, summary, verified_array, verify
from streammiml.bags.array_writer import table_pages
from streammiml.bags.block import BagBlock
from streammiml.bags.layout import CODECS, FOLDER, MANIFEST, RECORD, ArrayEntry, Manifest, table_key
from streammiml.bags.verified_array import VerifiedArray
from streammiml.errors import StoreError
from tests.stores import (
    BACKENDS,
    as_sparse,
    assert_same,
    made_block,
    made_spec,
    read_together,
    sizes,
    write_parts,
)

KINDS = [(b, k, c) for b in BACKENDS for k in ("dense", "sparse") for c in CODECS]
# 300 for each backend and kind of rows; the long form has ten times as many.
FLIPS = 300 // len(CODECS)


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Several chunks, files, row groups and pages of every array."""
    with sizes():
        yield


@dataclass(frozen=True)
class Victim:
    """A store to do harm to, its bags, and its files as they were written."""

    path: Path
    block: BagBlock
    files: dict[str, bytes]

    def put(self, key: str, content: bytes) -> None:
        (self.path / key).write_bytes(content)

    def heal(self, *keys: str) -> None:
        for key in keys:
            self.put(key, self.files[key])


def make(path: Path, kind: str, codec: str, seed: int = 0) -> BagBlock:
    block = made_block(10, seed=seed)
    block = as_sparse(block) if kind == "sparse" else block
    spec = made_spec(sparse=kind == "sparse", codec=codec, chunk_bytes=48)
    write_parts(path, spec, [block.slice(0, 6), block.slice(6, 10)])
    return block


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def victim(request, tmp_path_factory) -> Victim:
    backend, kind, codec = request.param
    path = tmp_path_factory.mktemp("victim") / f"x.{backend}"
    block = make(path, kind, codec)
    paths = (file for file in path.rglob("*") if file.is_file())
    files = {file.relative_to(path).as_posix(): file.read_bytes() for file in sorted(paths)}
    assert len(files) > 10
    return Victim(path, block, files)


class Silent(AssertionError):
    """Wrong values came back, and nobody said so."""


def verdict(victim: Victim) -> str:
    """What reading everything comes to: nothing if all is right, else the line of the error."""
    block, n = victim.block, len(victim.block)
    try:
        store = sm.open_store(victim.path)
        got, ids = store.read(0, n), store.bag_ids(0, n)
        by_number = store.read_bags(np.arange(n)[::-1])
        together = read_together(store, [(i, min(i + 3, n)) for i in range(0, n, 3)])
        names = (store.label_names, store.feature_names, store.n_labels)
    except StoreError as error:
        return str(error)
    try:
        assert_same(got, block)
        assert_same(by_number, block.take(np.arange(n)[::-1]))
        assert_same(together, replace(block, row_labels=None, bag_ids=None))
        assert ids == block.bag_ids
        assert names == (["sea", "sky", "sun", "tree"], ["r", "g", "b"], 4)
    except AssertionError as error:
        raise Silent(str(error)) from error
    return ""


def checked(victim: Victim) -> str:
    """What opening and the whole check report."""
    try:
        return "\n".join(sm.open_store(victim.path).check())
    except StoreError as error:
        return str(error)


def names(line: str, *keys: str) -> bool:
    """Whether a line names one of the files, or the manifest by what it is."""
    matches = [key in line for key in keys]
    if MANIFEST in keys:
        matches += [FOLDER in line, "was written by store format" in line]
    return any(matches) and "\n" not in line.strip()


def assert_noticed(victim: Victim, what: str, *keys: str) -> None:
    line = verdict(victim)
    assert not line or names(line, *keys), f"{what}: {line}"
    report = checked(victim)
    assert report, f"{what}: the check finds nothing"
    assert any(names(report_line, *keys) for report_line in report.splitlines()), (
        f"{what}: {report}"
    )


def flips(files: dict[str, bytes], n: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Files with one bit flipped: any file as likely as another, half near its beginning."""
    rng, keys = np.random.default_rng(seed), list(files)
    for number in range(n):
        key = keys[int(rng.integers(len(keys)))]
        raw = bytearray(files[key])
        if not raw:
            continue
        end = len(raw) if number % 2 else min(len(raw), 200)
        raw[int(rng.integers(end))] ^= 1 << int(rng.integers(8))
        yield key, bytes(raw)


def test_store_without_harm__is_right(victim):
    assert verdict(victim) == checked(victim) == ""


def test_flipped_bits__are_never_silent(victim):
    for key, content in flips(victim.files, FLIPS, seed=1):
        victim.put(key, content)
        assert_noticed(victim, f"a bit of {key} flipped", key)
        victim.heal(key)


@pytest.mark.slow
def test_flipped_bits__are_never_silent_in_thousands(victim):
    for key, content in flips(victim.files, 10 * FLIPS, seed=2):
        victim.put(key, content)
        assert_noticed(victim, f"a bit of {key} flipped", key)
        victim.heal(key)


def flipped_values(victim: Victim) -> Iterator[tuple[str, bytes]]:
    """Files with one bit flipped in bytes that a read fetches, once for every chunk."""
    manifest = Manifest.from_bytes(victim.files[MANIFEST], "x")
    rng = np.random.default_rng(3)
    for name in manifest.arrays:
        for record in np.frombuffer(victim.files[table_key(name)], RECORD):
            key = manifest.files[record["file"]][0]
            raw = bytearray(victim.files[key])
            # Zarr pads the last chunk; the values come first there, and last in Parquet.
            first, size = int(record["offset"]), int(record["nbytes"])
            at = first if victim.path.suffix == ".zarr" else first + size - 1
            raw[at] ^= 1 << int(rng.integers(8))
            yield key, bytes(raw)


def test_flipped_bits_of_values__are_refused_by_reading(victim):
    for key, content in flipped_values(victim):
        victim.put(key, content)
        line = verdict(victim)
        assert names(line, key), f"a bit of {key} flipped: {line}"
        victim.heal(key)


def harmed(content: bytes) -> dict[str, bytes]:
    half, less = content[: len(content) // 2], content[:-1]
    more = content + b"\0"
    return {"emptied": b"", "halved": half, "a byte short": less, "a byte long": more}


def test_every_file_cut_or_lengthened__is_noticed(victim):
    for key, content in victim.files.items():
        for what, instead in harmed(content).items():
            if instead != content:
                victim.put(key, instead)
                assert_noticed(victim, f"{key} {what}", key)
                victim.heal(key)


def test_every_file_deleted__is_noticed(victim):
    for key in victim.files:
        (victim.path / key).unlink()
        assert_noticed(victim, f"{key} deleted", key)
        victim.heal(key)


def test_every_file_turned_into_a_folder__is_noticed(victim):
    for key in victim.files:
        (victim.path / key).unlink()
        (victim.path / key).mkdir()
        assert_noticed(victim, f"{key} a folder", key)
        (victim.path / key).rmdir()
        victim.heal(key)


def test_every_file_swapped_with_its_neighbour__is_noticed(victim):
    keys = sorted(victim.files, key=lambda key: (Path(key).suffix, key))
    for one, other in pairwise(keys):
        if victim.files[one] == victim.files[other]:
            continue
        victim.put(one, victim.files[other])
        victim.put(other, victim.files[one])
        assert_noticed(victim, f"{one} and {other} swapped", one, other)
        victim.heal(one, other)


def test_every_file_of_another_time__is_noticed(victim, tmp_path):
    # The same shapes, other values: a copy that was interrupted, a backup half restored.
    stale = tmp_path / victim.path.name
    shutil.copytree(victim.path, stale)
    manifest = Manifest.from_bytes(victim.files[MANIFEST], "x")
    other = tmp_path / f"other{victim.path.suffix}"
    make(other, "sparse" if manifest.sparse else "dense", manifest.codec, seed=7)
    differ = 0
    for key, content in victim.files.items():
        old = other / key
        if old.exists() and old.read_bytes() != content and key != MANIFEST:
            victim.put(key, old.read_bytes())
            assert_noticed(victim, f"{key} of another store", key)
            victim.heal(key)
            differ += 1
    assert differ > 5


def test_chunks_swapped_within_a_file__are_noticed(victim):
    manifest = Manifest.from_bytes(victim.files[MANIFEST], "x")
    swaps = 0
    for name in manifest.arrays:
        table = np.frombuffer(victim.files[table_key(name)], RECORD)
        for one, other in pairwise(table):
            key = manifest.files[one["file"]][0]
            if one["file"] != other["file"] or one["nbytes"] != other["nbytes"]:
                continue
            if one["crc"] == other["crc"]:
                continue
            raw = bytearray(victim.files[key])
            size, at, to = int(one["nbytes"]), int(one["offset"]), int(other["offset"])
            raw[at : at + size], raw[to : to + size] = raw[to : to + size], raw[at : at + size]
            victim.put(key, bytes(raw))
            assert names(verdict(victim), key)
            victim.heal(key)
            swaps += 1
    assert swaps or manifest.codec != "none"


# Controls: with the protection off, the same harm is silent, and the tests above see it.


@pytest.fixture
def unprotected(monkeypatch):
    """Read what there is, and believe it."""

    def believe(location, key, offset, buffer, _):
        location.read_into(key, offset, buffer)

    monkeypatch.setattr(verified_array, "fetch", believe)
    monkeypatch.setattr(VerifiedArray, "_read_group", lambda *_: None)
    monkeypatch.setattr(store, "description_problem", lambda *_: "")
    monkeypatch.setattr(verify, "description_problem", lambda *_: "")
    monkeypatch.setattr(verify, "_file_problem", lambda *_: "")


@pytest.mark.usefixtures("unprotected")
def test_control__without_checksums_flipped_bits_are_silent(victim):
    silent = loud = 0
    for key, content in flipped_values(victim):
        victim.put(key, content)
        try:
            verdict(victim)
        except Silent:
            silent += 1
        except Exception:
            # A codec or pyarrow fails by itself, but not in our words.
            loud += 1
        victim.heal(key)
    assert silent > 5, f"{loud} others"


@pytest.mark.usefixtures("unprotected")
def test_control__without_checksums_the_check_finds_nothing(victim):
    manifest = Manifest.from_bytes(victim.files[MANIFEST], "x")
    key = next(key for key, _, _ in manifest.files if FOLDER not in key)
    raw = bytearray(victim.files[key])
    raw[-3 if victim.path.suffix == ".zarr" else 1] ^= 1
    victim.put(key, bytes(raw))
    try:
        with pytest.raises(AssertionError, match="the check finds nothing"):
            assert_noticed(victim, "a bit of the shard's index", key)
    finally:
        victim.heal(key)


# Descriptions that were edited: refused at open.


def edit_json(raw: bytes, **changes) -> bytes:
    return json.dumps({**json.loads(raw), **changes}).encode()


@pytest.fixture
def copy(tiny, tmp_path) -> Path:
    path = tmp_path / tiny.path.name
    shutil.copytree(tiny.path, path)
    return path


def test_edited_manifest__is_refused_at_open(copy):
    raw = (copy / MANIFEST).read_bytes()
    for changes in ({"n_bags": 11}, {"fingerprint": "0" * 32}, {"n_labels": 9}, {"codec": "zstd"}):
        (copy / MANIFEST).write_bytes(edit_json(raw, **changes))
        with pytest.raises(
            StoreError, match=r"manifest.json is damaged \(checksum differs\); conv"
        ):
            sm.open_store(copy)


def test_control__an_edited_manifest_that_is_signed_again_is_opened(copy):
    raw = (copy / MANIFEST).read_bytes()
    (copy / MANIFEST).write_bytes(signed(raw, fingerprint="0" * 32))
    assert sm.open_store(copy).fingerprint == "0" * 32


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"7", b"\xff\xfe", b"[" * 100_000, b'{"format": "streammiml store"}'],
    ids=["nothing", "object", "list", "number", "bytes", "deep", "half"],
)
def test_manifest_that_is_none__is_refused_at_open(copy, content):
    (copy / MANIFEST).write_bytes(content)
    with pytest.raises(
        StoreError, match=r"manifest.json is damaged \(not a manifest\); convert or"
    ):
        sm.open_store(copy)


def test_manifest_of_another_program__is_refused_at_open(copy):
    raw = (copy / MANIFEST).read_bytes()
    for changes in ({"format": "other"}, {"format_version": "1"}):
        (copy / MANIFEST).write_bytes(edit_json(raw, **changes))
        with pytest.raises(StoreError, match=r"is damaged \(not a manifest\)"):
            sm.open_store(copy)


def signed(raw: bytes, **changes) -> bytes:
    """A manifest that was edited together with its checksum."""
    body = {key: value for key, value in json.loads(raw).items() if key != "checksum"} | changes
    body = {key: value for key, value in body.items() if value is not None}
    return json.dumps({**body, "checksum": layout._checksum(body)}).encode()


def test_future_format__is_refused_with_both_versions(copy):
    raw = (copy / MANIFEST).read_bytes()
    for content in (edit_json(raw, format_version=3), signed(raw, format_version=3, news=1)):
        (copy / MANIFEST).write_bytes(content)
        message = r"was written by store format 3, this reads up to 2; install a newer streammiml"
        with pytest.raises(StoreError, match=message):
            sm.open_store(copy)


def test_signed_manifest_with_other_fields__is_refused_at_open(copy):
    raw = (copy / MANIFEST).read_bytes()
    for changes in ({"news": 1}, {"n_bags": None}, {"arrays": None}, {"arrays": {"rows": {}}}):
        (copy / MANIFEST).write_bytes(signed(raw, **changes))
        with pytest.raises(
            StoreError, match=r"manifest.json is damaged \((rows: )?fields are missing or unk"
        ):
            sm.open_store(copy)


def test_counts_that_disagree__are_refused_at_open(copy):
    raw = (copy / MANIFEST).read_bytes()
    for changes, message in (
        ({"n_bags": 11}, r"\w+_offsets has 13 elements, expected 12"),
        ({"n_rows": 99}, r"row\w+ has \d+ elements, expected 99"),
        ({"n_features": 4}, "rows has 3 features, expected 4"),
    ):
        (copy / MANIFEST).write_bytes(signed(raw, **changes))
        with pytest.raises(StoreError, match=rf"manifest.json contradicts itself: {message}"):
            sm.open_store(copy)


def test_edited_zarr_json__is_refused_at_open(tmp_path):
    copy = tmp_path / "x.zarr"
    make(copy, "dense", "none")
    for key in ("zarr.json", "rows/zarr.json", "bag_offsets/zarr.json"):
        raw = (copy / key).read_bytes()
        for changes in ({"shape": [1, 3]}, {"data_type": "int8"}, {"attributes": {}}):
            (copy / key).write_bytes(edit_json(raw, **changes))
            with pytest.raises(
                StoreError, match=rf"{key} (has \d+ bytes, expected \d+|is damaged)"
            ):
                sm.open_store(copy)
        swapped = raw.replace(b'"zarr_format": 3', b'"zarr_format": 2')
        assert swapped != raw
        (copy / key).write_bytes(swapped)
        with pytest.raises(
            StoreError, match=rf"{key} is damaged or was edited: it fails its check"
        ):
            sm.open_store(copy)
        (copy / key).write_bytes(raw)


def test_edited_footer__is_refused_at_open(tmp_path):
    copy = tmp_path / "x.parquet"
    make(copy, "dense", "none")
    key = "part-00000001.parquet"
    raw = (copy / key).read_bytes()
    start = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    for at in range(start, len(raw), 7):
        (copy / key).write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with pytest.raises(
            StoreError, match=rf"{key} is damaged or was edited: it fails its check"
        ):
            sm.open_store(copy)


# Manifests that lie: any field replaced by anything, and the checksum made right again.

DEEP: list = []
for _ in range(900):
    DEEP = [DEEP]
MISSING = object()
HOSTILE = [
    *(None, True, -1, 0, 7, 2**31, 2**63, 10**30, 1.5, float("nan"), float("inf")),
    *("", "x", "1", "object", "../../../../etc/passwd", "/etc/passwd", "a\\b", "a\0b", "\ud800"),
    *([], [1], [[]], [None] * 3, {}, {"a": 1}, {"../x": [0, 1, 2]}, DEEP, MISSING),
]


def positions(value, at=()):
    """Where something stands in nested lists and objects; of long lists, the ends."""
    yield at
    if isinstance(value, dict):
        for key in value:
            yield from positions(value[key], (*at, key))
    elif isinstance(value, list):
        for number in sorted({0, len(value) - 1} if value else ()):
            yield from positions(value[number], (*at, number))


def replaced(value, at, new):
    """A copy with what stands there replaced, or taken away."""
    if not at:
        return new
    out = value.copy()
    if len(at) == 1 and new is MISSING:
        del out[at[0]]
    else:
        out[at[0]] = replaced(value[at[0]], at[1:], new)
    return out


def hostile_manifests(raw):
    body = json.loads(raw)
    del body["checksum"]
    for at in positions(body):
        # The description of the format comes before everything else, and has its own tests.
        if at and at[0] not in ("format", "format_version"):
            for new in HOSTILE:
                # Without labels of rows it is another store, which the fingerprint tells.
                if at == ("arrays", "row_labels") and new is MISSING:
                    continue
                yield f"{at} is {new!r:.40}", replaced(body, at, new)


@pytest.fixture(params=[(b, k) for b in BACKENDS for k in ("dense", "sparse")], ids="-".join)
def liar(request, tmp_path) -> Victim:
    backend, kind = request.param
    path = tmp_path / f"x.{backend}"
    return Victim(path, make(path, kind, "none"), {})


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_signed_manifest__that_lies_is_refused_or_changes_nothing(liar, step):
    """Every seventh of them, and all."""
    manifests = hostile_manifests((liar.path / MANIFEST).read_bytes())
    n_refused = 0
    for what, body in islice(manifests, 0, None, step):
        content = {**body, "checksum": layout._checksum(body)}
        liar.put(MANIFEST, json.dumps(content).encode())
        try:
            line = verdict(liar)
            if not line:
                summary.describe(store.open_one(liar.path))
            report = line or checked(liar)
        except StoreError as error:
            line = report = str(error)
        except Exception as error:
            raise AssertionError(f"{what}: {error!r}") from error
        n_refused += bool(report)
    assert n_refused > 1000 / step


@pytest.mark.parametrize("field", ["files", "metadata"])
@pytest.mark.parametrize(
    "key",
    [
        *("../x.zarr/rows/c/0", "../../../../etc/passwd", "/etc/passwd", "rows/../../y", "a/.."),
        *("", ".", "./a", "a//b", "a/", "a\\b", "..\\b", "a\0b", "\ud800", 7),
    ],
)
def test_signed_manifest__that_names_a_path_outside_is_refused_at_open(copy, field, key):
    raw = (copy / MANIFEST).read_bytes()
    if field == "files":
        [_, size, crc], *more = json.loads(raw)[field]
        changes = {field: [[key, size, crc], *more]}
    else:
        changes = {field: {str(key).replace("7", "/7"): [0, 1, 2]}}
    (copy / MANIFEST).write_bytes(signed(raw, **changes))
    message = rf"manifest.json is damaged \({field} is .*, expected .*a path inside the store\)"
    with pytest.raises(StoreError, match=message):
        sm.open_store(copy)


@pytest.mark.parametrize("key", ["a", "a/b", "a.b/..c/c..", "...", ".a", "größe/0"])
def test_manifest__paths_inside_are_taken(key):
    assert layout.MANIFEST_FIELDS["files"]([[key, 0, 0]]) == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_bags": True}, "n_bags is True, expected a whole number from 1 to"),
        ({"n_rows": 10**30}, "n_rows is 10+, expected a whole number from 1 to"),
        ({"sparse": 0}, "sparse is 0, expected true or false"),
        ({"dtype": "object"}, "dtype is 'object', expected one of float32, "),
        ({"fingerprint": "x"}, "fingerprint is 'x', expected 32 hexadecimal digits"),
        ({"files": {}}, "files is {}, expected a list"),
        (
            {"files": [["a", -1, 0]]},
            "files is .*, expected a list, each item a list of 3 items, one of",
        ),
        ({"metadata": []}, r"metadata is \[\], expected an object"),
        (
            {"arrays": {"other": {}}},
            "arrays is .*, expected an object, each entry one o",
        ),
    ],
)
def test_signed_manifest__the_field_that_lies_is_named(copy, changes, message):
    raw = (copy / MANIFEST).read_bytes()
    (copy / MANIFEST).write_bytes(signed(raw, **changes))
    with pytest.raises(StoreError, match=rf"manifest.json is damaged \({message}.*; convert or se"):
        sm.open_store(copy)


@pytest.mark.parametrize(
    ("array", "changes", "message"),
    [
        ("label_indices", {"dtype": "int64"}, "label_indices holds int64, expected int32"),
        ("label_indices", {"width": 2}, "label_indices has 2 features, expected 1"),
        ("label_indices", {"pages": []}, r"label_indices has \d+ elements on 0 pages"),
        (
            "label_indices",
            {"pages": [[0, 1, 1]]},
            "pages of label_indices begin at elements 1 to 1, expected 0 to",
        ),
        (
            "label_indices",
            {"pages": [[0, 0, 1]] * 2},
            "pages of label_indices are not in rising order",
        ),
        ("label_offsets", {"coding": "arrow"}, "label_offsets is coded as arrow, expected raw"),
        ("row_labels", None, "it has the arrays bag_id_bytes, .*, expected bag_offsets, "),
    ],
)
def test_signed_manifest__whose_arrays_cannot_be_is_refused_at_open(copy, array, changes, message):
    raw = (copy / MANIFEST).read_bytes()
    arrays = json.loads(raw)["arrays"]
    if changes is None:
        arrays = {"bag_id_bytes" if key == array else key: arrays[key] for key in arrays}
        arrays.pop("bag_id_offsets", None)
    else:
        arrays[array] |= changes
    (copy / MANIFEST).write_bytes(signed(raw, arrays=arrays))
    with pytest.raises(StoreError, match=rf"manifest.json contradicts itself: .*{message}"):
        sm.open_store(copy)


def test_signed_manifest__without_what_describes_the_store_is_refused_at_open(copy):
    raw = (copy / MANIFEST).read_bytes()
    (copy / MANIFEST).write_bytes(signed(raw, metadata={}))
    with pytest.raises(StoreError, match=r"itself: the description of \S+ is not listed"):
        sm.open_store(copy)


def test_pipe_instead_of_a_file__is_refused_and_not_waited_for(copy, tiny):
    manifest = Manifest.from_bytes((copy / MANIFEST).read_bytes(), "x")
    keys = [key for key, _, _ in manifest.files]
    for key in (MANIFEST, *manifest.metadata, *keys, table_key("bag_offsets")):
        content = (copy / key).read_bytes()
        (copy / key).unlink()
        os.mkfifo(copy / key)
        report = checked(Victim(copy, tiny.block, {}))
        assert re.search(f"{key} (cannot be read: it is a pipe or a device|has 0 bytes)", report)
        (copy / key).unlink()
        (copy / key).write_bytes(content)
    assert checked(Victim(copy, tiny.block, {})) == ""


def test_store_of_links_to_files_elsewhere__is_read(copy, tmp_path):
    # As caches of downloads and git-annex keep what they hold.
    for number, path in enumerate(sorted(path for path in copy.rglob("*") if path.is_file())):
        path.rename(tmp_path / f"blob-{number}")
        path.symlink_to(tmp_path / f"blob-{number}")
    store = sm.open_store(copy)
    assert len(store.read(0, 12)) == 12
    assert store.check() == []


def test_link_inside_a_store_or_to_one__is_followed(copy, tmp_path):
    key = Manifest.from_bytes((copy / MANIFEST).read_bytes(), "x").files[0][0]
    (copy / key).rename(copy / "moved")
    (copy / key).symlink_to(copy / "moved")
    (tmp_path / "link").symlink_to(copy)
    for path in (copy, tmp_path / "link"):
        assert len(sm.open_store(path).read(0, 12)) == 12


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"label_names": 7}, "is invalid: label_names must be a list of texts, or be left out"),
        (
            {"label_names": [1, 2, 3, 4]},
            "is invalid: label_names must be a list of texts, or be left",
        ),
        ({"label_names": ["a"]}, r"is invalid: it has 1 label_names, expected \d"),
        ({"feature_names": ["a"]}, r"is invalid: it has 1 feature_names, expected \d"),
        (7, r"(cannot be understood \(TypeError\)|is no JSON)"),
        ([[]], r"(cannot be understood \(ValueError\)|is no JSON)"),
    ],
)
def test_names_that_lie__are_refused_when_they_are_read(copy, attributes, message):
    if copy.suffix == ".zarr":
        key = "zarr.json"
        content = json.dumps({"attributes": {"streammiml": attributes}}).encode()
    else:
        key = "_common_metadata"
        schema = pq.read_schema(copy / key).with_metadata({"streammiml": json.dumps(attributes)})
        pq.write_metadata(schema, copy / key)
        content = (copy / key).read_bytes()
    (copy / key).write_bytes(content)
    raw = (copy / MANIFEST).read_bytes()
    metadata = {**json.loads(raw)["metadata"], key: [0, len(content), crc32c(content)]}
    (copy / MANIFEST).write_bytes(signed(raw, metadata=metadata))
    with pytest.raises(StoreError, match=message):
        sm.open_store(copy).label_names  # noqa: B018


# Stores that lie, checksums and all: somebody else's program wrote them.


def tamper(path: Path, array: str, element: int, value: float) -> None:
    """Change an element of an array (of rows, its first value), and all checksums over it."""
    manifest = Manifest.from_bytes((path / MANIFEST).read_bytes(), "x")
    entry = manifest.arrays[array]
    table = np.frombuffer((path / table_key(array)).read_bytes(), RECORD).copy()
    row = int(np.searchsorted(table["first"], element, "right")) - 1
    record = table[row]
    number = int(record["file"])
    key, size, _ = manifest.files[number]
    raw, dtype = bytearray((path / key).read_bytes()), np.dtype(entry.dtype)
    begin, nbytes = int(record["offset"]), int(record["nbytes"])
    step = dtype.itemsize * entry.width
    at = begin + (element - int(record["first"])) * step
    if entry.coding == "tail":
        at += nbytes - int(record["elements"]) * step
    else:
        assert entry.coding == "raw", entry.coding
    raw[at : at + dtype.itemsize] = np.array(value, dtype).tobytes()
    (path / key).write_bytes(raw)
    table["crc"][row] = crc32c(raw[begin : begin + nbytes])
    (path / table_key(array)).write_bytes(table.tobytes())
    entries = {
        **manifest.arrays,
        array: ArrayEntry(**{**asdict(entry), "pages": table_pages(table)}),
    }
    files = list(manifest.files)
    files[number] = [key, size, crc32c(raw)]
    sealed = replace(manifest, arrays=entries, files=files)
    (path / MANIFEST).write_bytes(sealed.to_bytes())


LIES = {
    "bags begin late": ("bag_offsets", 0, 1, r"bag_offsets is invalid: offsets 0 to 12 are 1 to"),
    "bags below zero": ("bag_offsets", 0, -1, r"bag_offsets is invalid: offsets 0 to 12 are -1 to"),
    "bags fall": ("bag_offsets", 6, 1, r"bag_offsets is invalid: offsets fall after \d+"),
    "bags end early": ("bag_offsets", 12, 25, r"bag_offsets is invalid: offsets"),
    "bags end beyond": (
        "bag_offsets",
        12,
        10**12,
        r"bag_offsets is invalid: offsets 0 to 12 are 0 to",
    ),
    "labels fall": ("label_offsets", 6, 0, r"label_offsets is invalid: offsets fall after"),
    "labels end beyond": (
        "label_offsets",
        12,
        10**12,
        r"label_offsets is invalid: offsets 0 to 12 are 0",
    ),
    "ids fall": ("bag_id_offsets", 6, 0, r"bag_id_offsets is invalid: offsets fall"),
    "ids end beyond": (
        "bag_id_offsets",
        12,
        10**12,
        r"bag_id_offsets is invalid: offsets 0 to 12 are 0",
    ),
    "label above": (
        "label_indices",
        3,
        4,
        r": label 4 is outside 0 to 3; convert the source again",
    ),
    "label below": ("label_indices", 3, -1, r": label -1 is outside 0 to 3; convert the source"),
    "row label above": ("row_labels", 5, 4, r": row label 4 is outside -1 to 3; convert"),
    "row label below": ("row_labels", 5, -2, r": row label -2 is outside -1 to 3; convert"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lie__is_refused_by_reading_and_by_the_check(copy, lie):
    array, element, value, message = LIES[lie]
    tamper(copy, array, element, value)
    store = sm.open_store(copy)
    with pytest.raises(StoreError, match=message):
        store.bag_ids(0, 12) if array.startswith("bag_id") else store.read(0, 12)
    assert any(array in line or "label" in line for line in sm.open_store(copy).check())


def test_control__without_the_check_of_labels_a_lie_is_read(copy, monkeypatch):
    array, element, value, _ = LIES["label above"]
    tamper(copy, array, element, value)
    monkeypatch.setattr(store.BagStore, "_check_labels", lambda *_: None)
    opened = sm.open_store(copy)
    assert opened.read(0, 12).label_indices.max() == value == opened.n_labels


def test_control__tampering_with_a_truth_changes_nothing(copy, tiny):
    for array in ("bag_offsets", "label_offsets", "label_indices", "row_labels", "bag_id_offsets"):
        before = sm.open_store(copy)._arrays[array].read(0, 3)
        tamper(copy, array, 1, int(before[1]))
    store = sm.open_store(copy)
    assert store.check() == []
    assert_same(store.read(0, 12), tiny.block)


def test_values_that_are_not_finite__are_found_by_the_check(copy):
    tamper(copy, "rows", 0, np.nan)
    report = sm.open_store(copy).check()
    assert len(report) == 1
    assert "bag 0, row 0: value is nan (1 such values); only finite" in report[0]


def test_bags_in_other_places__are_found_by_the_fingerprint(copy):
    # A label that is in range, with all checksums right: only the fingerprint can tell.
    first_label = sm.open_store(copy)._arrays["row_labels"].read(0, 1)
    tamper(copy, "row_labels", 0, 0 if int(first_label[0]) != 0 else 1)
    report = sm.open_store(copy).check()
    assert len(report) == 1
    assert "the fingerprint is" in report[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_sparse_lies__are_refused(backend, tmp_path):
    path = tmp_path / f"x.{backend}"
    spec = made_spec(sparse=True, codec="none")
    for array, element, value, message in (
        ("row_offsets", 3, 0, r"row_offsets is invalid: offsets fall after"),
        ("row_offsets", 0, 2, r"row_offsets is invalid: offsets 0 to \d+ are 2 to"),
        (
            "columns",
            2,
            3,
            r"columns is invalid: it has feature 3, expected below 3; restore the file",
        ),
    ):
        write_parts(path, spec, [as_sparse(made_block())])
        tamper(path, array, element, value)
        store = sm.open_store(path)
        with pytest.raises(StoreError, match=message):
            store.read(0, 12)
        assert sm.open_store(path).check() != []
        shutil.rmtree(path)


def test_id_that_is_no_text__is_refused(tmp_path):
    path = tmp_path / "x.zarr"
    write_parts(path, made_spec(), [made_block()])
    tamper(path, "bag_id_bytes", 0, 0xFF)
    with pytest.raises(StoreError, match=r"bag_id_bytes is not UTF-8 text; restore the file"):
        sm.open_store(path).bag_ids(0, 1)
    assert "is not UTF-8 text" in sm.open_store(path).check()[0]
