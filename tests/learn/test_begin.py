"""How a run begins: settings that contradict are refused, and the first state is a function."""

import numpy as np
import pytest

from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.begin import begin, run_key, settle
from streammiml.learn.run_folder import FREE_SETTINGS, RunFolder
from tests.planted import planted

BAGS = MemoryBags(planted(60), n_labels=5)
CONFIG = TrainConfig(epochs=2, validation=0.0, shared_dim=4)


def test_begin__the_same_settings_give_the_same_weights_and_another_seed_others():
    first, again = (begin(settle(BAGS, CONFIG)).state.weights for _ in range(2))
    assert first.shared.tobytes() == again.shared.tobytes()
    assert first.labels.tobytes() == again.labels.tobytes()
    other = begin(settle(BAGS, TrainConfig(epochs=2, validation=0.0, shared_dim=4, seed=1)))
    assert not np.array_equal(other.state.weights.shared, first.shared)


def test_begin__records_the_settings_that_the_plan_decided(tmp_path):
    with RunFolder(tmp_path / "run", resume=False) as folder:
        ready = begin(settle(BAGS, CONFIG, folder))
        recorded = folder.settings()
    assert recorded["block_bags"] == ready.plan.budget.plan.block_bags
    assert recorded["fingerprint"] == BAGS.fingerprint


def test_settle__a_run_that_goes_on_keeps_its_settings(tmp_path):
    with RunFolder(tmp_path / "run", resume=False) as folder:
        begin(settle(BAGS, CONFIG, folder))
    with RunFolder(tmp_path / "run", resume=True) as folder:
        settings = settle(BAGS, TrainConfig(), folder)
        assert settings.is_resumed
        assert (settings.config.shared_dim, settings.config.epochs) == (4, 2)
        with pytest.raises(StreammimlError, match="was begun with shared_dim 4, not 9"):
            settle(BAGS, TrainConfig(shared_dim=9), folder)
        other = MemoryBags(planted(60, seed=1), n_labels=5)
        with pytest.raises(StreammimlError, match="was begun on a store of fingerprint"):
            settle(other, TrainConfig(), folder)


def test_settle__refuses_to_extend_what_is_no_run(tmp_path):
    with (
        RunFolder(tmp_path / "run", resume=True) as folder,
        pytest.raises(StreammimlError, match="holds no run to extend"),
    ):
        settle(BAGS, CONFIG, folder, extend=1)


def test_run_key__leaves_out_what_may_change_between_two_processes():
    key = run_key(CONFIG, {"fingerprint": "f"})
    assert key["fingerprint"] == "f"
    assert key["shared_dim"] == 4
    assert not {*FREE_SETTINGS} & {*key}
