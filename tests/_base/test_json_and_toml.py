"""JSON and TOML that is nested, long or no text of its kind: always a ValueError, and quickly."""

import time

import pytest

from streammiml._base.json_and_toml import MAX_TOML, parse_json, parse_toml
from tests.traced import traced


def test_text_of_its_kind__is_parsed():
    assert parse_json(b'{"a": [1, null]}') == {"a": [1, None]}
    assert parse_toml('a.b = 1\n"c" = [0.1, 0.2]\n') == {"a": {"b": 1}, "c": [0.1, 0.2]}
    assert parse_toml(f"a = [{', '.join(['0.5'] * 1000)}]") == {"a": [0.5] * 1000}


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a":' * 10**5, "[" * 10**5 + "]" * 10**5])
def test_json__that_is_nested_deeply_is_refused(text):
    with pytest.raises(ValueError, match=r"^it is nested too deeply$"):
        parse_json(text)


@pytest.mark.parametrize("text", ["x = " + "[" * 10**5, "x = " + "{a = " * 10**5])
def test_toml__that_is_nested_deeply_is_refused(text):
    with pytest.raises(ValueError, match=r"^it is nested too deeply$"):
        parse_toml(text)


@pytest.mark.parametrize(
    "text",
    ["a." * 30_000 + "a = 1", f"[{'a . ' * 30_000}a]", "x = {" + "'a b'." * 30_000 + "a = 1}"],
)
def test_toml__long_names_are_refused_before_they_take_memory(text):
    begun = time.perf_counter()
    with traced() as memory, pytest.raises(ValueError, match=r"^a name has a hundred dots$"):
        parse_toml(text)
    assert memory.peak < 1 << 20
    assert time.perf_counter() - begun < 5


def test_toml__that_is_long_is_refused():
    with pytest.raises(ValueError, match=r"^it has 1,048,580 characters, more than 1,048,576$"):
        parse_toml("x=1\n" + "#" * MAX_TOML)


@pytest.mark.parametrize("text", ["{", "", "\ud800", b"\xff", "9" * 5000])
def test_json__anything_else_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text)


@pytest.mark.parametrize("text", ["x", "x = " + "9" * 5000, "\0"])
def test_toml__anything_else_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011
        parse_toml(text)
