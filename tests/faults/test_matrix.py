"""The matrix of faults: every row has tests that exist, and a control unless it is listed."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.faults.matrix import MATRIX, WITHOUT_CONTROL

TESTS = Path(__file__).parents[1]
MOST_WITHOUT_CONTROL = 12
"""How many rows may lack a control; lower this when a row gets one."""


@cache
def functions_in(path: str) -> set[str]:
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_matrix__has_every_row():
    assert [*MATRIX] == list(range(1, 28))


@pytest.mark.parametrize("number", MATRIX)
def test_row__names_tests_and_controls_that_exist(number):
    row = MATRIX[number]
    assert row.tests, f"row {number} has no test"
    for name in (*row.tests, *row.controls):
        path, _, function = name.partition("::")
        assert function in functions_in(path), f"row {number}: {name} does not exist"
    assert not {*row.tests} & {*row.controls}


def test_rows_without_control__are_listed_and_become_fewer():
    without = {number for number, row in MATRIX.items() if not row.controls}
    assert without == WITHOUT_CONTROL
    assert len(without) <= MOST_WITHOUT_CONTROL
