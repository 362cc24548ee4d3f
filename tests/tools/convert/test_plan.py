"""The plan of a conversion: what it refuses, how it is cut, and when it is resumed."""

import json
import os
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streammiml as sm
from streammiml.errors import StoreError, StreammimlError
from streammiml_tools.convert import convert
from streammiml_tools.convert.plan import (
    ConversionFolder,
    ConvertConfig,
    check_memory,
    n_slots,
    new_plan,
    slot_bytes,
    span_bytes,
    work_folder,
)
from streammiml_tools.convert.sources import find_sources
from streammiml_tools.readers.base import Scan, SourceError, SourceOptions, Span
from tests.stores import (
    made_block,
    plain,
)
from tests.tools.convert.cases import SMALL, stop_at_once
from tests.tools.source_files import save_npy, save_npz


def test_convert__a_destination_that_is_there_is_seen_before_the_source_is_read(source, tmp_path):
    (tmp_path / "broken.csv").write_text("no separator")
    with pytest.raises(StoreError, match=r"source.zarr exists already; remove it or choose"):
        convert(tmp_path / "broken.csv", source)


def test_convert__leftovers_without_a_plan_are_taken_away_by_a_refusal_too(source):
    folder = work_folder(str(source))
    (folder / "store").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"source.zarr exists already"):
        convert(source, source)
    assert not folder.exists()


def test_convert__refuses_a_destination_that_is_there(source, tmp_path):
    convert(source, tmp_path / "out.zarr")
    with pytest.raises(StoreError, match=r"out\.zarr exists already; remove it or choose another"):
        convert(source, tmp_path / "out.zarr")
    (tmp_path / "s-test.zarr").mkdir()
    with pytest.raises(StoreError, match=r"s-test\.zarr exists already"):
        convert(source, tmp_path / "s.zarr", ConvertConfig(split="train=.5,test=.5"))
    with pytest.raises(StoreError, match=r"cannot be written: there is no folder"):
        convert(source, tmp_path / "none" / "out.zarr")
    with pytest.raises(StoreError, match=r"ends in \.zarr or \.parquet"):
        convert(source, tmp_path / "out.csv")


def test_convert__refuses_too_little_memory(source, tmp_path, monkeypatch):
    with pytest.raises(
        StreammimlError, match=r"--memory 64 KiB is too little for 1 processes; give at least 512"
    ):
        convert(source, tmp_path / "out.zarr", ConvertConfig(memory="64KiB"))
    with pytest.raises(
        SourceError,
        match=r"must be loaded as a whole: 2 GiB by each of 2 processes, more "
        r"than --memory 1 GiB; --memory 4505MiB would do",
    ):
        check_memory(Scan(spans=(), n_features=1, holds_bytes=2 << 30), 1 << 30, 2, "x.mat")
    monkeypatch.setattr("streammiml_tools.convert.plan.free_bytes", lambda _: 100)
    with pytest.raises(StoreError, match=r"out\.zarr needs [\d,]+ bytes, 100 are free; make room"):
        convert(source, tmp_path / "out.zarr")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "train"}, "cannot read 'train'; write name=share"),
        ({"split": "train=0"}, "cannot read 'train=0'"),
        ({"split": "a=.5,a=.5"}, "names a twice"),
        ({"split": "a=.5,b=.4"}, "shares add up to 0.9, expected 1"),
        ({"stratify": True}, "--stratify says how to split; give --split too"),
        ({"dtype": "float64"}, "no dtype is called 'float64'"),
        ({"codec": "zip"}, "no codec is called 'zip'"),
        ({"empty_bags": "keep"}, "no policy for empty bags is called 'keep'"),
        ({"limit": 0}, "limit must be a whole number at least 1"),
        ({"seed": -1}, "seed must be a whole number at least 0"),
        ({"memory": "much"}, "memory must be a size"),
    ],
)
def test_settings__that_mean_nothing__are_refused(settings, message):
    with pytest.raises(StreammimlError, match=re.escape(message)):
        ConvertConfig(**settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": ConvertConfig(codec="zstd")}, r"begun with other options \(--codec\)"),
        ({"settings": ConvertConfig(seed=1)}, r"begun with other options \(--seed\)"),
        ({"options": SourceOptions(sparse=True)}, r"begun with other options \(--sparse\)"),
    ],
)
def test_convert__does_not_go_on_with_other_settings(source, tmp_path, change, message):
    stop_at_once(source, tmp_path / "out.zarr")
    with pytest.raises(
        StoreError, match=rf"out\.zarr was {message}; remove .*\.out\.zarr\.partial"
    ):
        convert(source, tmp_path / "out.zarr", **change)
    other = replace(ConvertConfig(), memory="64MiB")
    assert convert(source, tmp_path / "out.zarr", other, SMALL).store.n_bags == 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda path: path.write_bytes(path.read_bytes() + b"x"),
            r"has changed from [\d,]+ to [\d,]+ bytes",
        ),
        (lambda path: os.utime(path, ns=(1, 1)), "was written again"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"), "has changed its content"),
    ],
)
def test_convert__does_not_go_on_with_another_source(tmp_path, change, message):
    source = save_npy(tmp_path / "source", plain(made_block(40)))
    out = tmp_path / "out.zarr"
    stop_at_once(source, out)
    change(source / "instances.npy")
    with pytest.raises(StoreError, match=rf"cannot be resumed: .*instances.npy {message} since"):
        convert(source, out, options=SMALL)


def test_convert__does_not_go_on_with_less_memory_than_its_spans_need(source, tmp_path):
    out, folder = tmp_path / "out.zarr", work_folder(str(tmp_path / "out.zarr"))

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, out, watch=stop)
    says = (
        r"out.zarr was begun in spans of 32 MiB, which need --memory 256MiB; give that, or remove"
    )
    with pytest.raises(StreammimlError, match=says):
        convert(source, out, ConvertConfig(memory="255MiB"))
    assert folder.exists()
    convert(source, out, ConvertConfig(memory="256MiB"))
    assert not folder.exists()


def test_work__a_lock_taken_away_under_its_hands_is_taken_anew(tmp_path):
    first, second = (
        ConversionFolder(str(tmp_path / "a.zarr")),
        ConversionFolder(str(tmp_path / "a.zarr")),
    )
    taken = second._locked

    def late():
        # The first ends between the moment the second opens the lock and the one it has it.
        lock = taken()
        if first.folder.exists() and not seen:
            seen.append(lock)
            first.remove()
        return lock

    seen = []
    second._locked = late
    with second:
        assert (second.folder / "lock").exists()
        with pytest.raises(StoreError, match=r"a.zarr is being written by process"), first:
            pass
    assert len(seen) == 1


def test_convert__refuses_a_damaged_plan_and_one_of_another_version(source, tmp_path):
    out = tmp_path / "out.zarr"
    stop_at_once(source, out)
    plan = work_folder(str(out)) / "plan.json"
    fields = json.loads(plan.read_text())
    plan.write_text(json.dumps({**fields, "version": 0}))
    with pytest.raises(StoreError, match="was begun by another version of streammiml; remove"):
        convert(source, out, options=SMALL)
    plan.write_text("{")
    with pytest.raises(StoreError, match="cannot be resumed: its plan is damaged; remove"):
        convert(source, out, options=SMALL)


def test_convert__does_not_take_leftovers_for_its_own(source, tmp_path):
    out, other = tmp_path / "out.zarr", tmp_path / "other.npz"
    stop_at_once(source, out)
    # As if killed while it cleaned up: the plan goes first.
    (work_folder(str(out)) / "plan.json").unlink()
    save_npz(other, made_block(40, seed=9))
    want = convert(other, tmp_path / "want.zarr").store.fingerprint
    assert convert(other, out, options=SMALL).store.fingerprint == want


def test_convert__of_two_processes_at_once__is_refused(source, tmp_path):
    with (
        ConversionFolder(str(tmp_path / "out.zarr")),
        pytest.raises(
            StoreError,
            match=r"out\.zarr is being written by process \d+ on .*; wait for it or stop it",
        ),
    ):
        convert(source, tmp_path / "out.zarr")


@given(n_bytes=st.integers(1, 10**9), part=st.integers(1 << 22, 1 << 25))
def test_slots__hold_what_a_compressed_file_may_grow_to(n_bytes, part):
    slots = n_slots(Span("a.csv.gz", 0, 1, n_bytes), part)
    room = sum(slot_bytes(slot, slots, part) for slot in range(slots))
    assert room >= 60 * n_bytes * (n_bytes > part)
    assert max(slot_bytes(slot, slots, part) for slot in range(slots)) <= 8 * part
    assert n_slots(Span("a.csv", 0, 1, min(n_bytes, part)), part) == 1


def test_resuming__is_by_other_memory_too(source, tmp_path):
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out.zarr", watch=stop)
    assert convert(source, tmp_path / "out.zarr", ConvertConfig(memory="2GiB")).store.n_bags


def test_spans__follow_memory():
    assert span_bytes(1 << 30, 1) == 32 << 20
    assert span_bytes(64 << 20, 2) == 4 << 20


def test_spans__of_what_is_put_in_order_are_long(source, tmp_path):
    out, settings = tmp_path / "out.zarr", ConvertConfig(memory="4GiB", shuffle=True)
    files = find_sources([str(source)], SourceOptions())
    plan = new_plan(files, str(out), settings, SourceOptions(), 1)
    assert plan.options.span_bytes == 256 << 20

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, out, settings, watch=stop)
    convert(source, out, settings)
    convert(source, tmp_path / "other.zarr", ConvertConfig(memory="8MiB", shuffle=True))
    assert sm.open_store(out).fingerprint == sm.open_store(tmp_path / "other.zarr").fingerprint
