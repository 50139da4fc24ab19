"""Assignment of the machine's GPUs, and of their memory, to a worker's slots.

A trial uses one GPU, which is bound to its slot. If several trials share a GPU, each needs a memory
limit that is set before TensorFlow starts its devices, because each would otherwise allocate all of the
memory. GPUs are numbered in the order of the PCI bus, as by nvidia-smi. If the environment already
lists GPUs (``CUDA_VISIBLE_DEVICES``, as set by Slurm and Kubernetes), ``all`` means these.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sweeper.errors import UsageError

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")

_SHARED = 0.9
"""Fraction of a GPU's memory that its trials share; contexts of processes use a part of the rest."""

_NVIDIA = ("nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits")

_DEVICES = Path("/dev")
"""Directory of the drivers' device files."""


@dataclass(frozen=True, slots=True)
class SlotDevice:
    """GPU of one slot: ``CUDA_VISIBLE_DEVICES`` (None: unchanged), and a trial's megabytes (None: no limit)."""

    visible: str | None = None
    memory: int | None = None


def find_gpus(wanted: str) -> dict[str, int | None]:
    """Return the GPUs that ``--gpus`` names: ``"all"``, or comma-separated ids such as ``"0,1"``.

    Their values are their memory in megabytes, or None if unknown. If no tool lists the machine's GPUs, ids are accepted without a check, provided that a driver is
    loaded or the environment lists ids.
    """
    memory_by_id = _known()
    visible = next((os.environ[name] for name in _VARIABLES if name in os.environ), None)
    if wanted == "all":
        ids = list(memory_by_id) if visible is None else _ids(visible)
        # The tools list each GPU a second time, by its uuid.
        ids = [i for i in ids if not i.startswith("GPU-")] if visible is None else ids
        if not ids:
            reason = "nvidia-smi names none" if visible is None else f"it is {visible!r}"
            raise UsageError(
                f"--gpus all: no GPU was found here ({reason}); check CUDA_VISIBLE_DEVICES, name "
                "the GPUs with --gpus 0,1, or leave --gpus out"
            )
    else:
        ids = _ids(wanted)
        if not ids or len(set(ids)) != len(ids):
            raise UsageError(
                f"--gpus {wanted}: give ids with commas between, each once, such as 0,1; or all"
            )
        if not memory_by_id and not _ids(visible or "") and not _has_driver():
            raise UsageError(
                f"--gpus {wanted}: no GPU was found here (nvidia-smi names none, "
                f"CUDA_VISIBLE_DEVICES has no id, and {_DEVICES} has neither nvidia0 nor "
                "kfd); leave --gpus out to train on the CPU, or use a machine with a GPU"
            )
        missing = [i for i in ids if i not in memory_by_id]
        if memory_by_id and missing:
            present = ", ".join(i for i in memory_by_id if not i.startswith("GPU-"))
            raise UsageError(
                f"--gpus {wanted}: there is no GPU {', '.join(missing)} here; there are {present}"
            )
    return {i: memory_by_id.get(i) for i in ids}


def share_gpus(
    gpus: Mapping[str, int | None], trials_per_gpu: int, memory: int | None = None
) -> tuple[SlotDevice, ...]:
    """Return one device for each slot; consecutive slots get different GPUs.

    Each trial gets ``memory`` megabytes, or an equal part of nine tenths of the GPU's memory.
    """
    devices = []
    for gpu, whole in gpus.items():
        limit = memory
        if limit is None and trials_per_gpu > 1:
            if whole is None:
                raise UsageError(
                    f"--trials-per-gpu {trials_per_gpu}: nvidia-smi does not report "
                    f"the memory of GPU {gpu}; set the memory of a trial with --gpu-memory MB"
                )
            limit = int(whole * _SHARED / trials_per_gpu)
        devices.append(SlotDevice(gpu, limit))
    return tuple(devices) * trials_per_gpu


def _has_driver() -> bool:
    """Return whether a driver of NVIDIA or AMD is loaded, or WSL provides the GPU of its host."""
    files = (_DEVICES / name for name in ("kfd", "dxg"))
    return any(_DEVICES.glob("nvidia[0-9]*")) or any(file.exists() for file in files)


def _ids(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip() not in ("", "-1")]


def _known() -> dict[str, int | None]:
    """Return the memory in megabytes of each GPU, by its number and its uuid, as nvidia-smi lists them."""
    memory_by_id: dict[str, int | None] = {}
    for line in _listed().splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 3 and parts[0].isdigit():
            memory = int(parts[2]) if parts[2].isdigit() else None
            memory_by_id[parts[0]] = memory_by_id[parts[1]] = memory
    return memory_by_id


def _listed() -> str:
    """Return the output of nvidia-smi; nothing if there is none, or it fails."""
    try:
        # nvidia-smi may have to load the driver first, which takes seconds.
        completed = subprocess.run(_NVIDIA, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return completed.stdout
