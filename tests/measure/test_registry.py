"""Metrics by name: families for any K, no duplicates, and refusals that name the metric."""

import pytest

from streammiml.errors import StreammimlError
from streammiml.measure.registry import METRICS, chosen, metric_named, spoken


def test_metric_named__knows_every_metric_and_families_of_any_depth():
    assert all(metric_named(name) is metric for name, metric in METRICS.items())
    assert metric_named("precision_at_17").name == "precision_at_17"
    assert metric_named("ndcg_at_2").name == "ndcg_at_2"
    assert metric_named("hit_at_7").name == "hit_at_7"
    assert metric_named("gap_at_100").name == "gap_at_100"
    assert {"macro_auc", "micro_auc", "gap_at_20", "perr", "hit_at_1"} <= METRICS.keys()
    assert {"macro_average_precision", "micro_average_precision"} <= METRICS.keys()


@pytest.mark.parametrize(
    "name", ["haming", "ndcg_at_0", "precision_at_", "precision_at_1x", "auc_at_3"]
)
def test_metric_named__refuses_other_names(name):
    with pytest.raises(StreammimlError, match=f"no metric is called '{name}'; known: average_pre"):
        metric_named(name)


def test_chosen__leaves_out_metrics_that_the_store_cannot_have():
    names = [metric.name for metric in chosen(None, row_labels=False)]
    assert "key_instance_accuracy" not in names
    every = chosen(None, row_labels=True, probabilities=True)
    assert [metric.name for metric in every] == [*METRICS]
    with pytest.raises(
        StreammimlError, match="key_instance_accuracy needs a store with row labels"
    ):
        chosen(["key_instance_accuracy"], row_labels=False)


def test_chosen__names_each_metric_once():
    metrics = chosen(["one_error", METRICS["coverage"], "one_error"], row_labels=False)
    assert [metric.name for metric in metrics] == ["one_error", "coverage"]


def test_spoken__writes_names_as_people_read_them():
    assert spoken("ndcg_at_3") == "nDCG at 3"
    assert spoken("macro_f1") == "macro F1"
    assert spoken("micro_auc") == "micro AUROC"
    assert spoken("gap_at_20") == "GAP at 20"
    assert spoken("ranking_loss") == "ranking loss"
