"""Texts of a page: shares, figures and names of metrics as people read them."""

import pytest

page = pytest.importorskip("streammiml.tell.page", reason="pages need jinja2")


def test_filters__write_numbers_and_names_for_people():
    assert page.share(0.1234) == "12.3 %"
    assert page.figure(0.123456) == "0.1235"
    assert page.figure(None) == "undefined"
    assert page.spoken("ndcg_at_3") == "nDCG at 3"
    assert page.spoken("macro_f1") == "macro F1"
    assert page.spoken("ranking_loss") == "ranking loss"


def test_render__refuses_content_that_lacks_a_name():
    with pytest.raises(Exception, match="is undefined"):
        page.render({})
