from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.config import (
    LiftSpec,
    ModelConfig,
    ScaleSpec,
    TrainConfig,
    format_size,
    parse_duration,
    parse_size,
    parse_weights,
    settings_with,
    without_later,
)
from streammiml.errors import StreammimlError


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("256MiB", 256 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        ("64kB", 64_000),
        ("2gib", 2**31),
        ("17", 17),
        ("17B", 17),
        (4096, 4096),
        ("1TiB", 2**40),
    ],
)
def test_parse_size__reads_units(text, n_bytes):
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1MiB", "1e9", "1 light year", "9" * 400, "nan"])
def test_parse_size__refuses_what_is_no_size(text):
    with pytest.raises(
        StreammimlError, match=r"^memory must be a size such as 256MiB or 2GiB, got "
    ):
        parse_size(text)


def test_parse_size__refuses_less_than_the_least():
    assert parse_size("1kB", least=1000) == 1000
    with pytest.raises(StreammimlError, match=r"^memory must be at least 1000 B, got '999'$"):
        parse_size("999", least=1000)


@pytest.mark.parametrize(("text", "meant"), [("256", "256MiB"), ("1", "1GiB"), ("4000", "4000MiB")])
def test_memory__of_a_few_bytes_names_the_unit_that_may_be_missing(text, meant):
    with pytest.raises(
        StreammimlError, match=f"^memory {text} is in bytes, .*; did you mean {meant}"
    ):
        TrainConfig(memory=text)
    assert TrainConfig(memory="268435456").memory == "268435456"


@given(n_bytes=st.integers(0, 2**50))
def test_format_size__is_read_back_within_its_digits(n_bytes):
    assert abs(parse_size(format_size(n_bytes)) - n_bytes) <= 0.006 * n_bytes


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10min", 600), ("1.5h", 5400), ("2 d", 172800)]
)
def test_parse_duration__reads_units(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["10", "min", "-1s", "10 m", "1h30min"])
def test_parse_duration__refuses_what_is_no_time(text):
    message = r"^checkpoint_every must be a time such as 90s, 10min or 2h, got "
    with pytest.raises(StreammimlError, match=message):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("none", LiftSpec()),
        ("context", LiftSpec(context=True)),
        ("fourier:1000", LiftSpec(n_fourier=1000)),
        ("fourier:1000:0.25", LiftSpec(n_fourier=1000, bandwidth=0.25)),
        ("fourier:10:2, context", LiftSpec(n_fourier=10, bandwidth=2.0, context=True)),
        ("context,fourier:10", LiftSpec(n_fourier=10, context=True)),
        ("fourier:10,context:all", LiftSpec(n_fourier=10, context=2)),
        ("context:all", LiftSpec(context=2)),
        ("context:mean", LiftSpec(context=3)),
        ("fourier:10,context:mean", LiftSpec(n_fourier=10, context=3)),
    ],
)
def test_lift_spec__reads_what_it_writes(text, spec):
    assert LiftSpec.parse(text) == spec
    assert LiftSpec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read ''; a lift is none, fourier"),
        ("fourrier:10", "cannot read 'fourrier:10'; a lift is none, fourier"),
        ("context:2", "cannot read 'context:2'"),
        ("context:all:all", "cannot read 'context:all:all'"),
        ("fourier:10:1:2", "cannot read 'fourier:10:1:2'"),
        ("none,context", "cannot read 'none'"),
        ("context,context", "names context twice"),
        ("fourier:5,fourier:6", "names fourier twice"),
        ("fourier", "fourier needs a number of features from 1 to 9999999"),
        ("fourier:0", "fourier needs a number of features"),
        ("fourier:1e3", "fourier needs a number of features"),
        ("fourier:10:0", "the bandwidth must be a number above 0, got '0'; 0.5 is the default"),
        ("fourier:10:inf", "the bandwidth must be a number above 0, got 'inf'"),
        ("fourier:10:wide", "the bandwidth must be a number above 0, got 'wide'"),
    ],
)
def test_lift_spec__says_what_it_cannot_read(text, message):
    with pytest.raises(StreammimlError, match=message) as caught:
        LiftSpec.parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["auto", "unit", "sqrt:unit", "log1p:standard+unit", "maxabs"])
def test_scale_spec__reads_what_it_writes(text):
    assert str(ScaleSpec.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("units", "no scale is called 'units'; known: auto, maxabs, none, standard, standard"),
        ("cbrt:unit", "scale 'cbrt:unit' has an unknown transform 'cbrt'; known: log1p, sqrt"),
        (":unit", "unknown transform ''"),
        (
            "sqrt:auto",
            "auto chooses the transform itself; give auto alone, or name a scale as in sq",
        ),
    ],
)
def test_scale_spec__says_what_it_cannot_read(text, message):
    with pytest.raises(StreammimlError, match=message):
        ScaleSpec.parse(text)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"shared_dim": 0}, "shared_dim must be a whole number at least 1, got 0"),
        ({"shared_dim": 1.5}, "shared_dim must be a whole number at least 1, got 1.5"),
        ({"subconcepts": True}, "subconcepts must be a whole number at least 1, got True"),
        ({"max_norm": 0}, "max_norm must be a number above 0, got 0"),
        ({"step_size": float("nan")}, "step_size must be a number above 0, got nan"),
        ({"decay": -1e-9}, "decay must be a number at least 0, got -1e-09"),
        ({"decay": "1"}, "decay must be a number at least 0, got '1'"),
        ({"average": "yes"}, "average must be true or false, got 'yes'"),
        ({"scale": "l2"}, "no scale is called 'l2'"),
        ({"fit_scaler": "all"}, "fit_scaler must be a size such as 256MiB or 2GiB, got 'all'"),
        ({"fit_scaler": "0"}, "fit_scaler must be full or a size above 0, got 0"),
        ({"lift": "rbf"}, "lift 'rbf': cannot read 'rbf'"),
        ({"rule": "top"}, "no rule is called 'top'; known: dummy, margin, top-r"),
        ({"init": "zero"}, "no init is called 'zero'; known: auto, clusters, means, random"),
        ({"loss": "hinge"}, "no loss is called 'hinge'; known: pairs, warp"),
        ({"min_labels": -1}, "min_labels must be a whole number at least 0, got -1"),
        ({"seed": 2**63}, "seed must be a whole number from 0 to 9223372036854775807, got"),
    ],
)
def test_model_config__names_the_option_it_refuses(setting, message):
    with pytest.raises(StreammimlError, match="^" + message):
        ModelConfig(**setting)


def test_without_later__leaves_out_later_options_with_the_value_of_old_runs():
    assert "loss" not in without_later(ModelConfig().recorded())
    assert "init" not in without_later(ModelConfig(init="random").recorded())
    assert without_later({"loss": "pairs", "seed": 0}) == {"loss": "pairs", "seed": 0}


def test_model_config__is_frozen_and_recorded_whole():
    config = ModelConfig(shared_dim=8, decay=0)
    with pytest.raises(FrozenInstanceError):
        config.seed = 3  # type: ignore[misc]
    assert ModelConfig(**config.recorded()) == config


def test_weights__are_numbers_one_a_store():
    assert parse_weights("2,1") == [2, 1]
    assert parse_weights(" 0.5 , 1e0,3") == [0.5, 1, 3]


@pytest.mark.parametrize("text", ["", "2,", "a", "0", "-1", "nan", "inf", "1,1001", "1;2", 2])
def test_weights__that_are_none_are_refused(text):
    with pytest.raises(
        StreammimlError, match=r"weights must be numbers from 0\.001 to 1000, one for each store"
    ):
        TrainConfig(weights=text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"validation_store": ""},
            "validation_store must be a path or several separated by commas, got",
        ),
        (
            {"validation_store": "a,,b"},
            "validation_store must be a path or several separated by commas",
        ),
        (
            {"validation_store": 3},
            "validation_store must be a path or several separated by commas, got 3",
        ),
        ({"start": ""}, "start must be the path of a model, got ''"),
        ({"start": True}, "start must be the path of a model, got True"),
    ],
)
def test_train_config__paths_that_are_none_are_refused(given, message):
    with pytest.raises(StreammimlError, match=message):
        TrainConfig(**given)


def test_settings_with__has_each_setting_that_decides_no_step():
    assert set(settings_with("speed")) == {"memory", "checkpoint_every"}
    assert set(settings_with("end")) == {
        "epochs",
        "max_steps",
        "patience",
        "time_limit",
        "threshold",
        "calibrate",
    }
    assert set(settings_with("path")) == {"validation_store", "start"}
    assert len(settings_with("speed", "end", "path")) == 10
