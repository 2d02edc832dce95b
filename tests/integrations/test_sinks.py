"""Trackers as sinks, with the real libraries, offline; and one that misbehaves in every way."""

import struct
import threading
import time
import warnings

import pytest

from fastbudget.core.errors import InvalidInputError
from fastbudget.integrations.background_sink import BackgroundSink, numbers_of

RECORDS = [
    {"step": 1, "loss": 2.5, "lr": 0.1, "note": "text is left out"},
    {"step": 2, "loss": float("nan"), "lr": 0.1},
    {"step": 2, "spent_s": 3.0, "metrics": {"accuracy": 0.75, "broken": None}},
]


class Recorder:
    def __init__(self):
        self.seen, self.closed = [], False

    def write(self, step, values):
        self.seen.append((step, values))

    def close(self):
        self.closed = True


def test_numbers_are_found_under_their_names():
    record = {"step": 7, "loss": 1, "ok": True, "nan": float("nan"), "metrics": {"a": 0.5, "deep": {"b": 2}}}
    assert dict(numbers_of(record)) == {"loss": 1.0, "metrics/a": 0.5, "metrics/deep/b": 2.0}


def test_everything_queued_is_written_in_order_before_close_returns():
    writer = Recorder()
    with BackgroundSink(lambda: writer, name="test") as sink:
        for step in range(1000):
            sink({"step": step, "loss": step / 2})
    assert writer.seen == [(step, {"loss": step / 2}) for step in range(1000)]
    assert writer.closed


def test_a_later_change_of_the_record_does_not_leak_in():
    writer, record = Recorder(), {"step": 1, "loss": 1.0}
    with BackgroundSink(lambda: writer, name="test") as sink:
        sink(record)
        record["loss"] = 9.0
    assert writer.seen == [(1, {"loss": 1.0})]


def test_a_tracker_that_hangs_stalls_neither_the_run_nor_its_end():
    release = threading.Event()

    class Hanging(Recorder):
        def write(self, step, values):
            release.wait()

    sink = BackgroundSink(Hanging, name="test", capacity=10, close_timeout_s=0.2)
    start = time.monotonic()
    for step in range(10_000):
        sink({"step": step})
    assert time.monotonic() - start < 2.0
    assert sink.dropped >= 10_000 - 11
    with pytest.warns(RuntimeWarning, match=r"did not finish|dropped"):
        sink.close()
    assert time.monotonic() - start < 3.0
    release.set()


def test_a_tracker_that_raises_is_warned_about_once_and_given_up():
    calls = []

    class Raising(Recorder):
        def write(self, step, values):
            calls.append(step)
            raise ConnectionError("no route to host")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with BackgroundSink(Raising, name="test") as sink:
            for step in range(100):
                sink({"step": step})
    messages = [str(one.message) for one in caught]
    assert len(calls) == 10
    assert sum("no route to host" in message for message in messages) == 1
    assert sum("given up" in message for message in messages) == 1


def test_a_tracker_that_recovers_goes_on():
    class Flaky(Recorder):
        def write(self, step, values):
            if step % 3 == 0:
                raise OSError("briefly away")
            super().write(step, values)

    writer = Flaky()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with BackgroundSink(lambda: writer, name="test") as sink:
            for step in range(90):
                sink({"step": step})
    assert [step for step, _ in writer.seen] == [step for step in range(90) if step % 3]


def test_a_tracker_that_cannot_be_opened_does_not_end_the_run():
    def broken():
        raise PermissionError("not yours")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with BackgroundSink(broken, name="test") as sink:
            sink({"step": 1})
    assert any("could not be opened" in str(one.message) for one in caught)


def test_a_closed_sink_counts_what_it_no_longer_takes():
    sink = BackgroundSink(Recorder, name="test")
    sink.close()
    sink({"step": 1})
    assert sink.dropped == 1


def test_capacity_must_be_positive():
    with pytest.raises(InvalidInputError, match="capacity must be at least 1, got 0"):
        BackgroundSink(Recorder, name="test", capacity=0)


def test_tensorboard_reads_back_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from fastbudget.integrations.tensorboard import TensorBoardSink

    with TensorBoardSink(tmp_path / "events") as sink:
        for record in RECORDS:
            sink(record)
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("loss")] == [(1, 2.5)]
    assert [(one.step, one.value) for one in events.Scalars("metrics/accuracy")] == [(2, 0.75)]
    assert "metrics/broken" not in events.Tags()["scalars"]


def test_mlflow_reads_back_what_was_written(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    from fastbudget.integrations.mlflow import MLflowSink

    uri = (tmp_path / "runs").as_uri()
    with MLflowSink("trial", tracking_uri=uri, run_name="first", params={"lr": 0.1}) as sink:
        for record in RECORDS:
            sink(record)
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
    assert run.data.params == {"lr": "0.1"}
    assert run.info.status == "FINISHED"
    assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "loss")] == [(1, 2.5)]
    assert run.data.metrics["metrics/accuracy"] == 0.75


def test_wandb_writes_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    from fastbudget.integrations.wandb import WandbSink

    with WandbSink("trial", mode="offline", name="first", config={"lr": 0.1}, directory=tmp_path) as sink:
        for record in RECORDS:
            sink(record)
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows = _history(written)
    assert rows[0]["loss"] == "2.5"
    assert rows[1]["metrics/accuracy"] == "0.75"


def _history(path):
    """Read W&B's file: a 7-byte header, then records of checksum, length and kind in LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    data, at, rows = path.read_bytes(), 7, []
    assert len(data) < 32 * 1024, "records don't span blocks yet"
    while at + 7 <= len(data):
        _, size, kind = struct.unpack_from("<IHB", data, at)
        assert kind == 1, "a whole record"
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data[at + 7 : at + 7 + size])
        at += 7 + size
        if record.WhichOneof("record_type") == "history":
            rows.append({item.key or "/".join(item.nested_key): item.value_json for item in record.history.item})
    return rows
