"""The interface of a reader of foreign files: its options, the result of its scan, its spans.

A reader first makes one cheap pass (``scan``), which describes the files and cuts them into spans.
``read`` then turns any one span into blocks of bags, in any process. The converter does the rest:
parts, resuming, splitting, progress and the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import KeptColumn
from streammiml.errors import StreammimlError, unknown

SPAN_BYTES = 32 << 20
"""Default size of a span in bytes of the source, approximately."""
BESIDE = "\0"
"""Separates the paths of a span that needs several files."""
UNKNOWN_LABELS = ("refuse", "drop", "append")
"""What may be done with labels that ``--labels`` does not name."""
NONE = "none"
"""Value of a column option that means: there is no such column."""


class SourceError(StreammimlError):
    """A foreign file that cannot be converted; the message names file, position and a remedy.

    ``may_pass`` is true if reading the file again may succeed, because a disk failed and the
    content is not at fault. It is an attribute because the cause of an exception (``__cause__``)
    is not sent from worker to worker.
    """

    may_pass = False


class Span(NamedTuple):
    """A range of a source that can be read alone; all spans in order give all bags.

    The unit of ``start`` and ``stop`` is the reader's choice: bytes, records or bags. A bag belongs
    to the span in which it begins, even if it ends in a later span.
    """

    path: str
    start: int
    stop: int
    n_bytes: int
    n_bags: int | None = None
    """Number of bags, if the scan has counted them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Memory that the converter allows a reader.

    Limits decide whether a file is read or refused. They never change the bags that are read.
    """

    memory: int = 1 << 30
    """Bytes that all processes may hold together: ``--memory``."""
    n_processes: int = 1
    reads_all: bool = True
    """Whether every span is read to its end; false if ``--limit`` may stop early."""

    @property
    def share(self) -> int:
        """Bytes that one process may hold."""
        return self.memory // self.n_processes

    @property
    def per_process(self) -> str:
        """Phrase for messages about memory; empty if there is one process."""
        return f" in each of {self.n_processes} processes" if self.n_processes > 1 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options that describe a source; a reader uses the options that apply to its format."""

    format: str | None = None
    """Name of the reader; needed only if suffix and content do not determine it. hdf5 needs pip
    install 'streammiml[hdf5]', matlab needs pip install 'streammiml[matlab]'."""
    labels: tuple[str, ...] | None = None
    """Where the names of all labels are, in order: a file with a name a line, a vocabulary (a CSV
    file with columns index and name), a run or model, or a store. Any other label is refused,
    unless --unknown-labels says otherwise."""
    unknown_labels: str = "refuse"
    """What to do with labels that --labels does not name: refuse them, drop them and count them,
    or append them after the named ones."""
    bag_column: str | None = None
    """Column or field that names the bag of a row, in text and in tables of long form; with
    --bag-labels also the column of its table that names the bag."""
    bag_labels: str | None = None
    """Table with the labels of each bag (CSV, TSV, Parquet, Arrow): a column of bag ids, and one
    0/1 column for each label or one column that lists the labels (a;b). It replaces all labels of
    the source. If the source is many files without bag ids, each file is a bag, and its name
    without suffix is the id."""
    label_columns: tuple[str, ...] | None = None
    """Columns or variable of the labels: one 0/1 column for each label, or one column that lists
    the labels; in WebDataset the ending of a member (cls) or a field of json; 'none' leaves labels
    out."""
    row_label_column: str | None = None
    """Column or variable of the labels of rows."""
    feature_columns: tuple[str, ...] | None = None
    """Columns of the features, or the one column that lists the features; by default all other
    columns of numbers."""
    variables: tuple[str, ...] | None = None
    """Arrays or variables of the bags, in files that hold several; in WebDataset the ending of the
    member of rows."""
    keep: tuple[str, ...] | None = None
    """Columns or arrays to keep beside the rows, such as coordinates or times; they come back with
    key instances, and no model reads them. Repeat the option for several. A store keeps all of its
    own; 'none' leaves them out."""
    transposed: bool | None = None
    """Whether bags have shape (features, rows); determined from the shapes by default."""
    labels_transposed: bool | None = None
    """Whether targets have shape (labels, bags); determined from the shapes by default."""
    separator: str | None = None
    """Separator between columns of text; determined from suffix and content by default."""
    label_separator: str | None = None
    """Separator between labels in one column of text; a semicolon by default."""
    header: bool | None = None
    """Whether the first line of text names the columns; determined from its content by default."""
    n_features: int | None = None
    """Number of features, if the last feature may not occur in the source; in a tf.train.Example
    the values of one row."""
    n_labels: int | None = None
    """Number of labels, if labels are numbers and the last label may not occur in the source."""
    sparse: bool | None = None
    """Whether rows are stored sparse; as in the source by default."""
    where: tuple[str, ...] | None = None
    """Convert only the files in folders called KEY=VALUE, as partitions of Hive are; with several
    values of a key, files with any of them. The keys are columns of Parquet and Arrow files."""
    group: Annotated[bool, Parameter(negative="")] = False
    """Whether the rows of a bag may be apart in the source. The reader then gives every run of rows
    as a bag of the same id, and the converter joins these bags in the order of the source."""
    span_bytes: int = SPAN_BYTES
    """Size of a span in bytes of the source, approximately."""
    limits: Annotated[Limits, Parameter(parse=False)] = Limits()
    """Memory that the converter allows; not an option of the command line."""

    def __post_init__(self) -> None:
        if self.unknown_labels not in UNKNOWN_LABELS:
            raise unknown("policy for unknown labels", self.unknown_labels, UNKNOWN_LABELS)
        if self.unknown_labels != "refuse" and self.labels is None:
            raise StreammimlError(
                f"--unknown-labels {self.unknown_labels} needs --labels, which names the known ones"
            )
        if self.no_labels and self.row_label_column not in (None, NONE):
            raise StreammimlError(
                f"--label-columns none leaves labels out, but --row-label-column names "
                f"{self.row_label_column!r}; give one of them"
            )

        if self.n_labels is not None and (self.n_labels < 1 or self.labels is not None):
            raise StreammimlError(
                f"--n-labels {self.n_labels}: at least 1 label is expected"
                if self.n_labels < 1
                else "--labels names all labels, so --n-labels is not needed; give one of them"
            )
        if self.bag_labels is not None and self.row_label_column not in (None, NONE):
            raise StreammimlError(
                "--bag-labels replaces all labels of the source, those of rows too; leave out "
                "--row-label-column"
            )

    @property
    def kept_names(self) -> tuple[str, ...]:
        """Names of columns to keep."""
        return () if self.keep in (None, (NONE,)) else self.keep or ()

    @property
    def no_labels(self) -> bool:
        """Whether bags and rows are read without labels."""
        return self.label_columns == (NONE,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Description of a source and its spans; small enough to be sent to workers."""

    spans: tuple[Span, ...]
    n_features: int
    dtype: str = "float32"
    """The narrowest row type of a store that holds every value exactly, as far as is known."""
    sparse: bool = False
    label_names: tuple[str, ...] | None = None
    n_labels: int | None = None
    """None means one more than the highest label that occurs."""
    feature_names: tuple[str, ...] | None = None
    row_labels: bool = False
    bag_ids: bool = False
    kept: tuple[KeptColumn, ...] = ()
    """Columns that are kept beside the rows."""
    n_bags: int | None = None
    """None if the scan has not counted the bags."""
    n_rows: int | None = None
    holds_bytes: int = 0
    """Memory that reading needs beside a span, for formats that are read into memory as a whole."""
    notes: tuple[str, ...] = ()
    """Lines for the user: which role each column or variable has, and why."""
    warnings: tuple[str, ...] = ()
    """Lines that are printed before the conversion begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One foreign format."""

    name: str
    suffixes: tuple[str, ...]
    """Suffixes of its files without compression: ``.csv`` includes ``.csv.gz``."""
    line: str
    """One line about the format, for the help."""
    tells: Callable[[Path, bytes], bool]
    """Decides from path and first bytes (decompressed) whether a file has this format."""
    scan: Callable[[Sequence[Path], SourceOptions], Scan]
    """Makes one cheap pass over the files, in the order given; raises SourceError."""
    read: Callable[[Span, Scan, SourceOptions], Iterator[BagBlock]]
    """Yields the bags of a span in blocks of a few MB; raises SourceError."""
    streams: bool = False
    """Whether the reader reads files under URLs, by ranges of bytes."""
    may_lack_labels: bool = False
    """Whether the reader accepts ``--label-columns none``."""
    extra: str | None = None
    """Extra that installs the packages that ``scan`` and ``read`` need, if there is one."""


@dataclass(frozen=True, slots=True)
class ExtraModule:
    """A module with ``scan`` and ``read`` of a format that needs packages of an extra.

    The module is imported when a file is scanned or read, so that the format of a file can be
    determined without the packages.
    """

    module: str
    extra: str
    packages: tuple[str, ...]

    def scan(self, paths: Sequence[Path], options: SourceOptions) -> Scan:
        """Call ``scan`` of the module; a missing package is a SourceError."""
        result: Scan = self.loaded(str(paths[0])).scan(paths, options)
        return result

    def read(self, span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
        """Call ``read`` of the module; a missing package is a SourceError."""
        blocks: Iterator[BagBlock] = self.loaded(span.path).read(span, scan, options)
        return blocks

    def loaded(self, path: str) -> Any:
        """Return the module; a missing package is a SourceError that begins with ``path``."""
        try:
            return import_module(self.module)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in self.packages:
                raise
            raise SourceError(
                f"{path} needs {package}: pip install 'streammiml[{self.extra}]'"
            ) from None
