"""Describe the machine and the versions of a measurement, as stored with results."""

from __future__ import annotations

import datetime
import os
import platform as machine
import re
from pathlib import Path

from common.base.figures import counted
from common.base.rivals import installed
from common.base.toolchain import Platform, torch_cuda

# The fields of a machine's description that are always there.
WHERE = (
    *("device", "gpu", "arch", "driver", "driver_cuda", "nvcc", "torch", "torch_cuda"),
    *("compiler", "python", "processor", "date"),
)


def where(platform: Platform, rivals: bool = False) -> dict[str, str]:
    """Return the machine, versions and today's date, each as text; "" for one that does not apply.

    "model", the card that the CPU backend simulates, is present only if one was chosen; "rivals",
    their packages and versions, only if `rivals`: they were timed too.
    """
    cuda = platform.device == "cuda"
    model = {"model": platform.model} if platform.model else {}
    return {
        "device": platform.device,
        "gpu": platform.gpu if cuda else "",
        **model,
        "arch": platform.arch if cuda else "",
        "driver": driver() if cuda else "",
        "driver_cuda": platform.driver if cuda else "",
        "nvcc": platform.toolkit.version if cuda and platform.toolkit else "",
        "torch": platform.torch,
        "torch_cuda": torch_cuda() if cuda else "",
        "compiler": platform.compiler_version,
        "python": machine.python_version(),
        "processor": "" if cuda else processor(),
        **({"rivals": installed()} if rivals else {}),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def driver() -> str:
    """Return the NVIDIA driver's version, e.g. "580.95.05"; "" if unknown."""
    file = Path("/proc/driver/nvidia/version")
    text = file.read_text(errors="replace") if file.is_file() else ""
    match = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match.group(1) if match else ""


def processor() -> str:
    """Return the processor's name and the cores that this process may use, e.g. "AMD EPYC 9354, 2
    cores"."""
    name = machine.processor() or machine.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file() and (
        match := re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
    ):
        name = match.group(1).strip()
    return f"{name}, {counted(cores(), 'core')}"


def cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def slug(where: dict[str, str]) -> str:
    """Return the name of a device's results: "nvidia-h200", "cpu", "cpu-8-6" (see `where`)."""
    name = where["gpu"] if where["device"] == "cuda" else f"cpu {where.get('model', '')}"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def device_name(where: dict[str, str]) -> str:
    """Return "NVIDIA H200", or "CPU backend"."""
    return where["gpu"] or "CPU backend"


def versions(where: dict[str, str]) -> str:
    """Return the versions and the date of a measurement, in a line."""
    if where["device"] == "cuda":
        driver = where["driver"] or f"for CUDA {where['driver_cuda']}"
        return f"driver {driver}, nvcc {where['nvcc']}, torch {where['torch']}, {where['date']}"
    return f"{where['processor']}, {where['compiler']}, torch {where['torch']}, {where['date']}"
