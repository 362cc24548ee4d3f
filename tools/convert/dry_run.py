"""Checks of ``--dry-run``, which find what ``convert`` would refuse in stores or a sample of bags.

The sample is the beginning of some spans, the first and the last among them. Its bags are read and
checked as ``convert`` does it, but nothing is written.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streammiml.bags.ids import id_hashes, refuse_twice
from streammiml.bags.location import SCHEMES
from streammiml.errors import RepeatedIdError, StoreError
from streammiml_tools.convert.plan import PLAN, ConversionPlan, check_disk, refuse_existing
from streammiml_tools.convert.sources import Sources, records_of, with_advice
from streammiml_tools.readers.base import BESIDE

SAMPLED_SPANS = 8
SAMPLED_BYTES = 64 << 20
"""Upper limit of the bytes of bags that are sampled, in all spans together, approximately."""


class Sampled(NamedTuple):
    """How much of a source was read and checked."""

    n_bags: int
    is_all: bool
    """Whether these are all bags of the source."""


def check_targets(plan: ConversionPlan) -> None:
    """Refuse stores that ``convert`` would refuse to begin."""
    if (plan.folder / PLAN).exists():
        return
    refuse_existing(plan.targets)
    if not plan.destination.startswith(SCHEMES):
        parent = Path(plan.destination).absolute().parent
        if not parent.is_dir():
            raise StoreError(f"{plan.destination} cannot be written: there is no folder {parent}")
    check_disk(plan)


def check_sample(plan: ConversionPlan, files: Sources) -> Sampled:
    """Read and check a sample of the bags; a bag that ``convert`` would refuse raises an error."""
    # Loaded late, when the plan has been printed: reading may need the compiler.
    tasks = import_module("streammiml_tools.convert.tasks")
    spans = plan.scan.spans
    chosen = sampled_spans(plan)
    counts = [span.n_bags for span in spans]
    n_bags, is_all = 0, len(chosen) == len(spans)
    ids: list[str] = []
    for number in chosen:
        # The sum counts only where it is used: for the first span, or if all spans are counted.
        first = sum(count or 0 for count in counts[:number])
        n_bytes = 0
        for block in tasks.blocks_of(plan, spans[number]):
            where = spans[number].path.split(BESIDE)[0]
            known = plan.known(block, where).block
            tasks.prepared(plan, known, np.arange(first, first + len(block)), where)
            first, n_bags = first + len(block), n_bags + len(block)
            ids += block.bag_ids or []
            n_bytes += block.nbytes
            if n_bytes >= SAMPLED_BYTES // len(chosen):
                is_all = False
                break
    if ids and not plan.options.group:
        _refuse_repeated(plan, files, ids)
    return Sampled(n_bags, is_all)


def sampled_spans(plan: ConversionPlan) -> list[int]:
    """Numbers of the spans to sample, in order.

    Only the first span, if bags have neither ids nor numbers that messages could name.
    """
    spans = plan.scan.spans
    if not plan.scan.bag_ids and any(span.n_bags is None for span in spans):
        return [0]
    places = np.linspace(0, len(spans) - 1, min(SAMPLED_SPANS, len(spans)))
    return sorted({round(place) for place in places.tolist()})


def _refuse_repeated(plan: ConversionPlan, files: Sources, ids: list[str]) -> None:
    try:
        refuse_twice(id_hashes(ids), ids.__getitem__, plan.destination)
    except RepeatedIdError as error:
        raise with_advice(error, plan.reader, records_of(files.watched)) from None
