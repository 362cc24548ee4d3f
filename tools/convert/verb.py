"""The verb ``streammiml convert``: options, the dry run, and what is printed."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

from cyclopts import Parameter

from streammiml.bags.layout import FORMATS
from streammiml.config import format_size
from streammiml.errors import StreammimlError
from streammiml_tools.convert.conversion import Converted, convert
from streammiml_tools.convert.dry_run import check_sample, check_targets
from streammiml_tools.convert.label_file import label_names_in
from streammiml_tools.convert.plan import HELD_SPANS, ConversionPlan, ConvertConfig, new_plan
from streammiml_tools.convert.progress import ConvertShow
from streammiml_tools.convert.sources import Sources, find_sources
from streammiml_tools.readers.base import SourceOptions

NOTES_SHOWN, NOTE_WIDTH = 12, 400
"""Lines of notes that the dry run prints, and characters of each, at most."""
OFF = Parameter(negative="")
"""For options that are off unless given: they need no ``--no-`` form."""
EXPORTED = (".csv", ".tsv", ".jsonl", ".npz", ".gz", ".zst")
"""Suffixes of files that ``export`` writes."""
LEFT_OUT = {
    "empty_bags": "bags had no rows and were dropped",
    "without_label": "bags had none of the labels of --where-label",
    "beyond_limit": "or more bags came after the limit",
}
"""What is printed for each count of bags that were left out."""


def convert_verb(
    *paths: Annotated[str, Parameter(name="SOURCE... STORE", negative="")],
    workers: int | None = None,
    scheduler: str | None = None,
    worker_memory: str | None = None,
    dry_run: Annotated[bool, OFF] = False,
    json: Annotated[bool, OFF] = False,
    settings: Annotated[
        ConvertConfig | None, Parameter(name="*", negative_iterable="", negative_bool="")
    ] = None,
    options: Annotated[SourceOptions | None, Parameter(name="*", negative_iterable="")] = None,
) -> None:
    """Convert foreign files to a store. The same command again resumes where it was stopped.

    Parameters
    ----------
    paths
        Files, folders, globs, URLs (s3://, https://) or stores of one format, then the store to
        write (.zarr, .parquet).
    workers
        Processes of a local cluster that read and write parts; by default none.
    scheduler
        Address of a running Dask scheduler to use instead. Its workers need access to the same
        files.
    worker_memory
        Memory limit of each --workers process; by default an equal share of the machine's memory.
    dry_run
        Print how the source would be read and which stores would be written; read and check a
        sample of the bags; write nothing.
    json
        Print one JSON object, for machines.
    """
    if len(paths) < 2:
        raise StreammimlError(
            "convert needs a source and a store to write: convert SOURCE... STORE"
        )
    *sources, store = paths
    _refuse_swapped(sources, store)
    settings, options = settings or ConvertConfig(), with_label_file(options or SourceOptions())
    if dry_run:
        files = find_sources(sources, options)
        plan = new_plan(files, store, settings, options, workers or 1)
        check_targets(plan)
        summary = _dry_summary(plan, files)
        if not json:
            print("\n".join(_dry_lines(summary)), flush=True)
        sampled = check_sample(plan, files)
        summary |= {"checked_bags": sampled.n_bags, "checked_all": sampled.is_all}
        which = "all" if sampled.is_all else "a sample of"
        checked = f"{'checked':<14} {which} {sampled.n_bags:,} bags, without an error"
        print(json_format.dumps(summary) if json else checked)
        return
    with ConvertShow() as show:
        converted = convert(
            sources,
            store,
            settings,
            options,
            workers=workers,
            scheduler=scheduler,
            worker_memory=worker_memory,
            watch=show,
            say=show.warn,
        )
    print(json_format.dumps(converted.summary()) if json else "\n".join(_lines(converted)))


def _refuse_swapped(sources: list[str], store: str) -> None:
    """Refuse a source at the end and a store before it; convert would refuse the source's name."""
    names_store = any(store.rstrip("/").endswith(f".{name}") for name in FORMATS)
    before = [name for name in sources if name.rstrip("/").endswith(".zarr")]
    if before and not names_store and Path(store).exists():
        raise StreammimlError(
            f"{store} is no name of a store, which comes last: streammiml convert {store} "
            f"{before[0]}"
        )
    if before and store.endswith(EXPORTED):
        raise StreammimlError(
            f"{store} is no name of a store; to write a store as a file: streammiml export "
            f"{before[0]} {store}"
        )


def with_label_file(options: SourceOptions) -> SourceOptions:
    """Replace the file name in ``--labels`` by the label names in that file."""
    if options.labels is None:
        return options
    if len(options.labels) != 1:
        raise StreammimlError("--labels takes one file, run, model or store")
    return replace(options, labels=label_names_in(Path(options.labels[0])))


def _dry_summary(plan: ConversionPlan, files: Sources) -> dict[str, Any]:
    scan, spec = plan.scan, plan.spec
    notes = [] if plan.label_map is None or plan.label_map.note is None else [plan.label_map.note]
    return {
        "format": files.reader.name,
        "files": [str(path) for path in files.paths],
        "left_out": list(files.left_out),
        "notes": [*scan.notes, *notes],
        "warnings": list(scan.warnings),
        "n_bags": scan.n_bags,
        "n_rows": scan.n_rows,
        "n_features": scan.n_features,
        "n_labels": spec.labels_known,
        "label_names": None if spec.label_names is None else list(spec.label_names),
        "row_labels": scan.row_labels,
        "bag_ids": scan.bag_ids,
        "kept": [column._asdict() for column in scan.kept],
        "dtype": spec.dtype,
        "sparse": spec.sparse,
        "codec": spec.resolved_codec,
        "spans": len(scan.spans),
        "span_bytes": max(span.n_bytes for span in scan.spans),
        "source_bytes": sum(span.n_bytes for span in scan.spans),
        "held_bytes": HELD_SPANS * plan.options.span_bytes + scan.holds_bytes,
        "held_whole_bytes": scan.holds_bytes,
        "stores": [target.destination for target in plan.targets],
    }


def _dry_lines(summary: dict[str, Any]) -> Iterator[str]:
    files = summary["files"]
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    yield f"{'source':<14} {summary['format']}: {', '.join(files[:3])}{more}"
    notes = summary["notes"]
    for note in notes[:NOTES_SHOWN]:
        yield f"{'understood':<14} {shorten(note, NOTE_WIDTH, placeholder=' …')}"
    if len(notes) > NOTES_SHOWN:
        yield f"{'':<14} and {len(notes) - NOTES_SHOWN:,} more lines, which --json has"
    for warning in summary["warnings"]:
        yield f"{'warning':<14} {shorten(warning, NOTE_WIDTH, placeholder=' …')}"
    for path in summary["left_out"][:10]:
        yield f"{'skipped':<14} {path}: no reader knows its format"
    if len(summary["left_out"]) > 10:
        yield f"{'':<14} and {len(summary['left_out']) - 10:,} more files"
    for name in ("n_bags", "n_rows", "n_features", "n_labels"):
        value = summary[name]
        shown = "counted while converting" if value is None else f"{value:,}"
        yield f"{name.replace('_', ' '):<14} {shown}"
    kind = "sparse" if summary["sparse"] else "dense"
    yield f"{'rows':<14} {kind} {summary['dtype']}, codec {summary['codec']}"
    extra = [name for name in ("row_labels", "bag_ids") if summary[name]]
    yield f"{'with':<14} {', '.join(extra).replace('_', ' ') or 'neither row labels nor bag ids'}"
    spans, largest = summary["spans"], format_size(summary["span_bytes"])
    yield f"{'read in':<14} {spans:,} spans of up to {largest}"
    loaded = summary["held_whole_bytes"]
    detail = f", {format_size(loaded)} of it to load the source as a whole" if loaded else ""
    yield f"{'memory':<14} up to {format_size(summary['held_bytes'])} a process{detail}"
    for store in summary["stores"]:
        yield f"{'would make':<14} {store}"


def _lines(converted: Converted) -> Iterator[str]:
    summary = converted.summary()
    for store in summary["stores"]:
        yield (
            f"{store['path']}: {store['n_bags']:,} bags, {store['n_rows']:,} rows of "
            f"{store['n_features']:,} features, {store['n_labels']:,} labels; "
            f"{store['labels_per_bag']:.3f} labels and {store['rows_per_bag']:.3f} rows per bag"
        )
        kind = f"sparse {store['dtype']}" if store["sparse"] else store["dtype"]
        yield f"  {kind}, {format_size(store['bytes'])}, fingerprint {store['fingerprint']}"
    for name, words in LEFT_OUT.items():
        if summary["left_out"][name]:
            yield f"{summary['left_out'][name]:,} {words}"
    left_out = summary["left_out"]
    if left_out["unknown_labels"]:
        yield (
            f"{left_out['unknown_labels']:,} labels of {left_out['with_unknown_labels']:,} bags "
            "are not in --labels and were dropped"
        )
    yield f"{converted.seconds:.1f} s"
