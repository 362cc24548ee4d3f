"""Mutants are valid modules that differ in one place, and a test notices those of a function."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutate.__main__ import EQUIVALENT, ROOT, groups_for, known_equivalent, passes, try_file
from tests.mutate.mutants import choose, mutants_of

SOURCE = '''"""A module."""


def middle(low: int, high: int = 2) -> int:
    """Return the middle - of two numbers."""
    if low > high:
        raise ValueError(f"{low} is above {high - 1}")
    check(low)
    return min(low + high, -low) // 2 if low and not high else 0


LIMIT = 7
'''


def test_mutants__change_one_place_and_no_prose():
    changes = {(mutant.before, mutant.after) for mutant in mutants_of(SOURCE)}
    assert changes == {
        ("low > high", "low >= high"),
        ("if low > high:", "pass"),
        ("check(low)", "pass"),
        ("min(low + high, -low) // 2", "(min(low + high, -low)) * (2)"),
        ("min(low + high, -low)", "max(low + high, -low)"),
        ("low + high", "(low) - (high)"),
        ("-low", "low"),
        ("2", "3"),
        ("low and (not high)", "(low) or (not high)"),
        ("not high", "high"),
        ("0", "1"),
    }
    for mutant in mutants_of(SOURCE):
        ast.parse(mutant.source)
        assert mutant.function == "middle"
        assert mutant.source != SOURCE


@pytest.mark.parametrize("path", ["streammiml/blocks/budget.py", "streammiml/_base/crc.py"])
def test_mutants__of_our_modules_are_python(path):
    source = (ROOT / path).read_text(encoding="utf-8")
    mutants = mutants_of(source)
    assert len(mutants) > 10
    for mutant in mutants:
        ast.parse(mutant.source)
        assert mutant.source.isascii() == source.isascii()


def test_choose__draws_the_same_mutants_for_a_seed():
    mutants = mutants_of(SOURCE)
    assert choose(mutants, 4, seed=1) == choose(mutants, 4, seed=1)
    assert len(choose(mutants, 4, seed=1)) == 4
    assert choose(mutants, 100, seed=1) == mutants


def test_groups_for__a_module_are_its_own_and_its_folder():
    assert list(groups_for(Path("streammiml/blocks/budget.py"))) == [
        ["tests/blocks/test_budget.py"],
        ["tests/blocks"],
    ]
    assert next(groups_for(Path("tools/readers/npz.py"))) == ["tests/tools/readers/test_npz.py"]
    with pytest.raises(SystemExit, match="no tests have its name"):
        list(groups_for(Path("streammiml/errors_of_nobody.py")))


def test_equivalent__names_mutants_that_exist_and_reasons():
    for line in EQUIVALENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line:
            continue
        path, _, rest = line.partition(" | ")
        name, _, reason = rest.partition(" # ")
        assert reason, line
        names = {mutant.name for mutant in mutants_of((ROOT / path).read_text(encoding="utf-8"))}
        assert name in names, line
        assert name in known_equivalent(Path(path))


@pytest.fixture
def project(tmp_path):
    """A project of one module, and a test that notices some of its mutants."""
    (tmp_path / "streammiml" / "part").mkdir(parents=True)
    (tmp_path / "tests" / "part").mkdir(parents=True)
    for package in ("streammiml", "streammiml/part"):
        (tmp_path / package / "__init__.py").touch()
    module = tmp_path / "streammiml" / "part" / "twice.py"
    module.write_text("def twice(x):\n    return x + x\n\n\ndef unused(x):\n    return x < 1\n")
    (tmp_path / "tests" / "part" / "test_twice.py").write_text(
        "from streammiml.part.twice import twice\n\n\ndef test_twice():\n    assert twice(2) == 4\n"
    )
    return tmp_path


def test_try_file__counts_what_the_tests_do_not_notice(project, monkeypatch, capsys):
    monkeypatch.setattr("tests.mutate.__main__.ROOT", project)
    path = Path("streammiml/part/twice.py")
    assert try_file(project, path, count=10, seed=0) == (2, 3, 0)
    alive = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-1] for line in alive] == [
        "unused: x < 1 -> x <= 1",
        "unused: 1 -> 2",
    ]
    assert passes(project, path, ["tests/part"])
    (project / "tests" / "part" / "test_twice.py").write_text("def test_nothing():\n    pass\n")
    with pytest.raises(SystemExit, match=r"pass without streammiml/part/twice\.py"):
        try_file(project, path, count=10, seed=0)


def test_command__without_files_says_how_it_is_used():
    words = [sys.executable, "-m", "tests.mutate"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: python -m tests.mutate" in done.stderr
