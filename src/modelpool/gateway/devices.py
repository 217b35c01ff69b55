"""The GPUs of this machine in Marqo's texts and as numbers, through NVML where it is installed."""

from __future__ import annotations

import importlib
from typing import Any

_GIB = 1 << 30


def cuda_devices() -> list[dict[str, Any]]:
    """One entry for each GPU; empty where there is none, or no NVML."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        return []
    try:
        return [_describe(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    finally:
        nvml.nvmlShutdown()


def _describe(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    name = nvml.nvmlDeviceGetName(handle)
    used, total = f"{memory.used / _GIB:.1f} GiB", f"{memory.total / _GIB:.1f} GiB"
    return {
        "device_id": index,
        "device_name": name.decode() if isinstance(name, bytes) else name,
        "memory_used": used,
        "total_memory": total,
        "utilization": f"{busy:.1f} %",
        "memory_used_percent": f"{100 * memory.used / memory.total:.1f} %",
        "memory_usage": used,
        "total_device_memory": total,
        "memory_used_bytes": memory.used,
        "total_memory_bytes": memory.total,
        "utilization_percent": float(busy),
    }
