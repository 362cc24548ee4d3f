"""Conversions that are killed, run out of disk, or whose source is cut under their hands.

The destination is absent or complete; the same command again goes on, and comes to the files of an
undisturbed run byte for byte, with or without splitting, shuffling and grouping.
"""

import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import streammiml as sm
from streammiml.bags.block import BagBlock
from streammiml.errors import StoreError, StreammimlError
from streammiml_tools.convert import convert
from streammiml_tools.convert.plan import ConvertConfig, work_folder
from streammiml_tools.readers.base import SourceError, SourceOptions
from tests.faults.converting_child import Converter, options
from tests.small_disks import resize, small_disk
from tests.stores import (
    content,
    file_limit,
    made_block,
    plain,
    scratch,
    sizes,
    with_kept,
    write_store,
)
from tests.tools.source_files import save_npy, save_npz

ROOT = Path(__file__).parents[2]
WAYS = {
    "plain": (ConvertConfig(), False),
    "split": (ConvertConfig(split="a=.6,b=.4", seed=1), False),
    "stratified": (ConvertConfig(split="a=.6,b=.4", stratify=True), False),
    "shuffled": (ConvertConfig(shuffle=True, seed=2), False),
    "shuffled split": (ConvertConfig(shuffle=True, split="a=.6,b=.4", limit=17), False),
    "grouped": (ConvertConfig(), True),
}


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    with sizes():
        yield


@pytest.fixture(scope="module")
def converter(tmp_path_factory) -> Iterator[Converter]:
    with Converter(tmp_path_factory.mktemp("converter") / "tally") as converter:
        yield converter


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Twenty-four bags, of which the converter of the tests makes a part for every few."""
    return save_npz(tmp_path_factory.mktemp("source") / "d.npz", made_block(24))


@pytest.fixture(scope="module")
def apart(tmp_path_factory) -> Path:
    """Rows of bags apart from each other: every row a bag of the id that it belongs to."""
    block = made_block(12)
    order = np.random.default_rng(0).permutation(block.n_rows)
    of_row = np.repeat(np.arange(12), np.diff(block.bag_offsets))[order]
    rows = BagBlock.from_bags(
        [block.rows[i : i + 1] for i in order],
        [block.labels_of(bag).tolist() for bag in of_row],
        row_labels=[[label] for label in block.row_labels[order].tolist()],
        bag_ids=[block.bag_ids[bag] for bag in of_row],
    )
    return save_npz(tmp_path_factory.mktemp("apart") / "d.npz", rows)


def stores_in(folder: Path) -> dict[str, dict[str, str]]:
    """Files of every store that is visible in a folder."""
    return {path.name: content(path) for path in folder.iterdir() if path.name[0] != "."}


def finish(source, path, settings, group, want, labels=None) -> None:
    """Run the same conversion once more, and compare with the undisturbed one."""
    for name, files in stores_in(path.parent).items():
        assert files == want[name], f"{name} is there, and not whole"
    if len(stores_in(path.parent)) < len(want) or work_folder(str(path)).exists():
        try:
            convert(source, path, settings, options(group=group, labels=labels))
        except StoreError as error:
            # Killed while it cleaned up: complete, and nothing to go on with.
            assert "exists already" in str(error)  # noqa: PT017
    assert stores_in(path.parent) == want


def undisturbed(converter, source, backend, settings, group):
    with scratch() as folder:
        assert not converter.convert(source, folder / f"x.{backend}", settings, group=group)
        assert not [path for path in folder.iterdir() if path.name[0] == "."]
        return stores_in(folder), converter.changes


def kill_everywhere(converter, source, backend, settings, group, *, kills) -> None:
    want, changes = undisturbed(converter, source, backend, settings, group)
    assert changes > 40
    instants = np.unique(np.linspace(1, changes, kills or changes).astype(int)).tolist()
    for at in instants:
        with scratch() as folder:
            path = folder / f"x.{backend}"
            assert converter.convert(source, path, settings, group=group, at=at)
            finish(source, path, settings, group, want)


@pytest.mark.parametrize(
    ("backend", "way"),
    [("zarr", "plain"), ("parquet", "split"), ("zarr", "shuffled split"), ("parquet", "grouped")],
)
def test_kill_at_a_change_of_the_folder__loses_nothing(converter, source, apart, backend, way):
    settings, group = WAYS[way]
    kill_everywhere(converter, apart if group else source, backend, settings, group, kills=5)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_kill_at_many_changes__loses_nothing(converter, source, apart, backend, way):
    settings, group = WAYS[way]
    kill_everywhere(converter, apart if group else source, backend, settings, group, kills=60)


def test_kill_again_and_again__comes_to_an_end(converter, source, backend):
    settings = ConvertConfig(shuffle=True, split="a=.5,b=.5")
    want, changes = undisturbed(converter, source, backend, settings, False)
    with scratch() as folder:
        path, kills = folder / f"x.{backend}", 0
        for at in np.linspace(20, changes - 5, 8).astype(int).tolist():
            if len(stores_in(folder)) == 2:
                break
            kills += converter.convert(source, path, settings, at=at)
        assert kills >= 3
        finish(source, path, settings, False, want)


@pytest.mark.parametrize(("times", "seed"), [(4, 0), pytest.param(60, 1, marks=pytest.mark.slow)])
def test_kill_at_random_instants__loses_nothing(converter, source, backend, times, seed):
    settings, rng = ConvertConfig(split="a=.5,b=.5"), np.random.default_rng(seed)
    want, _ = undisturbed(converter, source, backend, settings, False)
    for _ in range(times):
        with scratch() as folder:
            path = folder / f"x.{backend}"
            converter.convert(source, path, settings, after=float(rng.uniform(0.01, 0.5)))
            finish(source, path, settings, False, want)


@pytest.fixture(scope="module")
def slides(tmp_path_factory) -> tuple[Path, str]:
    """Thirty files, each with the rows of one bag, and the table of their labels."""
    folder = tmp_path_factory.mktemp("slides")
    rng, lines = np.random.default_rng(0), ["slide_id,tumour,stroma"]
    (folder / "files").mkdir()
    for number in range(30):
        np.save(folder / "files" / f"s{number:02}.npy", rng.normal(size=(1 + number % 5, 4)))
        lines.append(f"s{number:02},{number % 2},{int(number % 3 == 0)}")
    (folder / "labels.csv").write_text("\n".join([*lines, ""]))
    return folder / "files", str(folder / "labels.csv")


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_of_a_file_a_bag_at_random_instants__ends_with_the_same_manifest(
    converter, slides, backend, times
):
    source, labels = slides
    settings, rng = ConvertConfig(), np.random.default_rng(times)
    with scratch() as folder:
        assert not converter.convert(source, folder / f"x.{backend}", settings, labels=labels)
        want, changes = stores_in(folder), converter.changes
    for at in rng.integers(1, changes, times).tolist():
        with scratch() as folder:
            path = folder / f"x.{backend}"
            assert converter.convert(source, path, settings, labels=labels, at=at)
            finish(source, path, settings, False, want, labels)


@pytest.mark.slow
def test_kill_of_a_file_a_bag_with_workers_20_times__ends_with_the_same_manifest(backend, tmp_path):
    source, rng = tmp_path / "slides", np.random.default_rng(3)
    source.mkdir()
    lines = ["slide_id,tumour"]
    for number in range(400):
        np.save(source / f"s{number:03}.npy", rng.normal(size=(64, 256)).astype(np.float32))
        lines.append(f"s{number:03},{number % 2}")
    (tmp_path / "labels.csv").write_text("\n".join([*lines, ""]))
    words = [sys.executable, "-m", "streammiml", "convert", str(source), "--bag-labels"]
    words += [str(tmp_path / "labels.csv"), "--workers", "2", "--memory", "16MiB"]

    def start(folder: Path) -> subprocess.Popen:
        folder.mkdir(exist_ok=True)
        command = [*words[:5], str(folder / f"x.{backend}"), *words[5:]]
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE)

    started = time.monotonic()
    whole = start(tmp_path / "whole")
    assert whole.wait() == 0, whole.stderr.read()
    seconds, n_killed, folder = time.monotonic() - started, 0, tmp_path / "0"
    for number in range(20):
        folder = tmp_path / f"{number // 2}"
        child = start(folder)
        try:
            child.wait(float(rng.uniform(0.3, 0.95)) * seconds)
        except subprocess.TimeoutExpired:
            # The workers are of the same group: nobody is left to end their parts.
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            n_killed += 1
        if number % 2:
            last = start(folder)
            assert last.wait() in (0, 2), last.stderr.read()
            assert content(folder / f"x.{backend}") == content(tmp_path / "whole" / f"x.{backend}")
            assert [path.name for path in folder.iterdir()] == [f"x.{backend}"]
    assert n_killed > 5


def test_control__half_a_store_is_seen(converter, source, backend):
    with scratch() as folder:
        path = folder / f"x.{backend}"
        assert not converter.convert(source, path, ConvertConfig())
        want = stores_in(folder)
        (path / list(want[path.name])[-1]).unlink()
        with pytest.raises(AssertionError, match="is there, and not whole"):
            finish(source, path, ConvertConfig(), False, want)


# The source.


def stopped(source: Path, path: Path) -> None:
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, path, options=options(), watch=stop)


def test_source_cut_short_between_two_runs__is_refused(tmp_path):
    source = save_npy(tmp_path / "source", plain(made_block(24)))
    stopped(source, tmp_path / "x.zarr")
    rows = source / "instances.npy"
    uncut = rows.read_bytes()
    rows.write_bytes(uncut[:-8])
    # Whether the file is looked at first or the plan: either says what is wrong.
    with pytest.raises(
        StreammimlError, match=r"instances\.npy has changed from [\d,]+ to [\d,]+ bytes"
    ):
        convert(source, tmp_path / "x.zarr", options=options())
    assert not (tmp_path / "x.zarr").exists()
    rows.write_bytes(uncut)
    message = r"instances\.npy was written again since the conversion began"
    with pytest.raises(StoreError, match=message):
        convert(source, tmp_path / "x.zarr", options=options())
    shutil.rmtree(work_folder(str(tmp_path / "x.zarr")))
    assert convert(source, tmp_path / "x.zarr", options=options()).store.n_bags == 24


def test_source_cut_short_while_it_is_read__is_an_error(tmp_path):
    source = save_npy(tmp_path / "source", plain(made_block(24)))

    def cut(_):
        with (source / "instances.npy").open("r+b") as file:
            file.truncate(200)

    with pytest.raises(SourceError, match=r"instances\.npy is (shorter than|cut short or damaged)"):
        convert(source, tmp_path / "x.zarr", options=options(), watch=cut)
    assert not (tmp_path / "x.zarr").exists()


# The disk.


FULL = re.compile(
    r"\.(zarr|parquet) cannot be written: (File too large|No space left on device) "
    r"\(about [\d,]+ bytes needed, [\d,]+ bytes free\); finished parts are kept, run again to "
    r"go on$"
    r"|\.(zarr|parquet) needs [\d,]+ bytes, [\d,]+ are free; make room, or write elsewhere$"
)
FULL_WAYS = [
    ("zarr", "plain"),
    ("parquet", "shuffled split"),
    ("zarr", "grouped"),
    ("zarr", "stratified"),
]


def is_full(source, path, settings, group) -> bool:
    """Convert; whether the disk was full, and that was told in one line."""
    try:
        convert(source, path, settings, options(group=group))
    except StreammimlError as error:
        assert FULL.search(str(error)), str(error)  # noqa: PT017
        return True
    return False


@pytest.mark.parametrize(("backend", "way"), FULL_WAYS)
def test_full_disk__is_told_and_gone_on_from(converter, source, apart, backend, way):
    settings, group = WAYS[way]
    source_path = apart if group else source
    want, _ = undisturbed(converter, source_path, backend, settings, group)
    hits = 0
    for size in (40, 100, 300, 900, 4000):
        with scratch() as folder:
            path = folder / f"x.{backend}"
            with file_limit(size):
                hits += is_full(source_path, path, settings, group)
            finish(source_path, path, settings, group, want)
    assert hits >= 3


@pytest.mark.parametrize(("backend", "way"), FULL_WAYS)
@pytest.mark.parametrize(
    "sizes_kb", [(12, 48, 100), pytest.param(range(4, 200, 4), marks=pytest.mark.slow)]
)
def test_full_file_system__is_told_and_gone_on_from(
    converter, source, apart, backend, way, sizes_kb
):
    settings, group = WAYS[way]
    source_path = apart if group else source
    want, _ = undisturbed(converter, source_path, backend, settings, group)
    hits = 0
    for size in sizes_kb:
        with small_disk(f"{size}k") as folder:
            path = folder / f"x.{backend}"
            hits += is_full(source_path, path, settings, group)
            resize(folder, "4m")
            finish(source_path, path, settings, group, want)
    assert hits >= 2


@pytest.mark.parametrize(
    ("way", "inside"),
    [
        ("plain", "plan.json"),
        ("plain", "facts-store"),
        ("plain", "facts-store/"),
        ("plain", "names"),
        ("split", "names/"),
        ("stratified", "survey"),
        ("stratified", "survey/"),
        ("shuffled", "runs-spill"),
        ("shuffled", "runs-spill/"),
        ("shuffled", "facts-spill/"),
        ("grouped", "runs-group"),
    ],
)
def test_full_disk__is_told_by_every_write(
    converter, source, apart, way, inside, monkeypatch, tmp_path
):
    """The disk is full where one file, or any file of a folder, is about to be made."""
    settings, group = WAYS[way]
    source_path = apart if group else source
    want, _ = undisturbed(converter, source_path, "zarr", settings, group)
    path = tmp_path / "x.zarr"
    at = f"{work_folder(str(path))}/{inside}"
    full = [True]

    def failing(call):
        always = call is os.mkdir

        def wrapped(name, *args, **kwargs):
            text = name if isinstance(name, int) else os.fspath(name)
            makes = always or "w" in str(kwargs.get("mode", args[:1]))
            inner = str(text).startswith(at) if at.endswith(("/", "json")) else text == at
            if full and makes and inner:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(name, *args, **kwargs)

        return wrapped

    monkeypatch.setattr(io, "open", failing(io.open))
    monkeypatch.setattr(os, "mkdir", failing(os.mkdir))
    assert is_full(source_path, path, settings, group)
    full.clear()
    finish(source_path, path, settings, group, want)


def test_full_disk__says_about_how_much_is_needed(tmp_path):
    block = plain(made_block(24))
    source = save_npy(tmp_path / "source", block)
    needed = block.rows.astype(np.float32).nbytes
    for settings, copies in ((ConvertConfig(), 1), (ConvertConfig(shuffle=True), 2)):
        path = tmp_path / f"{copies}.zarr"
        with (
            file_limit(1500),
            pytest.raises(StoreError, match=rf"about {copies * needed:,} bytes needed, [\d,]+ byt"),
        ):
            convert(source, path, settings, options())


# Far larger than memory.

LARGE = """
import sys
from streammiml_tools.convert import convert
from streammiml_tools.convert.plan import ConvertConfig
settings = ConvertConfig(memory="256MiB")
convert(sys.argv[1], sys.argv[2], settings, watch=lambda _: print("part", flush=True))
# Not ru_maxrss, which begins with that of the process that started this one.
lines = open("/proc/self/status").read().splitlines()
print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")))
"""


def large_source(folder: Path, n_bytes: int) -> Path:
    """A corpus of rows that are all different, written in pieces."""
    folder.mkdir()
    width, bag = 256, 16
    n_bags = n_bytes // (width * 4 * bag)
    piece = np.random.default_rng(0).standard_normal((bag * 1024, width), dtype=np.float32)
    with (folder / "instances.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n_bags * bag, width)}
        np.lib.format.write_array_header_1_0(file, header)
        for number in range(0, n_bags, 1024):
            piece[:, 0] = number
            file.write(piece[: bag * min(1024, n_bags - number)])
    np.save(folder / "offsets.npy", np.arange(n_bags + 1) * bag)
    np.save(folder / "label_indptr.npy", np.arange(n_bags + 1))
    np.save(folder / "label_indices.npy", np.arange(n_bags, dtype=np.int32) % 50)
    return folder


def large(source: Path, out: Path, *, kill_after: int | None = None) -> int | None:
    """Convert in a process of its own; its peak in KiB, or None if it was killed.

    It is killed some instants after it has finished so many parts that were not there before.
    """
    words = [sys.executable, "-c", LARGE, str(source), str(out)]
    there = len(list(work_folder(str(out)).glob("facts-store/*.json")))
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if kill_after is not None:
        for _ in range(there + kill_after):
            process.stdout.readline()
        time.sleep(0.01 * (there % 7))
        process.kill()
    output, _ = process.communicate(timeout=600)
    assert process.returncode in (0, -signal.SIGKILL)
    return int(output.split()[-1]) if process.returncode == 0 else None


@pytest.mark.slow
def test_source_of_4_gb__converts_in_512_mib_and_through_20_kills(tmp_path):
    size = int(os.environ.get("STREAMMIML_LARGE_BYTES", 4 << 30))
    source = large_source(tmp_path / "source", size)
    peak = large(source, tmp_path / "clean.zarr")
    assert peak is not None
    assert peak < 512 << 10
    manifest = (tmp_path / "clean.zarr" / "_streammiml" / "manifest.json").read_bytes()
    shutil.rmtree(tmp_path / "clean.zarr")
    rng, kills = np.random.default_rng(5), 0
    out = tmp_path / "killed.zarr"
    for _ in range(20):
        kills += large(source, out, kill_after=int(rng.integers(1, 7))) is None
    assert kills == 20
    assert large(source, out) is not None
    assert (out / "_streammiml" / "manifest.json").read_bytes() == manifest
    assert json.loads(manifest)["n_rows"] == sm.open_store(out).n_rows == size // 1024


@pytest.mark.slow
def test_memory__does_not_grow_with_the_source(tmp_path):
    peaks = []
    for i, size in enumerate((64 << 20, 512 << 20)):
        source = large_source(tmp_path / str(i), size)
        peaks.append(large(source, tmp_path / f"{i}.zarr"))
        shutil.rmtree(source)
        shutil.rmtree(tmp_path / f"{i}.zarr")
    assert peaks[1] - peaks[0] < 192 << 10


def test_bag_of_a_million_rows__converts(tmp_path):
    rows = np.zeros((10**6, 64), np.uint8)
    rows[::7] = 3
    block = BagBlock(np.array([0, 10**6]), rows, np.array([0, 1]), np.zeros(1, np.int32))
    save_npz(tmp_path / "d.npz", block, compressed=True)
    settings = ConvertConfig(codec="none", memory="256MiB")
    with sizes(index_chunk=8192, shard=64 << 20, group=1 << 19, page=2048):
        store = convert(tmp_path / "d.npz", tmp_path / "d.zarr", settings, SourceOptions()).store
    assert store.manifest.longest_bag == 10**6


@pytest.mark.parametrize("way", ["plain", "shuffled split"])
def test_killed_conversion__of_kept_columns_goes_on_to_the_same_files(converter, tmp_path, way):
    settings, group = WAYS[way]
    source = tmp_path / "kept.parquet"
    write_store(source, with_kept(made_block(24)), n_labels=4)
    want, n_changes = undisturbed(converter, source, "zarr", settings, group)
    assert any("kept_note.bytes/c/0" in files for files in want.values())
    for at in np.linspace(2, n_changes - 1, 6).astype(int).tolist():
        with scratch() as folder:
            assert converter.convert(source, folder / "x.zarr", settings, at=at)
            finish(source, folder / "x.zarr", settings, group, want)
