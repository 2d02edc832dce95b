"""Turn a row of published training runs into a request for an estimate and what was measured, or the reason why not.

The CSV has the columns of published_runs.csv, any of which may be missing or empty. What a row doesn't say is
assumed by the habits of its framework and by what fits the memory, never by the row's identity, and every
assumption is written down with the run.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from assumed_layouts import Given
from model_shapes import FoundModel, find_model
from row_cells import NotModeled, Row, count, find_accelerator, publisher_of, read_rows
from row_cells import software_date as date_of
from row_layouts import layout_of
from run_measures import Measure, measure_of
from told_training import (
    Reading,
    told_adapters,
    told_devices,
    told_length,
    told_precision,
    told_recompute,
    told_sharding,
    wanted_batch,
)

from fastbudget.cost.transformer.training_layout import TrainingLayout
from fastbudget.cost.transformer.transformer_shape import TransformerShape
from fastbudget.hardware import Device

_SUSPECT = re.compile(r"inconsistent|incomplete|estimate\b|scaled from|suspect|implausible|none published", re.I)
_FUSED_LOSS = re.compile(r"llm\.c|megatron|nemo|neox|maxtext|jax|mlperf|liger|chunked|cut.cross|compile")


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """A row that can be estimated.

    Attributes:
        run_id: the row's name.
        publisher: who published it.
        model: what the row calls the model.
        domain: the row's domain.
        shape: the model.
        layout: how it was trained.
        device: on what.
        software: framework and date as published, such as ``"Megatron-Bridge 26.04 NeMo Container (2026-04)"``.
        software_date: year, or year and month.
        measure: what was measured.
        assumed: what the row doesn't say.
    """

    run_id: str
    publisher: str
    model: str
    domain: str
    shape: TransformerShape
    layout: TrainingLayout
    device: Device
    software: str | None
    software_date: str | None
    measure: Measure
    assumed: tuple[str, ...]

    @property
    def step_time_s(self) -> float:
        """Seconds of an optimizer step over all devices; of a whole run its average."""
        return self.measure.step_time_s

    @property
    def tokens_per_step(self) -> int:
        """Tokens of an optimizer step over all devices."""
        return self.layout.global_batch_size * self.layout.seq_len

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of ``fb.estimate_transformer``."""
        values = {field.name: getattr(self.layout, field.name) for field in fields(self.layout)}
        tokens = self.measure.tokens
        return {**values, "hardware": self.device, "software": self.software, "tokens": tokens}


def read_runs(*paths: Path) -> tuple[list[PublishedRun], Counter[str]]:
    """Return the runs of tables that can be estimated, and why the others can't with how many they are.

    A figure that an earlier table has too counts once.
    """
    runs: list[PublishedRun] = []
    reasons: Counter[str] = Counter()
    seen: set[tuple[object, ...]] = set()
    for path in paths:
        found = set()
        for row in read_rows(path):
            try:
                run = read_run(row)
            except NotModeled as reason:
                reasons[str(reason)] += 1
                continue
            speed = round(run.tokens_per_step / run.step_time_s / run.layout.num_devices, 1)
            figure = (run.publisher, run.shape.num_params, run.device.key, speed)
            found.add(figure)
            if figure in seen:
                reasons["the same figure in another table"] += 1
            else:
                runs.append(run)
        seen |= found
    return runs, reasons


def read_run(row: Row) -> PublishedRun:
    """Return the run of a row.

    Raises:
        NotModeled: what the row says is not modeled, not certain, or too little.
    """
    if row.get("verified", "").lower() in ("no", "false", "0"):
        raise NotModeled("from memory, not read in its source")
    if _SUSPECT.search(row.get("flag", "")):
        raise NotModeled("flagged as suspect")
    found = find_model(row)
    device = find_accelerator(row.get("gpu", ""), row.get("gpu_mem_gb", ""))
    text = " ".join(row.get(key, "") for key in ("framework", "model", "sharding", "domain", "locator")).lower()
    reading = Reading(row=row, text=text, date=date_of(row), assumed=list(found.assumed))
    adapters = told_adapters(reading)
    layout = layout_of(reading, found.shape, device, _given(reading, found, device, adapters), adapters)
    measure = measure_of(row, found.shape, layout, device)
    date, framework = reading.date, row.get("framework", "").strip()
    software = f"MLPerf {framework}" if row.get("domain", "").startswith("mlperf") else framework
    return PublishedRun(
        run_id=row.get("run_id", ""),
        publisher=publisher_of(row),
        model=row.get("model", ""),
        domain=row.get("domain", ""),
        shape=found.shape,
        layout=layout,
        device=device,
        software=(f"{software} ({date})" if date else software) if software.strip() else None,
        software_date=date,
        measure=measure,
        assumed=(*reading.assumed, *measure.assumed),
    )


def _given(reading: Reading, found: FoundModel, device: Device, adapters: dict[str, Any]) -> Given:
    row = reading.row
    seq_len, devices = told_length(reading, found), told_devices(reading)
    told_batch = count(row, "global_batch_seqs")
    return Given(
        devices=devices,
        seq_len=seq_len,
        precision=told_precision(reading, device),
        tensor=count(row, "tp"),
        pipeline=count(row, "pp"),
        context=count(row, "cp"),
        experts=count(row, "ep"),
        micro_batch=count(row, "micro_batch_seqs"),
        global_batch=told_batch or wanted_batch(reading, found.shape, seq_len, devices, device),
        batch_told=told_batch is not None,
        fused_loss=bool(_FUSED_LOSS.search(reading.text)),
        sharding=told_sharding(reading),
        recompute=told_recompute(reading),
        lora="lora_rank" in adapters,
        quantized=adapters.get("quantized_base", False),
    )
