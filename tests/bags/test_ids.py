"""Bag ids: hashed, split, and refused if repeated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.ids import id_hashes, refuse_twice, split_names
from streammiml.bags.offsets import from_sizes
from streammiml.errors import StoreError

names = st.lists(st.text(st.characters(codec="utf-8"), max_size=4), max_size=12)


@given(names)
def test_split_names__is_the_inverse_of_joining(ids):
    raw = [name.encode() for name in ids]
    offsets = from_sizes([len(name) for name in raw])
    assert split_names(offsets, np.frombuffer(b"".join(raw), np.uint8)) == ids


@given(names, st.booleans())
def test_refuse_twice__finds_the_first_repetition_whatever_the_hashes(ids, all_share_a_hash):
    hashes = np.zeros(len(ids), np.uint64) if all_share_a_hash else id_hashes(ids)
    repeated = [bag for bag, name in enumerate(ids) if name in ids[:bag]]
    if not repeated:
        refuse_twice(hashes, ids.__getitem__, "x.zarr")
        return
    with pytest.raises(StoreError, match=r"x.zarr: \d+ bag ids come twice, the first is") as error:
        refuse_twice(hashes, ids.__getitem__, "x.zarr")
    first = ids.index(ids[repeated[0]])
    assert str(error.value).endswith(f"(bags {first} and {repeated[0]})")
