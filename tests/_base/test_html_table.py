"""What a notebook shows of a model: facts, and nothing that a name could smuggle in."""

from streammiml._base.html_table import listed, table_html
from tests.measure.models import made_model

EVIL = "<script>alert(1)</script>"


def test_model__shows_a_table_with_names_escaped():
    shown = made_model(label_names=(EVIL, "b", "c", "d"), settings={"scale": EVIL})._repr_html_()
    assert EVIL not in shown
    assert shown.count("&lt;script&gt;") == 2
    for text in ("labels", "sub-concepts per label", "dummy, at least 1", "<td"):
        assert text in shown
    assert "steps" not in shown


def test_table__leaves_out_what_is_not_known():
    assert "secret" not in table_html("a<b", {"secret": None, "y": 0})
    assert "a&lt;b" in table_html("a<b", {})


def test_listed__names_a_few_and_counts_the_rest():
    assert listed(None) is None
    assert listed([str(i) for i in range(13)]).endswith("11, … (13 in all)")
