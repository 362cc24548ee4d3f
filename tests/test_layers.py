"""The folder listing is the import rule: data flows one way."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "streammiml"
PIPE = [
    "errors",
    "_base",
    "config",
    "notebook",
    "jit",
    "digest",
    "drawing",
    "fast_crc",
    "loans",
    "fetching",
    "laying",
    "checksum",
    "model",
    "cluster",
    "bags",
    "blocks",
    "kernel",
]
PIPE += ["scoring", "learn", "measure", "search", "tell", "estimator", "verbs"]
FOUNDATION = ["errors", "_base", "config"]
FEWER = {
    "_base": ["errors", "_base"],
    "kernel": ["kernel", "jit"],
    "jit": ["_base"],
    "digest": ["jit"],
    "drawing": ["jit"],
    "fast_crc": ["jit"],
    "laying": ["jit", "loans"],
    "loans": [],
    "fetching": ["_base", "jit", "fast_crc"],
    "checksum": [],
    "scoring": ["model", "bags", "kernel"],
    "measure": [
        *(*FOUNDATION, "drawing", "model", "cluster", "bags", "blocks", "kernel", "scoring"),
        "measure",
    ],
}
HOMES = {
    "zarr": {"bags", "measure"},
    "numcodecs": {"bags"},
    "obstore": {"bags"},
    "pyarrow": {"bags", "measure", "search"},
    "threading": {"blocks", "jit"},
    "numba": {"jit", "kernel", "fast_crc", "laying", "fetching"},
    "dask": {"measure", "search", "cluster"},
    "distributed": {"cluster"},
    "matplotlib": {"tell"},
    "jinja2": {"tell"},
    "cyclopts": {"verbs"},
    "sklearn": {"estimator"},
    "scipy": {"estimator"},
    "h5py": set(),
}
FILES = sorted([*ROOT.glob("_base/*.py"), *ROOT.glob("[!_]*/*.py"), *ROOT.glob("[!_]*.py")])
TOOLS = ROOT.parent / "tools"
# What some systems lack. Everybody else asks _base/platform.py, which has a fallback for each.
ASKS = "streammiml/_base/platform.py"
NOT_EVERYWHERE = {
    *("fcntl", "msvcrt", "pwd", "resource"),
    *("O_CLOEXEC", "O_DIRECT", "POSIX_FADV_WILLNEED", "posix_fadvise", "pread", "preadv"),
    *("fork", "sched_getaffinity", "statvfs", "sysconf", "uname"),
    *("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "pthread_sigmask"),
    *("sys.platform", "os.name"),
}
LOOKS_UP = re.compile(r"(getattr|hasattr)\((os|signal|sys),")
KERNEL_FILES = ("/proc", "/sys/")
MAY = {
    # Names of C functions in compiled code; platform.py says whether the second exists.
    "streammiml/fetching.py": {"pread", "posix_fadvise"},
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports__flow_one_way(path):
    here = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert here in PIPE, f"{here} is not in the listing"
    allowed = FEWER.get(here, PIPE[: PIPE.index(here) + 1])
    for top, *rest in imports_of(path):
        assert top != "streammiml_tools", f"{path} imports tools/"
        assert top != "streammiml" or rest[0] in allowed, f"{here} imports {rest[0]}"
        assert here in HOMES.get(top, {here}), f"{top} belongs in {HOMES[top]}"


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
            yield from (each for each in KERNEL_FILES if each in node.value)
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
    found = set(asked_of_the_system(path.read_text())) - MAY.get(name, set())
    assert name == ASKS or not found, f"{name} names {sorted(found)}; ask {ASKS} instead"


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
