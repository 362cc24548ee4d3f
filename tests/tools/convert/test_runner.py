"""Stages, workers and the end: the same files whoever writes them, and no store half visible."""

import os
from dataclasses import replace

import dask
import numpy as np
import pytest

import streammiml as sm
from streammiml._base.cluster_pool import ClusterPool
from streammiml.bags.block import BagBlock
from streammiml.errors import StoreError, StreammimlError
from streammiml_tools.convert import convert, runner
from streammiml_tools.convert.plan import ConvertConfig, work_folder
from streammiml_tools.readers.base import SourceError
from tests.clusters import inside_client
from tests.stores import (
    content,
    made_block,
)
from tests.tools.convert.cases import SMALL
from tests.tools.source_files import save_npz


@pytest.mark.parametrize("shuffle", [False, True])
def test_convert__that_keeps_no_bag_says_why_and_leaves_nothing(tmp_path, shuffle):
    save_npz(tmp_path / "d.npz", made_block(5))
    settings = ConvertConfig(where_label=("0",), shuffle=shuffle)
    block = BagBlock.from_bags([np.ones((1, 2), np.float32)] * 3, [[1], [1], []])
    save_npz(tmp_path / "d.npz", block)
    says = (
        r"out.zarr would hold no bags: of 3 that were read, 3 have none of the wanted labels and 0"
    )
    with pytest.raises(SourceError, match=says):
        convert(tmp_path / "d.npz", tmp_path / "out.zarr", settings, SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["d.npz"]


def test_split__of_unnamed_labels_agrees_on_their_number(tmp_path):
    rows = np.ones((20, 2), np.float32)
    labels = np.arange(20, dtype=np.int32)
    save_npz(tmp_path / "d.npz", BagBlock(np.arange(21), rows, np.arange(21), labels))
    done = convert(tmp_path / "d.npz", tmp_path / "d.zarr", ConvertConfig(split="a=.5,b=.5"))
    assert [store.n_labels for store in done.stores] == [20, 20]


def test_split__with_an_id_in_two_stores__is_refused(tmp_path):
    block = replace(made_block(20), bag_ids=[f"b{i % 19}" for i in range(20)])
    save_npz(tmp_path / "d.npz", block)
    for split in (None, "a=.5,b=.5"):
        with pytest.raises(
            SourceError,
            match=r"1 bag ids come twice, the first is 'b0' \(bags 0 and "
            r"19\); --group joins the rows of a bag",
        ):
            convert(tmp_path / "d.npz", tmp_path / "d.zarr", ConvertConfig(split=split), SMALL)
        assert not work_folder(str(tmp_path / "d.zarr")).exists()


def test_split__with_too_few_bags__shows_no_store(tmp_path):
    save_npz(tmp_path / "d.npz", made_block(2))
    with pytest.raises(
        SourceError, match=r"d-\w+.zarr would hold no bags: 2 are too few for --split"
    ):
        convert(
            tmp_path / "d.npz", tmp_path / "d.zarr", ConvertConfig(split="a=.3,b=.3,c=.4"), SMALL
        )
    assert [path.name for path in tmp_path.iterdir()] == ["d.npz"]


def test_convert__goes_on_after_an_error_with_what_is_written(source, tmp_path, backend):
    want = convert(source, tmp_path / f"clean.{backend}", options=SMALL)
    stopped = tmp_path / f"out.{backend}"

    def stop(progress):
        if progress.n_bytes > progress.total_bytes / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, stopped, options=SMALL, watch=stop)
    with pytest.raises(StoreError, match="is unfinished; run streammiml convert again"):
        sm.open_store(stopped)
    seen = []
    done = convert(source, stopped, options=SMALL, watch=seen.append)
    assert seen[-1].bytes_before > 0
    assert content(stopped) == content(tmp_path / f"clean.{backend}")
    assert done.facts == want.facts


@pytest.mark.parametrize(
    "settings",
    [ConvertConfig(), ConvertConfig(split="a=.5,b=.5", stratify=True), ConvertConfig(shuffle=True)],
    ids=["plain", "stratify", "shuffle"],
)
def test_client__gives_the_same_files_where_a_call_has_several_spans(
    source, tmp_path, monkeypatch, settings
):
    convert(source, tmp_path / "one.zarr", settings, SMALL)
    monkeypatch.setattr(runner, "TASKS_PER_THREAD", 1)
    calls = []
    plain_map = ClusterPool.map

    def noted_map(self, function, groups, *shared):
        for group in groups:
            calls.append(len(group))
            yield from plain_map(self, function, [group], *shared)

    monkeypatch.setattr(ClusterPool, "map", noted_map)
    with inside_client() as client:
        convert(source, tmp_path / "two.zarr", settings, SMALL, client=client)
    for path in tmp_path.glob("one*.zarr"):
        assert content(path) == content(tmp_path / path.name.replace("one", "two"))
    assert max(calls) > 1


def test_workers__memory_without_workers_is_refused_before_anything_is_written(source, tmp_path):
    with pytest.raises(StreammimlError, match="--worker-memory is for the processes of --workers"):
        convert(source, tmp_path / "out.zarr", None, SMALL, worker_memory="1GiB")
    assert not [*tmp_path.glob("out*")]


def die(*_):
    os._exit(1)


@pytest.mark.slow
def test_workers__that_die_say_which_option_to_lower(source, tmp_path, monkeypatch):
    # Loaded before its settings are changed: they would replace its own otherwise.
    pytest.importorskip("distributed")
    monkeypatch.setattr(runner, "_run_in_worker", die)
    message = r"the worker that ran it died; .*, lower --memory, or give workers more memory; if "
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        pytest.raises(StreammimlError, match=message),
    ):
        convert(source, tmp_path / "out.zarr", None, SMALL, workers=1)
    convert(source, tmp_path / "out.zarr", None, SMALL)
    assert content(tmp_path / "out.zarr") == content(source)


@pytest.mark.slow
def test_workers__leave_nothing_of_a_source_that_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("bag,f1,labels\na,1,cat\nb,x,cat\n")
    with pytest.raises(SourceError, match=r"a.csv, line 3: column 'f1' is 'x'"):
        convert(tmp_path / "a.csv", tmp_path / "a.zarr", workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ConvertConfig(),
        ConvertConfig(split="a=.5,b=.5", seed=4),
        ConvertConfig(split="a=.5,b=.5", seed=4, stratify=True),
        ConvertConfig(shuffle=True),
        ConvertConfig(limit=17, where_label=("sky",)),
    ],
    ids=["plain", "split", "stratify", "shuffle", "limit"],
)
def test_workers__give_the_same_files(source, tmp_path, backend, settings):
    convert(source, tmp_path / f"one.{backend}", settings, SMALL)
    convert(source, tmp_path / f"two.{backend}", settings, SMALL, workers=2)
    names = [name for name in ("", "-a", "-b") if (tmp_path / f"one{name}.{backend}").exists()]
    assert names
    for name in names:
        one, two = (content(tmp_path / f"{stem}{name}.{backend}") for stem in ("one", "two"))
        assert one == two


def test_files__of_the_same_content_are_named_and_not_grouped(tmp_path):
    lines = [f"b{bag},{row},x" for bag in range(5) for row in range(3)]
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("\n".join(["bag,x,labels", *lines, ""]))
    message = r"come twice, .*: .*a\.csv and .*b\.csv have the same content; name one of them$"
    with pytest.raises(SourceError, match=message):
        convert([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "o.zarr")
    (tmp_path / "b.csv").write_text("\n".join(["bag,x,labels", *lines[1:], ""]))
    with pytest.raises(SourceError, match=r"come twice, .*; --group joins the rows of a bag$"):
        convert([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "o.zarr")
