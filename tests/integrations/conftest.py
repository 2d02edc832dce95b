"""Trainings run in children: a budget's watchdog may kill them, and must not kill the tests."""

import json
import os
import traceback
from pathlib import Path

import pytest
import torch


@pytest.fixture
def in_child(tmp_path):
    """Return a function that calls another in a forked child and returns its JSON result, or fails with its traceback.

    A fork inherits the heavy imports. It must not use torch's thread pool, which doesn't survive one.
    """

    def call(function, *arguments):
        outcome = Path(tmp_path) / f"outcome-{os.urandom(4).hex()}.json"
        child = os.fork()
        if child == 0:
            try:
                torch.set_num_threads(1)
                result = {"result": function(*arguments)}
            except BaseException:
                result = {"error": traceback.format_exc()}
            outcome.write_text(json.dumps(result))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the child was killed by signal {os.WTERMSIG(status)}"
        result = json.loads(outcome.read_text())
        assert "error" not in result, result.get("error")
        return result["result"]

    return call
