"""From the files that people have to a store, a model and its page, in a few commands."""

import h5py
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import streammiml as sm
from streammiml.verbs.main import run
from tests.tools.readers import tf_messages as tf

NAMES = ("a", "b", "c")
QUICK = ("--shared-dim", "8", "--epochs", "3", "--validation", "0.1")


def corpus(n_bags):
    """Bags whose labels can be seen in their rows."""
    rng = np.random.default_rng(6)
    for number in range(n_bags):
        labels = sorted({int(rng.integers(3)), number % 3})
        rows = rng.normal(size=(int(rng.integers(2, 6)), 6)).astype(np.float32)
        for place, label in enumerate(labels):
            rows[place % len(rows), label] += 6
        yield f"bag_{number}", rows, labels


def check(folder, *convert, store=None):
    """Convert, train, report: three commands; a model that has learned, and a page about it."""
    store, model = store or str(folder / "x.zarr"), str(folder / "run")
    page = folder / "page.html"
    assert run([*convert[:2], store, *convert[2:]]) == 0
    assert run(["train", store, model, *QUICK]) == 0
    assert run(["report", model, "--out", str(page)]) == 0
    check_page(page, store, model)
    return sm.open_store(store)


def check_page(page, store, model):
    assert sm.evaluate(model, store)["ranking_loss"] < 0.2
    assert "Ranking loss" in page.read_text()


def places(name, n_rows):
    """Coordinates that say which slide and which row they belong to."""
    return np.stack([np.full(n_rows, int(name.removeprefix("bag_"))), np.arange(n_rows)], axis=1)


def check_places(store, model, out, width):
    """Predictions and explanations have the coordinates of the key instances."""
    assert run(["predict", model, store, str(out / "predictions")]) == 0
    assert run(["explain", model, store, str(out / "explained")]) == 0
    for folder in (out / "predictions", out / "explained" / "bags"):
        records = pq.read_table(folder).to_pylist()
        assert len(records) == 300
        for record in records:
            keys, kept = record["key_instances"], record["kept_coords"]
            want = places(record["bag_id"], max(keys, default=0) + 1)[keys, :width]
            assert np.reshape(kept, (len(keys), width)).tolist() == want.tolist()


def write_slides(folder, layout, n_bags):
    """A file for each slide, and the table of their labels beside the folder."""
    lines = ["slide_id,tumour,stroma,fat"]
    folder.mkdir()
    for name, rows, labels in corpus(n_bags):
        lines.append(",".join([name, *(str(int(label in labels)) for label in range(3))]))
        path = folder / f"{name}.{layout}"
        if layout == "h5":
            with h5py.File(path, "w") as file:
                file["features"], file["coords"] = rows, places(name, len(rows))
        elif layout == "npy":
            np.save(path, rows)
            (folder.parent / "coords").mkdir(exist_ok=True)
            np.save(folder.parent / "coords" / f"{name}.npy", places(name, len(rows)))
        elif layout == "npz":
            np.savez(path, features=rows, coords=places(name, len(rows)))
        else:
            table = np.concatenate([rows, places(name, len(rows))[:, :1]], axis=1)
            np.savetxt(path, table, delimiter=",", header="u,v,w,x,y,z,coords", comments="")
    table = folder.with_name("labels.csv")
    table.write_text("\n".join([*lines, ""]))
    return table


@pytest.mark.parametrize("layout", ["h5", "npy", "npz", "csv"])
def test_slides__and_a_table_of_labels(tmp_path, layout):
    table = write_slides(tmp_path / "slides", layout, 300)
    words = ["convert", str(tmp_path / "slides"), "--bag-labels", str(table), "--keep", "coords"]
    store = check(tmp_path, *words)
    assert (store.n_bags, store.label_names) == (300, ["tumour", "stroma", "fat"])
    check_places(str(store.name), str(tmp_path / "run"), tmp_path, 1 if layout == "csv" else 2)


def test_bucket__with_slides_and_a_table_of_labels(tmp_path, s3):
    obstore = pytest.importorskip("obstore")
    from_url = pytest.importorskip("obstore.store").from_url
    table = write_slides(tmp_path / "slides", "npy", 300)
    for path in [table, *(tmp_path / "slides").iterdir()]:
        obstore.put(from_url(s3), path.relative_to(tmp_path).as_posix(), path.read_bytes())
    words = ["convert", f"{s3}/slides/", "--bag-labels", f"{s3}/labels.csv"]
    store = check(tmp_path, *words, store=f"{s3}/corpus.zarr")
    assert (store.n_bags, store.label_names) == (300, ["tumour", "stroma", "fat"])


def test_videos__as_tfrecord(tmp_path):
    """Videos as in YouTube-8M: quantised rgb and audio, 3862 labels named by a vocabulary."""
    numbers = [5, 400, 3861]
    messages = []
    for name, rows, labels in corpus(2000):
        quantised = (np.clip(rows, -8, 8) * 12 + 128).astype(np.uint8)
        frames = {
            "rgb": [row[:4].tobytes() for row in quantised],
            "audio": [row[4:].tobytes() for row in quantised],
        }
        context = {"id": name.encode(), "labels": [numbers[label] for label in labels]}
        messages.append(tf.sequence(context, frames))
    path = tf.write(tmp_path / "train.tfrecord", messages)
    vocabulary = ["Index,Name", *(f"{i},entity {i}" for i in range(3862))]
    (tmp_path / "vocabulary.csv").write_text("\n".join([*vocabulary, ""]))
    store = check(tmp_path, "convert", str(path), "--labels", str(tmp_path / "vocabulary.csv"))
    assert (store.n_bags, store.n_labels) == (2000, 3862)
    assert (store.n_features, store.dtype) == (6, "uint8")
    assert store.label_names[3861] == "entity 3861"
    again = sm.convert(path, tmp_path / "y.zarr", n_labels=3862).store
    assert (again.n_labels, again.fingerprint) == (3862, store.fingerprint)


def test_frame__and_a_table_of_labels(tmp_path):
    bags = list(corpus(300))
    rows = pd.DataFrame(np.concatenate([rows for _, rows, _ in bags]), columns=list("uvwxyz"))
    rows.insert(0, "doc_id", np.repeat([name for name, _, _ in bags], [len(r) for _, r, _ in bags]))
    topics = pd.DataFrame(
        {"doc_id": [n for n, _, _ in bags], "topics": [[NAMES[i] for i in own] for *_, own in bags]}
    )
    sm.convert(rows, tmp_path / "x.zarr", bag="doc_id", labels=topics)
    config = sm.TrainConfig(shared_dim=8, epochs=3, validation=0.1)
    model = sm.train(tmp_path / "x.zarr", config, run=tmp_path / "run")
    page = sm.report(tmp_path / "run", out=tmp_path / "page.html")
    check_page(page, tmp_path / "x.zarr", model)
