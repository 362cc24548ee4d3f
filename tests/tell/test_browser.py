"""The page in a real browser: no complaint, no request; it sorts, filters and changes its theme."""

import re

import pytest

import streammiml as sm
from tests.measure.models import made_model
from tests.planted import planted
from tests.stores import write_store
from tests.tell.browser import Browser, browser_path

pytest.importorskip("jinja2", reason="pages need jinja2")
pytestmark = pytest.mark.skipif(
    browser_path() is None, reason="no Chromium is installed (Debian: apt-get install chromium)"
)
N_LABELS = 130
NAMES = tuple(f"<b>label {i}</b>" if i % 2 else f"thing {i} & more" for i in range(N_LABELS))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    block = planted(300, n_labels=N_LABELS)
    store = write_store(folder / "x.zarr", block, label_names=NAMES)
    sm.train(store, sm.TrainConfig(epochs=2, shared_dim=8), run=folder / "run")
    made_model(n_features=6, n_labels=N_LABELS, label_names=NAMES).save(
        folder / "run" / "model.safetensors"
    )
    return sm.report([folder / "run"], folder / "p.html", store=store, image="2x3")


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture
def tab(browser, page):
    """The page, freshly loaded by somebody who chose no theme and a wide window."""
    browser.resize(1200, 900)
    browser.prefers("light")
    browser.open(page)
    browser.run("localStorage.clear()")
    browser.open(page)
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(page)
    yield browser
    assert browser.complaints == []


def column(tab, number):
    rows = "[...document.querySelectorAll('.sortable tbody tr')]"
    return tab.run(f"{rows}.map(r => r.cells[{number}].textContent)")


def press_head(tab, number, key="Enter"):
    tab.run(f"document.querySelectorAll('.sortable thead button')[{number}].focus()")
    tab.press(key)


def sorting(tab):
    return tab.run(
        "[...document.querySelectorAll('.sortable thead th')].map(h => h.getAttribute('aria-sort'))"
    )


def numbers(texts):
    return [float(text.replace(",", "")) for text in texts]


def write_into(tab, selector, text):
    tab.run(f"document.querySelector('{selector}').focus()")
    tab.run(f"document.querySelector('{selector}').select()")
    tab.write(text)


def test_page__loads_without_complaint_and_asks_for_nothing_else(tab, page):
    assert tab.requests
    assert {re.sub("^data:.*", "data:", url) for url in tab.requests} <= {page.as_uri(), "data:"}
    assert tab.run("document.querySelectorAll('b').length") == 0
    assert tab.run("document.title") == "Report on run"


def test_page__pictures_are_drawn(tab):
    assert tab.run("document.images.length") > 10
    tab.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    broken = "[...document.images].filter(i => !(i.complete && i.naturalWidth === 3)).length"
    assert tab.run(broken) == 0


def test_labels__are_sorted_by_the_keyboard_and_say_so(tab):
    assert sorting(tab)[1] == "descending"
    assert numbers(column(tab, 1)) == sorted(numbers(column(tab, 1)), reverse=True)
    press_head(tab, 0)
    assert sorting(tab) == ["ascending", *["none"] * 7]
    assert column(tab, 0)[:2] == ["<b>label 1</b>", "<b>label 3</b>"]
    press_head(tab, 0, " ")
    assert sorting(tab)[0] == "descending"
    assert column(tab, 0)[0] == "thing 128 & more"
    for number in (2, 3, 4, 5):
        press_head(tab, number)
        shown = numbers(column(tab, number))
        assert shown == sorted(shown, reverse=True)
        press_head(tab, number)
        shown = numbers(column(tab, number))
        assert shown == sorted(shown)
        assert sorting(tab)[number] == "ascending"


def test_labels__are_leafed_through_and_every_one_comes_once(tab):
    seen = []
    for place in ("1 to 50 of 130", "51 to 100 of 130", "101 to 130 of 130"):
        assert tab.run("document.querySelector('.place').textContent") == place
        seen += column(tab, 0)
        last = tab.run("document.querySelector('.on').disabled")
        tab.run("document.querySelector('.on').click()")
    assert last
    assert sorted(seen) == sorted(NAMES)
    tab.run("document.querySelector('.back').click()")
    assert tab.run("document.querySelector('.place').textContent") == "51 to 100 of 130"


def test_labels__are_filtered_by_name_and_by_bags(tab):
    write_into(tab, ".by-name", "THING 12")
    shown = column(tab, 0)
    assert sorted(shown) == sorted(name for name in NAMES if "thing 12" in name)
    assert (
        tab.run("document.querySelector('.place').textContent")
        == f"1 to {len(shown)} of {len(shown)}"
    )
    write_into(tab, ".by-name", "no such label")
    assert column(tab, 0) == []
    assert tab.run("document.querySelector('.place').textContent") == "no label matches"
    tab.run("document.querySelector('.by-name').value = ''")
    write_into(tab, ".by-bags", "5")
    assert column(tab, 1)
    assert min(numbers(column(tab, 1))) >= 5
    # What was filtered is sorted on.
    press_head(tab, 1)
    assert numbers(column(tab, 1)) == sorted(numbers(column(tab, 1)))


def ground(tab):
    return tab.run("getComputedStyle(document.body).backgroundColor")


LIGHT, DARK = "rgb(255, 255, 255)", "rgb(17, 21, 26)"


def test_theme__follows_the_system_until_it_is_chosen_and_is_remembered(tab, page):
    assert ground(tab) == LIGHT
    tab.prefers("dark")
    assert ground(tab) == DARK
    tab.run("document.querySelector('input[value=auto]').focus()")
    tab.press("ArrowRight")
    assert tab.run("document.querySelector('input[name=theme]:checked').value") == "light"
    assert ground(tab) == LIGHT
    tab.press("ArrowRight")
    assert ground(tab) == DARK
    tab.prefers("light")
    assert ground(tab) == DARK
    tab.open(page)
    assert ground(tab) == DARK
    assert tab.run("document.querySelector('input[name=theme]:checked').value") == "dark"


CONTRASTS = """
(() => {
  const part = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => 0.2126 * part(c[0]) + 0.7152 * part(c[1]) + 0.0722 * part(c[2]);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = numbers(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  let worst = [99, ""];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    const hidden = e.closest("script, style, noscript") || !e.getClientRects().length;
    if (!own || hidden || e.disabled) continue;
    const style = getComputedStyle(e);
    const color = e.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(numbers(color)), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < worst[0]) worst = [ratio, e.outerHTML.slice(0, 120)];
  }
  return worst;
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_theme__text_has_enough_contrast(tab, scheme):
    tab.prefers(scheme)
    tab.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    ratio, where = tab.run(CONTRASTS)
    assert 4.5 <= ratio < 99, f"{ratio:.2f} at {where}"


def test_page__fits_a_phone(tab, page):
    tab.resize(360, 740)
    tab.open(page)
    assert tab.run("document.documentElement.scrollWidth") <= 360
    tab.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert tab.run("document.documentElement.scrollWidth") <= 360


def test_page__every_control_has_a_name(tab):
    nameless = """
    [...document.querySelectorAll("button, input, a, summary")].filter((e) =>
      !(e.textContent.trim() || e.getAttribute("aria-label") || (e.labels && e.labels.length))
    ).map((e) => e.outerHTML)
    """
    assert tab.run(nameless) == []
