"""Checkpoints: every bit comes back, two are kept, and the newest that verifies is taken."""

import os
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml import model
from streammiml._base.tensors import CHECKPOINT_TENSORS
from streammiml.config import ModelConfig, TrainConfig
from streammiml.errors import StreammimlError
from streammiml.kernel.average import STRIDE
from streammiml.kernel.lift import Lift
from streammiml.kernel.score import Weights, laid_across, make_score_panel
from streammiml.kernel.sweep import make_sweep_room
from streammiml.learn import checkpoint as states
from streammiml.learn.checkpoint import (
    REPLICA_FIELDS,
    AnotherRun,
    Expected,
    Position,
    checkpoint_sizes,
    load_checkpoint,
    new_state,
    panel_bytes,
    save_checkpoint,
    state_bytes,
)
from tests.stores import assert_equal

KEY = {"fingerprint": "ab" * 16, "seed": 3}


def made_lift(n_features=4, n_fourier=3, context=1):
    rng = np.random.default_rng(1)
    return Lift(
        rng.normal(size=n_features).astype(np.float32),
        rng.normal(size=n_features).astype(np.float32),
        1,
        1,
        rng.normal(size=(n_features, n_fourier)).astype(np.float32),
        rng.random(n_fourier, np.float32),
        context,
    )


def made_state(*, step=700, best=True, seed=0, **config):
    """A state with a different number in every place."""
    state = new_state(ModelConfig(shared_dim=5, subconcepts=2, **config), made_lift(), 3)
    rng = np.random.default_rng(seed)
    for array in (*state.weights, *state.averages[:2]):
        array[...] = rng.normal(size=array.shape)
        if config.get("shared_space", True):
            array[..., 5:] = 0
    for array in state.averages[2:4]:
        array[...] = rng.integers(0, step // STRIDE + 1, array.shape)
    if best:
        state.best = Weights(state.weights.shared * 2, state.weights.labels * 3)
    at = state.at
    at.step, at.epoch, at.place, at.best_step = step, 2, 17, step - 1
    at.best_loss = 0.1 + 0.2 if best else None
    at.bad_checks, at.history_bytes, at.scale = 4, 1234, "sqrt:unit"
    at.tally_counts, at.tally_loss = [step, 5, 2**40, 3], 1 / 3
    return state


def expected(*, key=KEY, **config):
    """What ``made_state(**config)`` is checked against."""
    config = ModelConfig(shared_dim=5, subconcepts=2, lift="fourier:3,context", **config)
    return Expected(
        key=key,
        sizes=checkpoint_sizes(config, 4, 3),
        n_places=10**6,
        context=1,
        n_dims=5 if config.shared_space else None,
        stride=STRIDE if config.average else 0,
    )


def assert_same_state(got, want):
    assert got.at == want.at
    assert got.averages.stride == want.averages.stride
    for ours, theirs, what in (
        (got.weights, want.weights, "weights"),
        (got.averages[:4], want.averages[:4], "averages"),
        (got.best or (), want.best or (), "best"),
    ):
        for a, b in zip(ours, theirs, strict=True):
            assert_equal(a, b, what)
    for name, value in want.lift._asdict().items():
        assert_equal(np.asarray(getattr(got.lift, name)), np.asarray(value), name)
        assert type(getattr(got.lift, name)) is type(value)


@pytest.mark.parametrize("best", [True, False])
@pytest.mark.parametrize("config", [{}, {"average": False}, {"shared_space": False}], ids=str)
def test_checkpoint__gives_back_every_bit(best, config, tmp_path):
    state = made_state(best=best, **config)
    state.weights.labels[0, 0, :3] = [-0.0, 1e-45, np.float32(3.4e38)]
    save_checkpoint(tmp_path, state, KEY)
    got = load_checkpoint(tmp_path, expected(**config))
    assert_same_state(got, state)


def test_checkpoint__what_comes_back_is_aligned_for_the_kernels_and_can_be_written(tmp_path):
    save_checkpoint(tmp_path, made_state(), KEY)
    got = load_checkpoint(tmp_path, expected())
    for array in (*got.weights, *got.averages[:2]):
        assert array.ctypes.data % 64 == 0
        assert array.flags.writeable
        assert array.flags.c_contiguous


def test_checkpoint__equal_states_are_equal_bytes(tmp_path):
    one = save_checkpoint(tmp_path, made_state(), KEY).read_bytes()
    assert save_checkpoint(tmp_path, made_state(), KEY).read_bytes() == one


def test_checkpoint__two_are_kept_and_the_newest_is_loaded(tmp_path):
    for step in (64, 100, 1000, 20_000):
        save_checkpoint(tmp_path, made_state(step=step), KEY)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "step-000000001000.safetensors",
        "step-000000020000.safetensors",
    ]
    assert load_checkpoint(tmp_path, expected()).at.step == 20_000


def test_checkpoint__order_comes_from_the_step_whatever_the_clock_says(tmp_path):
    for step in (1, 2):
        path = save_checkpoint(tmp_path, made_state(step=step), KEY)
        os.utime(path, (2_000_000_000 - step * 10**6, 2_000_000_000 - step * 10**6))
    assert load_checkpoint(tmp_path, expected()).at.step == 2


def test_checkpoint__control_in_the_order_of_the_clock_an_old_one_is_loaded(tmp_path, monkeypatch):
    for step in (1, 2):
        path = save_checkpoint(tmp_path, made_state(step=step), KEY)
        os.utime(path, (2_000_000_000 - step * 10**6, 2_000_000_000 - step * 10**6))

    def by_time(folder):
        return sorted(folder.glob("step-*"), key=os.path.getmtime, reverse=True)

    monkeypatch.setattr(states, "_checkpoints", by_time)
    assert load_checkpoint(tmp_path, expected()).at.step == 1


def test_checkpoint__none_at_all_is_none(tmp_path):
    assert load_checkpoint(tmp_path, expected()) is None
    (tmp_path / "step-000000000009.safetensors.0a1b2c3d.partial").write_bytes(b"half")
    assert load_checkpoint(tmp_path, expected()) is None


def harmed(raw, how):
    if how == "flipped":
        middle = len(raw) * 2 // 3
        return raw[:middle] + bytes([raw[middle] ^ 16]) + raw[middle + 1 :]
    return {"empty": b"", "short": raw[:-1], "half": raw[: len(raw) // 2], "text": b"x" * 99}[how]


HARM = ("flipped", "empty", "short", "half", "text")


@pytest.mark.parametrize("how", HARM)
def test_checkpoint__the_newest_that_verifies_is_loaded(how, tmp_path):
    save_checkpoint(tmp_path, made_state(step=5), KEY)
    newest = save_checkpoint(tmp_path, made_state(step=9, seed=1), KEY)
    newest.write_bytes(harmed(newest.read_bytes(), how))
    got = load_checkpoint(tmp_path, expected())
    assert_same_state(got, made_state(step=5))


def test_checkpoint__control_a_flip_goes_unnoticed_without_the_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "_checksum", lambda *_: "00000000")
    newest = save_checkpoint(tmp_path, made_state(step=9, seed=1), KEY)
    content = bytearray(newest.read_bytes())
    content[-32] ^= 1
    newest.write_bytes(content)
    got = load_checkpoint(tmp_path, expected())
    with pytest.raises(AssertionError):
        assert_same_state(got, made_state(step=9, seed=1))


@given(place=st.floats(0, 0.999999), bit=st.integers(0, 7))
def test_checkpoint__any_flipped_bit_is_noticed(tmp_path_factory, place, bit):
    folder = tmp_path_factory.mktemp("flip")
    path = save_checkpoint(folder, made_state(), KEY)
    raw = bytearray(path.read_bytes())
    raw[int(place * len(raw))] ^= 1 << bit
    path.write_bytes(raw)
    with pytest.raises(StreammimlError, match="step-0000"):
        load_checkpoint(folder, expected())


@pytest.mark.parametrize("how", HARM)
def test_checkpoint__all_damaged_is_an_error_that_names_the_newest(how, tmp_path):
    for step in (5, 9):
        path = save_checkpoint(tmp_path, made_state(step=step), KEY)
        path.write_bytes(harmed(path.read_bytes(), how))
    with pytest.raises(StreammimlError, match=r"step-000000000009\.safetensors is damaged or not"):
        load_checkpoint(tmp_path, expected())


def test_checkpoint__after_a_damaged_one_two_good_ones_are_kept_again(tmp_path):
    for step in (5, 9):
        path = save_checkpoint(tmp_path, made_state(step=step), KEY)
    path.write_bytes(b"damaged")
    save_checkpoint(tmp_path, made_state(step=7), KEY)
    assert [path.name[-14:-12] for path in sorted(tmp_path.iterdir())] == ["05", "07"]
    assert load_checkpoint(tmp_path, expected()).at.step == 7


def test_checkpoint__of_a_future_format_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(states, "CHECKPOINT_FORMAT", 3)
    save_checkpoint(tmp_path, made_state(), KEY)
    monkeypatch.undo()
    with pytest.raises(StreammimlError, match="written by format 3, this reads up to 2"):
        load_checkpoint(tmp_path, expected())


@pytest.mark.parametrize("lacking", ["averages.labels_seen", "lift.unit", "weights.shared"])
def test_checkpoint__that_lacks_a_part_names_it(lacking, tmp_path, monkeypatch):
    real = model.save_tensors

    def save(path, tensors, content, **how):
        real(path, {k: v for k, v in tensors.items() if k != lacking}, content, **how)

    monkeypatch.setattr(states, "save_tensors", save)
    save_checkpoint(tmp_path, made_state(), KEY)
    with pytest.raises(StreammimlError, match=f"it lacks the tensor '{lacking}'"):
        load_checkpoint(tmp_path, expected())


def test_checkpoint__a_model_file_is_none(tmp_path):
    path = tmp_path / "step-000000000001.safetensors"
    model.save_tensors(path, {}, {"position": made_state().at.recorded()}, kind="model", version=1)
    with pytest.raises(StreammimlError, match="holds a 'model', a 'checkpoint' is needed"):
        load_checkpoint(tmp_path, expected())


@pytest.mark.parametrize("config", [{}, {"average": False}, {"shared_space": False}], ids=str)
def test_state_bytes__is_what_a_state_and_a_look_at_it_hold(config):
    lift = made_lift(300, 40, 0)
    config = ModelConfig(shared_dim=16, subconcepts=3, **config)
    state = new_state(config, lift, 50)
    held = [*state.weights, *state.averages[:2], *state.returned(), *state.returned()]
    held.append(laid_across(state.returned()).labels)
    assert state_bytes(config, 341, 50) == sum(array.nbytes for array in held)


def test_new_state__is_within_the_balls_and_another_one_for_another_seed():
    config = ModelConfig(shared_dim=16, subconcepts=3, max_norm=0.5, seed=1)
    state = new_state(config, made_lift(), 3)
    for array in state.weights:
        norms = np.sqrt((array.astype(np.float64) ** 2).sum(axis=-1))
        assert norms.max() < 0.500001
    other = new_state(replace(config, seed=2), made_lift(), 3)
    assert (state.weights.labels[..., :16] != other.weights.labels[..., :16]).all()


def test_panel_bytes__are_those_of_the_rooms_that_are_made():
    lift = made_lift(300, 0, 0)
    for shared_space in (True, False):
        config = TrainConfig(shared_dim=20, shared_space=shared_space)
        state = new_state(config, lift, 5)
        n_bytes = make_sweep_room(state.weights, lift, 3).step.panel.projected.nbytes
        n_bytes += make_score_panel(laid_across(state.weights)).projected.nbytes
        assert n_bytes <= panel_bytes(config, 301) <= n_bytes + 2 * 64 * 4 * 8


def resaved(path, *, version=None, tensors=(), drop=(), **content):
    """The checkpoint with parts exchanged and a checksum that matches again."""
    arrays, inside = model.load_tensors(path, kind="checkpoint", version=9)
    arrays = {name: array for name, array in (arrays | dict(tensors)).items() if name not in drop}
    version = version or inside["format"]
    model.save_tensors(path, arrays, inside | content, kind="checkpoint", version=version)


SHORT = [
    ("weights.shared", (2, 8), r"has shape \(2, 8\), expected \(16, 8\)"),
    ("weights.labels", (3, 2, 8), r"has shape \(3, 2, 8\), expected \(4, 2, 8\)"),
    ("weights.labels", (4, 2, 5), r"has shape \(4, 2, 5\), expected \(4, 2, 8\)"),
    ("best.labels", (4, 1, 8), "has shape"),
    ("averages.shared", (2, 8), "has shape"),
    ("averages.labels", (4, 2), "has shape"),
    ("averages.shared_seen", (1,), r"has shape \(1,\), expected \(16,\)"),
    ("averages.labels_seen", (4, 1), "has shape"),
    ("lift.scale", (3,), "has shape"),
    ("lift.frequencies", (4, 2), "has shape"),
    ("lift.phases", (0,), "has shape"),
    ("lift.unit", (0,), "has shape"),
]


@pytest.mark.parametrize(("name", "shape", "message"), SHORT, ids=str)
def test_checkpoint__of_other_shapes_is_refused_whatever_its_checksum(
    name, shape, message, tmp_path
):
    path = save_checkpoint(tmp_path, made_state(), KEY)
    dtype = CHECKPOINT_TENSORS[name].dtype
    resaved(path, tensors={name: np.zeros(shape, dtype)})
    with pytest.raises(StreammimlError, match=f"not a checkpoint of this run: {name} {message}"):
        load_checkpoint(tmp_path, expected())


@pytest.mark.parametrize("name", sorted(CHECKPOINT_TENSORS))
def test_checkpoint__every_tensor_is_needed_and_of_its_dtype(name, tmp_path):
    path = save_checkpoint(tmp_path, made_state(), KEY)
    original = path.read_bytes()
    array = model.load_tensors(path, kind="checkpoint", version=9)[0][name]
    resaved(path, tensors={name: array.astype(np.int32)})
    with pytest.raises(StreammimlError, match=f"{name} is int32, expected"):
        load_checkpoint(tmp_path, expected())
    path.write_bytes(original)
    resaved(path, drop=[name])
    with pytest.raises(StreammimlError, match=f"lacks .*'{name}'"):
        load_checkpoint(tmp_path, expected())
    path.write_bytes(original)
    if array.dtype.kind == "f":
        array[...] = np.nan
        resaved(path, tensors={name: array})
        with pytest.raises(StreammimlError, match=f"{name} holds values that are not finite"):
            load_checkpoint(tmp_path, expected())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensors": {"lift.transform": np.array([3])}}, "lift.transform must be a whole number"),
        ({"tensors": {"lift.unit": np.array([-1])}}, "lift.unit must be a whole number"),
        ({"tensors": {"lift.context": np.array([0])}}, "lift.context must be a whole number"),
        (
            {"tensors": {"averages.shared_seen": np.full(16, 11)}},
            "iterates that is not from 0 to 10",
        ),
        (
            {"tensors": {"averages.labels_seen": np.full((4, 2), -1)}},
            "iterates that is not from 0 to 10",
        ),
        ({"tensors": {"more": np.ones(1)}}, "it has a tensor 'more' that does not belong there"),
        ({"tensors": {"weights.shared": np.ones((16, 8), np.float32)}}, "beyond 5 dimensions"),
        ({"drop": ["best.shared"]}, "it lacks the tensor 'best.shared'"),
        ({"stride": 1}, "stride is 1, expected 64"),
        ({"stride": "64"}, "stride is '64', expected 64"),
        ({"position": 3}, "its position is not a JSON object"),
        ({"position": {"zzz": 3}}, "its position has an unknown field 'zzz'"),
        ({"key": 3}, "its key is not a JSON object"),
    ],
)
def test_checkpoint__that_could_not_be_of_this_run_is_refused(change, message, tmp_path):
    resaved(save_checkpoint(tmp_path, made_state(), KEY), **change)
    with pytest.raises(StreammimlError, match=message):
        load_checkpoint(tmp_path, expected())


ODD = [-1, 0.5, "x", None, True, [], [1, 2, 3, -4], {}, 2**70]
NUMBERS = ("best_loss", "tally_loss", "seconds")
FITTING = [*((name, value) for name in NUMBERS for value in (0.5, 2**70))]
IMPOSSIBLE = [
    (field.name, value)
    for field in fields(Position)
    if field.name not in REPLICA_FIELDS
    for value in ODD
    if (field.name, value) not in FITTING
]


@pytest.mark.parametrize(("name", "value"), IMPOSSIBLE, ids=str)
def test_checkpoint__at_a_position_that_no_run_can_have_is_refused(name, value, tmp_path):
    path = save_checkpoint(tmp_path, made_state(), KEY)
    resaved(path, position=made_state().at.recorded() | {name: value})
    with pytest.raises(
        StreammimlError, match=f"not a checkpoint of this run: {name} |no scale is|no best_loss"
    ):
        load_checkpoint(tmp_path, expected())


@pytest.mark.parametrize("name", sorted(REPLICA_FIELDS))
def test_checkpoint__of_a_run_without_replicas_has_no_places_of_replicas(name, tmp_path):
    path = save_checkpoint(tmp_path, made_state(), KEY)
    resaved(path, position=made_state().at.recorded() | {name: getattr(Position(), name)})
    with pytest.raises(StreammimlError, match=f"its position has an unknown field '{name}'"):
        load_checkpoint(tmp_path, expected())


def of_replicas(**changes):
    """A state of a run with three replicas."""
    state = made_state()
    state.at.replicas = [[2, 17], [3, 0], [2, 5]]
    state.at.arithmetic = "ab"
    for name, value in changes.items():
        setattr(state.at, name, value)
    return state


def test_checkpoint__gives_back_the_places_of_replicas(tmp_path):
    save_checkpoint(tmp_path, of_replicas(), KEY)
    loaded = load_checkpoint(tmp_path, replace(expected(), n_replicas=3))
    assert loaded.at == of_replicas().at


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replicas": [[2, 17]]}, "replicas must be 3 pairs, got"),
        ({"replicas": []}, "replicas must be 3 pairs, got"),
        ({"replicas": [[2, 17]], "step": 0, "best_step": 0}, "replicas must be 3 pairs, got"),
        ({"replicas": {"a": 1}}, "replicas must be 3 pairs, got"),
        ({"replicas": [[2, 17], [3, 0], [2]]}, "must be pairs of epoch and place, got"),
        ({"replicas": [[2, 17], [3, 0], 7]}, "must be pairs of epoch and place, got"),
        ({"replicas": [[2, 17], [3, 0], [1, 5]]}, "epoch must be a whole number from 2"),
        ({"replicas": [[2, 17], [3, 0], [2, -1]]}, "place must be a whole number from 0"),
        ({"replicas": [[2, 17], [3, 0], [2, 10**7]]}, "place must be a whole number from 0"),
        ({"step": 2**62}, "step must be a whole number from 0 to 2000017, got"),
        ({"arithmetic": 7}, "arithmetic must be text, got 7"),
    ],
)
def test_checkpoint__refuses_places_of_replicas_that_cannot_be(changes, message, tmp_path):
    path = save_checkpoint(tmp_path, of_replicas(), KEY)
    resaved(path, position=of_replicas(**changes).at.recorded() | changes)
    with pytest.raises(StreammimlError, match=message):
        load_checkpoint(tmp_path, replace(expected(), n_replicas=3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": 0, "place": 699}, "step must be a whole number from 0 to 699, got 700"),
        ({"step": 2**62}, r"step must be a whole number from 0 to 2000017, got"),
        ({"best_loss": None}, "it has the tensor 'best.shared' and no best_loss"),
    ],
)
def test_checkpoint__at_a_position_that_contradicts_itself_is_refused(change, message, tmp_path):
    path = save_checkpoint(tmp_path, made_state(), KEY)
    resaved(path, position=made_state().at.recorded() | change)
    with pytest.raises(StreammimlError, match=message):
        load_checkpoint(tmp_path, expected())


def test_checkpoint__that_does_not_fit_is_passed_over_for_an_older_one(tmp_path):
    save_checkpoint(tmp_path, made_state(step=500), KEY)
    newest = save_checkpoint(tmp_path, made_state(step=700), KEY)
    resaved(newest, tensors={"weights.labels": np.zeros((1, 2, 8), np.float32)})
    assert load_checkpoint(tmp_path, expected()).at.step == 500


def test_checkpoint__of_another_run_is_refused_and_not_passed_over(tmp_path):
    save_checkpoint(tmp_path, made_state(step=500), KEY)
    save_checkpoint(tmp_path, made_state(step=700), {**KEY, "step_size": 0.5})
    match = r"belongs to another run: its step_size is 0\.5, that of this run 0\.02; move the"
    with pytest.raises(AnotherRun, match=match):
        load_checkpoint(tmp_path, expected())


def test_checkpoint__a_setting_that_it_does_not_know_had_its_default(tmp_path):
    save_checkpoint(tmp_path, made_state(), KEY)
    assert load_checkpoint(tmp_path, expected(key={**KEY, "step_size": 0.02})) is not None
    with pytest.raises(AnotherRun, match=r"its step_size is 0\.02, that of this run 0\.5"):
        load_checkpoint(tmp_path, expected(key={**KEY, "step_size": 0.5}))


def test_checkpoint__of_format_1_is_compared_by_what_its_key_holds(tmp_path):
    path = save_checkpoint(tmp_path, made_state(), KEY)
    resaved(path, version=1)
    assert load_checkpoint(tmp_path, expected(key={**KEY, "step_size": 0.5})) is not None
    with pytest.raises(AnotherRun, match="its seed is 3, that of this run 4"):
        load_checkpoint(tmp_path, expected(key={**KEY, "seed": 4}))
    resaved(path, version=1, key={})
    with pytest.raises(AnotherRun, match="its fingerprint is None, that of this run 'abab"):
        load_checkpoint(tmp_path, expected())
