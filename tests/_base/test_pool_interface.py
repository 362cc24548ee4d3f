import subprocess
import sys

import pytest

from streammiml._base.pool_interface import PoolOptions
from streammiml.errors import StreammimlError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "^threads must be at least 1, got 0$"),
        ({"workers": -1}, "^workers must be at least 1, got -1$"),
        ({"threads": 1, "workers": 1}, "^give one of --threads and --workers, not both$"),
        ({"workers": 1, "scheduler": ""}, "^give one of --workers and --scheduler, not both$"),
        ({"threads": 1, "client": "x"}, "^give one of --threads and client=, not both$"),
        ({"scheduler": "x", "client": "x"}, "^give one of --scheduler and client=, not both$"),
        ({"threads": 2, "worker_memory": "1GiB"}, "^--worker-memory is for the processes of --wo"),
        ({"workers": 1, "worker_memory": "much"}, "^worker_memory must be a size such as"),
        ({"workers": 1, "worker_memory": 0}, "^worker_memory must be at least 1 B, got 0$"),
    ],
)
def test_options__that_contradict_each_other_are_refused(options, message):
    with pytest.raises(StreammimlError, match=message):
        PoolOptions(**options)


def test_options__memory_of_workers_is_read_as_a_size():
    assert PoolOptions(workers=1, worker_memory="2MiB").worker_bytes == 2 << 20
    assert PoolOptions(workers=1).worker_bytes is None


def test_options__load_no_dask():
    code = "import streammiml._base.pool_interface, sys; print('dask' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
