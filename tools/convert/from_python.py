"""``sm.convert``: paths or tables in memory to a store, with options by keyword.

A table (pandas, Polars, PyArrow) is written to an Arrow file in a temporary folder, and that file
is converted like any other; so are the partitions of a Dask collection.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from streammiml._base.pool_interface import PoolOptions
from streammiml.errors import StreammimlError, unknown
from streammiml_tools.convert import conversion
from streammiml_tools.convert.conversion import Converted
from streammiml_tools.convert.dask_source import (
    SavedCollection,
    is_array,
    is_collection,
    partition_names,
    save_collection,
    with_default_client,
)
from streammiml_tools.convert.label_file import label_names_in
from streammiml_tools.convert.plan import PLAN, ConversionFolder, ConvertConfig, work_folder
from streammiml_tools.convert.progress import ConvertShow, Watch
from streammiml_tools.convert.tables import arrow_table, is_sorted, is_table
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.remote_files import is_url

BATCH_ROWS = 1 << 16
"""Records of a batch of the temporary file, at most."""
TABLE, LABELS = "the table", "the table of labels"
"""What messages call the tables, instead of the names of the temporary files."""


def convert(
    source: Any,
    store: str | os.PathLike[str],
    *,
    bag: Any = None,
    labels: Any = None,
    label_names: Any = None,
    workers: int | None = None,
    scheduler: str | None = None,
    client: Any = None,
    worker_memory: str | int | None = None,
    watch: Watch | None = None,
    say: Callable[[str], None] | None = None,
    progress: bool = False,
    **options: Any,
) -> Converted:
    """Convert files, or a table in memory, to a store; the result has it as ``store``.

    The same call again resumes a conversion of files that was killed.

    Parameters
    ----------
    source
        A path, glob or URL, or several; or a table with a record for each row: a DataFrame of
        pandas, Polars or Dask, or a table of PyArrow. Its rows need not be sorted by bag. Or a
        ``dask.bag`` of bags: tuples (rows, labels, id), or dicts with these names; rows may be
        sparse. Or a ``dask.array`` of shape (rows, features) or (bags, rows, features). Partitions
        of Dask are written to files beside the store where they are computed. Dask makes texts of
        columns of lists unless its setting dataframe.convert-string is False.
    store
        Folder or URL of the store. Its suffix, ``.zarr`` or ``.parquet``, decides the backend.
    bag
        Name of the column that names the bag of a row; for a ``dask.array``, an array with the id
        of the bag of each row, or of each bag (by default their numbers).
    labels
        Name of the column that lists labels, or of all columns of 0 and 1; or a second table, or
        the path of one, with a record for each bag: the column ``bag`` (named "bag" beside a
        ``dask.array``), and either one column of lists or a column of 0 and 1 for each label.
        ``"none"`` leaves labels out.
    label_names
        Names of all labels, in order: a list of names, a model, a store, or the path of a run, a
        model, a store or a file with a name a line. Another label is refused, unless
        ``unknown_labels`` is ``"drop"`` or ``"append"``.
    workers, scheduler, client, worker_memory
        Where to work: processes of this machine (of ``worker_memory`` each), or a Dask cluster,
        which must see the same files: the address of its scheduler, a client or cluster object, or
        ``"active"``, the client that Dask uses by default. Partitions of Dask are computed there
        too, by default by that client.
    watch
        Called with the progress after every task.
    say
        Called with each warning before the work begins.
    progress
        Show the progress, and such warnings: a live line in a terminal or a notebook, a line every
        few seconds elsewhere.
    options
        Options of ``streammiml convert`` by their names, such as ``dtype="float16"``,
        ``split="train=.8,test=.2"`` or ``feature_columns=["f*"]``.

    Examples
    --------
    >>> import pyarrow as pa
    >>> rows = pa.table({"doc": ["a", "a", "b"], "x": [0.0, 1.0, 2.0], "y": [1.0, 0.0, 1.0]})
    >>> topics = pa.table({"doc": ["a", "b"], "sport": [1, 0], "politics": [1, 1]})
    >>> store = sm.convert(rows, "table.zarr", bag="doc", labels=topics).store
    >>> store.label_names, store[0].id, store[0].labels.tolist()
    (['sport', 'politics'], 'a', [0, 1])
    """
    given, ids = _by_class(options), None
    if is_array(source):
        bag, ids = "bag", bag
    if bag is not None:
        given[SourceOptions]["bag_column"] = bag
    if label_names is not None:
        given[SourceOptions]["labels"] = _names_of(label_names)
    settings = ConvertConfig(**given[ConvertConfig])
    how = {"workers": workers, "scheduler": scheduler, "client": client}
    how["worker_memory"] = worker_memory
    is_lazy = is_collection(source)
    if is_table(source) and bag is None:
        columns = source.columns if is_lazy else arrow_table(source, TABLE).column_names
        raise StreammimlError(
            f"which column of {TABLE} names the bag of a row? give bag='…'; the columns are "
            f"{', '.join(map(str, columns[:12]))}"
        )
    with tempfile.TemporaryDirectory(
        prefix="streammiml-", dir=_shared_folder(store) if is_lazy else None
    ) as folder:
        names: dict[str, str] = {}
        paths = source
        if is_lazy:
            pool_options = with_default_client(PoolOptions(**how))
            how["client"] = pool_options.client
            saved = save_collection(source, Path(folder), bag, pool_options, ids)
            paths = saved.paths
            names.update(partition_names(saved.paths))
            given[SourceOptions].update(_options_of(saved, labels, given[SourceOptions]))
        elif is_table(source):
            table = arrow_table(source, TABLE)
            paths = _save(table, Path(folder) / "table.arrow", names, TABLE)
            if bag is not None and not is_sorted(table, bag):
                given[SourceOptions]["group"] = True
        if is_collection(labels):
            labels = labels.compute()
        if is_table(labels):
            bag_labels = _save(
                arrow_table(labels, LABELS, index=bag),
                Path(folder) / "labels.arrow",
                names,
                LABELS,
            )
            given[SourceOptions]["bag_labels"] = bag_labels
        elif isinstance(labels, str | os.PathLike) and (is_url(labels) or Path(labels).is_file()):
            given[SourceOptions]["bag_labels"] = os.fspath(labels)
        elif labels is not None:
            columns = (labels,) if isinstance(labels, str) else tuple(labels)
            given[SourceOptions]["label_columns"] = columns
        source_options = SourceOptions(**given[SourceOptions])
        try:
            if not progress:
                return conversion.convert(
                    paths, store, settings, source_options, watch=watch, say=say, **how
                )
            with ConvertShow() as show:
                return conversion.convert(
                    paths,
                    store,
                    settings,
                    source_options,
                    watch=_both(show, watch),
                    say=_both(show.warn, say),
                    **how,
                )
        except SourceError as error:
            text = str(error)
            for path, name in names.items():
                text = text.replace(path, name)
            raise SourceError(text) from None
        finally:
            if names:
                _discard(store, folder)


def _both(one: Callable[[Any], None], other: Callable[[Any], None] | None) -> Callable[[Any], None]:
    """Call both, if there are both."""
    if other is None:
        return one

    def both(argument: Any) -> None:
        one(argument)
        other(argument)

    return both


def _shared_folder(store: str | os.PathLike[str]) -> Path:
    """The folder beside a store, which all workers see; it must exist."""
    folder = work_folder(os.fspath(store)).absolute().parent
    if not folder.is_dir():
        raise StreammimlError(f"{store} cannot be written: there is no folder {folder}")
    return folder


def _options_of(saved: SavedCollection, labels: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Options for the files of a Dask collection."""
    n_labels = given.get("n_labels")
    if saved.may_be_marks and labels is None and n_labels in (None, 2):
        raise StreammimlError(
            "the labels of all bags are [0, 1] or [1, 0]: marks of two labels, or numbers of "
            "labels? give names, or the numbers of only the labels that a bag has; n_labels=… if "
            "there are more than two"
        )
    options: dict[str, Any] = {"format": saved.format}
    if saved.needs_group:
        options["group"] = True
    if saved.n_features is not None:
        options["n_features"] = saved.n_features
    return options


def _names_of(label_names: Any) -> tuple[str, ...]:
    """Label names of a list, a path, or an object that has them."""
    if isinstance(label_names, str | os.PathLike):
        return label_names_in(Path(label_names))
    names = getattr(label_names, "label_names", label_names)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise StreammimlError(
            f"label_names are a {type(label_names).__name__} without names; give a list of names, "
            "a model, a store, or the path of one"
        )
    return tuple(names)


def _by_class(options: dict[str, Any]) -> dict[type, dict[str, Any]]:
    """The options of each class of settings, lists and single texts as tuples where needed."""
    given: dict[type, dict[str, Any]] = {ConvertConfig: {}, SourceOptions: {}}
    known = {
        field.name: (kind, field)
        for kind in given
        for field in fields(kind)
        if field.name not in ("bag_column", "bag_labels", "label_columns", "labels", "limits")
    }
    for name, value in options.items():
        if name not in known:
            raise unknown("option", name, known)
        kind, field = known[name]
        if isinstance(value, str) and "tuple" in str(field.type):
            value = (value,)
        given[kind][name] = tuple(value) if isinstance(value, list) else value
    return given


def _save(table: pa.Table, path: Path, names: dict[str, str], what: str) -> str:
    if not table.num_columns or not table.num_rows:
        raise StreammimlError(f"{what} has no rows")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=BATCH_ROWS)
    names[str(path)] = what
    return str(path)


def _discard(store: str | os.PathLike[str], temporary: str) -> None:
    """Remove what a stopped conversion left for resuming, as its temporary files are gone."""
    plan = work_folder(os.fspath(store)) / PLAN
    with suppress(OSError, StreammimlError):
        if json.dumps(temporary).strip('"') in plan.read_text():
            with ConversionFolder(os.fspath(store)) as folder:
                folder.discard()
