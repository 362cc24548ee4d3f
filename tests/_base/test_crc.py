"""crc32c of pieces: the package says what is right, whatever the sizes."""

import os
import subprocess
import sys

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from streammiml._base import crc, crc_compiled


@pytest.fixture(scope="module", params=["package", "fast"])
def first_wrong(request):
    if request.param == "package":
        return crc.first_wrong
    if not crc_compiled.is_fast():
        pytest.skip("this processor knows no faster way")
    return crc_compiled.first_wrong


def pieces_of(sizes, seed):
    buffer = np.random.default_rng(seed).integers(0, 256, sum(sizes), dtype=np.uint8)
    ends = np.cumsum(sizes)
    crcs = [crc32c(buffer[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    return buffer, np.array(sizes, np.uint32), np.array(crcs, np.uint32)


@given(
    sizes=st.lists(st.integers(1, 1500) | st.integers(60_000, 70_000), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
def test_first_wrong__agrees_with_the_package(first_wrong, sizes, seed):
    assert first_wrong(*pieces_of(sizes, seed)) == -1


@given(
    sizes=st.lists(st.integers(1, 1500), min_size=1, max_size=6),
    seed=st.integers(0, 99),
    at=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_first_wrong__names_the_piece_of_a_flipped_bit(first_wrong, sizes, seed, at, bit):
    buffer, counts, crcs = pieces_of(sizes, seed)
    place = int(at * len(buffer))
    buffer[place] ^= 1 << bit
    want = int(np.searchsorted(np.cumsum(sizes), place, "right"))
    assert first_wrong(buffer, counts, crcs) == want


@pytest.mark.parametrize("size", [1, 255, 256, 257, 65_536, 1 << 20, (1 << 24) + 3])
def test_first_wrong__takes_pieces_of_any_size_from_any_address(first_wrong, size):
    for start in (0, 1, 5):
        buffer, counts, crcs = pieces_of([size], start)
        moved = np.empty(size + start, np.uint8)[start:]
        moved[:] = buffer
        assert first_wrong(moved, counts, crcs) == -1


def test_first_wrong__finds_pieces_that_are_swapped(first_wrong):
    buffer, counts, crcs = pieces_of([5000, 5000], 1)
    swapped = np.concatenate([buffer[5000:], buffer[:5000]])
    assert first_wrong(swapped, counts, crcs) == 0


def test_first_wrong__does_without_a_fast_processor():
    """A processor that numba is told to know nothing of takes the package."""
    words = (
        "import numpy as np; from streammiml._base import crc; from crc32c import crc32c;"
        "a = np.arange(3 << 20).astype(np.uint8); n = len(a);"
        "assert not crc.has_fast_way();"
        "assert crc.first_wrong(a, np.array([n]), np.array([crc32c(a)])) == -1;"
        "assert crc.first_wrong(a, np.array([9, n - 9]), np.array([crc32c(a[:9]), 7])) == 1"
    )
    for name, value in (("NUMBA_CPU_NAME", "generic"), ("NUMBA_DISABLE_JIT", "1")):
        subprocess.run([sys.executable, "-c", words], env={**os.environ, name: value}, check=True)


NARROW = """
from llvmlite import binding
features = dict(binding.get_host_cpu_features())
if not (features.get("pclmul") and features.get("sse4.2")):
    raise SystemExit("skip")
kind = type(binding.get_host_cpu_features())
binding.get_host_cpu_features = lambda: kind({**features, "vpclmulqdq": False})
import numpy as np
from crc32c import crc32c
from streammiml._base import crc_compiled
assert crc_compiled.is_fast() and crc_compiled._VECTORS == 0
for sizes in ([1], [127, 128, 129], [65536, 65536, 7], [100_003, 5000]):
    buffer = np.random.default_rng(0).integers(0, 256, sum(sizes), dtype=np.uint8)
    ends = np.cumsum(sizes)
    crcs = [crc32c(buffer[end - size : end]) for size, end in zip(sizes, ends)]
    pieces = np.array(sizes), np.array(crcs)
    assert crc_compiled.first_wrong(buffer, *pieces) == -1
    buffer[-1] ^= 1
    assert crc_compiled.first_wrong(buffer, *pieces) == len(sizes) - 1
"""


def test_first_wrong__does_without_wide_vectors(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", NARROW]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.stderr == "skip\n":
        pytest.skip("this processor has no carry-less multiplication")
    assert done.returncode == 0, done.stderr


def test_first_wrong__does_without_a_folder_for_what_is_compiled():
    words = (
        "import numpy as np; from streammiml._base import crc; from crc32c import crc32c;"
        "a = np.arange(3 << 20).astype(np.uint8);"
        "assert crc.first_wrong(a, np.array([len(a)]), np.array([crc32c(a)])) == -1"
    )
    nowhere = {
        "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
        "NUMBA_CACHE_DIR": f"{os.devnull}/nowhere",
    }
    subprocess.run([sys.executable, "-c", words], env={**os.environ, **nowhere}, check=True)


def test_first_wrong__loads_no_compiler_for_little():
    words = (
        "import sys, numpy as np; from streammiml._base import crc; from crc32c import crc32c;"
        "a = np.arange(9, dtype=np.uint8);"
        "assert crc.first_wrong(a, np.array([9]), np.array([crc32c(a)])) == -1;"
        "import streammiml.bags.store;"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", words], check=True)
