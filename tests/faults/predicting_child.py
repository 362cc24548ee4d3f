"""Predicts in processes that can be killed: forked from one that has loaded everything already.

Reads orders from stdin, a JSON object a line; answers each with how its process ended, and how
many changes to the folder it had made if it was not killed.
"""

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from streammiml.bags.store import open_store
from streammiml.measure import output_plan, write_rows
from streammiml.measure.predict import predict
from streammiml.measure.scoring import open_model_and_store
from streammiml.scorer import Scorer
from tests.faults.killing import in_child, kill_at


def run(order):
    counter = [0]
    out = Path(order["out"])
    kill_at(order["at"], str(out), counter)
    how = {"format": order["format"], "rows": order["rows"]}
    predict(order["model"], order["store"], out, threads=1, **how)
    Path(order["tally"]).write_text(str(counter[0]))


def serve(model, store):
    ready, bags = open_model_and_store(model, open_store(store))
    Scorer(ready).scores(bags.read(0, 2))
    write_rows.GROUP_RECORDS = 8
    output_plan.LEAST_PART_BYTES, output_plan.N_PARTS, output_plan.GROUP_BYTES = 1, 3, 2000
    for line in sys.stdin:
        order = json.loads(line)
        pid = in_child(partial(run, {"model": model, "store": store, **order}))
        if order["after"]:
            time.sleep(order["after"])
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps({"status": status}), flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
