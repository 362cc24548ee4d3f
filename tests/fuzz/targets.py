"""Everything that reads files of others: what the fuzzer calls with damaged inputs.

``run`` of a target gets a folder with the files of a case. It returns a text about the result, or
raises StreammimlError; anything else is a finding.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.kept_columns import kept_arrays
from streammiml.bags.layout import Manifest
from streammiml.bags.prepared_bags import prepare
from streammiml.bags.store import open_store
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.kernel.average import STRIDE
from streammiml.learn.checkpoint import (
    CHECKPOINT_FORMAT,
    Expected,
    checkpoint_sizes,
    load_checkpoint,
)
from streammiml.learn.train import train
from streammiml.measure.predict import predict
from streammiml.measure.prediction_folder import COMPLETE, RECORD
from streammiml.model import load_model, load_tensors
from streammiml.tell.run_record import read_run
from streammiml.verbs.train_options import merged
from streammiml_tools.convert import convert
from streammiml_tools.convert.plan import ConvertConfig, new_plan
from streammiml_tools.convert.sources import find_sources
from streammiml_tools.convert.split_and_filter import shaped
from streammiml_tools.readers import READERS
from streammiml_tools.readers.base import SourceOptions
from streammiml_tools.readers.memory_checks import check_dense
from tests.fuzz import corpora
from tests.fuzz.case import Case, load_folder
from tests.fuzz.envelopes import sealed
from tests.planted import planted

MEMORY = "64MiB"
"""``--memory`` of every conversion and training."""
WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_.:]{1,20}")
N_WORDS = 200


@dataclass(frozen=True)
class Target:
    """One kind of input."""

    name: str
    corpus: Callable[[], list[Case]]
    run: Callable[[Path, int], str]
    n_choices: int = 1
    is_exact: bool = False
    """Whether a mutant must give the result of the case that it was made of, or an error."""
    seal: Callable[[dict[str, bytes]], dict[str, bytes]] | None = None
    """Makes the checksums of a case match again."""
    fixed: tuple[str, ...] = ()
    """Beginnings of the names of files that stay as they are."""

    def cases(self) -> list[Case]:
        """The corpus, and cases that were findings once."""
        return [*self.corpus(), *corpora.found_cases(self.name)]

    def words_of(self, cases: list[Case]) -> list[bytes]:
        """Words of the cases, which mutations insert."""
        content = b" ".join(
            content[: 1 << 14]
            for case in cases
            for name, content in case.files.items()
            if self.may_change(name)
        )
        return sorted({*WORD.findall(content)})[:N_WORDS]

    def may_change(self, name: str) -> bool:
        """Whether mutants may differ in a file."""
        return not name.startswith(self.fixed) if self.fixed else True

    def warm(self, folder: Path, case: Case) -> None:
        """Load what runs need, such as compiled kernels, by a case with each choice."""
        for choice in range(self.n_choices):
            here = folder / f"{choice}"
            case.write(here)
            try:
                self.run(here, choice)
            except StreammimlError:
                continue


def target_of(name: str) -> Target:
    """The target of this name."""
    return TARGETS[name] if name in TARGETS else CONTROLS[name]


# Foreign files.

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"format": None},
    {"span_bytes": 64},
    {"sparse": True},
    {"sparse": False},
    {"label_columns": ("none",)},
    {"group": True},
    {"n_labels": 9},
    {"n_features": 2},
    {"label_separator": ",", "bag_column": "bag", "header": False},
    {"transposed": True, "labels_transposed": True},
    {"keep": ("coords",)},
    {"keep": ("coords", "note", "time"), "span_bytes": 64},
    {"keep": ("coords",), "label_columns": ("none",)},
    {"where": ("split=train",)},
    {"labels": ("sea", "sky"), "unknown_labels": "append"},
    {"labels": ("sky",), "unknown_labels": "drop"},
)
"""Options of a source, by the choice of a case; the last choice writes a store."""


def read_source(format_: str | None, folder: Path, choice: int) -> str:
    """Convert the files of a folder; the last choice writes a store, the others only read."""
    names, table = [], None
    for path in sorted(folder.iterdir()):
        if path.name.partition(".")[0] == corpora.TABLE:
            table = str(path)
        else:
            names.append(str(path))
    more = OPTIONS[choice] if choice < len(OPTIONS) else {}
    options = SourceOptions(**{"format": format_, "bag_labels": table, **more})
    settings = ConvertConfig(memory=MEMORY)
    if choice == len(OPTIONS):
        return str(convert(names, folder / "out.zarr", settings, options=options).store.fingerprint)
    plan = new_plan(find_sources(names, options), str(folder / "o.zarr"), settings, options, 1)
    n_bags = 0
    for span in plan.scan.spans:
        for read in plan.read(span):
            block = plan.known(read, span.path).block
            check_dense(span.path, block.rows, plan.sparse, plan.options.limits)
            prepare(shaped(block, sparse=plan.sparse), plan.spec, span.path)
            n_bags += len(block)
    return f"{n_bags} bags"


# Stores.


def read_store(folder: Path, _: int) -> str:
    """Open a store, read everything in several ways, and check it; a digest of what it holds."""
    (path,) = sorted(folder.iterdir())
    store = open_store(path)
    block = store.read(0, store.n_bags)
    names = (store.label_names, store.feature_names, store.n_labels, store.fingerprint)
    ids = store.bag_ids(0, store.n_bags) if store.has_bag_ids else None
    by_number = store.read_bags(np.arange(store.n_bags)[::-1])
    same = digest(by_number) == digest(block.take(np.arange(store.n_bags)[::-1]))
    if not same:
        return "two ways of reading differ"
    list(store.check())
    return digest(replace(block, bag_ids=None), repr((names, ids)))


def seal_store(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a store with checksums that match."""
    top = next(iter(files)).partition("/")[0]
    inside = {name.removeprefix(f"{top}/"): content for name, content in files.items()}
    return {f"{top}/{name}": content for name, content in sealed(inside).items()}


def digest(block: BagBlock, more: str = "") -> str:
    """A digest of everything in a block."""
    out = hashlib.sha256(more.encode(errors="surrogatepass"))
    rows = block.rows
    arrays: list[Any] = [block.bag_offsets, block.label_offsets, block.label_indices]
    if isinstance(rows, SparseRows):
        arrays += [rows.offsets, rows.columns, rows.values]
    else:
        arrays.append(rows)
    arrays += [block.row_labels, *(kept for _, kept in sorted(kept_arrays(block.kept).items()))]
    for array in arrays:
        out.update(b"-" if array is None else repr(array.shape).encode() + array.tobytes())
    return out.hexdigest()[:16]


def read_manifest(folder: Path, _: int) -> str:
    """Parse a manifest."""
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    manifest = Manifest.from_bytes(path.read_bytes(), "x")
    return manifest.contradiction()


# Models, checkpoints, runs, predictions, settings.


def score_with_model(folder: Path, _: int) -> str:
    """Load a model and score bags with it."""
    model = load_model(folder / "model.safetensors")
    block = planted(6, n_features=min(model.n_features, 1000), n_labels=4)
    repr(model), model._repr_html_()
    predicted = predict(model, block)
    return str(len(predicted))


def expected_checkpoint(folder: Path) -> Expected:
    """What checkpoints of the corpus are checked against."""
    (path,) = (folder / corpora.ORIGINAL).iterdir()
    _, content = load_tensors(path, kind="checkpoint", version=CHECKPOINT_FORMAT)
    config = corpora.TRAIN
    return Expected(
        key=content["key"],
        sizes=checkpoint_sizes(config, 3, 4),
        n_places=24,
        context=0,
        n_dims=config.shared_dim,
        stride=STRIDE,
    )


def read_checkpoint(folder: Path, _: int) -> str:
    """Load a checkpoint and take its averages, as the end of a run does."""
    state = load_checkpoint(folder, expected_checkpoint(folder))
    if state is None:
        return "none"
    state.returned()
    return str(state.at.step)


def resume_run(folder: Path, choice: int) -> str:
    """Read a run for a report, or resume it."""
    if choice == 0:
        record = read_run(folder / "run")
        return str(len(record.history))
    config = TrainConfig(max_steps=60, epochs=2, patience=3, memory=MEMORY)
    model = train(folder / "store.zarr", config, run=folder / "run", resume=True)
    return model.fingerprint


def resume_predictions(folder: Path, choice: int) -> str:
    """Complete a folder of predictions; a digest of its results."""
    out = folder / "out"
    predict(
        str(folder / "model.safetensors"),
        str(folder / "store.zarr"),
        out,
        format=("parquet", "zarr")[choice],
        threads=1,
    )
    content = load_folder(out)
    summed = hashlib.sha256()
    for name in sorted(content):
        if name not in (RECORD, COMPLETE):
            summed.update(name.encode() + hashlib.sha256(content[name]).digest())
    return summed.hexdigest()[:16]


def read_settings(folder: Path, _: int) -> str:
    """Read a file of ``--config``."""
    (path,) = folder.iterdir()
    return repr(merged(None, path))[:1000]


TARGETS = {
    target.name: target
    for target in (
        *(
            Target(
                name,
                getattr(corpora, name),
                partial(read_source, name),
                n_choices=len(OPTIONS) + 1,
            )
            for name in READERS
        ),
        Target("bag_labels", corpora.bag_labels, partial(read_source, None), len(OPTIONS) + 1),
        *(
            Target(
                f"{backend}-store",
                partial(corpora.stores, backend),
                read_store,
                is_exact=True,
                seal=seal_store,
            )
            for backend in ("zarr", "parquet")
        ),
        Target("manifest", corpora.manifests, read_manifest),
        Target("model", corpora.models, score_with_model),
        Target("checkpoint", corpora.checkpoints, read_checkpoint, fixed=(corpora.ORIGINAL,)),
        Target("run", corpora.runs, resume_run, 2, fixed=("store.zarr/",)),
        Target(
            "predictions",
            corpora.predictions,
            resume_predictions,
            2,
            is_exact=True,
            fixed=("store.zarr/", "model.safetensors"),
        ),
        Target("settings", corpora.settings, read_settings),
    )
}


# Targets with faults, for the tests: each fault must be found.


def run_control(folder: Path, _: int) -> str:
    """Do what the file says."""
    word = (folder / "a").read_text()
    if word == "die":
        os.abort()
    while word == "hang":
        pass
    if word == "memory":
        return str(len(np.ones(GROWTH)))
    if word == "huge":
        np.ones(1 << 40)
    if word == "foreign":
        raise KeyError(word)
    if word == "refuse":
        raise StreammimlError("refused")
    return word


GROWTH = 80 << 20
"""Float64 values that take more memory than an input may."""
CONTROLS = {
    "control": Target(
        "control",
        lambda: [Case({"a": b"read"})],
        run_control,
    )
}
