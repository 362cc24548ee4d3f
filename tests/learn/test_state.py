"""Checkpoints: every bit comes back, two are kept, and the newest that verifies is taken."""

import os
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml import model
from streammiml.config import ModelConfig, TrainConfig
from streammiml.errors import StreammimlError
from streammiml.kernel.lift import Lift
from streammiml.kernel.score import Weights, laid_across, make_score_panel
from streammiml.kernel.sweep import make_sweep_room
from streammiml.learn import state as states
from streammiml.learn.state import (
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
    for array in state.averages[2:4]:
        array[...] = rng.integers(0, 9, array.shape)
    if best:
        state.best = Weights(state.weights.shared + 1, state.weights.labels - 1)
    at = state.at
    at.step, at.epoch, at.place, at.best_loss, at.best_step = step, 2, 17, 0.1 + 0.2, step - 1
    at.bad_checks, at.history_bytes, at.scale = 4, 1234, "sqrt:unit"
    at.tally_counts, at.tally_loss = [step, 5, 2**40, 3], 1 / 3
    return state


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
    got, key = load_checkpoint(tmp_path)
    assert_same_state(got, state)
    assert key == KEY


def test_checkpoint__what_comes_back_is_aligned_for_the_kernels_and_can_be_written(tmp_path):
    save_checkpoint(tmp_path, made_state(), KEY)
    got, _ = load_checkpoint(tmp_path)
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
    assert load_checkpoint(tmp_path)[0].at.step == 20_000


def test_checkpoint__order_comes_from_the_step_whatever_the_clock_says(tmp_path):
    for step in (1, 2):
        path = save_checkpoint(tmp_path, made_state(step=step), KEY)
        os.utime(path, (2_000_000_000 - step * 10**6, 2_000_000_000 - step * 10**6))
    assert load_checkpoint(tmp_path)[0].at.step == 2


def test_checkpoint__none_at_all_is_none(tmp_path):
    assert load_checkpoint(tmp_path) is None
    (tmp_path / "step-000000000009.safetensors.0a1b2c3d.partial").write_bytes(b"half")
    assert load_checkpoint(tmp_path) is None


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
    got, _ = load_checkpoint(tmp_path)
    assert_same_state(got, made_state(step=5))


def test_checkpoint__control_a_flip_goes_unnoticed_without_the_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "_checksum", lambda *_: "00000000")
    newest = save_checkpoint(tmp_path, made_state(step=9, seed=1), KEY)
    newest.write_bytes(harmed(newest.read_bytes(), "flipped"))
    got, _ = load_checkpoint(tmp_path)
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
        load_checkpoint(folder)


@pytest.mark.parametrize("how", HARM)
def test_checkpoint__all_damaged_is_an_error_that_names_the_newest(how, tmp_path):
    for step in (5, 9):
        path = save_checkpoint(tmp_path, made_state(step=step), KEY)
        path.write_bytes(harmed(path.read_bytes(), how))
    with pytest.raises(StreammimlError, match=r"step-000000000009\.safetensors is damaged or not"):
        load_checkpoint(tmp_path)


def test_checkpoint__after_a_damaged_one_two_good_ones_are_kept_again(tmp_path):
    for step in (5, 9):
        path = save_checkpoint(tmp_path, made_state(step=step), KEY)
    path.write_bytes(b"damaged")
    save_checkpoint(tmp_path, made_state(step=7), KEY)
    assert [path.name[-14:-12] for path in sorted(tmp_path.iterdir())] == ["05", "07"]
    assert load_checkpoint(tmp_path)[0].at.step == 7


def test_checkpoint__of_a_future_format_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(states, "CHECKPOINT_FORMAT", 2)
    save_checkpoint(tmp_path, made_state(), KEY)
    monkeypatch.undo()
    with pytest.raises(StreammimlError, match="written by format 2, this reads up to 1"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("lacking", ["averages.labels_seen", "lift.unit", "weights.shared"])
def test_checkpoint__that_lacks_a_part_names_it(lacking, tmp_path, monkeypatch):
    real = model.save_tensors

    def save(path, tensors, content, **how):
        real(path, {k: v for k, v in tensors.items() if k != lacking}, content, **how)

    monkeypatch.setattr(states, "save_tensors", save)
    save_checkpoint(tmp_path, made_state(), KEY)
    with pytest.raises(StreammimlError, match=f"lacks a part of a checkpoint: '{lacking}'"):
        load_checkpoint(tmp_path)


def test_checkpoint__a_model_file_is_none(tmp_path):
    path = tmp_path / "step-000000000001.safetensors"
    model.save_tensors(path, {}, {"position": asdict(made_state().at)}, kind="model", version=1)
    with pytest.raises(StreammimlError, match="holds a 'model', a 'checkpoint' is needed"):
        load_checkpoint(tmp_path)


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
        made = make_sweep_room(state.weights, lift, 3).step.panel.projected.nbytes
        made += make_score_panel(laid_across(state.weights)).projected.nbytes
        assert made <= panel_bytes(config, 301) <= made + 2 * 64 * 4 * 8
