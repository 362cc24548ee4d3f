"""Documents as bags of sentences: rows are sparse TF-IDF vectors, topics are labels.

Reads JSON lines with ``id``, ``title``, ``body`` and ``topics``, as made from Reuters-21578. One
pass counts in how many documents each word occurs, a second writes bags; neither holds the
documents. The vocabulary is kept in a file, so that later documents are told by the same words.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
from crc32c import crc32c

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.checks import StoreSpec
from streammiml.bags.offsets import from_sizes
from streammiml.bags.place import write_atomically
from streammiml.bags.store import BagStore
from streammiml.bags.writer import BagWriter
from streammiml.errors import StreammimlError, unknown
from streammiml_tools.choosing import Split
from streammiml_tools.command import run_command
from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.text import line_blocks, where

PART_DOCUMENTS = 2048
VERSION = 1
WORD = re.compile(r"[a-z]+(?:['-][a-z]+)*")
# A full stop ends a sentence if space and a capital, a digit or a quote come next.
STOP = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*[A-Z0-9])")
PARAGRAPH = re.compile(r"\n(?=[ \t]{2,})|\n\s*\n")
# What stands before a full stop that ends no sentence: titles, firms, months, initials.
ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:mr|mrs|ms|dr|st|gen|sen|rep|gov|inc|corp|co|ltd|cos|no|vs|etc|jr|sr|"
    r"jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec|[a-z](?:\.[a-z])*)\.$",
    re.IGNORECASE,
)
SIGNATURE = re.compile(r"\s*\breuters?\b[\s;&#\x00-\x1f0-9]*$", re.IGNORECASE)


def sentences(text: str) -> list[str]:
    """Sentences of a body; lines are joined, paragraphs are not."""
    found: list[str] = []
    for paragraph in PARAGRAPH.split(SIGNATURE.sub("", text)):
        begun = ""
        for piece in STOP.split(" ".join(paragraph.split())):
            begun = f"{begun} {piece}" if begun else piece
            if not ABBREVIATION.search(begun):
                found.append(begun)
                begun = ""
        found.append(begun)
    return [sentence for sentence in found if sentence]


def words(sentence: str) -> list[str]:
    """Words of two letters and more, in small letters; numbers are none."""
    return [word for word in WORD.findall(sentence.lower()) if len(word) > 1]


class Document(NamedTuple):
    """A document as it is read."""

    number: int
    offset: int
    id: str
    sentences: list[str]
    """The title is the first."""
    topics: list[str]


def read_documents(path: Path) -> Iterator[Document]:
    """All documents of a file of JSON lines, plain, gzipped or zstd."""
    number = 0
    for block in line_blocks(path):
        for offset, line in block.each():
            if line.strip():
                yield _document(path, offset, number, line)
                number += 1
    if not number:
        raise SourceError(f"{path} has no documents")


def _document(path: Path, offset: int, number: int, line: bytes) -> Document:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise SourceError(
            f"{where(path, offset)}: no JSON ({error.msg}); is it cut short?"
        ) from None
    record = record if isinstance(record, dict) else {}
    title, body, topics = (record.get(key) for key in ("title", "body", "topics"))
    texts = [text for text in (title, body) if text is not None]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise SourceError(f"{where(path, offset)}: a document needs 'title' or 'body', as text")
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise SourceError(f"{where(path, offset)}: 'topics' must be a list of names")
    found = [" ".join(title.split())] if title else []
    found += sentences(body) if body else []
    return Document(number, offset, str(record.get("id", number)), found, topics)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words with the number of documents they occur in, and the topics, both sorted."""

    n_documents: int
    counts: dict[str, int]
    topics: tuple[str, ...]

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        said = {
            "streammiml_vocabulary": VERSION,
            "n_documents": self.n_documents,
            "topics": self.topics,
            "counts": self.counts,
        }
        write_atomically(path, json.dumps(said, ensure_ascii=False, indent=0).encode())

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read what :meth:`save` wrote."""
        try:
            said = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            raise StreammimlError(
                f"{path} does not exist; leave --vocabulary out to make one"
            ) from None
        except orjson.JSONDecodeError:
            raise StreammimlError(f"{path} is no vocabulary: it is no JSON") from None
        version = said.get("streammiml_vocabulary") if isinstance(said, dict) else None
        if version != VERSION:
            raise StreammimlError(
                f"{path} is no vocabulary that this reads: version {version}, expected {VERSION}"
            )
        return cls(said["n_documents"], said["counts"], tuple(said["topics"]))

    @property
    def weights(self) -> dict[str, tuple[int, float]]:
        """Column and inverse document frequency of each word."""
        top = 1 + self.n_documents
        return {
            word: (column, 1 + math.log(top / (1 + count)))
            for column, (word, count) in enumerate(self.counts.items())
        }


def fit_vocabulary(
    path: Path, *, min_documents: int = 5, split: Split | None = None, seed: int = 0
) -> Vocabulary:
    """Words of at least so many documents of the first split; topics of all documents."""
    if min_documents < 1:
        raise StreammimlError(f"min_documents must be at least 1, got {min_documents}")
    counts: Counter[str] = Counter()
    topics: set[str] = set()
    n_documents = 0
    for document in read_documents(path):
        topics.update(document.topics)
        if split is None or _split_of(document.number, split, seed) == 0:
            counts.update({word for sentence in document.sentences for word in words(sentence)})
            n_documents += 1
    kept = {word: counts[word] for word in sorted(counts) if counts[word] >= min_documents}
    if not kept:
        raise StreammimlError(
            f"{path}: no word occurs in {min_documents} documents; lower the number"
        )
    return Vocabulary(n_documents, kept, tuple(sorted(topics)))


def _split_of(number: int, split: Split, seed: int) -> int:
    return int(split.of_numbers(np.array([number]), seed)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """How documents become bags."""

    unit: bool = False
    """Whether rows are scaled to length 1; training can do so too."""
    unknown_topics: str = "refuse"
    """``refuse`` or ``drop`` topics that the vocabulary does not have."""

    def __post_init__(self) -> None:
        if self.unknown_topics not in ("refuse", "drop"):
            raise unknown("policy for unknown topics", self.unknown_topics, ("refuse", "drop"))


class Bags:
    """Gathers documents; a sentence without a word of the vocabulary is no row."""

    def __init__(self, vocabulary: Vocabulary, made: Made) -> None:
        self._made, self._weights = made, vocabulary.weights
        self._topics = {name: number for number, name in enumerate(vocabulary.topics)}
        self._n_features = len(vocabulary.counts)
        self._columns: list[int] = []
        self._values: list[float] = []
        self._row_sizes: list[int] = []
        self._labels: list[list[int]] = []
        self._sizes: list[int] = []
        self._ids: list[str] = []

    def add(self, document: Document, path: Path) -> None:
        """One document."""
        before = len(self._row_sizes)
        for sentence in document.sentences:
            self._add_row(Counter(word for word in words(sentence) if word in self._weights))
        self._sizes.append(len(self._row_sizes) - before)
        missing = [topic for topic in document.topics if topic not in self._topics]
        if missing and self._made.unknown_topics == "refuse":
            raise SourceError(
                f"{where(path, document.offset)}: topic {missing[0]!r} is not in the vocabulary; "
                "--unknown-topics drop leaves it out"
            )
        known = {self._topics[topic] for topic in document.topics if topic in self._topics}
        self._labels.append(sorted(known))
        self._ids.append(document.id)

    def _add_row(self, counts: Counter[str]) -> None:
        if not counts:
            return
        entries = sorted(
            (self._weights[word][0], count * self._weights[word][1])
            for word, count in counts.items()
        )
        length = math.sqrt(sum(value * value for _, value in entries)) if self._made.unit else 1.0
        self._columns += [column for column, _ in entries]
        self._values += [value / length for _, value in entries]
        self._row_sizes.append(len(entries))

    def block(self) -> BagBlock:
        """All documents so far."""
        rows = SparseRows(
            from_sizes(self._row_sizes),
            np.array(self._columns, np.uint32),
            np.array(self._values, np.float32),
            self._n_features,
        )
        return BagBlock(
            from_sizes(self._sizes),
            rows,
            from_sizes([len(of) for of in self._labels]),
            np.array([label for of in self._labels for label in of], np.int32),
            bag_ids=self._ids,
        )


def write_documents(
    path: Path,
    stores: dict[str, Path],
    vocabulary: Vocabulary,
    made: Made = Made(),  # noqa: B008  it is frozen
    *,
    split: Split | None = None,
    seed: int = 0,
    codec: str = "auto",
) -> list[BagStore]:
    """Write documents to one store, or to one for each split; goes on after a kill.

    A document without any word of the vocabulary is dropped and counted.
    """
    spec = StoreSpec(
        n_features=len(vocabulary.counts),
        sparse=True,
        label_names=vocabulary.topics,
        feature_names=tuple(vocabulary.counts),
        bag_ids=True,
        codec=codec,
        empty_bags="drop",
    )
    stat = path.stat()
    told = crc32c(json.dumps([vocabulary.n_documents, vocabulary.counts]).encode())
    source = f"reuters {stat.st_size} {stat.st_mtime_ns} {made} {split} {seed} {told}"
    with ExitStack() as stack:
        writers = [
            stack.enter_context(BagWriter.begin(store, spec, source=f"{source} {name}"))
            for name, store in stores.items()
        ]
        n_parts = 0
        for part in _parts(read_documents(path)):
            gathered = [Bags(vocabulary, made) for _ in writers]
            for document in part:
                which = 0 if split is None else _split_of(document.number, split, seed)
                gathered[which].add(document, path)
            for writer, bags in zip(writers, gathered, strict=True):
                writer.write_part(n_parts, bags.block())
            n_parts += 1
        return [writer.finish(n_parts) for writer in writers]


def _parts(documents: Iterator[Document]) -> Iterator[list[Document]]:
    part: list[Document] = []
    for document in documents:
        part.append(document)
        if len(part) == PART_DOCUMENTS:
            yield part
            part = []
    if part:
        yield part


def reuters(
    documents: Path,
    store: Path,
    /,
    *,
    split: str | None = None,
    seed: int = 0,
    vocabulary: Path | None = None,
    min_documents: int = 5,
    unit: bool = False,
    unknown_topics: str = "refuse",
    codec: str = "auto",
) -> None:
    """Turn DOCUMENTS into bags of sentences and write them to STORE.

    Parameters
    ----------
    documents
        JSON lines with id, title, body and topics; gzip and zstd too.
    store
        What to write; its suffix decides: .zarr or .parquet.
    split
        Several stores, as train=0.7,test=0.3; words are counted in the first.
    seed
        Of the split.
    vocabulary
        Made by an earlier call, for documents that come later; otherwise made, and written
        beside STORE.
    min_documents
        In how many documents a word must occur.
    unit
        Scale rows to length 1.
    unknown_topics
        ``refuse`` or ``drop`` topics that the vocabulary does not have.
    codec
        ``none``, ``lz4`` or ``zstd``.
    """
    shares = None if split is None else Split.parse(split)
    made = Made(unit=unit, unknown_topics=unknown_topics)
    if vocabulary is not None:
        known = Vocabulary.load(vocabulary)
    else:
        known = fit_vocabulary(documents, min_documents=min_documents, split=shares, seed=seed)
        beside = store.with_name(f"{store.stem}.vocabulary.json")
        known.save(beside)
        print(f"{beside}: {len(known.counts):,} words, {len(known.topics)} topics")
    stores = {"": store}
    if shares is not None:
        stores = {
            name: store.with_name(f"{store.stem}-{name}{store.suffix}") for name in shares.names
        }
    for written in write_documents(
        documents, stores, known, made, split=shares, seed=seed, codec=codec
    ):
        print(f"{written.name}: {written.n_bags:,} documents of {written.n_rows:,} sentences")


if __name__ == "__main__":
    sys.exit(run_command(reuters))
