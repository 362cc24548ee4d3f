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


def round_costs(measured: list[dict[str, Any]], corpus: str, n_workers: int) -> dict[str, float]:
    """Seconds of each part of a long round with one replica for each worker."""
    visits = pick(measured, "seconds", corpus=corpus)["visits_per_second"]["one"]
    of_two = pick(measured, "shares", corpus=corpus, workers=2)
    many = pick(measured, "shares", corpus=corpus, workers=8)
    n_bytes = many["mb_per_turn"] * 1e6 * n_workers
    # With two workers on two cores nothing waits for a core.
    hops = 2 * of_two["moving_ms_per_turn"] / 1000
    return {
        "steps": ROUND_STEPS / visits,
        "scheduling": hops,
        "reducing": many["reducing_ms_per_turn"] / 1000 * n_workers,
        "network": n_bytes / NETWORK,
    }


def training_rows(measured: list[dict[str, Any]]) -> list[str]:
    rows = []
    for corpus, title in TITLES.items():
        n_bags = CORPUS / BYTES_PER_BAG[corpus]
        for n_workers in WORKERS:
            costs = round_costs(measured, corpus, n_workers)
            if n_workers == 1:
                costs = {"steps": costs["steps"], "scheduling": 0, "reducing": 0, "network": 0}
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
        if line["case"]["what"] != "evaluate, tiny bags":
            continue
        costs = line["default"]
        n_tasks = CORPUS / TASK_BYTES
        seconds = n_tasks * costs["scheduler_ms_per_task"] / 1000
        rows.append(
            f"| {line['case']['workers']} | {line['bags']:,} | {costs['tasks']} "
            f"| {costs['seconds']} | {costs['driver_ms_per_task']} "
            f"| {costs['scheduler_ms_per_task']} | {n_tasks:,.0f} | {seconds:.0f} |"
        )
    return rows


def page() -> str:
    replicas, cluster = lines("replicas"), lines("cluster")
    commit = replicas[0]["commit"]
    return "\n".join(
        [
            "# Clusters: what 10 and 100 workers and 10 TB would take",
            "",
            f"Measured at {commit} on two cores; made by `python -m benchmarks.cluster_table`.",
            "",
            "## An epoch of training",
            "",
            "Milliseconds of a round of 4096 steps with one replica for each worker, the share of "
            "steps, and hours for 10 TB. Steps, bytes of a turn and the reduction are measured "
            "here; so is what Dask takes for a round with two workers, which stands for all. "
            "Assumed: a network of 1 GB/s at the driver, disks that keep up, workers of one "
            "thread as fast as this machine's. Everything but the steps is counted as if nothing "
            "of it happened at the same time. Not in the table: how many visits replicas need for "
            "the same loss (`results/replicas.jsonl`).",
            "",
            "| model | workers | steps | scheduling | reducing | network | share of steps "
            "| hours | what breaks first |",
            "|---|---|---|---|---|---|---|---|---|",
            *training_rows(replicas),
            "",
            "## Scoring",
            "",
            "`evaluate` of tiny bags (16 values) with the tasks that it chooses, on one machine; "
            "milliseconds of driver and scheduler for a task; tasks of at most 2 GiB for 10 TB, "
            "and seconds of the scheduler for them.",
            "",
            "| workers | bags | tasks | seconds | driver, ms a task | scheduler, ms a task "
            "| tasks for 10 TB | seconds of the scheduler |",
            "|---|---|---|---|---|---|---|---|",
            *scoring_rows(cluster),
            "",
        ]
    )


if __name__ == "__main__":
    (RESULTS / "cluster.md").write_text(page())
