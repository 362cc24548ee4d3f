"""What README and guide print works as printed: files, commands, snippets, and their results.

``tests/story.py`` says how blocks are run and compared. Each page of the guide runs in a copy of
the folder of a reader who did what the page *start* says.
"""

import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from streammiml.bags.layout import FOLDER
from streammiml.tell.guide import PAGES, guide
from streammiml.verbs.main import VERBS
from tests.story import Block, blocks_of, commands_in, difference, run_block
from tests.tools.readers import tf_messages as tf

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
WRITTEN = [name for name, path in PAGES.items() if path.startswith("guide/")]
PACKAGES = {"torch": "torch", "onnxruntime": "onnxruntime", "sklearn": "sklearn", "h5py": "h5py"}
"""Packages that only some installations have; blocks that import them are skipped without."""


RUN = ("console", "python")


def blocks(text):
    """(kind, text) of every block that can be run, in order."""
    return [(block.kind, block.text) for block in blocks_of(text) if block.kind in RUN]


def test_difference__dots_stand_for_any_text():
    shown = ["a … c", "…", "end"]
    assert not difference(shown, "a b c\nx\ny\nend\n")
    assert not difference(shown, "a b c\nend\n")
    assert difference(shown, "a b c\nend\nmore\n")
    assert difference(shown, "a b d\nend\n")


def test_difference__decimal_numbers_may_be_near_and_others_may_not():
    assert not difference(["loss   0.0310 of 183"], "loss 0.0295 of 183\n")
    assert "0.0310" not in difference(["loss 0.03 of 183"], "loss 0.04 of 183\n")
    assert difference(["loss 0.03 of 183"], "loss 0.3 of 183\n").startswith("0.03 is shown, 0.3 ")
    assert difference(["loss 0.03 of 183"], "loss 0.03 of 184\n")


def test_run_block__a_wrong_result_of_a_snippet_is_found(tmp_path):
    [block] = blocks_of("```python\nn = 2\nn + 1  # → 3\nprint('x')\n```\n")
    run_block(block, tmp_path)
    with pytest.raises(AssertionError, match="shown:\n4"):
        run_block(block._replace(text=block.text.replace("→ 3", "→ 4")), tmp_path)
    with pytest.raises(AssertionError, match="does not show what"):
        run_block(block._replace(kind="console", text="$ streammiml --version\n"), tmp_path)


def test_readme__opens_with_the_two_commands():
    commands = [words for kind, text in blocks(README) for words, _ in commands_in(text)]
    assert commands == [
        ["python3", "tools/run.py", "demo"],
        ["python3", "tools/run.py", "test"],
    ]
    assert "python3 tools/run.py test" in (ROOT / ".ci" / "run").read_text()


def test_readme__is_two_screens():
    assert len((ROOT / "README.md").read_bytes()) <= 9000


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The folder of a reader who did what the page *start* says, as the other pages expect."""
    folder = tmp_path_factory.mktemp("reader")
    for block in blocks_of(guide("start")):
        run_block(block, folder)
    return folder


def test_start__ends_with_a_model_and_a_page(started):
    assert (started / "run" / "model.safetensors").exists()
    assert (started / "report.html").stat().st_size > 10_000


def test_readme__its_commands_are_those_of_the_page_start():
    typed = re.search(r"```text\n(streammiml convert .*?)```", README, re.S)[1].splitlines()
    told = [
        shlex.join(words)
        for kind, text in blocks(guide("start"))
        if kind == "console"
        for words, _ in commands_in(text)
    ]
    assert typed == told
    assert len(typed) == 5


def test_readme__its_example_runs(tmp_path):
    [block] = [block for block in blocks_of(README) if block.kind == "python"]
    shown = "(predictions.labels[1].tolist(), predictions.key_instances[1].tolist())"
    run_block(block._replace(text=f"{block.text}{shown}  # → ([0, 1], [0, 0])"), tmp_path)
    assert (tmp_path / "mine.html").exists()


def write_videos(folder):
    """Two TFRecord files of videos whose labels can be seen in their frames."""
    rng = np.random.default_rng(6)
    for file in range(2):
        messages = []
        for number in range(200):
            labels = sorted({int(rng.integers(6)), number % 6})
            rows = rng.normal(size=(int(rng.integers(3, 7)), 8)).clip(-8, 8)
            for place, label in enumerate(labels):
                rows[place, label] += 5
            frames = [(r.clip(-8, 8) * 12 + 128).astype(np.uint8).tobytes() for r in rows]
            name = f"v{file}{number}".encode()
            messages.append(tf.sequence({"id": name, "labels": labels}, {"rgb": frames}))
        tf.write(folder / f"train{file}.tfrecord", messages)


def fill_bucket(url):
    """A folder with a file for each bag, and the table of their labels, in a bucket."""
    obstore = pytest.importorskip("obstore")
    bucket = pytest.importorskip("obstore.store").from_url(url)
    rng, lines = np.random.default_rng(6), ["scan,tumour,fat"]
    for number in range(60):
        rows = rng.normal(size=(int(rng.integers(2, 6)), 6)).astype(np.float32)
        rows[0, number % 2] += 6
        lines.append(f"scan{number},{int(number % 2 == 0)},{number % 2}")
        path = Path(f"scan{number}.npy")
        np.save(path, rows)
        obstore.put(bucket, f"scans/{path}", path.read_bytes())
    obstore.put(bucket, "scans.csv", "\n".join([*lines, ""]).encode())


@pytest.fixture
def dask_cluster(tmp_path, monkeypatch):
    """Address of a cluster of one worker, whose folder is the reader's."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN[1:])
def test_guide__a_page_works_as_printed(name, started, tmp_path, request, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(started, tmp_path, dirs_exist_ok=True)
    page, names = guide(name), {}
    if "train*.tfrecord" in page:
        write_videos(tmp_path)
    if "s3://bucket" in page:
        names["s3://bucket"] = request.getfixturevalue("s3")
        fill_bucket(names["s3://bucket"])
    if "tcp://scheduler:8786" in page:
        names["tcp://scheduler:8786"] = request.getfixturevalue("dask_cluster")
    for block in blocks_of(page):
        if not missing_for(block.text):
            run_block(block, tmp_path, names)


def missing_for(text):
    """Packages that a block imports and this installation lacks."""
    imported = re.findall(r"^(?:from|import) (\w+)", text, re.M)
    return [name for name in imported if name in PACKAGES and find_spec(name) is None]


@pytest.mark.slow
def test_guide__its_snippet_for_pytorch_runs(started, tmp_path):
    pytest.importorskip("torch")
    shutil.copytree(started, tmp_path, dirs_exist_ok=True)
    [block] = [block for block in blocks_of(guide("loader")) if "torch" in block.text]
    # Workers that are spawned import the program, so it must be a file.
    (tmp_path / "program.py").write_text(block.text)
    run_block(block._replace(kind="console", text="$ python program.py\n…\n"), tmp_path)


@pytest.mark.slow
def test_help__its_examples_work_one_after_another(started, tmp_path):
    shutil.copy(started / "bags.csv", tmp_path)
    for name, verb in VERBS.items():
        if name == "demo":
            continue  # The README's first command, with tests of its own.
        if name == "seal":
            shutil.copytree(tmp_path / "corpus-test.zarr", tmp_path / "foreign.zarr")
            shutil.rmtree(tmp_path / "foreign.zarr" / FOLDER)
        run_block(Block("console", "", f"$ streammiml {verb.example}\n…\n"), tmp_path)


@pytest.mark.parametrize("name", WRITTEN)
def test_guide__every_block_is_run_or_has_nothing_to_run(name):
    for block in blocks_of(guide(name)):
        if block.kind in RUN or block.title:
            continue
        assert block.kind == "text", block
        for line in block.text.splitlines():
            if line.startswith("streammiml "):
                verb = line.split()[1]
                assert line.startswith(f"streammiml {verb} {VERBS[verb].arguments}"), line


@pytest.mark.parametrize("name", PAGES)
def test_guide__links_lead_somewhere(name):
    links = re.findall(r"\]\(([^)]+)\)", guide(name))
    folder = (ROOT / "streammiml" / PAGES[name]).parent
    assert all("://" in link or (folder / link).exists() for link in links)
    for page in re.findall(r"`streammiml guide (\w+)`", guide(name)):
        assert page in PAGES


def test_start__links_to_every_page():
    links = re.findall(r"\]\((\w+)\.md\)", guide("start"))
    assert set(links) == {*WRITTEN} - {"start"}
    assert set(re.findall(r"\]\(streammiml/guide/(\w+)\.md\)", README)) <= {*WRITTEN}
