"""Use of this machine's processor and GPUs by other programs, and the power limit of a GPU.

Seconds that are measured while other programs work are too long. The load average would show that
only a minute later, so the cores are watched for a moment instead.
"""

import os
import statistics
import subprocess
from contextlib import suppress

import psutil
import torch

_LOOK_S = 0.25
_QUERY = ("--query-gpu=power.limit,utilization.gpu", "--format=csv,noheader,nounits")


def card_figures(device: torch.device) -> tuple[float, float] | None:
    """Return a GPU's power limit in watts, and the fraction of the last second that it worked.

    None for a CPU, or if the driver's program nvidia-smi does not report them.
    """
    if device.type == "cuda":
        command = ("nvidia-smi", f"--id=GPU-{torch.cuda.get_device_properties(device).uuid}")
        with suppress(OSError, ValueError, subprocess.SubprocessError):
            said = subprocess.run((*command, *_QUERY), capture_output=True, timeout=5, check=True)
            watts, percent = map(float, said.stdout.split(b","))
            return watts, percent / 100
    return None


def others_share(device: torch.device) -> float:
    """Return the fraction of a device that other programs use, while this process rests.

    This takes a moment. A GPU that reports nothing counts as unused.
    """
    if device.type == "cuda":
        return (card_figures(device) or (0.0, 0.0))[1]
    ours, used = os.sched_getaffinity(0), psutil.cpu_percent(_LOOK_S, percpu=True)
    return statistics.mean([share for core, share in enumerate(used) if core in ours]) / 100
