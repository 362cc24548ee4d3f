"""Every script in tools/examples does what it says, run as a reader would run it."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import streammiml as sm
from streammiml.verbs.main import run as command
from streammiml_tools.docs.gallery import EXAMPLES as GALLERY
from tests.planted import planted
from tests.stores import write_store
from tests.tell.pages import Page

EXAMPLES = Path(__file__).parent.parent.parent / "tools" / "examples"
NAMES = ("sea", "sky", "sun", "tree", "wood")


def example(name, *words, cwd, **environment):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, words)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples__are_all_run_here_or_for_the_gallery():
    here = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        # tests/tools/docs/test_build.py builds the site with what these print and draw.
        assert path.stem in GALLERY or f'example("{path.stem}"' in here, path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A store, a run and its predictions."""
    folder = tmp_path_factory.mktemp("trained")
    store = write_store(folder / "x.zarr", planted(300), label_names=NAMES)
    sm.train(store, sm.TrainConfig(epochs=4, shared_dim=8), run=folder / "run")
    sm.predict(folder / "run", store, folder / "predictions")
    return folder


def test_text_corpus__from_documents_to_a_page(tmp_path):
    topics = {"ships": "vessel harbour cargo sea", "grain": "wheat corn farm harvest"}
    topics |= {"gold": "metal mine ounce price"}
    rng = np.random.default_rng(0)
    lines = []
    for number in range(150):
        own = rng.choice(sorted(topics), rng.integers(1, 3), replace=False).tolist()
        sentences = [" ".join(rng.choice(topics[name].split(), 4)) for name in own]
        body = ". ".join(
            text.capitalize() for text in [*sentences, "nothing of note was said today"]
        )
        lines.append({"id": str(number), "title": "News", "body": f"{body}.", "topics": own})
    raw = "\n".join(map(json.dumps, lines)).encode() + b"\n"
    (tmp_path / "documents.jsonl.gz").write_bytes(gzip.compress(raw))
    output = example("text_corpus", "documents.jsonl.gz", "out", cwd=tmp_path)
    assert "(sparse float32), 3 labels>" in output
    assert float(re.search(r"ranking loss ([0-9.]+)", output)[1]) < 0.1
    assert "harbour" in Page((tmp_path / "out" / "report.html").read_text()).text


def test_images__of_uint8_to_subconcepts_and_a_page(tmp_path):
    pictures = pytest.importorskip("sklearn.datasets", reason="digits come with scikit-learn")
    images, digits = pictures.load_digits(return_X_y=True)
    for name, part in (("train", slice(0, None, 2)), ("t10k", slice(1, None, 2))):
        for kind, array in (
            ("images-idx3", images[part].reshape(-1, 8, 8) * 15),
            ("labels-idx1", digits[part]),
        ):
            shape = np.array(array.shape, ">u4").tobytes()
            raw = b"\0\0\x08" + bytes([array.ndim]) + shape + array.astype(np.uint8).tobytes()
            (tmp_path / f"{name}-{kind}-ubyte").write_bytes(raw)
    output = example("images", tmp_path, "out", 1000, cwd=tmp_path)
    assert "(uint8), 2 labels>" in output
    held = re.findall(r"^(?:02468|13579): sub-concepts hold (.*)$", output, re.M)
    assert len(held) == 2
    # Five shapes make up each label: one sub-concept does not hold them all.
    assert max(len(line.split(", ")) for line in held) > 1
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert [attrs for tag, attrs in page.tags if tag == "img"]


def test_attention_mil__killed_and_run_again_ends_with_the_same_network(tmp_path):
    torch = pytest.importorskip("torch")
    store = write_store(tmp_path / "corpus.zarr", planted(300), label_names=NAMES)
    words = (store.location.path, "--epochs", 3, "--batch-bags", 8, "--save-every", 5)
    # With several threads PyTorch adds in an order of its own.
    environment = {"OMP_NUM_THREADS": "1"}
    output = example("attention_mil", *words[:1], "whole", *words[1:], cwd=tmp_path, **environment)
    losses = [float(loss) for loss in re.findall(r"^epoch \d: loss ([0-9.]+)$", output, re.M)]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    script = [sys.executable, str(EXAMPLES / "attention_mil.py")]
    command = [*script, *map(str, (words[0], "killed", *words[1:]))]
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **environment})
    deadline = time.monotonic() + 60
    while not (tmp_path / "killed" / "checkpoint.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    output = example("attention_mil", words[0], "killed", *words[1:], cwd=tmp_path, **environment)
    assert output.startswith("goes on in epoch 0, ")
    whole, killed = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)
        for name in ("whole", "killed")
    )
    assert whole["stream"] == killed["stream"]
    for name, tensor in whole["model"].items():
        assert torch.equal(tensor, killed["model"][name]), name


def test_train_from_s3__gives_the_model_of_a_local_copy(tmp_path):
    pytest.importorskip("obstore", reason="s3:// needs obstore")
    servers = pytest.importorskip("tests.remote_servers", reason="the server is moto's")
    with servers.s3_server() as address, pytest.MonkeyPatch.context() as patch:
        for name, value in servers.s3_settings(address).items():
            patch.setenv(name, value)
        write_store(f"s3://{servers.BUCKET}/corpus.zarr", planted(200), label_names=NAMES)
        output = example("train_from_s3", f"s3://{servers.BUCKET}/corpus.zarr", "out", cwd=tmp_path)
    assert "200 bags scored" in output
    write_store(tmp_path / "corpus.zarr", planted(200), label_names=NAMES)
    config = sm.TrainConfig(epochs=5, memory="512MiB")
    sm.train(tmp_path / "corpus.zarr", config, run=tmp_path / "run")
    files = (
        folder / "model.safetensors" for folder in (tmp_path / "run", tmp_path / "out" / "run")
    )
    one, two = (file.read_bytes() for file in files)
    same = one == two
    assert same, "the models differ"


@pytest.mark.slow
def test_score_on_dask__is_the_same_as_alone(trained, tmp_path):
    words = [trained / "run", trained / "x.zarr", tmp_path / "out"]
    output = example("score_on_dask", *words, cwd=tmp_path)
    assert output.startswith("scoring at tcp://")
    assert "the same alone: True" in output
    assert "300 bags" in output


@pytest.fixture(scope="module")
def plain(trained):
    """What the first way of reading says, to which the others are held."""
    return example("read_predictions", trained / "predictions", "pyarrow", cwd=trained)


@pytest.mark.parametrize("way", ["pyarrow", "pandas", "polars", "duckdb"])
def test_read_predictions__every_way_gives_the_same_table(trained, plain, tmp_path, way):
    output = example("read_predictions", trained / "predictions", way, cwd=tmp_path)
    figures = sm.evaluate(trained / "run", trained / "x.zarr", metrics=["per_label"])
    want = {row["name"]: row["predicted"] for row in figures["per_label"] if row["predicted"]}
    lines = [line.split() for line in output.splitlines()]
    assert {name: int(count) for name, count, _ in lines} == want
    assert lines == sorted(lines)
    assert output == plain


def test_predictions__of_the_command_line_are_what_the_example_reads(trained, tmp_path):
    words = ["predict", str(trained / "run"), str(trained / "x.zarr"), str(tmp_path / "out")]
    assert command(words) == 0
    assert example("read_predictions", tmp_path / "out", cwd=tmp_path)


def test_heat_map__shows_each_row_where_it_lies(trained, tmp_path):
    images = pytest.importorskip("matplotlib.image", reason="the picture is drawn by matplotlib")
    pytest.importorskip("pandas")
    n_features = sm.open_store(trained / "x.zarr").n_features
    features = np.random.default_rng(0).normal(size=(11, n_features)).astype(np.float32)
    # Two lines of six rows, of which the last is missing, in any order.
    places = np.random.default_rng(1).permutation(11)
    coords = np.column_stack([places % 6 * 256 + 100, places // 6 * 256 + 700])
    store = sm.write_store(
        tmp_path / "slides.zarr",
        [features[:2], features],
        [["sea"], ["sky"]],
        label_names=sm.open_store(trained / "x.zarr").label_names,
        keep={"coords": [coords[:2], coords]},
    )
    words = [trained / "run", store.name, tmp_path / "map.png", "--label", "sky", "--bag", "1"]
    output = example("heat_map", *words, cwd=tmp_path)
    scores = sm.row_scores(trained / "run", features, "sky")
    x, y = coords[int(scores[0][:, 0].argmax())].tolist()
    assert output.startswith(f"sky: {scores.above_dummy.mean():.1%} of 11 rows above")
    assert output.strip().endswith(f"most at {x}, {y}")
    assert np.ptp(images.imread(tmp_path / "map.png")[..., 0]) > 0.3


# Other programs that watch a run; tested where they are installed.


@pytest.fixture(scope="module")
def planted_store(tmp_path_factory):
    path = tmp_path_factory.mktemp("planted") / "x.zarr"
    write_store(path, planted(300), label_names=NAMES)
    return path


def test_track_with_mlflow__records_settings_curves_and_model(planted_store, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    records = f"sqlite:///{tmp_path}/records.db"
    words = [planted_store, "run", "--epochs=12"]
    said = example("track_with_mlflow", *words, cwd=tmp_path, MLFLOW_TRACKING_URI=records)
    mlflow.set_tracking_uri(records)
    client = mlflow.tracking.MlflowClient()
    (run,) = client.search_runs(["0"])
    assert run.data.params["epochs"] == "12"
    assert f"ranking loss {run.data.metrics['ranking_loss_of_store']:.4f}" in said
    steps = [point.step for point in client.get_metric_history(run.info.run_id, "loss")]
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert steps == [json.loads(line)["step"] for line in lines]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["model.safetensors"]


def test_track_with_wandb__records_curves_and_result(planted_store, tmp_path):
    pytest.importorskip("wandb")
    words = [planted_store, "run", "--epochs=12"]
    said = example("track_with_wandb", *words, cwd=tmp_path, WANDB_MODE="offline")
    assert re.search(r"^Model\(.*ranking loss 0\.\d+$", said, re.MULTILINE)
    assert list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))


def test_search_with_optuna__writes_settings_that_train_takes(planted_store, tmp_path):
    pytest.importorskip("optuna")
    said = example("search_with_optuna", planted_store, "best.toml", "--trials=8", cwd=tmp_path)
    assert float(re.search(r"ranking loss ([0-9.]+)", said)[1]) < 0.5
    assert re.search(r"\d of 8 ended early", said)
    options = ["--config", str(tmp_path / "best.toml"), "--epochs=1", "--preset=plain"]
    assert command(["train", str(planted_store), str(tmp_path / "run"), *options]) == 0
