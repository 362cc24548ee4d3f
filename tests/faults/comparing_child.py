"""Compares methods in processes that can be killed: forked from one that has everything loaded."""

import sys
import threading
from pathlib import Path

from streammiml.bags.store import open_store
from streammiml.config import TrainConfig
from streammiml.measure.tasks import all_bags
from streammiml.search import comparison
from streammiml.search.cells import CellSettings, MethodCell, measure_cell
from streammiml.search.comparison_table import MethodComparison
from streammiml.search.contestants import contestants
from streammiml.tell.compare import compare, page
from tests.faults.killing import kill_at, obey
from tests.search.contenders import contender

CONFIG = TrainConfig()
METHODS = [contender("frequent", grid=({}, {"shift": 1})), contender("keyless")]


def run(order):
    counter = [0]
    out = Path(order["out"])
    if not order["children"]:
        # Quicker, and without children everything happens in an order that is known.
        comparison.run_cell = lambda task, *shared: measure_cell(*task, *shared)
    kill_at(order["at"], str(out), counter)
    options = {"splits": 3, "sizes": "4,8", "threads": 2 if order["children"] else 1}
    compare(open_store(order["store"]), out, CONFIG, methods=METHODS, **options)
    Path(order["tally"]).write_text(str(counter[0]))


def serve(path):
    """Load everything in this process, which must not start a thread."""
    store = open_store(path)
    settings = CellSettings(seed=0, folds=3, time_limit="1min", owner="warm")
    [contestant] = contestants(METHODS[:1], CONFIG, "1GiB")
    cell = MethodCell(contestant.name, 0)
    result = measure_cell(cell, contestant, all_bags(store, remote=False), settings)
    page(store, MethodComparison({contestant.name: contestant.title}, 1, [result]))
    assert threading.active_count() == 1
    obey(run)


if __name__ == "__main__":
    serve(sys.argv[1])
