"""Every page of the project is a page of the site, and its links lead to pages of the site."""

import re

import pytest

import streammiml as sm
from streammiml.tell.guide import PAGES
from streammiml_tools.docs.gallery import EXAMPLES
from streammiml_tools.docs.pages import API, HERE, ROOT, relinked, sources, stage


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "source"
    stage(folder)
    return folder


def test_stage__has_every_page_in_the_menu(staged):
    menus = "".join(
        part
        for name in ("index", "api/index", "gallery/index")
        for part in re.findall(r"```{toctree}\n(.*?)```", (staged / f"{name}.md").read_text(), re.S)
    )
    listed = {line for line in menus.splitlines() if line and not line.startswith(":")}
    assert {f"guide/{name}" for name in PAGES} <= listed
    assert {*API, *EXAMPLES} <= listed
    for name in sources():
        assert (staged / name).exists()


def test_stage__leaves_no_link_to_a_file_outside(staged):
    for name in sources():
        text = re.sub(r"```.*?```", "", (staged / name).read_text(), flags=re.S)
        for link in re.findall(r"\]\(([^)#\s]+)", text):
            if "://" in link or "/examples/" in link or link.endswith(".png"):
                continue
            target = ((staged / name).parent / link).resolve()
            assert target.exists(), (name, link)
            assert target.is_relative_to(staged.resolve()), (name, link)


def test_relinked__commands_of_the_guide_become_links_but_not_in_code(tmp_path):
    page = ROOT / "streammiml" / "guide" / "start.md"
    text = "See `streammiml guide train`, `streammiml guide nothing`.\n"
    text += "```text\n`streammiml guide train`\n```\n"
    want = text.replace("See `streammiml guide train`", "See [train](../guide/train.md)")
    assert relinked(text, page, "guide/start.md", {}, tmp_path) == want


def test_relinked__a_link_that_leads_nowhere_is_left_for_the_build_to_report(tmp_path):
    page = ROOT / "streammiml" / "guide" / "start.md"
    for text in ("[x](gone.md)", "[x](https://doi.org/1)", "[x](#words)"):
        assert relinked(text, page, "guide/start.md", {}, tmp_path) == text


def test_reference__has_every_public_name():
    text = "".join((HERE / "api" / f"{name}.md").read_text() for name in ("index", *API))
    for name in set(sm.__all__) - {"METRICS", "rivals"}:
        assert re.search(rf":: streammiml\.{name}\b", text), name
    for name in sm.rivals.__all__:
        assert f":: streammiml.rivals.{name}\n" in text, name
    assert ".. py:data:: METRICS" in text
