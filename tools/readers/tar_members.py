"""The members of a tar archive, one after the other, from a plain or compressed file.

Nothing is extracted. Sizes that headers declare are checked before anything is allocated. Links,
sparse files and devices are refused, as are archives that are cut short.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from streammiml_tools.readers.base import Limits, SourceError
from streammiml_tools.readers.memory_checks import check_fits
from streammiml_tools.readers.messages import reason_of
from streammiml_tools.readers.remote_files import source_path
from streammiml_tools.readers.text import TextSource, compression_of, open_bytes

BLOCK = 512
"""Headers take one block each, and contents take whole blocks."""
PIECE_BYTES = 1 << 20
LONG_HEADER = 1 << 16
"""Upper limit in bytes for the content of a header: a long name, or pax records."""
LONG_MEMBER = 1 << 20
"""Members of more bytes are checked for memory before they are read."""
MAGIC, MAGIC_AT = b"ustar", 257
LINKS = (tarfile.LNKTYPE, tarfile.SYMTYPE)
PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)
TO_THE_END = 1 << 62
"""A position after the end of any archive."""


class TarMember(NamedTuple):
    """One file of an archive."""

    name: str
    start: int
    """Offset, in the decompressed archive, of the first header of the member."""
    n_bytes: int


class TarReader:
    """Iterates over the files of an archive; ``read`` returns the content of the current file.

    Reads the members whose headers begin before ``stop``. A reader that gets to the end of the
    archive checks that nothing comes behind it.
    """

    def __init__(
        self, path: str | Path, limits: Limits, start: int = 0, stop: int = TO_THE_END
    ) -> None:
        self.path, self.limits = path, limits
        self._start, self._stop = start, stop
        self._stream: TextSource | None = None
        self._size: int | None = None
        self._at = start
        self._left = self._padding = 0
        self._member: TarMember | None = None

    @property
    def at(self) -> int:
        """Position in the decompressed archive: at the end, the offset of the end-of-archive."""
        return self._at

    def __iter__(self) -> Iterator[TarMember]:
        if compression_of(self.path) is None:
            self._size = source_path(self.path).stat().st_size
        with open_bytes(self.path, self._start) as stream:
            self._stream = stream
            while True:
                self._skip(self._left + self._padding)
                self._left = self._padding = 0
                if self._at >= self._stop:
                    return
                member = self._next()
                if member is None:
                    return
                self._left, self._padding = member.n_bytes, -member.n_bytes % BLOCK
                self._member = member
                yield member

    def read(self, *, times: int = 1) -> bytes:
        """Read the file; its size, with the copies of ``times``, must fit into memory."""
        member = self._member
        assert member is not None
        assert self._left == member.n_bytes, "a member is read once"
        if member.n_bytes > LONG_MEMBER:
            where = f"{self.path}, member {member.name!r} of {member.n_bytes:,} bytes,"
            check_fits(where, times * member.n_bytes, self.limits)
        content = self._exactly(member.n_bytes)
        self._left = 0
        return content

    def _next(self) -> TarMember | None:
        """The next file; None at the end of the archive."""
        start, name, size = self._at, None, None
        while True:
            header_at = self._at
            block = self._exactly(BLOCK)
            if block == bytes(BLOCK):
                if header_at != start:
                    raise self._damaged(header_at, "a header without a member")
                self._end(header_at)
                return None
            info = self._header(block, header_at)
            if info.type == tarfile.GNUTYPE_LONGNAME:
                name = self._text(self._long(info, header_at).partition(b"\0")[0], header_at)
            elif info.type in PAX:
                records = self._records(self._long(info, header_at), header_at)
                name, size = self._of_pax(records, info, header_at, name, size)
            elif info.type == tarfile.DIRTYPE:
                start, name, size = self._at, None, None
            else:
                self._refuse_other_types(info, name or info.name)
                n_bytes = info.size if size is None else size
                self._refuse_beyond_end(name or info.name, n_bytes)
                return TarMember(name or info.name, start, n_bytes)

    def _header(self, block: bytes, at: int) -> tarfile.TarInfo:
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
            if info.size < 0:
                raise ValueError("a size below 0")
        # Flipped bits gave HeaderError, ValueError, UnicodeDecodeError.
        except Exception as error:
            if at == 0 and block[MAGIC_AT : MAGIC_AT + len(MAGIC)] != MAGIC:
                raise SourceError(f"{self.path} is not a tar archive") from None
            raise self._damaged(at, reason_of(error)) from None
        return info

    def _long(self, info: tarfile.TarInfo, at: int) -> bytes:
        """The content of a header that is longer than a block."""
        if info.size > LONG_HEADER:
            raise self._damaged(at, f"{info.size:,} bytes of names")
        content = self._exactly(info.size)
        self._skip(-info.size % BLOCK)
        return content

    def _records(self, content: bytes, at: int) -> dict[str, bytes]:
        """The records of a pax header: ``length key=value`` and a line break each."""
        records: dict[str, bytes] = {}
        while content:
            digits, _, _ = content.partition(b" ")
            length = int(digits) if digits.isdigit() and len(digits) < 9 else 0
            record = content[len(digits) + 1 : length - 1]
            key, is_record, value = record.partition(b"=")
            if length > len(content) or content[length - 1 : length] != b"\n" or not is_record:
                raise self._damaged(at, "no pax records")
            records[self._text(key, at)] = value
            content = content[length:]
        return records

    def _of_pax(
        self,
        records: dict[str, bytes],
        info: tarfile.TarInfo,
        at: int,
        name: str | None,
        size: int | None,
    ) -> tuple[str | None, int | None]:
        """Name and size of the next member, if the records have them."""
        if any(key.startswith("GNU.sparse.") for key in records):
            raise self._sparse(f"the member after byte {at:,}")
        if info.type == tarfile.XGLTYPE:
            if records.keys() & {"path", "size"}:
                raise self._damaged(at, "one name or size for all members")
            return name, size
        if "path" in records:
            name = self._text(records["path"], at)
        if "size" in records:
            digits = records["size"]
            if not digits.isdigit() or len(digits) > 18:
                raise self._damaged(at, "a size that is no number")
            size = int(digits)
        return name, size

    def _refuse_other_types(self, info: tarfile.TarInfo, name: str) -> None:
        if info.type in LINKS:
            raise SourceError(
                f"{self.path}, member {name!r} is a link; make the archive again with the files "
                "themselves: tar --dereference --hard-dereference"
            )
        if info.type == tarfile.GNUTYPE_SPARSE:
            raise self._sparse(f"member {name!r}")
        if not info.isreg():
            raise SourceError(
                f"{self.path}, member {name!r} is no plain file (type {info.type!r}); make the "
                "archive again without it"
            )

    def _refuse_beyond_end(self, name: str, n_bytes: int) -> None:
        """Refuse a size that a plain archive cannot hold: a seek would not find out."""
        if self._size is not None and self._at + n_bytes > self._size:
            raise SourceError(
                f"{self.path}, member {name!r} is cut short: {n_bytes:,} bytes, but "
                f"{max(0, self._size - self._at):,} are there; fetch the file again"
            )

    def _sparse(self, which: str) -> SourceError:
        return SourceError(
            f"{self.path}, {which} is sparse; make the archive again without --sparse"
        )

    def _end(self, end: int) -> None:
        """Read what comes behind the end of the archive: zeros only, and checksums of gzip."""
        assert self._stream is not None
        while piece := self._stream.read(PIECE_BYTES):
            if piece.count(0) != len(piece):
                raise SourceError(
                    f"{self.path} has more behind its end-of-archive mark; if it was made of "
                    "several archives by cat, convert each of them"
                )
        self._at = end

    def _exactly(self, n_bytes: int) -> bytes:
        """Read so many bytes, a piece at a time: a size in a header may be wrong."""
        assert self._stream is not None
        content = self._stream.read(min(n_bytes, PIECE_BYTES))
        if len(content) < n_bytes:
            pieces, n_read = [content], len(content)
            while n_read < n_bytes and (
                piece := self._stream.read(min(n_bytes - n_read, PIECE_BYTES))
            ):
                pieces.append(piece)
                n_read += len(piece)
            content = b"".join(pieces)
        self._at += len(content)
        if len(content) < n_bytes:
            raise self._cut()
        return content

    def _skip(self, n_bytes: int) -> None:
        assert self._stream is not None
        if n_bytes and self._size is not None:
            assert hasattr(self._stream, "seek")
            self._stream.seek(self._at + n_bytes)
            self._at += n_bytes
            return
        while n_bytes > 0:
            piece = self._stream.read(min(n_bytes, PIECE_BYTES))
            if not piece:
                raise self._cut()
            self._at += len(piece)
            n_bytes -= len(piece)

    def _text(self, raw: bytes, at: int) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self._damaged(at, reason_of(error)) from None

    def _cut(self) -> SourceError:
        return SourceError(
            f"{self.path} is cut short: it ends at byte {self._at:,} without an end-of-archive "
            "mark; fetch the file again"
        )

    def _damaged(self, at: int, why: str) -> SourceError:
        return SourceError(
            f"{self.path}: the header at byte {at:,} is damaged ({why}); fetch the file again"
        )
