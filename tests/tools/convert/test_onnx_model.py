"""Models as ONNX: onnxruntime gives the scores, labels and probabilities that we give."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streammiml as sm
from streammiml._base.calibration import Calibration
from streammiml.bags.block import BagBlock
from streammiml.bags.memory import MemoryBags
from streammiml.config import LiftSpec
from streammiml.errors import StreammimlError
from streammiml.model import LabelRule, LiftArrays
from streammiml.scorer import Scorer
from streammiml.verbs.main import run
from streammiml_tools.convert.export import export_model
from tests.measure.models import made_model
from tests.planted import planted
from tests.stores import made_block, write_store

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from streammiml_tools.convert import onnx_model  # noqa: E402

D, L = 5, 4
RULES = [
    LabelRule(),
    LabelRule(min_labels=1, offset=0.25),
    LabelRule(name="margin", min_labels=2),
    LabelRule(name="top-r", r=3),
    LabelRule(name="top-r", r=9, min_labels=1),
]


def lifted_model(seed, *, transform=0, unit=0, n_fourier=0, context=0, is_shared=True, **changes):
    rng = np.random.default_rng(seed)
    lift = LiftArrays(
        shift=rng.normal(size=D),
        scale=rng.uniform(0.5, 2, D),
        transform=transform,
        unit=unit,
        frequencies=rng.normal(size=(D, n_fourier)),
        phases=rng.random(n_fourier),
        context=context,
    )
    width = LiftSpec(n_fourier=n_fourier, context=context).width(D)
    shared = rng.normal(size=(width, 6)) if is_shared else np.zeros((0, width))
    labels = rng.normal(size=(L + 1, 3, 6 if is_shared else width))
    if not is_shared:
        shared = np.zeros((0, width), np.float32)
    return made_model(D, L, shared=shared, labels=labels, lift=lift, **changes)


def session_of(model):
    return onnxruntime.InferenceSession(
        onnx_model.onnx_bytes(model), providers=["CPUExecutionProvider"]
    )


def outputs_of(model, block):
    """All outputs by name, for the bags of a block."""
    session = session_of(model)
    bag = np.repeat(np.arange(len(block)), np.diff(block.bag_offsets))
    names = [output.name for output in session.get_outputs()]
    values = session.run(names, {"rows": block.rows.astype(np.float32), "bag": bag})
    return dict(zip(names, values, strict=True))


def random_bags(seed, n_bags=9):
    rng = np.random.default_rng(seed)
    bags = [rng.normal(size=(rng.integers(1, 6), D)).astype(np.float32) for _ in range(n_bags)]
    bags[0][0] = 0
    return BagBlock.from_bags(bags, [[0]] * n_bags)


def check(model, block):
    """Compare with our scores, to 1e-5 of the largest score."""
    got, ours = outputs_of(model, block), sm.predict(model, block)
    bound = 1e-5 * np.abs(ours.scores).max()
    np.testing.assert_allclose(got["bag_scores"], ours.scores, rtol=0, atol=bound)
    np.testing.assert_allclose(got["dummy_score"], ours.dummy_score, rtol=0, atol=bound)
    close = np.abs(ours.scores - ours.dummy_score[:, None]) < 2 * bound
    close |= np.abs(ours.scores + 1 - ours.dummy_score[:, None]) < 2 * bound
    np.testing.assert_array_equal(got["predicted"] | close, ours.predicted | close)
    bag = np.repeat(np.arange(len(block)), np.diff(block.bag_offsets))
    highest = np.stack([got["row_scores"][bag == i].max(axis=0) for i in range(len(block))])
    np.testing.assert_array_equal(highest, got["bag_scores"])
    if model.calibration is not None:
        slopes = 1 + np.abs(model.calibration.platt[:, 0]).max()
        np.testing.assert_allclose(
            got["probabilities"], ours.probabilities, rtol=0, atol=2 * slopes * bound + 1e-6
        )
    else:
        assert "probabilities" not in got
    return got


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    transform=st.integers(0, 2),
    unit=st.integers(0, 1),
    n_fourier=st.sampled_from([0, 7, 16]),
    context=st.integers(0, 3),
    is_shared=st.booleans(),
    rule=st.sampled_from(RULES),
)
def test_onnx__agrees_with_our_scores_for_every_lift_and_rule(
    seed, transform, unit, n_fourier, context, is_shared, rule
):
    model = lifted_model(
        seed,
        transform=transform,
        unit=unit,
        n_fourier=n_fourier,
        context=context,
        is_shared=is_shared,
        rule=rule,
    )
    check(model, random_bags(seed))


def test_onnx__gives_the_probabilities_of_a_calibrated_model():
    lines = np.array([[1.0, 0.5], [2, -1], [0.5, 0], [3, -2]])
    knots = [None, (np.array([-1.0, 0.25, 1]), np.array([0.25, 0.25, 0.5])), None]
    knots.append((np.array([0.0]), np.array([0.3])))
    calibration = Calibration.of_knots(lines, knots)
    got = check(lifted_model(3, calibration=calibration, rule=RULES[1]), random_bags(3))
    assert (got["probabilities"][:, 3] == np.float32(0.3)).all()


@pytest.mark.parametrize("is_shared", [True, False])
def test_onnx__averages_restarts(is_shared):
    model = lifted_model(3, is_shared=is_shared)
    widened = np.concatenate([model.shared, 2 * model.shared], axis=1)
    several = replace(
        model,
        shared=widened if is_shared else model.shared,
        labels=np.concatenate([model.labels, model.labels[:, ::-1] - 1], axis=1),
        restarts=2,
    )
    block = random_bags(3)
    outputs, scores = outputs_of(several, block), Scorer(several).scores(block).value
    np.testing.assert_allclose(outputs["bag_scores"], scores[:, :-1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(outputs["dummy_score"], scores[:, -1], rtol=1e-4, atol=1e-4)
    assert not np.allclose(scores, Scorer(model).scores(block).value)


def test_onnx__rows_of_a_bag_need_not_be_together():
    model, block = lifted_model(0, context=2, n_fourier=4), random_bags(0)
    whole = outputs_of(model, block)
    order = np.random.default_rng(0).permutation(len(block.rows))
    bag = np.repeat(np.arange(len(block)), np.diff(block.bag_offsets))
    scores, rows = session_of(model).run(
        ["bag_scores", "row_scores"], {"rows": block.rows[order], "bag": bag[order]}
    )
    bound = 1e-5 * np.abs(whole["row_scores"]).max()
    np.testing.assert_allclose(scores, whole["bag_scores"], rtol=0, atol=bound)
    np.testing.assert_allclose(rows, whole["row_scores"][order], rtol=0, atol=bound)


@pytest.mark.parametrize("lift", ["none", "fourier:50", "context", "fourier:20,context:all"])
def test_export__of_a_trained_run_as_a_user_does(lift, tmp_path, capsys):
    write_store(tmp_path / "s.zarr", planted(60), label_names=["a", "b", "c", "d", "é"])
    words = ["--epochs=2", "--shared-dim=8", f"--lift={lift}", "--calibrate"]
    assert run(["train", str(tmp_path / "s.zarr"), str(tmp_path / "run"), *words]) == 0
    assert run(["export", str(tmp_path / "run"), str(tmp_path / "m.onnx")]) == 0
    assert "m.onnx: " in capsys.readouterr().out
    model, store = sm.load_model(tmp_path / "run"), sm.open_store(tmp_path / "s.zarr")
    block = store.read(0, 60)
    check(model, block)
    content = (tmp_path / "m.onnx").read_bytes()
    assert content == onnx_model.onnx_bytes(model)
    facts = {entry.key: entry.value for entry in onnx.load_from_string(content).metadata_props}
    assert json.loads(facts["label_names"]) == ["a", "b", "c", "d", "é"]
    assert facts["fingerprint"] == model.fingerprint
    # One bag: all of its rows are of bag 0.
    session = session_of(model)
    rows = block.rows_of(7)
    (scores,) = session.run(["bag_scores"], {"rows": rows, "bag": np.zeros(len(rows), np.int64)})
    want = sm.predict(model, [rows]).scores[0]
    np.testing.assert_allclose(scores[0], want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_onnx__row_scores_are_those_of_bags_of_one_row():
    model, block = lifted_model(1, unit=1), random_bags(1)
    rows = MemoryBags(
        BagBlock.from_bags([row[None] for row in block.rows], [[0]] * len(block.rows)),
        n_labels=L,
    ).read(0, len(block.rows))
    want = Scorer(model).scores(rows).value[:, :-1]
    got = outputs_of(model, block)["row_scores"]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_export_model__refuses_in_one_line(tmp_path, capsys, monkeypatch):
    model = made_model()
    model.save(tmp_path / "model.safetensors")
    with pytest.raises(StreammimlError, match=r"m.csv: a model is written as .onnx; give the fi"):
        export_model(model, tmp_path / "m.csv")
    assert run(["export", str(tmp_path), str(tmp_path / "m.csv")]) == 2
    assert "a model is written as .onnx" in capsys.readouterr().err
    with pytest.raises(StreammimlError, match=r"cannot be written: there is no folder"):
        export_model(model, tmp_path / "no" / "m.onnx")
    path = export_model(tmp_path, tmp_path / "m.onnx")
    before = path.read_bytes()
    with pytest.raises(StreammimlError, match=r"m.onnx exists already; remove it or choose anoth"):
        export_model(model, path)
    assert path.read_bytes() == before
    write_store(tmp_path / "s.zarr", made_block(4))
    assert run(["export", str(tmp_path / "s.zarr"), str(tmp_path / "s.onnx")]) == 2
    assert "is a store, and a model is needed here" in capsys.readouterr().err
    monkeypatch.setattr(onnx_model, "MOST_BYTES", 100)
    with pytest.raises(StreammimlError, match=r"of weights, and an ONNX file holds at most 2 GiB"):
        export_model(model, tmp_path / "large.onnx")
    assert not (tmp_path / "large.onnx").exists()


def test_export_model__says_what_to_install(tmp_path):
    made_model().save(tmp_path / "model.safetensors")
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "from streammiml.verbs.main import run\n"
        f"sys.exit(run(['export', {str(tmp_path)!r}, {str(tmp_path / 'm.onnx')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "m.onnx needs onnx: pip install 'streammiml[onnx]'" in done.stderr


def test_onnx__equal_models_give_equal_bytes():
    one, other = (lifted_model(5, n_fourier=3) for _ in range(2))
    assert onnx_model.onnx_bytes(one) == onnx_model.onnx_bytes(other)
    changed = replace(one, rule=LabelRule(offset=0.5))
    assert onnx_model.onnx_bytes(changed) != onnx_model.onnx_bytes(one)
