"""What a job's accounting assumed, in words."""

from __future__ import annotations

from ...hardware.devices import Device
from ...hardware.prices import Price
from .energy import grid_kg_per_kwh, grid_source
from .job_conditions import JobConditions
from .training_job import TrainingJob


def assumptions_of(
    job: TrainingJob, conditions: JobConditions, device: Device, *, price: Price | None, spot_price: Price | None
) -> tuple[str, ...]:
    """Return one sentence for each figure that nobody gave."""
    said = [_price_words("On demand", price, device), _price_words("Spot", spot_price, device)]
    if conditions.startup_s is None or conditions.warmup_s is None:
        said.append("Start-up and warm-up are usual values; give startup_s and warmup_s if you measured yours.")
    if job.checkpoint_s is None:
        said.append(
            "Checkpoints are written at 1.2 GB/s per node, 0.24 to 3.4 (BLOOM-176B and Llama 3 405B); "
            "training waits for them."
        )
    if conditions.device_hours_between_failures is None:
        said.append(
            "A fault interrupts the job every 45,600 device-hours (Llama 3 405B, arXiv:2407.21783), 13,800 to 50,700."
        )
    if conditions.spot and conditions.spot_hours_between_interruptions is None:
        said.append("A spot node is taken away after 10 hours, 3 to 24 (arXiv:2204.12013, arXiv:1911.05160).")
    if device.tdp_w is None:
        said.append(f"The power of {device.name} is not known, so kWh and CO2e are not either.")
    else:
        if conditions.pue is None:
            said.append("The data center's PUE is 1.25, 1.1 to 1.56; give pue if you know it.")
        if conditions.grid_kg_per_kwh is None:
            said.append(
                f"CO2e: {grid_kg_per_kwh(conditions):.3f} kg per kWh, region {conditions.region} "
                f"({grid_source(conditions.region)})."
            )
    said.append(
        f"{job.buffer:.0%} are added for tuning and surprises."
        if job.buffer
        else "Nothing is added for tuning and surprises."
    )
    return tuple(said)


def _price_words(kind: str, price: Price | None, device: Device) -> str:
    if price is None:
        return f"{kind}: no price of {device.name} is known; give one to see USD."
    day = f", {price.date}" if price.date else ""
    return (
        f"{kind}: {price.usd_per_device_hour:.2f} USD per device-hour ({price.provider}, {price.choice}{day}; "
        f"{price.source})."
    )
