"""The site is built without a warning, looks after itself, and works in a real browser."""

import re
import time

import pytest

from streammiml.errors import StreammimlError
from streammiml_tools.docs import build as module
from streammiml_tools.docs.build import build
from streammiml_tools.docs.gallery import EXAMPLES
from streammiml_tools.docs.pages import sources
from tests.tell.browser import Browser, browser_path

pytest.importorskip("sphinx", reason="the site needs the extra docs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("site")


@pytest.fixture
def small(monkeypatch, folder):
    """A site of one page, without examples; returns its source."""

    def stage(source):
        source.mkdir(parents=True, exist_ok=True)
        (source / "index.md").write_text((folder / "index.md").read_text())

    monkeypatch.setattr(module, "stage", stage)
    monkeypatch.setattr(module, "run_examples", lambda _: [])
    return folder / "index.md"


def test_build__a_warning_is_an_error_that_names_the_line(small, folder):
    small.write_text("# Title\n\n[x](gone.md)\n")
    with pytest.raises(StreammimlError, match=r"cannot be built:\nindex.md:3: WARNING: .*gone.md"):
        build(folder / "out", folder / "work")


def test_build__a_dead_link_is_an_error_that_names_it(small, folder):
    small.write_text("# Title\n\n<a href='gone.html'>x</a>\n")
    with pytest.raises(StreammimlError, match=r"1 dead links:\nindex.html links to gone.html"):
        build(folder / "out", folder / "work")


def test_build__replaces_an_earlier_site_but_nothing_else(small, folder):
    small.write_text("# Title\n")
    page = build(folder / "out", folder / "work")
    (folder / "out" / "old.html").touch()
    assert build(folder / "out", folder / "work") == page
    assert not (folder / "out" / "old.html").exists()
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").touch()
    with pytest.raises(StreammimlError, match="holds something else than a site; name a new"):
        build(folder / "mine", folder / "work")
    assert (folder / "mine" / "thesis.txt").exists()


@pytest.fixture(scope="module")
def site(folder):
    return build(folder / "site", folder / "all").parent


@pytest.mark.slow
def test_site__has_every_page_with_pictures_that_the_examples_made(site):
    for name in sources():
        assert (site / name).with_suffix(".html").exists()
    for name in EXAMPLES:
        text = (site / "gallery" / f"{name}.html").read_text()
        assert re.search(rf'<img[^>]* src="\.\./_images/{name}\w*\.png"', text)


@pytest.mark.slow
def test_site__reference_shows_docstrings_and_settings(site):
    assert "Stream the bags of a store" in (site / "api" / "loader.html").read_text()
    settings = (site / "api" / "settings.html").read_text()
    assert 'id="streammiml.TrainConfig.shared_dim"' in settings
    assert "batch_size=None" in (site / "api" / "torch.html").read_text()


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


IN_BROWSER = pytest.mark.skipif(
    browser_path() is None, reason="no Chromium is installed (Debian: apt-get install chromium)"
)


@pytest.mark.slow
@IN_BROWSER
def test_site__loads_every_page_without_complaint_and_from_this_machine_alone(site, browser):
    for path in sorted(site.rglob("*.html")):
        browser.open(path)
    assert not browser.complaints
    assert not [url for url in browser.requests if not url.startswith(("file:", "data:"))]


@pytest.mark.slow
@IN_BROWSER
def test_site__search_finds_the_page_about_resuming(site, browser):
    browser.open(site / "search.html")
    browser.run("document.querySelector('input[name=q]').focus()")
    browser.write("resume")
    browser.press("Enter")
    found = "[...document.querySelectorAll('#search-results li a')].map(a => a.textContent)"
    end = time.monotonic() + 30
    while "Train a model" not in " ".join(browser.run(found) or []):
        assert time.monotonic() < end, browser.run("document.body.innerText")
        time.sleep(0.1)


@pytest.mark.slow
@IN_BROWSER
def test_site__is_light_or_dark_as_the_system_and_as_the_button_says(site, browser):
    colour = "getComputedStyle(document.body).backgroundColor"
    brightness = {}
    for scheme in ("light", "dark"):
        browser.prefers(scheme)
        browser.open(site / "index.html")
        brightness[scheme] = sum(map(int, re.findall(r"\d+", browser.run(colour))[:3]))
    assert brightness["light"] > 600
    assert brightness["dark"] < 150
    browser.run("[...document.querySelectorAll('.theme-toggle')].at(-1).click()")
    assert browser.run("document.body.dataset.theme") != "auto"


@pytest.mark.slow
@IN_BROWSER
def test_site__fits_a_phone(site, browser):
    browser.resize(390, 800)
    for name in ("index", "guide/convert", "api/training", "gallery/slides"):
        browser.open(site / f"{name}.html")
        assert browser.run("document.documentElement.scrollWidth") <= 390, name
