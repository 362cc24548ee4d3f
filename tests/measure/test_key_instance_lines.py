"""Key instances as JSON lines: one line a bag, in order, with the numbers of the predictions."""

import json

from streammiml.bags.memory import MemoryBags
from streammiml.measure import key_instance_lines as module
from streammiml.measure.predict import predict, predict_bags
from tests.measure.models import made_model
from tests.stores import made_block

NAMES = ("sea", "sky", "sun", "tree")


def test_key_instance_lines__say_what_was_predicted(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BAGS_AT_A_TIME", 5)
    block, model = made_block(12), made_model(label_names=NAMES)
    predict(model, MemoryBags(block, n_labels=4, label_names=NAMES), tmp_path / "p", threads=1)
    lines = [json.loads(line) for line in module.key_instance_lines(tmp_path / "p", 1)]
    want = predict_bags(model, block)
    assert [line["bag"] for line in lines] == [*range(12)]
    for i, line in enumerate(lines):
        labels = line["labels"]
        assert [label["label"] for label in labels] == want.labels[i].tolist()
        assert [label["row"] for label in labels] == want.key_instances[i].tolist()
        assert [label["subconcept"] for label in labels] == want.subconcepts[i].tolist()
        assert [label["name"] for label in labels] == [NAMES[j] for j in want.labels[i]]
        assert [label["score"] for label in labels] == want.scores[i][want.labels[i]].tolist()
