"""Compiled functions: their three kinds, where compiled code is kept, and who hears of it."""

import json
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import numba
import numpy as np
import pytest
from numba.core.caching import FunctionCache, IndexDataCacheFile

from streammiml._base import compiled
from streammiml._base.compiled import inlined, inner, njit
from tests.planted import planted
from tests.stores import write_store

ROOT = Path(__file__).parent.parent
compiled_only = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")


@pytest.fixture
def in_memory(monkeypatch):
    """What is decorated is compiled each time, not found where an earlier run has kept it."""
    monkeypatch.setattr(compiled, "CACHE", None)


@inner
def doubled(values, times=2):
    """Some help."""
    return values * times


@inlined
def raised(values):
    return doubled(values) + 1


@njit
def total(values):
    return raised(values).sum()


def test_kinds__give_the_same_from_python_and_from_compiled_functions():
    values = np.arange(5.0)
    np.testing.assert_array_equal(doubled(values), 2 * values)
    np.testing.assert_array_equal(doubled(values, times=3), 3 * values)
    np.testing.assert_array_equal(raised(values), 2 * values + 1)
    assert total(values) == 25
    assert doubled.__doc__ == "Some help."


@compiled_only
@pytest.mark.usefixtures("in_memory")
def test_inner__has_no_wrapper_until_python_calls_it():
    @inner
    def tripled(value):
        return value * 3

    @njit
    def caller(value):
        return tripled(value) + 1

    assert caller(2) == 7
    (compiled,) = tripled.dispatcher.overloads.values()
    wrapper = compiled.fndesc.llvm_cpython_wrapper_name
    assert wrapper not in compiled.library.get_llvm_str()
    assert tripled(2) == 6
    (called,) = tripled._entry.overloads.values()
    assert called.fndesc.llvm_cpython_wrapper_name in called.library.get_llvm_str()


@compiled_only
@pytest.mark.usefixtures("in_memory")
def test_inlined__is_not_compiled_by_itself():
    @inlined
    def tripled(value):
        return value * 3

    @njit
    def caller(value):
        return tripled(value) + 1

    assert caller(2) == 7
    assert not tripled.overloads


# Where compiled code is kept.


@pytest.fixture
def homes(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def test_cache_folder__is_named_by_sources_and_version(homes, tmp_path):
    folder = compiled.cache_folder()
    assert folder.is_dir()
    assert folder.parent == tmp_path / ".cache" / "streammiml"
    homes.setattr(numba, "__version__", "99.0")
    other = compiled.cache_folder()
    assert other.parent == folder.parent
    assert other != folder


def test_cache_folder__lies_where_the_user_says(homes, tmp_path):
    homes.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert compiled.cache_folder().parent == tmp_path / "xdg" / "streammiml"
    homes.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    assert compiled.cache_folder().parent == tmp_path / "numba" / "streammiml"


def test_cache_folder__is_none_where_nothing_can_be_written(homes):
    homes.setenv("NUMBA_CACHE_DIR", f"{os.devnull}/nowhere")
    assert compiled.cache_folder() is None


def test_cache_folder__is_none_where_nothing_has_room(homes):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    homes.setattr(compiled.tempfile, "TemporaryFile", full)
    assert compiled.cache_folder() is None


def test_cache_folder__is_none_for_a_user_without_a_home(homes):
    def homeless(_):
        raise RuntimeError("Could not determine home directory.")

    homes.setattr(Path, "expanduser", homeless)
    assert compiled.cache_folder() is None


def test_cache__of_other_packages_is_left_alone():
    before = numba.config.CACHE_DIR
    njit(lambda: 1)
    assert before == numba.config.CACHE_DIR
    assert before != str(compiled.CACHE)


@compiled_only
@pytest.mark.parametrize(("kind", "kept"), [(compiled._LockedCache, 2), (FunctionCache, 1)])
def test_cache__keeps_what_two_processes_save_in_one_moment(kind, kept, tmp_path, monkeypatch):
    """The second saves when the first is halfway; without the lock, one of them is lost."""

    def added(value):
        return value + 1

    monkeypatch.setattr(compiled, "CACHE", tmp_path)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    function = numba.njit(added)
    function(1), function(1.0)
    first, second = function.overloads.items()
    real, threads = IndexDataCacheFile._save_index, []

    def save_halfway(self, overloads):
        if not threads:
            threads.append(Thread(target=kind(added).save_overload, args=second))
            threads[0].start()
            threads[0].join(0.5)
        real(self, overloads)

    monkeypatch.setattr(IndexDataCacheFile, "_save_index", save_halfway)
    kind(added).save_overload(*first)
    threads[0].join()
    names = kind(added)._cache_file._load_index().values()
    assert len(set(names)) == len(names) == kept


IN_MEMORY = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s")
from streammiml._base import compiled
compiled.NOTICE_SECONDS = 0.0
from streammiml._base.hashing import shuffled
print(json.dumps([int(next(iter(shuffled(10, 1, 2)))), compiled.CACHE is None]))
"""


def tracked_caches():
    return sorted(str(path) for path in (ROOT / "streammiml").rglob("*.nb[ic]"))


@compiled_only
def test_cache__without_a_folder_is_in_memory_and_never_in_the_package():
    before = tracked_caches()
    environment = {**os.environ, "NUMBA_CACHE_DIR": f"{os.devnull}/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", IN_MEMORY], env=environment, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    place, is_in_memory = json.loads(done.stdout)
    assert is_in_memory
    assert 0 <= place < 10
    assert (
        "cannot be cached, as no folder can be written: set NUMBA_CACHE_DIR=FOLDER" in done.stderr
    )
    assert tracked_caches() == before


# What compiling costs, and who hears of it.


@compiled_only
@pytest.mark.usefixtures("in_memory")
def test_compile_seconds__grow_when_something_is_compiled_and_only_then():
    @njit
    def one(value):
        return value + 1

    before = compiled.compile_seconds()
    one(1)
    after = compiled.compile_seconds()
    assert after > before
    one(2)
    assert compiled.compile_seconds() == after


@compiled_only
@pytest.mark.usefixtures("in_memory")
def test_compilation__that_takes_long_is_announced_once(monkeypatch, caplog):
    monkeypatch.setattr(compiled, "NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(compiled._COMPILATION, "_is_announced", False)
    caplog.set_level(logging.INFO, "streammiml")
    for number in range(3):

        def added(value):
            return value + number  # noqa: B023

        added.__module__ = "streammiml.added"
        assert njit(added)(1) == number + 1
        compiled._COMPILATION._timer.join()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert messages[0].startswith(
        "compiling kernels for this processor, which takes some seconds; "
    )


@compiled_only
@pytest.mark.usefixtures("in_memory")
def test_compilation__of_other_packages_is_not_announced(monkeypatch, caplog):
    monkeypatch.setattr(compiled, "NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(compiled._COMPILATION, "_is_announced", False)
    monkeypatch.setattr(compiled._COMPILATION, "_timer", None)
    caplog.set_level(logging.INFO, "streammiml")
    njit(lambda value: value + 1)(1)
    assert compiled._COMPILATION._timer is None
    assert not caplog.records


@compiled_only
def test_compilation__of_functions_without_a_module_is_no_concern_of_ours():
    namespace = {}
    exec("def added(value): return value + 1", {}, namespace)
    namespace["added"].__module__ = None
    assert numba.njit(namespace["added"])(1) == 2


@compiled_only
@pytest.mark.usefixtures("in_memory")
def test_compile_seconds__grow_no_faster_than_the_clock_while_another_thread_compiles():
    @njit
    def slow(values):
        return np.sort(values)[::-1].cumsum()

    thread = Thread(target=slow, args=(np.arange(5.0),))
    begun = time.monotonic()
    before = compiled.compile_seconds()
    thread.start()
    while thread.is_alive():
        seen = time.monotonic()
        assert compiled.compile_seconds() - before <= time.monotonic() - begun
        assert compiled.compile_seconds() >= before
        time.sleep(max(0.0, 0.002 - (time.monotonic() - seen)))
    thread.join()
    assert compiled.compile_seconds() > before


def test_inner__may_be_a_closure():
    more = 5

    @inner
    def added(value):
        return value + more

    assert added(3) == 8


COUNT = """
import json, sys
from numba.core import event
rows = []
class Listener(event.Listener):
    def on_start(self, started):
        function = started.data["dispatcher"].py_func
        rows.append([function.__module__, function.__name__, str(started.data["args"])])
    def on_end(self, _):
        pass
event.register("numba:compile", Listener())
from streammiml.verbs.main import run
assert run(["train", "x.zarr", "run", "--epochs", "1"]) == 0
assert run(["evaluate", "run", "x.zarr", "--json"]) == 0
json.dump(rows, open("rows.json", "w"))
"""


@compiled_only
@pytest.mark.slow
def test_train__compiles_nothing_that_it_does_not_use(tmp_path):
    write_store(tmp_path / "x.zarr", planted(300), n_labels=5)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "empty")}
    done = subprocess.run(
        [sys.executable, "-c", COUNT], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    ours = [row for row in rows if row[0].startswith("streammiml")]
    assert len(ours) > 40
    # Where a variable begins as a literal 0, numba compiles for that beside the integer.
    literal = re.compile(r"Literal\[int\]\(\d+\)")
    plain_signatures = {tuple(row) for row in ours if not literal.search(row[2])}
    twice = {(*row[:2], literal.sub("int64", row[2])) for row in ours if literal.search(row[2])}
    # Written so: a loop over constants for each transform, which becomes one of vectors.
    twice.discard(("streammiml.kernel.lift", "transformed", "(float32, int64)"))
    assert plain_signatures.isdisjoint(twice)
    names = [name for _, name, _ in ours]
    assert "sweep_dense" in names
    unused = {"_add_fourier", "_add_products", "_add_extremes", "_add_mean", "sweep_sparse"}
    assert unused.isdisjoint(names)
