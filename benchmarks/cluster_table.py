"""``results/cluster.md``: what 10 and 100 workers would take for 10 TB, from measurements.

Run as ``python -m benchmarks.cluster_table`` after the benchmarks *replicas* and *cluster*. The
inputs are the lines of ``results/replicas.jsonl`` and ``results/cluster.jsonl``; what is assumed
stands in the page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
CORPUS = 10e12
NETWORK = 1e9
ROUND_STEPS = 4096
WORKERS = (1, 10, 100)
BLOCKS = "evaluate, blocks"
MEASURED = {10: 8, 100: 32}
"""Number of workers whose scheduling was measured, for those of the table."""
TASK_BYTES = 2 << 30
"""Most bytes of a scoring task; see ``measure/score_pass.py``."""
BYTES_PER_BAG = {"planted": 9 * 200 * 4, "reuters21578": 7 * 20 * 8}
"""Dense: 9 rows of 200 float32. Sparse: about 7 rows of 20 values and columns."""
TITLES = {
    "planted": "dense, d = 200, m = 100, K = 5, L = 100",
    "reuters21578": "sparse, d = 9 200, m = 100, K = 5, L = 119",
}


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def pick(measured: list[dict[str, Any]], what: str, **case: Any) -> dict[str, Any]:
    """The line of a case."""
    return next(
        line
        for line in measured
        if line.get("what", line["case"].get("what")) == what
        and all(line["case"][name] == value for name, value in case.items())
    )


def task_seconds(scheduling: list[dict[str, Any]], n_workers: int) -> float:
    """Seconds of driver and scheduler for a task, as measured with about as many workers."""
    line = pick(scheduling, "map", workers=MEASURED[n_workers])
    return float(line["driver_ms_per_task"] + line["scheduler_ms_per_task"]) / 1000


def round_costs(
    measured: list[dict[str, Any]],
    scheduling: list[dict[str, Any]],
    corpus: str,
    n_workers: int,
) -> dict[str, float]:
    """Seconds of each part of a long round with one replica for each worker."""
    visits = pick(measured, "seconds", corpus=corpus)["visits_per_second"]["one"]
    if n_workers == 1:
        return {"steps": ROUND_STEPS / visits, "scheduling": 0, "reducing": 0, "network": 0}
    of_two = pick(measured, "shares", corpus=corpus, workers=2)
    many = pick(measured, "shares", corpus=corpus, workers=8)
    n_bytes = many["mb_per_turn"] * 1e6 * n_workers
    # With two workers on two cores nothing waits for a core.
    hop = 2 * of_two["moving_ms_per_turn"] / 1000
    return {
        "steps": ROUND_STEPS / visits,
        "scheduling": hop + (n_workers - 2) * task_seconds(scheduling, n_workers),
        "reducing": many["reducing_ms_per_turn"] / 1000 * n_workers,
        "network": n_bytes / NETWORK,
    }


def training_rows(measured: list[dict[str, Any]], scheduling: list[dict[str, Any]]) -> list[str]:
    rows = []
    for corpus, title in TITLES.items():
        n_bags = CORPUS / BYTES_PER_BAG[corpus]
        for n_workers in WORKERS:
            costs = round_costs(measured, scheduling, corpus, n_workers)
            total = sum(costs.values())
            hours = n_bags / (ROUND_STEPS * n_workers) * total / 3600
            longest = max((part for part in costs if part != "steps"), key=lambda part: costs[part])
            parts = [f"{1000 * seconds:.0f}" for seconds in costs.values()]
            limit = longest if n_workers > 1 else "–"
            words = (title, f"{n_workers}", *parts, f"{costs['steps'] / total:.2f}", f"{hours:.1f}")
            rows.append("| " + " | ".join((*words, limit)) + " |")
    return rows


def scoring_rows(measured: list[dict[str, Any]]) -> list[str]:
    rows = []
    for line in measured:
        if line["case"]["what"] not in ("evaluate", BLOCKS, "predict", "convert"):
            continue
        seconds = "–"
        # With few tasks, most of the cost is that of the call, not of its tasks.
        if line["case"]["what"] == BLOCKS:
            seconds = f"{CORPUS / TASK_BYTES * line['scheduler_ms_per_task'] / 1000:.0f}"
        words = (
            *(line["case"]["what"], line["case"]["workers"], f"{line['bags']:,}", line["tasks"]),
            *(line["driver_ms_per_task"], line["scheduler_ms_per_task"], seconds, line["commit"]),
        )
        rows.append("| " + " | ".join(map(str, words)) + " |")
    return rows


def commits(measured: list[dict[str, Any]]) -> str:
    """Commits of measured lines, in words."""
    by_commit: dict[str, list[str]] = {}
    for line in measured:
        case = {"what": line.get("what", ""), **line["case"]}
        name = " ".join(str(case[key]) for key in ("what", "corpus", "workers") if case.get(key))
        by_commit.setdefault(line["commit"], []).append(name)
    return "; ".join(f"{commit}: {', '.join(names)}" for commit, names in by_commit.items())


def page() -> str:
    replicas, cluster = lines("replicas"), lines("cluster")
    used = [line for line in replicas if line["what"] in ("seconds", "shares")]
    used += [line for line in cluster if line["case"]["what"] == "map"]
    return "\n".join(
        [
            "# Clusters: what 10 and 100 workers and 10 TB would take",
            "",
            "Made by `python -m benchmarks.cluster_table` from lines that were measured on two "
            "cores at these commits (a number is that of worker processes).",
            "",
            f"{commits(used)}.",
            "",
            "The lines at b90b89b come from a machine that was busy with other work. Tasks are "
            "what they are; CPU times are about twice those of a quiet machine (`map` with two "
            "workers took 2.2 ms a task then, 1.0 at 8e5c9a9); wall seconds mean nothing. Since "
            "8e5c9a9 workers also add partial figures, and the cost of that is included.",
            "",
            "## An epoch of training",
            "",
            "Milliseconds of a round of 4096 steps with one replica for each worker, the share of "
            "steps, and hours for 10 TB. Steps, bytes of a turn and the reduction are measured "
            "here; so is what Dask takes for a round with two workers. Each further worker adds "
            "the CPU time of driver and scheduler for a task, as measured with 8 workers (for 10) "
            "and 32 (for 100). Bytes of a turn were measured when all weights were sent in every "
            "round. Assumed: a network of 1 GB/s at the driver, disks that keep up, workers of one "
            "thread as fast as this machine's. Everything but the steps is counted as if nothing "
            "of it happened at the same time. Not in the table: how many visits replicas need for "
            "the same loss (`results/replicas.jsonl`).",
            "",
            "| model | workers | steps | scheduling | reducing | network | share of steps "
            "| hours | what breaks first |",
            "|---|---|---|---|---|---|---|---|---|",
            *training_rows(replicas, cluster),
            "",
            "## Scoring",
            "",
            "Tiny bags of 16 values on one machine, with the tasks that each verb chooses, and "
            "`evaluate` with a task for each block of 128 KiB; CPU milliseconds of driver and "
            "scheduler for a task, the call itself included, which is most of it where tasks are "
            "few. The last column but one follows from many small tasks: seconds of the scheduler "
            f"for the {CORPUS / TASK_BYTES:,.0f} tasks that 10 TB are on 100 workers of one "
            "thread.",
            "",
            "| verb | workers | bags | tasks | driver, ms a task | scheduler, ms a task "
            "| scheduler, s for 10 TB | commit |",
            "|---|---|---|---|---|---|---|---|",
            *scoring_rows(cluster),
            "",
        ]
    )


if __name__ == "__main__":
    (RESULTS / "cluster.md").write_text(page())
