"""Help of verbs: every option in a named group, an example that works, and no idle forms."""

import shlex

import pytest

from streammiml.tell.guide import PAGES
from streammiml.verbs import main
from streammiml.verbs.help_page import ELSEWHERE, GROUPS, OTHER, group_of

APP = main.build()


def options_of(verb):
    return [
        argument
        for argument in APP[verb].assemble_argument_collection()
        if argument.show and argument.parse and argument.name.startswith("--")
    ]


def help_of(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main.run([verb, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", main.VERBS)
def test_group_of__every_option_is_in_a_named_group(verb):
    assert not [
        argument.name for argument in options_of(verb) if group_of(verb, argument.name) == OTHER
    ]


def test_groups__list_each_option_once():
    names = [name for group in GROUPS.values() for name in group]
    assert len(names) == len(set(names))
    assert set(ELSEWHERE.values()) <= set(GROUPS)


@pytest.mark.parametrize("verb", main.VERBS)
def test_help__has_no_negative_form_that_means_nothing(verb):
    for argument in options_of(verb):
        if argument.hint is bool and argument.field_info.default is False:
            assert not argument.negatives, argument.name


def test_help__keeps_negative_forms_that_mean_something(capsys, monkeypatch):
    assert "--no-average" in help_of("train", capsys, monkeypatch)
    assert "--no-halving" in help_of("tune", capsys, monkeypatch)
    assert "--no-header" in help_of("convert", capsys, monkeypatch)


@pytest.mark.parametrize("verb", main.VERBS)
def test_help__ends_with_an_example_and_a_page(verb, capsys, monkeypatch):
    text = help_of(verb, capsys, monkeypatch)
    example, page = main.VERBS[verb].example, main.VERBS[verb].page
    assert text.startswith(f"Usage: streammiml {verb} ")
    assert f"Example: streammiml {example}" in text
    assert f"More: streammiml guide {page}" in text
    assert page in PAGES
    assert OTHER not in text


@pytest.mark.parametrize("verb", main.VERBS)
def test_example__is_read_without_an_error(verb):
    words = shlex.split(main.VERBS[verb].example)
    assert words[0] == verb
    command, _, _ = APP.parse_args(words, exit_on_error=False, print_error=False)
    assert command is APP[verb].default_command


def test_help__train_begins_with_the_run_and_ends_with_the_output(capsys, monkeypatch):
    text = help_of("train", capsys, monkeypatch)
    titles = [line.split("─ ")[1].split(" ─")[0] for line in text.splitlines() if line[:1] == "╭"]
    assert titles[0] == "Arguments"
    assert titles[1] == "The run"
    assert titles[-1] == "Output"
    for title in ("Model", "Data and order", "Memory", "Stopping", "Where it runs"):
        assert title in titles


def test_first_page__says_where_to_start(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert "Start here: streammiml demo" in text
    verbs = [line[2:].split()[0] for line in text.splitlines() if line[:2] == "│ "]
    assert [verb for verb in verbs if verb in main.VERBS] == [*main.VERBS]
