"""Texts of a page: shares and figures as people read them."""

import pytest

page = pytest.importorskip("streammiml.tell.page", reason="pages need jinja2")


def test_filters__write_numbers_for_people():
    assert page.share(0.1234) == "12.3 %"
    assert page.figure(0.123456) == "0.1235"
    assert page.figure(None) == "undefined"


def test_render__refuses_content_that_lacks_a_name():
    with pytest.raises(Exception, match="is undefined"):
        page.render({})
