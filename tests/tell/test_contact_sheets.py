"""Contact sheets: drawn for labels that hold bags, of the right rows, the same bytes every time."""

import shutil
import sys

import numpy as np
import pytest

import streammiml as sm
from streammiml.errors import StreammimlError
from streammiml.model import LabelRule
from tests.measure.models import made_model
from tests.stores import content, made_block, write_store

FigureCanvasAgg = pytest.importorskip(
    "matplotlib.backends.backend_agg", reason="matplotlib is not installed"
).FigureCanvasAgg
sheets = pytest.importorskip("streammiml.tell.contact_sheets", reason="matplotlib is not installed")
MODEL = made_model(n_features=12, rule=LabelRule(), subconcepts=2)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("sheets") / "x.zarr"
    return write_store(path, made_block(40, n_features=12), n_labels=4)


def test_explain__draws_a_sheet_for_each_label_that_holds_bags(store, tmp_path):
    summary = sm.explain(MODEL, store, tmp_path / "out", image="3x4", typical=5)
    held = [label["label"] for label in summary["labels"] if label["n_bags"]]
    names = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert names == ["key_instances.png", *(f"subconcepts-{label:04d}.png" for label in held)]
    sm.explain(MODEL, store, tmp_path / "two", image="2x2x3", typical=5)
    sm.explain(MODEL, store, tmp_path / "three", image="3x4", typical=5)
    for name in names:
        raw = (tmp_path / "out" / name).read_bytes()
        assert raw.startswith(b"\x89PNG")
        assert raw == (tmp_path / "three" / name).read_bytes()


def test_explain__killed_while_it_draws_is_not_complete_and_leaves_nothing_half(
    store, tmp_path, monkeypatch
):
    sm.explain(MODEL, store, tmp_path / "clean", image="3x4", typical=5)
    out, drawn = tmp_path / "out", []

    def die_at_the_second(self, file, **options):
        drawn.append(self)
        if len(drawn) == 2:
            file.write(b"\x89PNG half")
            file.flush()
            # A kill leaves the file under its temporary name.
            shutil.copy(file.name, out / f".x.png.{'0' * 8}.partial")
            raise KeyboardInterrupt
        return FigureCanvasAgg(self).print_figure(file, **options)

    with monkeypatch.context() as patch:
        patch.setattr(sheets.Figure, "savefig", die_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            sm.explain(MODEL, store, out, image="3x4", typical=5)
    assert len(list(out.glob("*.png"))) == 1
    assert not (out / "_SUCCESS").exists()
    sm.explain(MODEL, store, out, image="3x4", typical=5)
    assert content(out) == content(tmp_path / "clean")


def pictures(axes):
    return [np.asarray(image.get_array()) for image in axes.get_images()]


def test_subconcept_sheet__shows_key_rows_most_typical_first(store, tmp_path):
    summary = sm.explain(MODEL, store, tmp_path / "out", typical=5)
    label = max(summary["labels"], key=lambda label: label["n_bags"])
    figure = sheets.subconcept_sheet(label, store, (3, 4))
    concepts = sorted(label["subconcepts"], key=lambda sub: -sub["n_bags"])
    shown = [picture for axes in figure.axes for picture in pictures(axes)]
    want = [(key["bag"], key["row"]) for concept in concepts for key in concept["typical"]]
    assert len(shown) == len(want)
    for picture, (bag, row) in zip(shown, want, strict=True):
        np.testing.assert_allclose(picture.ravel(), store.read(bag, bag + 1).rows_of(0)[row])
    assert f"{concepts[0]['share']:.0%} of {label['n_bags']:,} bags" in figure.axes[0].get_title(
        loc="left"
    )


def test_key_sheet__frames_the_key_rows_of_each_bag(store):
    bags = [7, 3]
    predictions = sm.predict(MODEL, store.read_bags(bags))
    figure = sheets.key_sheet(bags, ["a", "b", "c", "d"], MODEL, store, (3, 4))
    cells = np.array(figure.axes).reshape(2, -1)
    for i in range(2):
        titled = {j for j, cell in enumerate(cells[i]) if cell.get_title()}
        assert titled == set(predictions.key_instances[i].tolist())
    assert predictions.label_offsets[-1] > 0


def test_explain__says_what_pictures_need(store, tmp_path, monkeypatch):
    for name in [*sys.modules]:
        if name.split(".")[0] == "matplotlib" or name == "streammiml.tell.contact_sheets":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        StreammimlError, match=r"^pictures need matplotlib: pip install 'streammiml"
    ):
        sm.explain(MODEL, store, tmp_path / "out", image="3x4")
    assert not (tmp_path / "out").exists()
