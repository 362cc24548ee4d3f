"""--dry-run of evaluate and predict, as a user runs it."""

import json
import re

from streammiml.measure.dry_run import ScoreDryRun
from streammiml.verbs.main import run
from streammiml.verbs.score_dry_run import print_dry_run
from tests.verbs.output import printed


def test_dry_run__prints_what_the_verb_would_need(model, tiny, tmp_path, capsys):
    for words in (["evaluate"], ["predict"]):
        out = [str(tmp_path / "out")] if words == ["predict"] else []
        line = [*words, str(model), str(tiny.path), *out, "--dry-run"]
        assert run(line) == 0
        text = printed(capsys)[0]
        assert re.search(r"^bags +12 of \d+ rows$", text, re.M)
        assert re.search(r"^tasks +\d+, \d+ at the same time$", text, re.M)
        assert re.search(r"^memory, about +.*iB for these, beside the process itself$", text, re.M)
        assert re.search(
            r"^time, about +\d+ s; \d+ s on one core, measured on .* 12 bags$", text, re.M
        )
        assert ("in 1 part," in text) == (words == ["predict"])
        assert run([*line, "--json"]) == 0
        assert json.loads(printed(capsys)[0])["n_bags"] == 12
    assert not (tmp_path / "out").exists()
    assert run(["evaluate", str(model), str(tiny.path), "--dry-run", "--metric", "haming"]) == 2
    assert "no metric is called 'haming'" in printed(capsys)[1]


def test_dry_run__of_a_cluster_says_what_is_not_known(capsys):
    costs = {"n_bags": 10**6, "n_rows": 10**8, "n_tasks": 400, "tasks_at_once": None}
    sizes = {"memory": 16 << 20, "read_bytes": 50 << 30, "sampled_bags": 900}
    one = ScoreDryRun(**costs, **sizes, seconds=None, seconds_on_one_core=7200.0)
    print_dry_run(one, json=False)
    lines = printed(capsys)[0].splitlines()
    assert "400, as many as the cluster has threads at the same time" in lines[1]
    assert lines[2].endswith("16 MiB for a task, beside the process itself")
    assert lines[-1].endswith("2.0 h on one core, measured on the first 900 bags")
