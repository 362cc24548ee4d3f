import json
import os
import pickle
import struct
from dataclasses import replace

import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from streammiml._base.calibration import Calibration
from streammiml.errors import StreammimlError
from streammiml.kernel.lift import Lift, lift_width
from streammiml.model import (
    MODEL_FORMAT,
    LabelRule,
    LiftArrays,
    Model,
    _n_values,
    load_tensors,
    save_tensors,
)
from tests.stores import file_limit
from tests.traced import traced


def made_model(
    d=3, n=0, m=5, k=2, n_labels=4, context=0, shared_space=True, transform=0, seed=0, **fields
):
    rng = np.random.default_rng(seed)
    width = 4 * (d + n) + 1 if context == 2 else d * (1, 3, 4, 2)[context] + n + 1
    m = m if shared_space else width
    return Model(
        shared=rng.normal(size=(width if shared_space else 0, m)).astype(np.float32),
        labels=rng.normal(size=(n_labels + 1, k, m)).astype(np.float32),
        lift=LiftArrays(
            shift=rng.normal(size=d).astype(np.float32),
            scale=rng.uniform(size=d).astype(np.float32),
            transform=transform,
            unit=1,
            frequencies=rng.normal(size=(d, n)).astype(np.float32),
            phases=rng.uniform(size=n).astype(np.float32),
            context=context,
        ),
        **{
            "rule": LabelRule(name="margin", min_labels=1, r=2),
            "label_names": tuple(f"label {i}" for i in range(n_labels)),
            "settings": {"scale": "standard", "seed": 3, "decay": 1e-5},
            "provenance": {"fingerprint": "00ff", "steps": 12},
        }
        | fields,
    )


def same(one, other):
    arrays = [(one.shared, other.shared), (one.labels, other.labels)]
    arrays += zip(one.lift, other.lift, strict=True)
    equal = all(
        np.shape(a) == np.shape(b) and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in arrays
    )
    rest = ("rule", "label_names", "settings", "provenance")
    return equal and all(getattr(one, name) == getattr(other, name) for name in rest)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.safetensors"
    made_model(d=2, m=2, k=1, n_labels=1).save(path)
    return path


@given(
    sizes=st.fixed_dictionaries(
        {name: st.integers(1, 9) for name in ("d", "m", "k", "n_labels")}
        | {"n": st.integers(0, 9), "context": st.integers(0, 3), "transform": st.integers(0, 2)}
        | {"shared_space": st.booleans(), "seed": st.integers(0, 2**32)}
    ),
    names=st.none() | st.text(max_size=8),
)
def test_model__is_read_as_it_was_written(tmp_path_factory, sizes, names):
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    label_names = names if names is None else tuple(f"{names}{i}" for i in range(sizes["n_labels"]))
    model = made_model(**sizes, label_names=label_names)
    model.save(path)
    again = Model.load(path)
    assert same(model, again)
    assert lift_width(Lift(*again.lift)) == again.n_lifted


def test_model__loads_from_a_run_folder(saved):
    assert same(Model.load(saved.parent), Model.load(str(saved)))


def test_save__gives_equal_bytes_for_equal_content(tmp_path):
    one = made_model(settings={"a": 1, "b": [2.5, None]})
    other = made_model(settings={"b": [2.5, None], "a": 1})
    strided = np.asfortranarray(np.repeat(one.shared, 2, axis=1))[:, ::2]
    other = Model(
        shared=strided,
        labels=one.labels.astype(np.float64),
        lift=other.lift,
        rule=other.rule,
        label_names=list(other.label_names),
        settings=other.settings,
        provenance=other.provenance,
    )
    for name, model in (("one", one), ("other", other)):
        model.save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_file__is_plain_safetensors_with_one_sorted_metadata_key(tmp_path):
    model = made_model(n=8)
    model.save(tmp_path / "model.safetensors")
    with safetensors.safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        metadata = file.metadata()
        np.testing.assert_array_equal(file.get_tensor("shared"), model.shared)
        np.testing.assert_array_equal(file.get_tensor("labels"), model.labels)
        assert set(file.keys()) == {"shared", "labels", "shift", "scale", "frequencies", "phases"}
    assert list(metadata) == ["streammiml"]
    content = json.loads(metadata["streammiml"])
    assert list(content) == sorted(content)
    assert set(content) == {
        *("checksum", "format", "kind", "label_names", "lift"),
        *("provenance", "rule", "settings"),
    }


def test_load__refuses_a_flipped_bit_anywhere(saved):
    content = saved.read_bytes()
    for i in range(len(content)):
        damaged = bytearray(content)
        damaged[i] ^= 1 << (i * 5 % 8)
        saved.write_bytes(damaged)
        with pytest.raises(StreammimlError, match=r"^[^\n]*model\.safetensors [^\n]*$"):
            Model.load(saved)
    saved.write_bytes(content)
    Model.load(saved)


def test_load__refuses_a_file_cut_or_grown_anywhere(saved):
    content = saved.read_bytes()
    for length in range(len(content)):
        saved.write_bytes(content[:length])
        with pytest.raises(StreammimlError, match="is damaged or not a model file"):
            Model.load(saved)
    saved.write_bytes(content + b"\0")
    with pytest.raises(StreammimlError, match=r"bytes of tensors, and .* are described"):
        Model.load(saved)


def test_load__runs_nothing_from_a_pickle(tmp_path):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps({"shared": Payload()}))
    with pytest.raises(StreammimlError, match=r"it claims a header of [0-9]+ bytes in a file of"):
        Model.load(path)
    assert not (tmp_path / "ran").exists()


def write_file(path, header, tensors=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + tensors)


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


META = {"__metadata__": {"streammiml": '{"format":1,"kind":"model"}'}}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "its header is not JSON"),
        (b"[1]", "its header is not JSON"),
        (b"[" * 200_000, "its header is not JSON"),
        ({"shared": tensor()}, "is a safetensors file, but not a model of streammiml"),
        ({"__metadata__": {"streammiml": "[]"}}, "but not a model of streammiml"),
        ({"__metadata__": {"streammiml": "{"}}, "but not a model of streammiml"),
        ({"__metadata__": {"streammiml": "{}"}}, "its format is None"),
        (META | {"x": tensor(shape=(2**40,), offsets=(0, 2**42))}, "and 4398046511104 are descr"),
        (META | {"x": tensor(shape=(2**40,))}, "'x' of shape .* has the wrong size"),
        (META | {"x": tensor(shape=(-1, -2))}, "has the wrong size"),
        (META | {"x": tensor(dtype="F16")}, "'x' has a malformed description"),
        (META | {"x": {"dtype": "F32"}}, "'x' has a malformed description"),
        (META | {"x": 3}, "'x' has a malformed description"),
        (META | {"x": tensor(offsets=(0, float("inf")))}, "'x' has a malformed description"),
        (META | {"x": tensor(shape=(True, 2))}, "'x' has a malformed description"),
        (META | {"x": tensor(shape=("2",))}, "'x' has a malformed description"),
        (META | {"x": tensor(shape=(0, 2**63), offsets=(0, 0))}, "has the wrong size"),
        (META | {"x": tensor(shape=(0, 2**32, 2**32), offsets=(0, 0))}, "has the wrong size"),
        (META | {"x": tensor(), "y": tensor()}, "do not lie end to end"),
        (META | {"x": tensor(offsets=(4, 12))}, "do not lie end to end"),
        (META | {"x": tensor()}, "its checksum does not match"),
    ],
)
def test_load__refuses_headers_that_lie_and_holds_little_memory(tmp_path, header, message):
    path = tmp_path / "model.safetensors"
    write_file(path, header, b"\0" * 8)
    with traced() as memory, pytest.raises(StreammimlError, match=message) as caught:
        Model.load(path)
    assert memory.peak < 16 * 2**20
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("length", [2**63, 2**40, 10**8, 9])
def test_load__refuses_a_huge_header_before_reading_it(tmp_path, length):
    path = tmp_path / "model.safetensors"
    write_file(path, b"{}", length=length)
    message = f"it claims a header of {length} bytes in a file of 10; take another copy"
    with pytest.raises(StreammimlError, match=message):
        Model.load(path)


def test_load__refuses_a_header_over_the_bound_even_where_the_file_is_that_long(tmp_path):
    path = tmp_path / "model.safetensors"
    write_file(path, b"{}", length=2**31)
    os.truncate(path, 2**33)
    with pytest.raises(StreammimlError, match="it claims a header of 2147483648 bytes"):
        Model.load(path)


@pytest.mark.parametrize(("context", "version"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_model__says_the_lowest_version_that_can_read_it(tmp_path, context, version):
    made_model(context=context, n=2).save(tmp_path / "m.safetensors")
    assert load_tensors(tmp_path / "m.safetensors", kind="model", version=version)
    if version > 1:
        message = f"was written by format {version}, this reads up to 1"
        with pytest.raises(StreammimlError, match=message):
            load_tensors(tmp_path / "m.safetensors", kind="model", version=1)


def test_save__an_offset_needs_format_4_and_files_without_one_stay_as_they_were(tmp_path, saved):
    model = Model.load(saved)
    moved = replace(model, rule=replace(model.rule, offset=-0.5))
    moved.save(tmp_path / "moved.safetensors")
    assert Model.load(tmp_path / "moved.safetensors").rule == moved.rule
    assert moved.fingerprint != model.fingerprint
    with pytest.raises(StreammimlError, match=r"written by format 4, this reads up to 3"):
        load_tensors(tmp_path / "moved.safetensors", kind="model", version=3)
    load_tensors(saved, kind="model", version=3)
    with pytest.raises(StreammimlError, match=r"^offset must be a finite number, got nan$"):
        LabelRule(offset=float("nan"))


def test_save__a_calibration_needs_format_5_and_is_read_back(tmp_path, saved):
    model = Model.load(saved)
    lines = np.tile([2.0, -1.0], (model.n_labels, 1))
    knots = [None] * (model.n_labels - 1) + [(np.array([0.0, 1.0]), np.array([0.25, 0.75]))]
    calibrated = replace(model, calibration=Calibration.of_knots(lines, knots))
    calibrated.save(tmp_path / "calibrated.safetensors")
    again = Model.load(tmp_path / "calibrated.safetensors")
    assert again.fingerprint == calibrated.fingerprint != model.fingerprint
    again.save(tmp_path / "again.safetensors")
    paths = (tmp_path / "again.safetensors", tmp_path / "calibrated.safetensors")
    assert len({path.read_bytes() for path in paths}) == 1
    with pytest.raises(StreammimlError, match=r"written by format 5, this reads up to 4"):
        load_tensors(paths[0], kind="model", version=4)
    assert "calibrated" in again._repr_html_()
    assert "calibrated" not in model._repr_html_()
    resaved(paths[0], drop=("calibration.margins",))
    with pytest.raises(StreammimlError, match=r"lacks a part of a model .*calibration.margins"):
        Model.load(paths[0])
    wrong = {"calibration.platt": np.zeros((model.n_labels + 1, 2), np.float32)}
    resaved(paths[1], tensors=wrong)
    with pytest.raises(StreammimlError, match=r"not a model that can be used: .*calibration"):
        Model.load(paths[1])


@pytest.mark.parametrize(
    ("restarts", "message"),
    [
        (3, "4 sub-concepts of 3 restarts"),
        (4, "shared has shape"),
        (0, "restarts must be a whole number at least 1"),
        ("two", "restarts must be a whole number at least 1, got .two."),
    ],
)
def test_load__refuses_restarts_that_do_not_fit_the_weights(saved, restarts, message):
    several = made_model(k=4)
    shared = np.concatenate([several.shared, several.shared], axis=1)
    replace(several, shared=shared, restarts=2).save(saved)
    assert Model.load(saved).restart(1).shared.tobytes() == several.shared.tobytes()
    resaved(saved, restarts=restarts)
    with pytest.raises(StreammimlError, match=message):
        Model.load(saved)


def test_for_labels__moves_the_calibration_with_its_label():
    lines = np.arange(4.0).reshape(2, 2)
    calibration = Calibration.of_knots(lines, [None, None])
    model = made_model(label_names=["a", "b"], calibration=calibration, n_labels=2)
    assert model.for_labels(["b", "a"]).calibration.platt.tolist() == [[2, 3], [0, 1]]


def resaved(path, *, version=MODEL_FORMAT, kind="model", drop=(), tensors=(), **content):
    """The file with parts exchanged and a checksum that matches again."""
    arrays, inside = load_tensors(path, kind="model", version=MODEL_FORMAT)
    inside = {name: value for name, value in (inside | content).items() if name not in drop}
    arrays = {name: value for name, value in (arrays | dict(tensors)).items() if name not in drop}
    save_tensors(path, arrays, inside, kind=kind, version=version)


def test_load__names_a_format_of_the_future(saved):
    resaved(saved, version=MODEL_FORMAT + 6, kind="anything")
    message = r"was written by format 12, this reads up to 6; install a newer streammiml"
    with pytest.raises(StreammimlError, match=message):
        Model.load(saved)


def test_load__control_a_reader_of_the_future_reads_the_file(saved):
    resaved(saved, version=MODEL_FORMAT + 6)
    last = MODEL_FORMAT + 5
    message = f"was written by format {last + 1}, this reads up to {last}"
    with pytest.raises(StreammimlError, match=message):
        load_tensors(saved, kind="model", version=MODEL_FORMAT + 5)
    _, content = load_tensors(saved, kind="model", version=MODEL_FORMAT + 6)
    assert content["format"] == MODEL_FORMAT + 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "checkpoint"}, "holds a 'checkpoint', a 'model' is needed"),
        ({"drop": ["shared"]}, "can be used: it lacks the tensor 'shared'"),
        ({"drop": ["rule"]}, r"lacks a part of a model \(KeyError: 'rule'\)"),
        ({"rule": {"nme": 1}}, r"lacks a part of a model \(TypeError"),
        ({"rule": {"r": 1.5}}, r"r must be a whole number at least 1, got 1\.5"),
        ({"rule": {"min_labels": "1"}}, "min_labels must be a whole number at least 0, got '1'"),
        ({"rule": [1]}, r"its rule is \[1\], expected a JSON object"),
        ({"settings": "none"}, "its settings is 'none', expected a JSON object"),
        ({"provenance": None}, "its provenance is None, expected a JSON object"),
        ({"label_names": "a"}, "its label names are not a list of texts"),
        ({"label_names": [1]}, "its label names are not a list of texts"),
        ({"tensors": {"more": np.ones(1)}}, "it has a tensor 'more' that does not belong there"),
        ({"rule": {"name": "x"}}, "is not a model that can be used: no rule is called 'x'"),
        ({"lift": {"transform": "exp"}}, r"lacks a part of a model \(ValueError"),
        ({"label_names": ["a", "b"]}, "there are 2 label names for 1 labels"),
        ({"tensors": {"labels": np.ones((2, 1, 2))}}, "labels is float64, expected float32"),
        ({"tensors": {"labels": np.float32([[[1, np.nan]]] * 2)}}, "labels holds values that are"),
        ({"tensors": {"scale": np.ones(5, np.float32)}}, r"shared has shape \(3, 2\), expected"),
    ],
)
def test_load__says_what_does_not_fit_in_a_file_that_is_whole(saved, change, message):
    resaved(saved, **change)
    with pytest.raises(StreammimlError, match=message) as caught:
        Model.load(saved)
    assert str(saved) in str(caught.value)


def with_metadata(path, text):
    """The model file with this text as its metadata."""
    head = path.read_bytes()
    (length,) = struct.unpack("<Q", head[:8])
    header = json.loads(head[8 : 8 + length])
    header["__metadata__"]["streammiml"] = text(header["__metadata__"]["streammiml"])
    write_file(path, header, head[8 + length :])


@pytest.mark.parametrize(
    "value", ["NaN", "-Infinity", "1e999", '"\\ud800"', "1.0e1", "[" * 500 + "]" * 500]
)
def test_load__refuses_metadata_that_it_would_not_write(saved, value):
    with_metadata(
        saved, lambda text: text.replace('"settings":{', '"settings":{"x":' + value + ",")
    )
    with pytest.raises(
        StreammimlError, match=r"damaged or not a model file: its (metadata is not|ch)"
    ):
        Model.load(saved)


@pytest.mark.parametrize("value", ["[]", "{}", '"ab"', "1.5", '{"a":1}'])
@pytest.mark.parametrize("inner", [False, True])
def test_load__a_header_of_many_values_is_refused_before_it_is_parsed(saved, value, inner):
    values = ",".join([value] * (8_000_000 // (len(value) + 1)))
    if inner:
        with_metadata(saved, lambda text: text[:-1] + f',"x":[{values}]}}')
    else:
        write_file(saved, f'{{"x":[{values}]}}'.encode())
    with traced() as memory, pytest.raises(StreammimlError):
        Model.load(saved)
    # Text of 8 MB as bytes, as str, within the header, and without escapes.
    assert memory.peak < 80 * 2**20


def test_load__a_model_of_many_labels_is_not_taken_for_an_attack(tmp_path):
    names = tuple(f"label, {i}" for i in range(200_000))
    labels = np.zeros((len(names) + 1, 1, 1), np.float32)
    parts = made_model()
    model = Model(
        shared=np.zeros((4, 1), np.float32), labels=labels, lift=parts.lift, label_names=names
    )
    model.save(tmp_path / "model.safetensors")
    assert Model.load(tmp_path).label_names == names


@given(
    st.recursive(
        st.none() | st.floats(allow_nan=False) | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    ),
    st.integers(1, 9),
)
def test_n_values__is_an_upper_bound_however_the_text_is_cut(value, piece):
    def count(value):
        inside = value.values() if isinstance(value, dict) else value
        return 1 + (sum(map(count, inside)) if isinstance(value, list | dict) else 0)

    n = _n_values(json.dumps(value).encode(), piece)
    assert count(value) <= n <= 2 * count(value)


def test_load__says_when_there_is_no_file(tmp_path):
    with pytest.raises(StreammimlError, match=r"model\.safetensors does not exist; a model file"):
        Model.load(tmp_path)
    with pytest.raises(StreammimlError, match="/dev/null is not a file; a model file is needed"):
        Model.load("/dev/null")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StreammimlError, match="cannot be read: Not a directory"):
        Model.load(tmp_path / "file" / "model.safetensors")


class Failing:
    """Stands in for a call of the operating system and fails at the ``at``-th use."""

    def __init__(self, call, at):
        self.call, self.left = call, at

    def __call__(self, *args, **kwargs):
        self.left -= 1
        if self.left == 0:
            raise OSError(5, "Input/output error")
        return self.call(*args, **kwargs)


@pytest.mark.parametrize(
    ("name", "at", "old_stays"),
    [("fsync", 1, True), ("replace", 1, True), ("fsync", 2, False), ("open", 1, False)],
)
def test_save__never_reports_a_failed_write_as_saved(saved, monkeypatch, name, at, old_stays):
    old = saved.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, name, Failing(getattr(os, name), at))
        with pytest.raises(StreammimlError, match=r"is not saved: Input/output error; make room"):
            made_model().save(saved)
    assert (saved.read_bytes() == old) is old_stays
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    Model.load(saved)
    made_model().save(saved)
    assert same(Model.load(saved), made_model())


def test_save__leaves_the_old_file_when_the_disk_is_full(saved):
    old = saved.read_bytes()
    message = r"is not saved: File too large; it takes .* are free; make room or"
    with file_limit(64 * 1024), pytest.raises(StreammimlError, match=message):
        made_model(d=200, m=200).save(saved)
    assert saved.read_bytes() == old
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_save__says_where_it_cannot_write(tmp_path):
    with pytest.raises(StreammimlError, match="is not saved: No such file or directory"):
        made_model().save(tmp_path / "missing" / "model.safetensors")
    with pytest.raises(StreammimlError, match="is not saved: Is a directory"):
        made_model().save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_check_store__takes_a_store_that_fits():
    model = made_model()
    model.check_store(3, 4)
    model.check_store(3, 4, ["label 0", "label 1", "label 2", "label 3"])
    made_model(label_names=None).check_store(3, 4, list("abcd"))


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ((5, 4), "^the model was trained on rows of 3 features and a.zarr has 5; use a store made"),
        ((3, 9), "^the model has 4 labels and a.zarr has 9; use a store with the same labels"),
        (
            (3, 4, ["label 0", "sky", "label 2", "label 3"]),
            "^label 1 is 'label 1' in the model and 'sky' in a.zarr; use a store with the same lab",
        ),
    ],
)
def test_check_store__says_what_differs(store, message):
    with pytest.raises(StreammimlError, match=message):
        made_model().check_store(*store, store="a.zarr")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shared": np.zeros((4, 6))}, r"shared has shape \(4, 6\), expected \(4, 5\)"),
        ({"shared": np.zeros((9, 5))}, r"shared has shape \(9, 5\), expected \(4, 5\)"),
        ({"shared": np.zeros((0, 5))}, r"shared has shape \(0, 5\), expected \(0, 4\)"),
        ({"labels": np.zeros((1, 2, 5))}, r"labels has shape \(1, 2, 5\); a model needs"),
        ({"labels": np.zeros((5, 5))}, r"labels has shape \(5, 5\); a model needs"),
        ({"labels": np.full((5, 2, 5), np.inf)}, "labels holds values that are not finite"),
        ({"label_names": ("a",)}, "there are 1 label names for 4 labels"),
    ],
)
def test_model__refuses_parts_that_do_not_fit_together(change, message):
    model = made_model()
    parts = {name: getattr(model, name) for name in ("shared", "labels", "lift", "label_names")}
    with pytest.raises(StreammimlError, match=message):
        Model(**parts | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shift": np.zeros(2)}, r"shift has shape \(2,\), expected \(3,\)"),
        ({"frequencies": np.zeros((2, 0))}, r"frequencies has shape \(2, 0\), expected \(3, 0\)"),
        ({"transform": 3}, "transform has code 3, known are 0, 1 and 2"),
    ],
)
def test_model__refuses_a_lift_that_does_not_fit(change, message):
    model = made_model()
    with pytest.raises(StreammimlError, match=message):
        Model(shared=model.shared, labels=model.labels, lift=model.lift._replace(**change))


def test_lift_arrays__are_those_of_the_kernel():
    assert LiftArrays._fields == Lift._fields


def test_repr__says_what_it_is():
    assert repr(made_model()) == (
        "Model(3 features, 4 lifted, shared_dim=5, subconcepts=2, 4 labels, rule=margin, "
        "scale=standard, 12 steps)"
    )
    assert "no shared space" in repr(made_model(shared_space=False, settings={}, provenance={}))


def test_fingerprint__follows_what_is_saved_and_nothing_else(tmp_path):
    model = made_model()
    model.save(tmp_path / "m.safetensors")
    assert Model.load(tmp_path / "m.safetensors").fingerprint == model.fingerprint
    others = [made_model(seed=1), made_model(label_names=None), made_model(settings={})]
    others += [made_model(provenance={"steps": 13}), made_model(rule=LabelRule())]
    assert len({variant.fingerprint for variant in [model, *others]}) == 6


def test_for_labels__gives_the_order_of_the_names():
    model = made_model()
    names = [model.label_names[i] for i in (2, 0, 3, 1)]
    other = model.for_labels(names)
    assert other.label_names == tuple(names)
    np.testing.assert_array_equal(other.labels, model.labels[[2, 0, 3, 1, 4]])
    np.testing.assert_array_equal(other.for_labels(model.label_names).labels, model.labels)
    for same in (None, model.label_names, ["a", "b", "c", "d"], names[:3]):
        assert model.for_labels(same) is model
    assert made_model(label_names=None).for_labels(names).label_names is None
