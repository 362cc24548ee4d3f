"""Summary of a store."""

import streammiml as sm
from streammiml.bags.summary import describe


def test_describe__counts_what_the_block_holds(tiny):
    store, block = sm.open_store(tiny.path), tiny.block
    figures = describe(store)
    assert (figures["n_bags"], figures["n_rows"]) == (len(block), block.n_rows)
    assert figures["rows_per_bag"] == block.n_rows / len(block)
    assert figures["labels_per_bag"] == len(block.label_indices) / len(block)
    assert figures["format"] == tiny.backend
    assert figures["bytes"] == sum(size for _, size, _ in store.manifest.files)
    assert figures["label_names"] == ["sea", "sky", "sun", "tree"]
