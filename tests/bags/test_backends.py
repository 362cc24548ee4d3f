"""The table of backends: every module has the functions of its protocol; imports have no cycle."""

import ast
import inspect
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from streammiml.bags import backends, layout
from streammiml.bags.backends import (
    BACKENDS,
    ReadingBackend,
    SealingBackend,
    StagedParts,
    WritingBackend,
)
from tests.stores import made_spec

FOLDER = Path(backends.__file__).parent


def functions_of(protocol):
    return {
        name: function
        for name, function in vars(protocol).items()
        if inspect.isfunction(function) and not name.startswith("_")
    }


def parameters_of(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", BACKENDS)
def test_backend__has_the_functions_of_its_protocols(name, tmp_path):
    backend = BACKENDS[name]
    for module, protocol in (
        (backend.reader(), ReadingBackend),
        (backend.writer(), WritingBackend),
        (backend.sealer(), SealingBackend),
    ):
        assert isinstance(module, protocol)
        for function_name, function in functions_of(protocol).items():
            own = getattr(module, function_name)
            assert parameters_of(inspect.unwrap(own)) == parameters_of(function), function_name
    parts = backend.writer().staged_parts(tmp_path, made_spec(), None, is_owner=False)
    for function_name, function in functions_of(StagedParts).items():
        assert parameters_of(getattr(parts, function_name)) == parameters_of(function)


def test_backends__each_has_a_format():
    assert list(BACKENDS) == list(layout.FORMATS)


def modules_named_in(path):
    """Modules of bags/ that a file imports, by name or by string, but not only for types."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        for name in names:
            module = name.removeprefix("streammiml.bags.")
            if module != name and (FOLDER / f"{module}.py").exists():
                yield module


def test_modules__import_each_other_without_a_cycle():
    graph = {path.stem: set(modules_named_in(path)) for path in FOLDER.glob("*.py")}
    assert {"zarr_read", "parquet_parts"} <= graph["backends"]
    assert "verify" in graph["store"]
    assert set(TopologicalSorter(graph).static_order()) == set(graph)


def test_opening__loads_neither_a_compiler_nor_the_libraries_of_writing(tiny):
    heavy = {"numba", "zarr", "obstore"} | ({"pyarrow"} if tiny.backend == "zarr" else set())
    code = f"import streammiml as sm, sys\nsm.open_store({str(tiny.path)!r})\n"
    code += f"print({heavy} & set(sys.modules))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.stdout.strip() == "set()", child.stderr
