"""What is refused before a process group is made."""

import pytest
import torch

import fastbudget as fb
from fastbudget.training import DataParallel
from fastbudget.training.distributed.launch_environment import read_launch_environment
from fastbudget.training.distributed.rank_group import check_local_devices

WHOLE = {
    "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"RANK": None}, "RANK is not set"), ({"MASTER_ADDR": None, "MASTER_PORT": ""}, "MASTER_ADDR, MASTER_PORT are"),
        ({"RANK": "two"}, "RANK must be a number"), ({"RANK": "2"}, "RANK must be below WORLD_SIZE"),
    ],
)  # fmt: skip
def test_a_launcher_s_variables_are_checked(changed, expected):
    environ = {name: value for name, value in (WHOLE | changed).items() if value is not None}
    with pytest.raises(fb.InvalidInputError, match=expected) as error:
        read_launch_environment(environ)
    assert "torchrun" in str(error.value)


def test_more_ranks_than_gpus_and_a_gpu_for_two_are_refused():
    place = read_launch_environment(WHOLE)
    with pytest.raises(fb.InvalidInputError, match="torch sees 1; start at most 1"):
        check_local_devices(place, 1, torch.device("cuda", 0))
    with pytest.raises(fb.InvalidInputError, match="local rank 1 is on cuda:0"):
        check_local_devices(place, 2, torch.device("cuda", 0))
    check_local_devices(place, 2, torch.device("cuda", 1))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"strategy": "fsdp"}, "strategy must be one of 'ddp', 'fsdp2'"),
        ({"strategy": "fsdp2", "static_graph": True}, "static_graph is no option of strategy 'fsdp2'"),
        ({"strategy": "fsdp2", "evaluate_on": "rank_0"}, "needs the shards of all ranks"),
        ({"blocks": ["layers.0"]}, "blocks is no option of strategy 'ddp'"),
        ({"bucket_cap_mb": 0}, "bucket_cap_mb must be above 0"), ({"comm_hook": "fp8"}, "comm_hook must be"),
    ],
)  # fmt: skip
def test_options_are_checked(options, expected):
    with pytest.raises(fb.InvalidInputError, match=expected):
        DataParallel(**options)
