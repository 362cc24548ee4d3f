"""Bags in memory are read like a store with the same bags."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from streammiml.bags.block import BagBlock
from streammiml.bags.memory import MemoryBags
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter
from streammiml.config import TrainConfig
from streammiml.errors import StoreError
from streammiml.learn.train import train
from tests import strategies
from tests.stores import assert_same, scratch


@given(corpus=strategies.corpora())
def test_memory_bags__read_like_a_store(corpus):
    spec = corpus.spec
    with scratch() as folder:
        with BagWriter.begin(folder / "bags.zarr", spec) as writer:
            writer.write_part(0, corpus.block)
            store = writer.finish(1)
        memory = MemoryBags(corpus.block, n_labels=spec.n_labels)
        for field in ("n_bags", "n_rows", "n_label_entries", "n_labels", "sparse", "fingerprint"):
            assert getattr(memory, field) == getattr(store, field), field
        assert_same(replace(memory.read(0, len(memory)), bag_ids=None), store.read(0, len(store)))
        assert memory.bag_ids(0, memory.n_bags) == store.bag_ids(0, store.n_bags)
        assert (
            memory.bag_sizes(1, memory.n_bags).tolist()
            == store.bag_sizes(1, memory.n_bags).tolist()
        )
        for mine, theirs in zip(
            memory.labels(1, len(memory)), store.labels(1, len(memory)), strict=True
        ):
            assert mine.tolist() == theirs.tolist()


def planted():
    rng = np.random.default_rng(0)
    bags = [rng.standard_normal((rng.integers(1, 5), 6)) for _ in range(300)]
    labels = [[int(bag.sum() > 0), 2] if len(bag) > 1 else [] for bag in bags]
    return BagBlock.from_bags(bags, [sorted(set(bag_labels)) for bag_labels in labels])


def test_memory_bags__train_to_the_bytes_of_a_store(tmp_path):
    memory = MemoryBags(planted())
    with BagWriter.begin(tmp_path / "bags.zarr", StoreSpec(n_features=6)) as writer:
        writer.write_part(0, planted())
        store = writer.finish(1)
    config = TrainConfig(shared_dim=8, epochs=2, validation=0.2)
    for name, bags in (("memory", memory), ("store", store)):
        train(bags, config).save(tmp_path / name)
    assert (tmp_path / "memory").read_bytes() == (tmp_path / "store").read_bytes()


def test_memory_bags__refuse_blocks_that_a_store_would_refuse():
    block = BagBlock.from_bags([np.array([[1.0, np.nan]])], [[0]])
    with pytest.raises(StoreError, match="bags in memory, bag 0, row 0: value is nan"):
        MemoryBags(block)
