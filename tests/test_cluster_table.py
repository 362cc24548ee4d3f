"""The page about clusters is the one that its script makes of the committed results."""

from benchmarks.cluster_table import RESULTS, page


def test_page__is_made_of_the_committed_results():
    assert page() == (RESULTS / "cluster.md").read_text()
