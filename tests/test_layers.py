"""The folder listing is the import rule: data flows one way."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "streammiml"
PIPE = [
    "errors",
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
FOUNDATION = ["errors", "config"]
FEWER = {
    "kernel": ["kernel", "jit"],
    "jit": [],
    "digest": ["jit"],
    "drawing": ["jit"],
    "fast_crc": ["jit"],
    "laying": ["jit", "loans"],
    "loans": [],
    "fetching": ["jit", "fast_crc"],
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
    "threading": {"blocks"},
    "numba": {"jit", "kernel", "fast_crc", "laying", "fetching"},
    "dask": {"measure", "search", "cluster"},
    "distributed": {"cluster"},
    "matplotlib": {"tell"},
    "jinja2": {"tell"},
    "cyclopts": {"verbs"},
    "sklearn": {"estimator"},
}
FILES = sorted([*ROOT.glob("[!_]*/*.py"), *ROOT.glob("[!_]*.py")])


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
