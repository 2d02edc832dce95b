"""Functions run on two real processes over gloo."""

import multiprocessing
import os
import socket
import traceback

import pytest
import torch

FORK = multiprocessing.get_context("fork")  # torch is imported already


def _rank_main(rank, port, function, arguments, channel):
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    try:
        channel.send((function(rank, *arguments), None))
    except BaseException:
        channel.send((None, traceback.format_exc()))
    os._exit(0)  # a group with a dead member can't be destroyed


@pytest.fixture
def on_two_ranks():
    """Return a function that calls ``function(rank, *arguments)`` on two ranks and returns both results.

    It fails with the traceback of a rank that raised. As under torchrun, the ranks find each other by environment
    variables.
    """

    started = []

    def call(function, *arguments, tell=lambda processes: None):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = []
        for rank in range(2):
            ours, theirs = FORK.Pipe()
            process = FORK.Process(target=_rank_main, args=(rank, port, function, arguments, theirs))
            process.start()
            started.append(process)
            theirs.close()
            ranks.append((process, ours))
        tell([process for process, _ in ranks])
        results = []
        for _, channel in ranks:
            assert channel.poll(120), "a rank hangs"
            result, error = channel.recv()
            assert error is None, error
            results.append(result)
        return results

    yield call
    for process in started:
        process.join(5)
        process.kill()
