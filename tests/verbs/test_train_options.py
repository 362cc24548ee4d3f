import pytest

from streammiml.errors import StreammimlError
from streammiml.verbs.train_options import TrainOptions, merged, stores_and_folder


def test_config__the_command_line_wins_over_the_file_over_the_defaults(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('epochs = 5\nseed = 3\nlift = "context"\naverage = false\n')
    got = merged(TrainOptions(epochs=100, seed=4, average=True), file)
    assert (got.epochs, got.seed, got.lift, got.average) == (100, 4, "context", True)
    assert merged(None, file).epochs == 5
    assert merged(None, None) == TrainOptions()


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"epoch = 3", r"run\.toml: no option is called 'epoch'; known: .*epochs"),
        (b"[train]\nepochs = 3", r"run\.toml: no option is called 'train'"),
        (b"epochs = ", r"run\.toml cannot be read: Invalid value"),
        (b"\xff\xfe\x00", r"run\.toml cannot be read: 'utf-8' codec"),
        (b"epochs = 2.5", r"run\.toml: epochs must be a whole number at least 1, got 2\.5"),
        (b"memory = 2.5", r"run\.toml: memory must be a size"),
        (b"scale = 2", r"run\.toml: scale must be text, got 2"),
        (b"lift = true", r"run\.toml: lift must be text, got True"),
        (b"max_vif = 'a'", r"run\.toml: max_vif must be a number above 0, got 'a'"),
        (b"checkpoint_every = 1.5", r"run\.toml: checkpoint_every must be a time"),
        (b"average = 1", r"run\.toml: average must be true or false, got 1"),
    ],
)
def test_config__what_cannot_be_used_is_one_line_that_names_the_file(content, line, tmp_path):
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    with pytest.raises(StreammimlError, match=line):
        merged(None, file)


@pytest.mark.parametrize("paths", [(), ("corpus.zarr",)])
def test_paths__a_store_and_a_folder_are_needed(paths):
    with pytest.raises(StreammimlError, match=r"^tune needs a store and a folder for the search$"):
        stores_and_folder(paths, "tune", "search")


def test_paths__the_last_one_is_the_folder():
    assert stores_and_folder(("a.zarr", "b.zarr", "run"), "train", "run") == (
        ["a.zarr", "b.zarr"],
        "run",
    )


def test_merged__the_settings_of_a_run_can_be_given_again(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('threshold = "count"\nthreshold_offset = 0.25\nepochs = 7\nvalidation = 0.0\n')
    got = merged(None, file)
    assert (got.epochs, got.threshold) == (7, None)
