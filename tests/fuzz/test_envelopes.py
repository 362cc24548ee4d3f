"""Envelopes: what is unwrapped and wrapped again is read as before; mutants pass the checksums."""

from random import Random

import numpy as np
import pytest

from streammiml.bags.layout import MANIFEST
from streammiml.bags.store import open_store
from streammiml.errors import StreammimlError
from streammiml.model import load_model
from tests.fuzz import corpora
from tests.fuzz.envelopes import envelope_of, mutant, sealed
from tests.fuzz.targets import TARGETS, seal_store

CASES = [
    (target, case)
    for target in ("jsonl", "npz", "matlab", "tfrecord", "manifest", "model")
    for case in TARGETS[target].corpus()
]


@pytest.mark.parametrize(("target", "case"), CASES)
def test_files__are_read_as_before_when_they_are_wrapped_again(target, case, tmp_path):
    files = dict(case.files)
    for name, content in files.items():
        envelope = envelope_of(name, content)
        if envelope is not None and b"MATLAB 7.3" not in content:
            files[name] = envelope.wrap(content, envelope.unwrap(content))

    def outcome(files, folder):
        type(case)(files).write(folder)
        try:
            return TARGETS[target].run(folder, 0)
        except StreammimlError as error:
            return str(error).replace(str(folder), "")

    assert outcome(files, tmp_path / "a") == outcome(case.files, tmp_path / "b")


@pytest.mark.parametrize("backend", ["zarr", "parquet"])
def test_sealed__a_whole_store_stays_the_same_bytes(backend):
    for case in corpora.stores(backend):
        assert seal_store(case.files) == case.files


@pytest.mark.parametrize("backend", ["zarr", "parquet"])
def test_sealed__changed_values_pass_the_checksums(backend, tmp_path):
    case = corpora.stores(backend)[0]
    files = {name.partition("/")[2]: content for name, content in case.files.items()}
    key = next(
        key for key, content in files.items() if np.float32(made_value()).tobytes() in content
    )
    files[key] = files[key].replace(np.float32(made_value()).tobytes(), np.float32(7).tobytes())
    for changed, is_read in ((files, False), (sealed(files), True)):
        path = tmp_path / f"{is_read}.{backend}"
        type(case)(changed).write(path)
        if is_read:
            store = open_store(path)
            assert 7 in store.read(0, store.n_bags).rows
        else:
            with pytest.raises(StreammimlError, match="checksum"):
                open_store(path).read(0, 6)


def made_value():
    """A value of the corpus that is in no other place."""
    rows = corpora.made_block(6).rows
    return rows[rows != 0][0]


def test_mutants_of_manifests__mostly_pass_the_checksum(tmp_path):
    case = corpora.manifests()[0]
    (content,) = case.files.values()
    messages = []
    for seed in range(200):
        path = tmp_path / f"{seed}.zarr" / MANIFEST
        path.parent.mkdir(parents=True)
        path.write_bytes(mutant(MANIFEST, content, Random(seed), [], []))
        with pytest.raises(StreammimlError) as caught:
            open_store(path.parents[1]).read(0, 1)
        messages.append(str(caught.value))
    assert sum("checksum differs" in message for message in messages) < 40
    assert sum("expected" in message for message in messages) > 20


def test_mutants_of_models__mostly_pass_the_checksum(tmp_path):
    content = corpora.models()[0].files["model.safetensors"]
    path, outcomes = tmp_path / "model.safetensors", []
    for seed in range(200):
        path.write_bytes(mutant(path.name, content, Random(seed), [], []))
        try:
            load_model(path)
            outcomes.append("read")
        except StreammimlError as error:
            outcomes.append(str(error))
    assert outcomes.count("read") > 5
    assert sum("checksum" in outcome for outcome in outcomes) < 20
