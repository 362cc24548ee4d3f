"""A link of the site that leads nowhere is named, and so is a file of another machine."""

import pytest

from streammiml_tools.docs.links import problems

GOOD = '<h2 id="top">x</h2><a href="#top">a</a> <a href="sub/b.html#c%20d">b</a>'
GOOD += '<img src="p.png"><img src="data:image/png;base64,AA"><a href="https://doi.org/1">c</a>'


@pytest.fixture
def site(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "p.png").write_bytes(b"")
    (tmp_path / "index.html").write_text(GOOD)
    (tmp_path / "sub" / "b.html").write_text('<p id="c d"><a href="../index.html#top">up</a>')
    return tmp_path


def test_problems__of_a_good_site_are_none(site):
    assert problems(site) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('<a href="gone.html">', "index.html links to gone.html, which does not exist"),
        ('<img src="gone.png">', "index.html links to gone.png, which does not exist"),
        ('<a href="#gone">', "index.html links to #gone, but there is no such heading"),
        (
            '<a href="sub/b.html#top">',
            "index.html links to sub/b.html#top, but there is no such heading",
        ),
        (
            '<script src="https://cdn.example/x.js">',
            "index.html loads https://cdn.example/x.js from another machine",
        ),
        (
            '<link href="https://fonts.example/x.css">',
            "index.html loads https://fonts.example/x.css from another machine",
        ),
    ],
)
def test_problems__names_page_and_address(site, line, problem):
    (site / "index.html").write_text(GOOD + line)
    assert problems(site) == [problem]
