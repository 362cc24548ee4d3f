"""info, verify and seal as a user runs them: results on stdout, one line and 2 for bad input."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import streammiml as sm
from streammiml.bags.block import BagBlock
from streammiml.bags.layout import MANIFEST
from streammiml.bags.validate import StoreSpec
from streammiml.blocks import store_speed
from streammiml.verbs.main import run
from tests.verbs.output import printed


@pytest.fixture(params=["zarr", "parquet"])
def store(request, tmp_path):
    rng = np.random.default_rng(0)
    bags = [rng.normal(size=(n, 5)).astype(np.float32) for n in (1, 4, 2)]
    block = BagBlock.from_bags(bags, [[0, 2], [], [1]])
    spec = StoreSpec(n_features=5, label_names=("a", "b", "c"))
    with sm.BagWriter.begin(tmp_path / f"corpus.{request.param}", spec) as writer:
        writer.write_part(0, block)
        writer.finish(1)
    return tmp_path / f"corpus.{request.param}"


def test_info__json_has_the_promised_keys(store, capsys):
    assert run(["info", str(store), "--json"]) == 0
    facts = json.loads(printed(capsys)[0])
    expected = {
        "n_bags": 3,
        "n_rows": 7,
        "n_features": 5,
        "n_labels": 3,
        "labels_per_bag": 1.0,
        "rows_per_bag": 7 / 3,
        "format": store.suffix[1:],
        "format_version": 1,
        "dtype": "float32",
        "sparse": False,
        "fingerprint": sm.open_store(store).fingerprint,
        "label_names": ["a", "b", "c"],
    }
    assert {name: facts[name] for name in expected} == expected


def test_info__is_readable_too(store, capsys):
    assert run(["info", str(store)]) == 0
    assert re.search(r"n rows +7\n", printed(capsys)[0])


SPEEDS = {"limit_mb_s", "pread_mb_s", "read_mb_s", "read_stored_mb_s", "mixed_mb_s"}
SPEEDS |= {"mixed_stored_mb_s", "mixed_of_limit"}
SPEEDS |= {"cpu_seconds_per_gb", "vif"}


@pytest.fixture
def quick_speeds(monkeypatch):
    monkeypatch.setattr(store_speed, "LEAST_BYTES", 1)
    monkeypatch.setattr(store_speed, "CASE_SECONDS", 0.01)


@pytest.mark.usefixtures("quick_speeds")
def test_info__json_has_speeds_when_asked(store, capsys):
    assert run(["info", str(store), "--speed", "--json"]) == 0
    facts = json.loads(printed(capsys)[0])
    assert facts["n_bags"] == 3
    figures = facts["speed"]
    assert {*figures} == SPEEDS | {"limit_read", "limit_direct", "mixed_cold"}
    assert all(figures[name] > 0 for name in SPEEDS)
    assert re.fullmatch(r"256KiB x [48]", figures["limit_read"])
    assert run(["info", str(store), "--json"]) == 0
    assert "speed" not in json.loads(printed(capsys)[0])


@pytest.mark.usefixtures("quick_speeds")
def test_info__speeds_are_a_readable_table_too(store, capsys, monkeypatch):
    for name in ("O_DIRECT", "posix_fadvise"):
        monkeypatch.delattr(os, name, raising=False)
    assert run(["info", str(store), "--speed"]) == 0
    out = printed(capsys)[0]
    assert re.search(r"n rows +7\n", out)
    assert re.search(r"\ndisk: random reads of 256KiB x [48] threads +[\d,]+ +100%\n", out)
    assert re.search(r"\nmixed bags: bytes on disk +[\d,]+ +\d+%\n", out)
    assert re.search(r"take [\d.]+ s of processor time for a GB of rows; their variance", out)
    assert "Reads cannot bypass the page cache here, so the speed of the disk may be" in out
    assert "The page cache cannot be emptied here, so the speed of mixed bags may be" in out


def test_info__speeds_of_a_small_store_are_refused(store, capsys):
    assert run(["info", str(store), "--speed"]) == 2
    out, err = printed(capsys)
    assert out == ""
    assert re.fullmatch(r"streammiml: .* is too small to measure its speed: .* 8 MiB", err)


def test_info__loads_no_compiler(store):
    code = (
        "import sys; from streammiml.verbs.main import run; run(sys.argv[1:]);"
        "sys.exit('loaded' if 'numba' in sys.modules else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "info", str(store)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_verify__says_that_all_is_well_or_names_each_damaged_file(store, capsys):
    assert run(["verify", str(store)]) == 0
    assert "3 bags without errors" in printed(capsys)[0]
    data = [p for p in sorted(store.rglob("*")) if p.is_file() and p.parent.name != "_streammiml"]
    damaged = [p for p in data if p.name not in ("zarr.json", "_common_metadata")]
    for path in damaged:
        raw = bytearray(path.read_bytes())
        raw[5] ^= 1
        path.write_bytes(raw)
    assert run(["verify", str(store)]) == 2
    lines = printed(capsys)[0].splitlines()
    assert len(lines) == len(damaged)
    for path, line in zip(sorted(map(str, damaged)), sorted(lines), strict=True):
        assert line.startswith(path)


def test_seal__completes_a_store(store, capsys):
    before = sm.open_store(store).fingerprint
    shutil.rmtree(store / "_streammiml")
    assert run(["info", str(store)]) == 2
    assert f"run streammiml seal {store}" in printed(capsys)[1]
    assert run(["seal", str(store)]) == 0
    assert before in printed(capsys)[0]


def future(path):
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text.replace('"format_version":1', '"format_version":7'))


def empty_folder(path):
    shutil.rmtree(path)
    path.mkdir()


def a_file(path):
    shutil.rmtree(path)
    path.write_text("")


@pytest.mark.parametrize("verb", ["info", "verify"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "does not exist"),
        (empty_folder, "is no store"),
        (a_file, "is no store"),
        (future, "was written by store format 7, this reads up to 2"),
    ],
)
def test_verbs__bad_stores_get_one_line_and_exit_code_2(verb, change, message, store, capsys):
    change(store)
    assert run([verb, str(store)]) == 2
    out, err = printed(capsys)
    assert out == ""
    assert err.startswith("streammiml: ")
    assert message in err
    assert "\n" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["infoo"], "no verb is called 'infoo'; known: "),
        (["info"], "requires an argument"),
        (["info", "a", "--jsonn"], "--jsonn"),
        (["info", "ftp://host/x.zarr"], "no such kind of URL; known: s3://"),
    ],
)
def test_main__bad_words_get_one_line_and_exit_code_2(words, message, capsys):
    assert run(words) == 2
    err = printed(capsys)[1]
    assert message in err
    assert "\n" not in err


def test_main__help_and_import_load_nothing_heavy():
    code = (
        "import sys; import streammiml; from streammiml.verbs.main import run; run(['--help']);"
        "heavy = {'numba', 'zarr', 'pyarrow', 'dask', 'numpy'} & set(sys.modules);"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Read and check every file" in done.stdout


def test_main__a_closed_pipe_is_no_error(store):
    command = f"{sys.executable} -m streammiml info {store} | head -c 1"
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=env)
    assert done.stderr == ""
