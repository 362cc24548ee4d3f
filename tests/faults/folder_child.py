"""Runs tune or explain in processes that can be killed: forked from one that has all loaded."""

import sys
import threading
from pathlib import Path

from streammiml.bags.store import open_store
from streammiml.config import TrainConfig
from streammiml.learn.train import train_trial
from streammiml.measure import output_plan
from streammiml.measure.explain import explain_store
from streammiml.measure.scoring import open_model_and_store
from streammiml.scorer import Scorer
from streammiml.search.tune import figures_of, in_memory, tune
from tests.faults.killing import kill_at, obey

GRID = {"step_size": [0.005, 0.02, 0.05], "subconcepts": [1, 2]}
CONFIG = TrainConfig(shared_dim=8, epochs=2, init="random")


def run(order):
    counter = [0]
    out = Path(order["out"])
    kill_at(order["at"], str(out), counter)
    if order["verb"] == "tune":
        tune(order["store"], out, CONFIG, grid=GRID, folds=2, train_winner=True, threads=1)
    else:
        options = {"typical": 3, "jsonl": True}
        explain_store(order["model"], order["store"], out, **options)
    Path(order["tally"]).write_text(str(counter[0]))


def serve(model, path):
    """Load everything in this process, which must not start a thread that stays."""
    ready, bags = open_model_and_store(model, open_store(path))
    Scorer(ready).scores(bags.read(0, 2))
    for subconcepts in GRID["subconcepts"]:
        config = TrainConfig(shared_dim=8, epochs=1, subconcepts=subconcepts, init="random")
        figures_of(train_trial(in_memory(bags), config), bags)
    output_plan.LEAST_PART_BYTES, output_plan.N_PARTS, output_plan.GROUP_BYTES = 1, 3, 2000
    assert threading.active_count() == 1
    obey(lambda order: run({"model": model, "store": path, **order}))


if __name__ == "__main__":
    serve(*sys.argv[1:])
