"""convert to and from URLs, against a server that the tests start themselves."""

import pytest

import streammiml as sm
from streammiml.errors import StoreError
from streammiml_tools.convert import convert
from streammiml_tools.convert.compare import compare
from streammiml_tools.convert.plan import ConvertConfig
from streammiml_tools.readers.base import SourceOptions
from tests.stores import made_block
from tests.tools.source_files import bags_of, save_npz

SMALL = SourceOptions(span_bytes=256)


def test_url__is_written_read_and_compared(s3, tmp_path, backend):
    source = save_npz(tmp_path / "d.npz", made_block(30))
    local = convert(source, tmp_path / "local.zarr").store
    far = convert(source, f"{s3}/far.{backend}", options=SMALL).store
    assert far.fingerprint == local.fingerprint
    assert not list((tmp_path / "tmp").glob("*/*"))
    assert compare(f"{s3}/far.{backend}", source).is_same
    back = convert(f"{s3}/far.{backend}", tmp_path / "back.zarr").store
    assert list(bags_of(back)) == list(bags_of(local))
    with pytest.raises(StoreError, match=rf"far\.{backend} exists already"):
        convert(source, f"{s3}/far.{backend}", options=SMALL)


def test_url__can_be_split_and_gone_on_with(s3, tmp_path, backend):
    source = save_npz(tmp_path / "d.npz", made_block(30))
    settings = ConvertConfig(split="a=.5,b=.5", shuffle=True)

    def stop(progress):
        if progress.stage == "store":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, f"{s3}/c.{backend}", settings, SMALL, watch=stop)
    convert(source, f"{s3}/c.{backend}", settings, SMALL)
    convert(source, tmp_path / f"c.{backend}", settings, SMALL)
    for name in "ab":
        far, near = f"{s3}/c-{name}.{backend}", tmp_path / f"c-{name}.{backend}"
        assert sm.open_store(far).fingerprint == sm.open_store(near).fingerprint
