"""Where the daemons of a device meet, and under which names."""

import hashlib
import os
import platform
from pathlib import Path

import torch

from atom.base.clock import Clock
from atom.config.peer_file import Device
from atom.config.places import turns_directory
from atom.daemon.turns.board_file import BoardFile
from atom.daemon.turns.taking import Contender, DeviceTurns, run_key

BOOT = Path("/proc/sys/kernel/random/boot_id")


def open_turns(device: Device, state: Path, run: str, owner: str, clock: Clock) -> DeviceTurns:
    """The turns of the daemon in `state`. Starts nothing. Homes may be shared by machines, so the
    board is this machine's, and of its present life."""
    name = device_name(device.kind)
    boot = BOOT.read_text(encoding="utf-8").strip() if BOOT.exists() else ""
    member = hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
    file = BoardFile(machine_folder() / name, member, boot)
    return DeviceTurns(file, Contender(run_key(run, owner), str(state), name), device, clock)


def machine_folder() -> Path:
    """With a board for each of this machine's devices."""
    return turns_directory() / (platform.node() or "here")


def device_name(kind: str) -> str:
    """The same for all programs of this machine, whichever GPUs they see: "cpu", "GPU-…". What the
    replica will refuse counts as the processor here."""
    index = int(kind.partition(":")[2] or 0)
    if kind == "cpu" or index >= torch.cuda.device_count():
        return "cpu"
    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"
