"""Where replicas train: options that contradict each other are refused in one line."""

import pytest

from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.machines import HERE, TrainMachines

REPLICAS = TrainConfig(replicas=4)


@pytest.mark.parametrize(
    "options", [{"workers": 2}, {"scheduler": "tcp://here:1"}, {"client": object()}]
)
def test_check__a_cluster_needs_replicas(options):
    machines = TrainMachines(**options)
    assert machines.is_remote
    machines.check(REPLICAS)
    name = next(iter(options))
    with pytest.raises(StreammimlError, match=f"^(--)?{name}=? trains the replicas of a run, and"):
        machines.check(TrainConfig())


def test_check__threads_need_nothing():
    assert not HERE.is_remote
    HERE.check(TrainConfig())
    HERE.check(REPLICAS)


def test_machines__contradictions_are_refused():
    with pytest.raises(StreammimlError, match="give one of --workers and --scheduler, not both"):
        TrainMachines(workers=2, scheduler="tcp://here:1")
    with pytest.raises(StreammimlError, match="--worker-memory is for the processes of --workers"):
        TrainMachines(worker_memory="1GiB")
    with pytest.raises(StreammimlError, match="workers must be at least 1, got 0"):
        TrainMachines(workers=0)
