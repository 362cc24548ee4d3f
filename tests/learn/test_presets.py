import pytest

from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.presets import candidates, with_preset


def test_candidates__begin_with_the_plain_setting():
    plain = TrainConfig().recorded()
    for prefer in ("both", "ranking", "keys"):
        for sparse in (False, True):
            first, *others = candidates(TrainConfig(prefer=prefer), {}, sparse=sparse)
            assert {name: plain[name] for name in first} == first
            assert first not in others


def test_candidates__keep_what_is_given():
    tried = candidates(TrainConfig(lift="context"), {"lift": "context"}, sparse=False)
    assert tried
    assert not any("lift" in setting for setting in tried)
    tried = candidates(TrainConfig(shared_dim=9), {"shared_dim": 9}, sparse=False)
    assert not any("shared_space" in setting for setting in tried)
    everything = {"lift": "none", "shared_space": True, "subconcepts": 5}
    assert candidates(TrainConfig(), everything, sparse=False) == [{}]


def test_candidates__have_context_only_if_ranking_is_preferred():
    def has_context(prefer, sparse):
        tried = candidates(TrainConfig(prefer=prefer), {}, sparse=sparse)
        return any("context" in setting["lift"] for setting in tried)

    for sparse in (False, True):
        assert has_context("ranking", sparse)
        assert not has_context("both", sparse)
        assert not has_context("keys", sparse)


@pytest.mark.parametrize("preset", ["plain", "paper"])
def test_candidates__of_fixed_presets_are_one(preset):
    assert candidates(TrainConfig(preset=preset), {}, sparse=False) == [{}]


def test_with_preset__paper_fills_in_what_is_not_given():
    config = TrainConfig(preset="paper", step_size=0.1)
    filled = with_preset(config, config.given())
    assert (filled.average, filled.step_size) == (False, 0.1)
    assert with_preset(TrainConfig(preset="paper"), {}).step_size == 0.005
    assert with_preset(TrainConfig(preset="plain"), {}) == TrainConfig(
        preset="plain", init="random"
    )
    assert with_preset(TrainConfig(preset="plain", init="means"), {"init": "means"}).init == "means"
    assert with_preset(TrainConfig(), {}) == TrainConfig()


@pytest.mark.parametrize("name", ["preset", "prefer"])
def test_config__refuses_unknown_choices(name):
    with pytest.raises(StreammimlError, match=rf"^no {name} is called 'best'; known: "):
        TrainConfig(**{name: "best"})


def test_config__refuses_a_time_limit_without_a_unit():
    with pytest.raises(StreammimlError, match=r"^time_limit must be a time such as 90s"):
        TrainConfig(time_limit="90")
