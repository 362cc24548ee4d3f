"""The pictures of the README are those of the lines in benchmarks/results, and so is its table."""

import os
import re
from pathlib import Path

import pytest

from streammiml_tools.docs import figures

ROOT = Path(__file__).parent.parent.parent.parent
README = (ROOT / "README.md").read_text()


def facts(svg):
    """Shapes and texts of a picture, as numbers: other versions of Matplotlib write other bytes."""
    return [round(float(number)) for number in re.findall(r"[ML] ([0-9.]+)", svg)]


@pytest.mark.skipif(
    "STREAMMIML_LOWEST" in os.environ, reason="the lowest Matplotlib writes shapes in another way"
)
@pytest.mark.parametrize("name", ["quality", "speed"])
def test_pictures__are_drawn_from_the_results_of_today(name, tmp_path):
    figures.main(tmp_path)
    drawn, kept = (folder / f"{name}.svg" for folder in (tmp_path, figures.PICTURES))
    bars = re.compile(r'<g id="patch_\d+">\s*<path d="([^"]+)"')
    drawn_bars, kept_bars = (bars.findall(path.read_text()) for path in (drawn, kept))
    assert len(drawn_bars) > 4
    assert [facts(bar) for bar in drawn_bars] == [facts(bar) for bar in kept_bars], (
        "run python -m streammiml_tools.docs.figures"
    )
    assert f"](.github/{name}.svg)" in README


def test_pictures__the_same_results_give_the_same_bytes(tmp_path):
    contents = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        figures.main(folder)
        contents.append([(folder / f"{name}.svg").read_bytes() for name in ("quality", "speed")])
    assert contents[0] == contents[1]


def test_quality__is_what_the_table_of_the_page_says():
    page = (ROOT / "streammiml" / "guide" / "figures.md").read_text()
    titles = {**figures.SETS, "miml_birds.arff": r"bird song \(ARFF\)"}
    for name, methods in figures.quality().items():
        row = re.search(
            rf"^\| {titles[name]} \| [^|]+ \| \.\d+, (\.\d+) \| \.\d+, (\.\d+) ", page, re.M
        )
        assert float(row[1]) == pytest.approx(methods["default"], abs=0.0006), name
        assert float(row[2]) == pytest.approx(methods["best"], abs=0.0006), name


def test_speed__has_every_peer_that_was_measured():
    assert set(figures.speed()) == set(figures.PEERS)
