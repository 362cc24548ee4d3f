"""Pages of the guide are there, each with a title, and say every word before they use it."""

import pytest

from streammiml.errors import StreammimlError
from streammiml.tell.guide import PAGES, guide, title


@pytest.mark.parametrize("name", PAGES)
def test_guide__every_page_has_one_title(name):
    lines = guide(name).splitlines()
    assert title(name)
    outside = "\n".join("\n".join(lines).split("```")[::2]).splitlines()
    assert sum(line.startswith("# ") for line in outside) == 1


def test_guide__an_unknown_page_names_those_that_exist():
    with pytest.raises(StreammimlError, match=r"^no page of the guide is called 'x'; known: arch"):
        guide("x")
