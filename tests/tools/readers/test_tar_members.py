"""Members of tar archives: all formats of headers, streams, and what is refused."""

import gzip
import tarfile
from itertools import pairwise

import pyarrow as pa
import pytest

from streammiml_tools.readers.base import Limits, SourceError
from streammiml_tools.readers.tar_members import LONG_HEADER, TarReader
from tests.tools.readers.tar_files import special, tar_bytes, write_tar

LONG = "folder/" * 40 + "a.npy"
MEMBERS = {"a.npy": b"one", LONG: b"x" * 512, "ünicode.cls": b"", "last.txt": b"y" * 1000}
FORMATS = (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def contents(path, limits=None, **bounds):
    reader = TarReader(path, limits or Limits(), **bounds)
    return {member.name: reader.read() for member in reader}


@pytest.mark.parametrize("form", FORMATS)
def test_members__come_with_long_names_in_every_format(tmp_path, form):
    folder = special(tarfile.DIRTYPE)
    raw = tar_bytes([("a.npy", b"one"), ("folder", folder), *[*MEMBERS.items()][1:]], form)
    (tmp_path / "a.tar").write_bytes(raw)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(raw))
    with pa.output_stream(str(tmp_path / "a.tar.zst"), compression="zstd") as out:
        out.write(raw)
    for name in ("a.tar", "a.tar.gz", "a.tar.zst"):
        assert contents(tmp_path / name) == MEMBERS


@pytest.mark.parametrize("form", FORMATS)
def test_ranges__give_every_member_once(tmp_path, form):
    path = write_tar(tmp_path / "a.tar", MEMBERS, form)
    starts = [member.start for member in TarReader(path, Limits())]
    assert starts[0] == 0
    names = [[*contents(path, start=a, stop=b)] for a, b in pairwise(starts)]
    assert names == [[name] for name in [*MEMBERS][:-1]]
    reader = TarReader(path, Limits())
    assert len(list(reader)) == 4
    assert [*contents(path, start=starts[-1], stop=reader.at)] == ["last.txt"]


def test_size__in_a_pax_record_counts(tmp_path):
    plain = tar_bytes({"a.npy": b"12345"})
    info = tarfile.TarInfo("a.npy")
    info.pax_headers = {"size": "5", "comment": "=\n"}
    raw = bytearray(info.tobuf(tarfile.PAX_FORMAT)) + plain[512:]
    (tmp_path / "a.tar").write_bytes(raw)
    assert contents(tmp_path / "a.tar") == {"a.npy": b"12345"}


# What is refused.


def pax(records, kind=tarfile.XHDTYPE, size=None):
    header = special(kind, name="pax", size=len(records) if size is None else size)
    padded = records + bytes(-len(records) % 512)
    return header.tobuf(tarfile.USTAR_FORMAT) + padded + tar_bytes({"a.npy": b"1"})


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"words" * 200, r"a\.tar is not a tar archive"),
        (b"", r"a\.tar is cut short: it ends at byte 0 without an end-of-archive mark"),
        (
            tar_bytes({"a.npy": special(tarfile.SYMTYPE, linkname="/etc/passwd")}),
            r"member 'a\.npy' is a link; make the archive again .*tar --dereference --hard-deref",
        ),
        (
            tar_bytes({"a.npy": special(tarfile.LNKTYPE, linkname="b")}),
            r"member 'a\.npy' is a link",
        ),
        (
            tar_bytes({"a.npy": special(tarfile.FIFOTYPE)}),
            r"member 'a\.npy' is no plain file \(type b'6'\); make the archive again without it",
        ),
        (
            tar_bytes({"a.npy": special(tarfile.GNUTYPE_SPARSE)}),
            r"member 'a\.npy' is sparse; make the archive again without --sparse",
        ),
        (pax(b"22 GNU.sparse.major=1\n"), r"the member after byte 0 is sparse"),
        (pax(b"x" * 40), r"the header at byte 0 is damaged \(no pax records\); fetch the file"),
        (pax(b"99 path=a\n"), r"the header at byte 0 is damaged \(no pax records\)"),
        (pax(b"9 path=\xff\n"), r"the header at byte 0 is damaged \('utf-8' codec"),
        (pax(b"11 size=-5\n"), r"the header at byte 0 is damaged \(a size that is no number\)"),
        (
            pax(b"10 path=a\n", tarfile.XGLTYPE),
            r"at byte 0 is damaged \(one name or size for all members\)",
        ),
        (
            pax(b"", size=LONG_HEADER + 1),
            r"the header at byte 0 is damaged \(65,537 bytes of names\)",
        ),
        (pax(b"")[:512] + bytes(1024), r"header at byte 512 is damaged \(a header without a memb"),
        (
            tar_bytes({"a.npy": b"1"}) + tar_bytes({"b.npy": b"2"}),
            r"has more behind its end-of-archive mark; if it was made of several archives by cat",
        ),
        (
            special(tarfile.REGTYPE, name="a", size=1 << 40).tobuf(tarfile.GNU_FORMAT),
            r"member 'a' is cut short: 1,099,511,627,776 bytes, but 0 are there; fetch the file",
        ),
        (tar_bytes({"a.npy": b"1"})[:1024], r"ends at byte 1,024 without an end-of-archive mark"),
    ],
)
def test_archive__that_cannot_be_meant_is_refused(tmp_path, raw, words):
    for name, content in (("a.tar", raw), ("a.tar.gz", gzip.compress(raw))):
        if name.endswith("gz") and "are there" in words:
            continue
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SourceError, match=words.replace(r"a\.tar", name)):
            contents(tmp_path / name)


def test_header__with_a_flipped_bit_is_refused(tmp_path):
    raw = bytearray(tar_bytes({"a.npy": b"1", "b.npy": b"2"}))
    raw[1024 + 5] ^= 4
    (tmp_path / "a.tar").write_bytes(raw)
    with pytest.raises(
        SourceError, match=r"the header at byte 1,024 is damaged \(bad checksum\); fetch the file"
    ):
        contents(tmp_path / "a.tar")
    block = bytearray(special(tarfile.REGTYPE, name="a", size=0).tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b"\xff" * 12
    block[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(block))[0]
    (tmp_path / "a.tar").write_bytes(block)
    with pytest.raises(SourceError, match=r"byte 0 is damaged \(a size below 0\)"):
        contents(tmp_path / "a.tar")


@pytest.mark.parametrize("cut", [100, 600, 1024, 1300])
def test_archive__that_is_cut_short_is_refused(tmp_path, cut):
    raw = tar_bytes({"a.npy": b"1" * 700, "b.npy": b"2"})
    (tmp_path / "a.tar").write_bytes(raw[:cut])
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(raw[:cut]))
    for name in ("a.tar", "a.tar.gz"):
        with pytest.raises(SourceError, match=r"is cut short"):
            contents(tmp_path / name)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(raw)[:-6])
    with pytest.raises(SourceError, match=r"a\.tar\.gz is damaged or cut short"):
        contents(tmp_path / "a.tar.gz")


def test_size__beyond_memory_is_refused_before_it_is_read(tmp_path):
    header = special(tarfile.REGTYPE, name="a.npy", size=1 << 40).tobuf(tarfile.GNU_FORMAT)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(header))
    with pytest.raises(
        SourceError, match=r"member 'a\.npy' of 1,099,511,627,776 bytes, needs about 1 TiB, more"
    ):
        contents(tmp_path / "a.tar.gz")
