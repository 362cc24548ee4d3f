"""The folder listing is the import rule: data flows one way."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "streammiml"
PIPE = ["errors", "config", "_base", "model", "bags", "blocks", "kernel"]
PIPE += ["torch", "scorer", "learn", "measure", "rivals", "search", "tell", "estimator", "verbs"]
FOUNDATION = ["errors", "_base", "config"]
FEWER = {
    "config": ["errors"],
    "_base": ["errors", "config", "_base"],
    "kernel": ["kernel", "_base"],
    "torch": [*FOUNDATION, "bags", "blocks"],
    "scorer": ["_base", "model", "bags", "kernel"],
    "measure": [*FOUNDATION, "model", "bags", "blocks", "kernel", "scorer", "measure"],
    "rivals": [*FOUNDATION, "bags", "kernel", "measure", "rivals"],
}
HOMES = {
    "zarr": {"bags", "measure"},
    "numcodecs": {"bags"},
    "obstore": {"bags"},
    "pyarrow": {"bags", "measure", "search"},
    "pandas": {"bags"},
    "polars": {"bags"},
    "threading": {"blocks", "_base"},
    "numba": {"_base", "kernel", "bags", "blocks"},
    "dask": {"_base"},
    "distributed": {"_base"},
    "matplotlib": {"tell"},
    "jinja2": {"tell"},
    "cyclopts": {"verbs"},
    "rich": {"_base", "verbs"},
    "sklearn": {"estimator", "rivals"},
    "scipy": {"bags", "rivals"},
    "napkinxc": {"rivals"},
    "torch": {"torch"},
    "h5py": set(),
    "onnx": set(),
}
# Modules of a folder that may use a package which the rest of the folder may not.
ONLY = {
    "numba": {
        *("_base/compiled.py", "_base/crc_compiled.py", "_base/hashing.py"),
        *("bags/fast_reads.py", "blocks/bag_copies.py"),
    },
    "scipy": {"bags/from_arrays.py"},
    "threading": {
        "_base/child_call.py",
        "_base/compiled.py",
        "_base/keyed_cache.py",
        "_base/pool_interface.py",
        "_base/shared_epochs.py",
    },
    "dask": {"_base/local_cluster.py", "_base/thread_pool.py"},
    "distributed": {
        "_base/cluster_connection.py",
        "_base/cluster_pool.py",
        "_base/cluster_results.py",
        "_base/local_cluster.py",
    },
}
FILES = sorted([*ROOT.glob("_base/*.py"), *ROOT.glob("[!_]*/*.py"), *ROOT.glob("[!_]*.py")])
TOOLS = ROOT.parent / "tools"
# Modules that a method loads when it is called, although they stand on the module of the method.
LOADS_LATE = {"model.py": {"streammiml.measure.warm_up"}}
# Files and folders of tools/, each of which imports from itself and from those before it.
TOOLS_PIPE = ["run", "command", "readers", "convert", "corpora", "baselines"]
TOOLS_PIPE += ["synth", "mnist", "reuters", "demo", "examples", "docs"]
# The demo trains and reports, and the verb verify adds comparisons to that of the package.
TOOLS_MAY = {
    "demo.py": {"learn", "measure"},
    # The site has the pages of the guide, and a page for each example.
    "docs/pages.py": {"tell"},
    "docs/conf.py": {"torch"},
    "convert/compare.py": {"verbs"},
    "convert/label_file.py": {"model"},
    "convert/export.py": {"model"},
    "convert/onnx_model.py": {"model"},
}
# What some systems lack. Everybody else asks _base/platform.py, which has a fallback for each.
ASKS = "streammiml/_base/platform.py"
NOT_EVERYWHERE = {
    *("fcntl", "msvcrt", "pwd", "resource"),
    *("O_CLOEXEC", "O_DIRECT", "POSIX_FADV_WILLNEED", "POSIX_FADV_DONTNEED"),
    *("posix_fadvise", "pread", "preadv"),
    *("fork", "sched_getaffinity", "statvfs", "sysconf", "uname"),
    *("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "pthread_sigmask"),
    *("sys.platform", "os.name"),
}
# Modules without a test file of their name, and the files that test them instead.
TESTED_ELSEWHERE = {
    "streammiml/_base/crc_compiled.py": "tests/_base/test_crc.py",
    "streammiml/bags/fast_reads.py": "tests/bags/test_verified_array.py, which reads through it",
    "streammiml/bags/parquet_read.py": "tests/bags/test_store.py, on stores of both backends",
    "streammiml/bags/parquet_seal.py": "tests/bags/test_seal.py, on stores of both backends",
    "streammiml/bags/zarr_read.py": "tests/bags/test_verified_array.py, which reads through it",
    "streammiml/bags/zarr_seal.py": "tests/bags/test_seal.py, on stores of both backends",
    "streammiml/learn/events.py": "tests/learn/test_loop.py and tests/learn/test_train.py",
    "streammiml/verbs/info.py": "tests/verbs/test_store_verbs.py",
    "streammiml/verbs/machine.py": "tests/test_fallback.py",
    "streammiml/verbs/options.py": "tests/verbs/test_main.py, which parses all options",
    "streammiml/verbs/seal.py": "tests/verbs/test_store_verbs.py",
    "streammiml/verbs/verify.py": "tests/verbs/test_store_verbs.py",
    "tools/command.py": "tests/tools/test_commands.py",
    "tools/docs/conf.py": "tests/tools/docs/test_build.py, which builds the site with it",
    "tools/mnist.py": "tests/tools/test_commands.py",
    "tools/reuters.py": "tests/tools/test_commands.py",
    "tools/synth.py": "tests/tools/test_commands.py",
    **{
        path.relative_to(ROOT.parent).as_posix(): "tests/tools/test_examples.py runs every example"
        for path in TOOLS.glob("examples/*.py")
    },
}
LOOKS_UP = re.compile(r"(getattr|hasattr)\((os|signal|sys),")
KERNEL_FILES = ("/proc", "/sys/")
MAY = {
    # Names of C functions in compiled code; platform.py says whether the second exists.
    "streammiml/bags/fast_reads.py": {"pread", "posix_fadvise"},
    # Runs before anything of ours is installed.
    "tools/run.py": {"sys.platform", "os.name"},
}


def imports_of(path):
    """Dotted names of everything imported, inside functions too, as tuples of their parts."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (tuple(f"{node.module}.{alias.name}".split(".")) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "import_module":
            # Modules that are loaded late are named in strings, the last part perhaps filled in.
            name = node.args[0]
            if isinstance(name, ast.JoinedStr):
                name = name.values[0]
            if isinstance(name, ast.Constant):
                yield tuple(name.value.split("."))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports__flow_one_way(path):
    here = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert here in PIPE, f"{here} is not in the listing"
    allowed = FEWER.get(here, PIPE[: PIPE.index(here) + 1])
    late = LOADS_LATE.get(path.relative_to(ROOT).as_posix(), set())
    for top, *rest in imports_of(path):
        if ".".join((top, *rest)) in late:
            continue
        assert top != "streammiml_tools", f"{path} imports tools/"
        assert top != "streammiml" or rest[0] in allowed, f"{here} imports {rest[0]}"
        assert here in HOMES.get(top, {here}), f"{top} belongs in {HOMES[top]}"
        if top in ONLY and here in {name.split("/")[0] for name in ONLY[top]}:
            name = path.relative_to(ROOT).as_posix()
            assert name in ONLY[top], f"{top} belongs in {sorted(ONLY[top])}"


@pytest.mark.parametrize(
    "path", sorted(TOOLS.rglob("*.py")), ids=lambda path: path.relative_to(TOOLS).as_posix()
)
def test_tools__stand_on_the_foundation_and_on_stores(path):
    name = path.relative_to(TOOLS).as_posix()
    allowed = {"errors", "config", "_base", "bags", "blocks"}
    here = name.split("/")[0].removesuffix(".py")
    assert here in (*TOOLS_PIPE, "__init__"), f"{here} is not in the listing"
    before = TOOLS_PIPE[: TOOLS_PIPE.index(here) + 1] if here in TOOLS_PIPE else []
    for top, *rest in imports_of(path):
        if top == "streammiml" and rest:
            assert rest[0] in allowed | TOOLS_MAY.get(name, set()), f"{name} imports {rest[0]}"
        if top == "streammiml_tools":
            assert rest[0] in before, f"{name} imports {rest[0]}"
            # Readers know nothing of what calls them.
            assert here != "readers" or rest[0] == "readers", f"{name} imports {rest[0]}"


def test_classes__have_names_of_their_own():
    homes = {}
    for path in [*ROOT.rglob("*.py"), *TOOLS.rglob("*.py")]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.relative_to(ROOT.parent).as_posix())
    shared = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert not shared, f"classes of the same name: {shared}"


def test_modules__have_a_test_file_of_their_name():
    tests = ROOT.parent / "tests"
    lacking = set()
    for folder, tests_of_folder in ((ROOT, tests), (TOOLS, tests / "tools")):
        for path in folder.rglob("*.py"):
            inside = path.relative_to(folder)
            if path.name.startswith("__"):
                continue
            if not (tests_of_folder / inside.parent / f"test_{path.name}").exists():
                lacking.add(path.relative_to(ROOT.parent).as_posix())
    missing = lacking - {*TESTED_ELSEWHERE}
    assert not missing, f"no test file: {sorted(missing)}; write one, or say where they are tested"
    outdated = {*TESTED_ELSEWHERE} - lacking
    assert not outdated, f"these have a test file, or are gone: {sorted(outdated)}"
    named = {
        name for text in TESTED_ELSEWHERE.values() for name in re.findall(r"tests/\S+\.py", text)
    }
    absent = [name for name in named if not (ROOT.parent / name).exists()]
    assert not absent, f"these test files do not exist: {absent}"


def asked_of_the_system(text):
    """What a source names that not every system has: modules, attributes, and files of Linux."""
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr, ast.unparse(node)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A whole name: getattr(os, "O_DIRECT"), import_module("fcntl").
            names = [node.value]
            yield from (file for file in KERNEL_FILES if file in node.value)
        elif isinstance(node, ast.Call) and LOOKS_UP.match(ast.unparse(node)):
            yield ast.unparse(node)
        yield from NOT_EVERYWHERE.intersection(names)


@pytest.mark.parametrize(
    "path",
    sorted([*ROOT.rglob("*.py"), *TOOLS.rglob("*.py")]),
    ids=lambda path: str(path.relative_to(ROOT.parent)),
)
def test_system__is_asked_in_one_place(path):
    name = path.relative_to(ROOT.parent).as_posix()
    forbidden = set(asked_of_the_system(path.read_text())) - MAY.get(name, set())
    assert name == ASKS or not forbidden, f"{name} names {sorted(forbidden)}; ask {ASKS} instead"


@pytest.mark.parametrize(
    "text",
    [
        "import fcntl",
        "from resource import getrusage",
        "from os import sched_getaffinity",
        "from sys import platform",
        "os.posix_fadvise(0, 0, 0, 0)",
        "flags = os.O_RDONLY | os.O_DIRECT",
        "signal.pthread_sigmask(1, [2])",
        "os.preadv(0, [], 0)",
        "getattr(os, 'O_DIRECT', None)",
        "hasattr(os, anything)",
        "import_module('fcntl')",
        "Path('/proc/self/io').read_text()",
        "if sys.platform == 'linux': pass",
    ],
)
def test_system__asking_elsewhere_is_noticed(text):
    assert list(asked_of_the_system(text))


def test_system__what_every_system_has_is_free_to_use():
    text = "import os, sys, signal\nos.open(sys.path[0], os.O_RDONLY)\nsignal.raise_signal(2)"
    text += "\nfrom multiprocessing import resource_tracker\nos.fsync(0)\nrows.name"
    assert not list(asked_of_the_system(text))
