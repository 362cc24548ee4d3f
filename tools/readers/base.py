"""What a reader of foreign files is: what it finds in them, and the bags it takes out.

A reader makes one cheap pass (``scan``) that says what the files hold and cuts them into spans, and
then turns any span, alone and in any process, into blocks of bags (``read``). Parts, resuming,
splitting, progress and the store are the converter's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from streammiml.bags.block import BagBlock
from streammiml.errors import StreammimlError

SPAN_BYTES = 32 << 20
"""Bytes of a source that a span takes, about, unless asked otherwise."""
BESIDE = "\0"
"""Between the paths of a span that needs several files."""
NONE = "none"
"""Said for a column: there is to be none."""


class SourceError(StreammimlError):
    """A foreign file that cannot be converted; says which, where in it, and what to do."""

    may_pass = False
    """Whether the same file may be read another time: a disk failed, and not what is in it. An
    attribute, since the cause of an error is not sent from worker to worker."""


class Span(NamedTuple):
    """A piece of a source that can be read by itself; spans join to all bags, in order.

    ``start`` and ``stop`` count what the reader likes to count: bytes, records, bags. A bag that
    begins within a span belongs to it, wherever it ends.
    """

    path: str
    start: int
    stop: int
    n_bytes: int
    n_bags: int | None = None
    """Bags in it, where the pass has counted them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the user says of a source; each reader takes what it understands."""

    format: str | None = None
    """Name of the reader, where suffix and content do not tell. hdf5 needs pip install
    'streammiml[hdf5]', matlab needs pip install 'streammiml[matlab]'."""
    labels: tuple[str, ...] | None = None
    """Names of all labels, in order; a label that is not among them is refused."""
    bag_column: str | None = None
    """Column or field that names a row's bag; text and tables in long form."""
    label_columns: tuple[str, ...] | None = None
    """Columns or variable of the labels: one 0/1 column a label, or one that lists them; none if
    there are no labels, or none are wanted."""
    row_label_column: str | None = None
    """Column or variable of the labels of rows."""
    feature_columns: tuple[str, ...] | None = None
    """Columns of the features, or the one that lists them; all others that are numbers if None."""
    variables: tuple[str, ...] | None = None
    """Arrays or variables of the bags, in files that hold several."""
    transposed: bool | None = None
    """Whether bags lie (features, rows); told by shape unless given."""
    labels_transposed: bool | None = None
    """Whether targets lie (labels, bags); told by shape unless given."""
    separator: str | None = None
    """Between columns of text; told by suffix and content unless given."""
    label_separator: str | None = None
    """Between labels in one column of text; a semicolon unless given."""
    header: bool | None = None
    """Whether the first line of text names the columns; told by content unless given."""
    n_features: int | None = None
    """Number of features, where the source need not show the last one."""
    sparse: bool | None = None
    """Whether rows are stored sparse; as the source has them unless given."""
    group: bool = False
    """Whether rows of a bag may lie apart: a bag that returns comes as another bag of its id, and
    the converter joins them, in the order of their first rows."""
    span_bytes: int = SPAN_BYTES
    """Bytes of source that a span takes, about."""

    def __post_init__(self) -> None:
        if self.no_labels and self.row_label_column not in (None, NONE):
            raise StreammimlError(
                f"--label-columns none leaves labels out, but --row-label-column names "
                f"{self.row_label_column!r}; give one of them"
            )

    @property
    def no_labels(self) -> bool:
        """Whether bags are to have no labels, nor rows."""
        return self.label_columns == (NONE,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What a source holds, and how it is cut; small enough to be sent to workers."""

    spans: tuple[Span, ...]
    n_features: int
    dtype: str = "float32"
    """The narrowest type of a store that holds every value exactly, as far as the pass can tell."""
    sparse: bool = False
    label_names: tuple[str, ...] | None = None
    n_labels: int | None = None
    """None: one more than the highest that occurs."""
    feature_names: tuple[str, ...] | None = None
    row_labels: bool = False
    bag_ids: bool = False
    n_bags: int | None = None
    """Where the pass has counted them."""
    n_rows: int | None = None
    holds_bytes: int = 0
    """Memory that reading needs beyond a span, where the format must be read whole."""
    notes: tuple[str, ...] = ()
    """What was understood, a line each: which variable was taken for what, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One foreign format."""

    name: str
    suffixes: tuple[str, ...]
    """Of its files, without compression: ``.csv`` stands for ``.csv.gz`` too."""
    line: str
    """What it reads, in one line for the help."""
    tells: Callable[[Path, bytes], bool]
    """Whether a file is of this format, by its path and first bytes (decompressed)."""
    scan: Callable[[Sequence[Path], SourceOptions], Scan]
    """One cheap pass over the files, in the order given; raises SourceError."""
    read: Callable[[Span, Scan, SourceOptions], Iterator[BagBlock]]
    """Bags of a span in blocks of a few MB, never all at once; raises SourceError."""
    may_lack_labels: bool = False
    """Whether ``--label-columns none`` is understood."""
    extra: str | None = None
    """The extra that brings packages which ``scan`` and ``read`` need, where there is one."""


@dataclass(frozen=True, slots=True)
class ExtraModule:
    """A module with ``scan`` and ``read`` of a format that needs packages of an extra.

    The module is loaded when a file is scanned or read. So the format of a file can be told
    without the packages.
    """

    module: str
    extra: str
    packages: tuple[str, ...]

    def scan(self, paths: Sequence[Path], options: SourceOptions) -> Scan:
        """Call ``scan`` of the module; a missing package is a SourceError."""
        found: Scan = self._loaded(str(paths[0])).scan(paths, options)
        return found

    def read(self, span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
        """Call ``read`` of the module; a missing package is a SourceError."""
        blocks: Iterator[BagBlock] = self._loaded(span.path).read(span, scan, options)
        return blocks

    def _loaded(self, path: str) -> Any:
        try:
            return import_module(self.module)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in self.packages:
                raise
            raise SourceError(
                f"{path} needs {package}: pip install 'streammiml[{self.extra}]'"
            ) from None
