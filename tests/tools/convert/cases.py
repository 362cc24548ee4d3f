"""What tests of conversions share."""

import pytest

from streammiml_tools.convert import convert
from streammiml_tools.readers.base import SourceOptions
from tests.tools.source_files import bags_of

SMALL = SourceOptions(span_bytes=256)
"""Spans of a few bags."""


def said(capsys):
    out, err = capsys.readouterr()
    return out.strip(), err.strip()


def members(stores):
    return [{bag[0] for bag in bags_of(store)} for store in stores]


def stop_at_once(source, out, **how):
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, out, **{"options": SMALL, **how}, watch=stop)
