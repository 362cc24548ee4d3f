"""Opening a pool: the module of the chosen one is loaded, and no other."""

import subprocess
import sys

import pytest

from streammiml._base.platform import usable_cores
from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import PoolOptions
from streammiml._base.thread_pool import ThreadPool
from streammiml.errors import StreammimlError


def test_open_pool__without_options_has_a_thread_for_each_core():
    with open_pool(PoolOptions(), relief="--memory") as pool:
        assert isinstance(pool, ThreadPool)
        assert (pool.n_threads, pool.relief) == (usable_cores(), "--memory")


def test_open_pool__a_client_of_another_kind_is_refused():
    with pytest.raises(
        StreammimlError,
        match=r"client= takes a .* a Dask cluster such as LocalCluster, or 'active', got object",
    ):
        open_pool(PoolOptions(client=object()))


def test_pool__importing_it_loads_no_dask():
    code = "import streammiml._base.pool, sys; print('dask' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.stdout.strip() == "False", child.stderr
