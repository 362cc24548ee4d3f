"""Training straight from an object store: the bytes of training from a local copy."""

import pytest

from streammiml.bags.store import open_store
from streammiml.config import TrainConfig
from streammiml.learn.train import train
from streammiml.verbs.main import run as run_command
from tests.planted import planted
from tests.remote_servers import BUCKET, s3_server, s3_settings
from tests.stores import write_store

SMALL = {
    "shared_dim": 8, "subconcepts": 2, "block_bags": 8, "mix_blocks": 6, "epochs": 2,
    "validate_every": 90, "checkpoint_every": "70",
}  # fmt: skip


@pytest.fixture(scope="module")
def bucket():
    with s3_server() as address, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_settings(address).items():
            patch.setenv(name, value)
        yield f"s3://{BUCKET}"


@pytest.fixture(scope="module", params=["zarr", "parquet"])
def copies(request, bucket, tmp_path_factory):
    """The same bags, in a folder and under a URL."""
    local = tmp_path_factory.mktemp("local") / f"s.{request.param}"
    afar = f"{bucket}/s.{request.param}"
    for where in (local, afar):
        write_store(where, planted(120))
    return str(local), afar


def test_s3__trains_to_the_bytes_of_the_local_copy(copies, tmp_path):
    for where, name in zip(copies, ("local", "afar"), strict=True):
        train(where, TrainConfig(**SMALL), run=tmp_path / name)
    one, two = (tmp_path / name / "model.safetensors" for name in ("local", "afar"))
    assert one.read_bytes() == two.read_bytes()


class Crash(Exception):
    pass


def test_s3__a_run_begun_there_goes_on_from_the_local_copy(copies, tmp_path):
    local, afar = copies
    train(local, TrainConfig(**SMALL), run=tmp_path / "whole")

    def watch(progress):
        if progress.step >= 150:
            raise Crash

    with pytest.raises(Crash):
        train(afar, TrainConfig(**SMALL), run=tmp_path / "run", watch=watch)
    train(local, TrainConfig(**SMALL), run=tmp_path / "run", resume=True)
    one, two = (tmp_path / name / "model.safetensors" for name in ("run", "whole"))
    assert one.read_bytes() == two.read_bytes()


def test_s3__stores_to_train_on_and_to_look_at_by_command(copies, tmp_path, capsys):
    _, afar = copies
    words = ["train", afar, afar, str(tmp_path / "run"), "--weights=2,1", "--epochs=1"]
    words += [f"--validation-store={afar}", "--shared-dim=8"]
    assert run_command(words) == 0
    assert "360 steps" in capsys.readouterr().out
    assert open_store(afar).n_bags == 120


def test_s3__a_store_that_is_not_there_is_one_line(bucket, tmp_path, capsys):
    assert run_command(["train", f"{bucket}/no.zarr", str(tmp_path / "run")]) == 2
    line = capsys.readouterr().err
    assert f"{bucket}/no.zarr" in line
    assert line.count("\n") == 1
    assert not (tmp_path / "run").exists()
