"""train as a user runs it: results on stdout, one line and 2 for bad input, nothing left behind."""

import json
import re
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from streammiml.model import Model
from streammiml.verbs.main import run
from tests.planted import planted
from tests.stores import write_store
from tests.verbs.output import printed

QUICK = ["--shared-dim=8", "--subconcepts=2", "--epochs=2", "--validate-every=200"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.zarr"
    write_store(path, planted())
    return str(path)


def refused(capsys, *words):
    """The one line that a command is refused with."""
    assert run([str(word) for word in words]) == 2
    out, err = printed(capsys)
    assert out == ""
    assert err.startswith("streammiml: ")
    assert "\n" not in err
    return err


def test_train__leaves_a_run_folder_and_says_what_it_made(store, tmp_path, capsys):
    folder = tmp_path / "deep" / "run"
    assert run(["train", store, str(folder), *QUICK, "--validation=0.1"]) == 0
    out, err = printed(capsys)
    assert re.fullmatch(rf"{folder}: Model\(6 features, .*5 labels, rule=dummy, .*\d+ steps\)", out)
    assert re.search(r"epoch 1/2, step 200, .* steps/s, .* ranking loss 0\.\d+", err)
    names = {path.name for path in folder.iterdir()}
    files = {"settings.toml", "history.jsonl", "checkpoints", "model.safetensors", "origin.json"}
    files |= {"model-card.md"}
    assert names == {*files, "lock"}
    assert tomllib.loads((folder / "settings.toml").read_text())["shared_dim"] == 8
    (line, *_) = (folder / "history.jsonl").read_text().splitlines()
    keys = {"step", "seconds", "mb_per_second", "share_of_violations", "validation_loss"}
    assert keys <= set(json.loads(line))
    assert Model.load(folder).n_labels == 5


def test_train__again_needs_resume_and_then_costs_nothing(store, tmp_path, capsys):
    words = ["train", store, str(tmp_path / "run"), *QUICK]
    assert run(words) == 0
    before = (tmp_path / "run/model.safetensors").read_bytes()
    printed(capsys)
    assert "run exists already; --resume goes on with it" in refused(capsys, *words)
    assert run([*words, "--resume"]) == 0
    assert (tmp_path / "run/model.safetensors").read_bytes() == before


def test_train__resume_begins_a_run_that_is_not_there(store, tmp_path):
    assert run(["train", store, str(tmp_path / "run"), *QUICK, "--resume"]) == 0
    assert run(["train", store, str(tmp_path / "other"), *QUICK]) == 0
    one, two = (tmp_path / name / "model.safetensors" for name in ("run", "other"))
    assert one.read_bytes() == two.read_bytes()


def test_train__several_stores_at_once(store, tmp_path, capsys):
    assert run(["train", store, store, str(tmp_path / "run"), *QUICK, "--validation=0"]) == 0
    assert "1200 steps" in printed(capsys)[0]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--shared-dim=0"], "shared_dim must be a whole number at least 1, got 0"),
        (["--shared-dim=x"], "--shared-dim"),
        (["--order=sorted"], "no order is called 'sorted'; known: blocks, full, uniform"),
        (["--memory=lots"], "memory must be a size such as 256MiB or 2GiB, got 'lots'"),
        (["--checkpoint-every=5parsecs"], "checkpoint_every must be a time such as 90s"),
        (["--validation=1"], "validation must be below 1, got 1.0"),
        (["--max-vif=0.5"], "max_vif must be at least 1, got 0.5"),
        (["--colour=blue"], "--colour"),
        (["--lift=fourier"], "fourier needs a number of features"),
        (["--shared-dim=100000000"], "training would hold"),
        (["--validation=0.000001"], "holds out no bag"),
        (["--config=nothing.toml"], "nothing.toml cannot be read"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_train__bad_options_are_one_line_and_leave_nothing_to_resume(
    words, line, store, tmp_path, capsys
):
    assert line in refused(capsys, "train", store, tmp_path / "run", *words)
    assert not (tmp_path / "run/settings.toml").exists()
    assert run(["train", store, str(tmp_path / "run"), *QUICK]) == 0


def test_train__bad_paths_are_one_line(store, tmp_path, capsys):
    assert "train needs a store and a folder" in refused(capsys, "train", store)
    assert "train needs a store and a folder" in refused(capsys, "train")
    missing = refused(capsys, "train", tmp_path / "no.zarr", tmp_path / "run")
    assert "no.zarr does not exist" in missing
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").touch()
    line = refused(capsys, "train", store, tmp_path / "file")
    assert "file cannot be written: Not a directory" in line


def unlabelled(n_bags=40):
    block = planted(n_bags)
    none = np.zeros(n_bags + 1, np.int64)
    return replace(block, label_offsets=none, label_indices=block.label_indices[:0])


def only_label_0(n_bags=40):
    block = planted(n_bags)
    ones = np.arange(n_bags + 1)
    return replace(block, label_offsets=ones, label_indices=np.zeros(n_bags, np.int32))


def zeroed(n_bags=40):
    block = planted(n_bags)
    return replace(block, rows=np.zeros_like(block.rows))


@pytest.mark.parametrize(
    ("block", "said_of_it", "words", "line"),
    [
        (unlabelled(), {"n_labels": 5}, [], "s.zarr has no labels to learn from: no bag carries"),
        (only_label_0(), {"n_labels": 1}, ["--validation=0.1"], "s.zarr has one label and early"),
        (only_label_0(), {"n_labels": 1}, [], None),
        (planted(40), {}, ["--validation=0.0001"], "of 40 bags holds out no bag; give another"),
        (planted(2), {}, ["--validation=0.99999"], "of 2 bags holds out every bag; give another"),
        (zeroed(), {}, [], "every feature is zero over the "),
        (planted(40), {}, ["--lift=fourier:9999999"], "training would hold "),
        (planted(40), {}, ["--shared-dim=1000000000"], "more than --memory 1GiB; --memory "),
        (planted(40), {}, ["--memory=1MiB"], "more than --memory 1MiB; --memory "),
        (planted(40), {}, ["--weights=1,2"], "there are 2 weights for 1 stores; give one for each"),
        (planted(40), {}, ["--weights=heavy"], "weights must be numbers from 0.001 to 1000"),
        (planted(40), {}, ["--validation-store=no.zarr"], "no.zarr does not exist"),
        (planted(40), {}, ["--start=no.safetensors"], "no.safetensors does not exist; a model"),
        (planted(40), {}, ["--extend=-1"], "extend must be a whole number at least 0, got -1"),
    ],
)
def test_train__what_cannot_be_trained_on_is_one_line(
    block, said_of_it, words, line, tmp_path, capsys
):
    write_store(tmp_path / "s.zarr", block, **said_of_it)
    if line is None:
        assert run(["train", str(tmp_path / "s.zarr"), str(tmp_path / "run"), *QUICK, *words]) == 0
        return
    for more in ([], ["--dry-run"]):
        if not (more and ("zero" in line or "extend" in line)):
            refusal = refused(capsys, "train", tmp_path / "s.zarr", tmp_path / "run", *words, *more)
            assert line in refusal
    assert not (tmp_path / "run/settings.toml").exists()


def test_train__an_empty_folder_is_no_store(tmp_path, capsys):
    (tmp_path / "s.zarr").mkdir()
    line = refused(capsys, "train", tmp_path / "s.zarr", tmp_path / "run")
    assert "s.zarr is no store: it has no" in line
    assert not (tmp_path / "run").exists()


def test_train__a_config_key_that_is_unknown_is_one_line(store, tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text("shared_dimm = 3\n")
    line = refused(capsys, "train", store, tmp_path / "run", f"--config={file}")
    assert "run.toml: no option is called 'shared_dimm'; known: " in line


def test_train__a_store_in_place_of_the_run_is_left_alone(store, capsys):
    for words in ([], ["--resume"]):
        line = refused(capsys, "train", store, store, *words)
        assert "is a store, but the last path is the folder for the run" in line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--seed=4"], "was begun with seed 0, not 4"),
        (["--shared-dim=100"], "was begun with shared_dim 8, not 100"),
        (["--validate-every=7"], "was begun with validate_every 200, not 7"),
    ],
)
def test_resume__options_that_contradict_are_refused_also_those_that_are_the_default(
    words, line, store, tmp_path, capsys
):
    assert run(["train", store, str(tmp_path / "run"), *QUICK]) == 0
    printed(capsys)
    assert line in refused(capsys, "train", store, tmp_path / "run", "--resume", *words)


def test_resume__may_go_on_for_longer_also_to_the_default(store, tmp_path, capsys):
    words = ["train", store, str(tmp_path / "run")]
    assert run([*words, *QUICK]) == 0
    assert "700 steps" not in printed(capsys)[0]
    assert run([*words, "--resume", "--epochs=100", "--max-steps=700"]) == 0
    assert "700 steps" in printed(capsys)[0]
    settings = tomllib.loads((tmp_path / "run/settings.toml").read_text())
    assert (settings["epochs"], settings["max_steps"]) == (100, 700)


def test_extend__goes_on_for_more_epochs(store, tmp_path, capsys):
    words = ["train", store, str(tmp_path / "run")]
    assert run([*words, *QUICK]) == 0
    assert run([*words, *QUICK, "--extend=3"]) == 0
    assert (
        run(["train", store, str(tmp_path / "straight"), *QUICK[:2], "--epochs=5", QUICK[3]]) == 0
    )
    one, two = (tmp_path / name / "model.safetensors" for name in ("run", "straight"))
    assert one.read_bytes() == two.read_bytes()
    printed(capsys)
    assert run([*words, "--resume"]) == 0
    assert "nothing was left to train: the run had ended before" in printed(capsys)[1]
    line = refused(capsys, "train", store, tmp_path / "none", "--extend=3")
    assert "none holds no run to extend" in line


def test_extend__killed_before_its_result_is_told_has_the_same_end(
    store, tmp_path, capsys, monkeypatch
):
    words = ["train", store, str(tmp_path / "run")]
    assert run([*words, *QUICK]) == 0

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("streammiml.verbs.train.finish_extension", killed)
        with pytest.raises(Killed):
            run([*words, "--extend=3"])
    before = (tmp_path / "run/model.safetensors").read_bytes()
    assert run([*words, "--extend=3"]) == 0
    assert (tmp_path / "run/model.safetensors").read_bytes() == before
    assert "nothing was left to train" in printed(capsys)[1]
    assert run([*words, "--extend=3"]) == 0
    assert tomllib.loads((tmp_path / "run/settings.toml").read_text())["epochs"] == 8


# Options from a file.


def test_config__gives_the_same_bytes_as_options(store, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("shared_dim = 8\nsubconcepts = 2\nepochs = 9\nvalidate_every = 200\n")
    words = ["train", store, str(tmp_path / "a"), f"--config={file}", "--epochs=2"]
    assert run(words) == 0
    assert run(["train", store, str(tmp_path / "b"), *QUICK]) == 0
    one, two = (tmp_path / name / "model.safetensors" for name in ("a", "b"))
    assert one.read_bytes() == two.read_bytes()


def test_config__settings_of_another_run_will_do(store, tmp_path):
    assert run(["train", store, str(tmp_path / "a"), *QUICK]) == 0
    settings = tmp_path / "a/settings.toml"
    assert run(["train", store, str(tmp_path / "b"), f"--config={settings}"]) == 0
    one, two = (tmp_path / name / "model.safetensors" for name in ("a", "b"))
    assert one.read_bytes() == two.read_bytes()


# Dry runs.


def test_dry_run__says_what_it_would_take_and_leaves_nothing(store, tmp_path, capsys):
    assert run(["train", store, str(tmp_path / "run"), "--dry-run"]) == 0
    out, err = printed(capsys)
    assert err == ""
    assert not (tmp_path / "run").exists()
    n_bags = [int(n) for n in re.findall(r"bags (?:to train on|held out) +(\d+)", out)]
    assert sum(n_bags) == 300
    for line in (
        r"variance inflation +1\.00 of label counts",
        r"memory, weights +\d",
        r"memory, all +[\d.]+ MiB of 1 GiB",
        rf"steps +{n_bags[0] * 134:,}, {n_bags[0]} per epoch",
        r"reads, about +[\d.]+ [KM]iB, [\d.]+ KiB per epoch",
        r"time, about +\d+ (s|min) without early stopping, "
        r"from [\d,]+ µs per step and \S+ s per look",
    ):
        assert re.search(line, out), line


def test_dry_run__as_json_has_the_same_numbers(store, tmp_path, capsys):
    assert run(["train", store, str(tmp_path / "run"), "--dry-run", "--json", "--epochs=3"]) == 0
    plan = json.loads(printed(capsys)[0])
    assert plan["steps"] == 3 * plan["steps_per_epoch"] == 3 * plan["training_bags"]
    assert plan["memory_total"] == sum(plan["memory"].values())
    assert plan["vif"] == 1.0
    assert plan["seconds"] > 0
    assert plan["read_per_epoch"] > 0


def test_dry_run__refuses_what_training_would_refuse(store, tmp_path, capsys):
    line = refused(capsys, "train", store, tmp_path / "run", "--dry-run", "--memory=1MiB")
    assert "more than --memory 1MiB" in line


def test_help__names_every_option_with_its_words(capsys):
    assert run(["train", "--help"]) == 0
    out, _ = printed(capsys)
    for word in ("--shared-dim", "--no-average", "--checkpoint-every", "--dry-run", "--resume"):
        assert word in out
    text = " ".join(out.replace("│", " ").split())
    assert "Upper limit for passes over the training bags" in text


def test_train__json_is_one_object(store, tmp_path, capsys):
    assert run(["train", store, str(tmp_path / "run"), *QUICK, "--json"]) == 0
    facts = json.loads(printed(capsys)[0])
    assert facts["run"] == str(tmp_path / "run")
    assert facts["steps"] > 0


def test_train__says_at_the_end_where_the_time_went(store, tmp_path, capsys):
    assert run(["train", store, str(tmp_path / "run"), *QUICK]) == 0
    words = r"time: \d+ s; kernel \d+%, reading \d+%, validation \d+%, checkpoints \d+%"
    assert re.search(words, printed(capsys)[1].splitlines()[-1])


def test_train__that_is_refused_says_nothing_else(store, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("STREAMMIML_DIRECT", "0")
    refused(capsys, "train", "no.zarr", tmp_path / "run", "--threads=2")
    assert run(["train", store, str(tmp_path / "run"), *QUICK, "--threads=2"]) == 0
    err = printed(capsys)[1]
    assert err.count("streammiml: several kernel threads: results vary from run to run") == 1
    assert err.count("streammiml: no reads that bypass the page cache (O_DIRECT)") == 1


def test_train__states_how_bags_are_mixed_before_the_first_step(store, tmp_path, capsys):
    words = ["train", store, str(tmp_path / "run"), *QUICK, "--block-bags=8", "--mix-blocks=6"]
    assert run(words) == 0
    first = printed(capsys)[1].splitlines()[0]
    shown = r"bags are drawn from 6 of 38 blocks of 8: label counts have (\d\.\d\d) times the"
    assert float(re.match(shown, first)[1]) > 2
    words = ["train", store, str(tmp_path / "full"), *QUICK, "--order=full"]
    assert run(words) == 0
    assert "bags are drawn from all 300" in printed(capsys)[1].splitlines()[0]


def test_train__that_stops_early_says_so_and_how_to_go_on(store, tmp_path, capsys):
    words = ["train", store, str(tmp_path / "run"), "--shared-dim=8", "--validate-every=20"]
    words.append("--validation=0.1")
    assert run([*words, "--patience=1", "--epochs=50"]) == 0
    assert "stopped early: no lower ranking loss in" in printed(capsys)[1]
    assert run([*words, "--extend=1"]) == 0


def test_tensorboard__leaves_event_files(store, tmp_path):
    words = ["train", store, str(tmp_path / "run"), *QUICK, f"--tensorboard={tmp_path / 'events'}"]
    assert run(words) == 0
    assert len([*(tmp_path / "events").glob("events.out.*")]) == 1
    assert run(["train", store, str(tmp_path / "plain"), *QUICK]) == 0
    one, two = (tmp_path / name / "model.safetensors" for name in ("run", "plain"))
    assert one.read_bytes() == two.read_bytes()


def test_train__several_threads_say_that_results_vary(tmp_path, capsys):
    store = tmp_path / "s.zarr"
    write_store(store, planted())
    words = ["train", str(store), str(tmp_path / "run"), "--threads", "2", "--max-steps", "50"]
    assert run(words) == 0
    assert "results vary from run to run" in capsys.readouterr().err


def test_train__into_a_url_is_refused_and_leaves_no_folder(store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, "train", store, "s3://bucket/run", *QUICK)
    assert line == (
        "streammiml: s3://bucket/run is a URL, and runs are written to folders of this machine "
        "only; name a folder, and upload it when it is complete"
    )
    line = refused(capsys, "train", store, "run", "--tensorboard", "gs://b/events", *QUICK)
    assert "/b/events is a URL, and event files are written to folders" in line
    assert not any(tmp_path.iterdir())


def test_train__on_a_file_or_with_swapped_paths_says_what_to_do(store, tmp_path, capsys):
    (tmp_path / "x.csv").write_text("bag,x,labels\n")
    line = refused(capsys, "train", tmp_path / "x.csv", tmp_path / "run")
    assert line.endswith(
        f"x.csv is no store but a file; convert it first: streammiml convert {tmp_path}/x.csv "
        f"{tmp_path}/x-store.zarr (streammiml guide convert)"
    )
    line = refused(capsys, "train", tmp_path / "run", store)
    assert line == (
        f"streammiml: {store} is a store, but the last path is the folder for the run: "
        f"streammiml train {store} {tmp_path}/run"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


@pytest.mark.parametrize("words", [["--calibrate"], ["--calibrate", "auto"], ["--calibrate=auto"]])
def test_train__calibrate_needs_no_value(store, tmp_path, capsys, caplog, words):
    caplog.set_level("INFO", "streammiml")
    # In front of the paths, the word after the option is a store.
    assert run(["train", *words, store, str(tmp_path / "run"), *QUICK]) == 0
    printed(capsys)
    folds = [line for line in caplog.messages if line.startswith("calibration: ")]
    assert folds == [f"calibration: training without fold {fold} of 3" for fold in (1, 2, 3)]
    model = Model.load(tmp_path / "run")
    assert model.calibration is not None
    assert model.settings["calibrate"] == "auto"
    assert run(["evaluate", str(tmp_path / "run"), store]) == 0
    out, _ = printed(capsys)
    assert re.search(r"^expected_calibration_error +0\.\d{4} +↓$", out, re.M)
    assert re.search(r"^brier_score +0\.\d{4} ± 0\.\d{4} ↓$", out, re.M)


def test_train__calibrate_is_refused_in_one_line(store, tmp_path, capsys):
    line = refused(capsys, "train", store, tmp_path / "run", "--calibrate=best")
    assert "best" in line
    words = ["--calibrate", "--validation=0", "--epochs=1"]
    write_store(tmp_path / "small.zarr", planted(20))
    line = refused(capsys, "train", tmp_path / "small.zarr", tmp_path / "run", *words)
    assert line.startswith("streammiml: --calibrate auto is fitted on held-out bags, and this run")


def test_train__a_dry_run_tells_what_calibration_costs(store, tmp_path, capsys):
    words = ["train", store, str(tmp_path / "run"), *QUICK, "--dry-run", "--calibrate"]
    assert run(words) == 0
    out, _ = printed(capsys)
    assert re.search(r"^calibration +1,200 steps, about .*, after training$", out, re.M)


def test_train__a_finished_run_can_be_calibrated_later(store, tmp_path, capsys):
    words = ["train", store, str(tmp_path / "run"), *QUICK]
    assert run(words) == 0
    assert run([*words, "--resume", "--calibrate"]) == 0
    assert "nothing was left to train" in printed(capsys)[1]
    assert Model.load(tmp_path / "run").calibration is not None
