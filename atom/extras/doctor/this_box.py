"""Findings, and the checks of this machine.

Each check changes nothing and raises nothing. A check ends within a second, except that of the
router, which takes a few if the router does not answer.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch

from atom.base.build_kernels import BUILDING
from atom.base.errors import AtomError, DeviceError, UserError
from atom.base.files import nearest_folder
from atom.base.units import format_bytes
from atom.config.peer_file import Device, PeerFile
from atom.config.places import base_folder
from atom.daemon.state_directory import StateDirectory
from atom.daemon.usable_memory import UsableMemory, usable_memory
from atom.plan.devices import require_devices
from atom.swap import host_kernels
from atom.swarm.addresses import listening, parse_listen
from atom.swarm.dial_rules import LOCAL, class_of, own_hosts
from atom.swarm.router.ports import find_router
from atom.swarm.router.requests import PortRefused


class Level(StrEnum):
    """Result of a check."""

    OK = "ok"
    UNCHECKED = "not checked"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """Result of one check, as a line for a person."""

    topic: str
    level: Level
    said: str
    fix: str = ""
    """Remedy for a warning or failure, such as a command or a key of the peer file; else empty."""


def ok(topic: str, said: str) -> Finding:
    """Return the finding of a check that passed."""
    return Finding(topic, Level.OK, said)


def unchecked(topic: str, said: str) -> Finding:
    """Return the finding of a check that could not be made."""
    return Finding(topic, Level.UNCHECKED, said)


def warning(topic: str, said: str, fix: str) -> Finding:
    """Return the finding of a check with a flaw that training survives; `fix` names the remedy."""
    return Finding(topic, Level.WARNING, said, fix)


def failure(topic: str, said: str, fix: str) -> Finding:
    """Return the finding of a check with a flaw that prevents training; `fix` names the remedy."""
    return Finding(topic, Level.FAILURE, said, fix)


LEAST_DISK_BYTES = 2 * 10**9
"""Least disk space for a peer, in bytes; space that its own files take counts as free."""
LEAST_GPU_SHARE = 0.5
"""Least free fraction of a GPU's memory; below it, other programs are using the GPU."""
_NVIDIA, _DISPLAYS = "0x10de", "0x03"
"""PCI's number of the vendor NVIDIA, and the beginning of its class of display devices."""
_FIX_GPU = (
    "install its driver until nvidia-smi lists it, and PyTorch with CUDA: make clean && make .venv"
    "; in a container: docker run --gpus all"
)


def kernels() -> Finding:
    """Check that the kernels for the host's processor are compiled."""
    try:
        host_kernels.host_kernels()
    except (AtomError, OSError) as problem:
        return failure("Host kernels", str(problem), BUILDING)
    return ok("Host kernels", "compiled")


def gpus(device: Device, daemon_runs: bool) -> Iterator[Finding]:
    """Yield a finding for each GPU that the peer file names, or one for its absence.

    Without a GPU a machine is slower. That is a flaw only if it has a card, or if the peer file
    wants one.

    Args:
        device: [device] of the peer file.
        daemon_runs: True if a daemon of this user's may be using GPUs.
    """
    if "cpu" in device.use:
        yield ok("GPU", "not used: the peer file says cpu")
        return
    try:
        named = require_devices(device.use, torch.float32)
    except DeviceError as problem:
        yield failure("GPU", problem.message, problem.hint)
        return
    if named[0].type == "cuda":
        yield from (_gpu(each.index or 0, daemon_runs) for each in named)
        return
    means = "trains on the CPU, many times slower than a GPU: choose a run with a small model"
    if card_seen():
        lacks = "finds no driver" if torch.version.cuda else "is built without CUDA"
        yield warning("GPU", f"none is usable: PyTorch {lacks}; {means}", _FIX_GPU)
    else:
        yield ok("GPU", f"none found; {means}")


def _gpu(index: int, daemon_runs: bool) -> Finding:
    free, total = torch.cuda.mem_get_info(index)
    said = f"{torch.cuda.get_device_name(index)}, "
    said += f"{format_bytes(free)} of {format_bytes(total)} free"
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        said += ", no bfloat16"
    if daemon_runs:
        return ok("GPU", f"{said}: your daemon is running")
    if free < LEAST_GPU_SHARE * total:
        fix = "end the programs that use it: nvidia-smi lists them"
        return warning("GPU", f"{said}: other programs use the rest", fix)
    return ok("GPU", said)


def card_seen(bus: Path = Path("/sys/bus/pci/devices"), wsl: Path = Path("/dev/dxg")) -> bool:
    """Return True if an NVIDIA card is plugged in, or, in WSL, if Windows shares a GPU."""
    for device in bus.glob("*/vendor"):
        try:
            vendor, kind = (device.with_name(n).read_text() for n in ("vendor", "class"))
        except OSError:
            continue
        if vendor.strip() == _NVIDIA and kind.startswith(_DISPLAYS):
            return True
    return wsl.exists()


def memory(seen: UsableMemory | None = None) -> Finding:
    """Report the free host memory, `seen` or measured now."""
    seen = seen or usable_memory()
    said = f"{format_bytes(seen.available_bytes)} of {format_bytes(seen.total_bytes)} free"
    if seen.is_limited:
        said += ": the limit of this container or service"
    return ok("Host memory", said)


def disk(folder: Path) -> Finding:
    """Check the disk of a folder, or of the nearest existing folder above it; create no folder."""
    parent = nearest_folder(folder)
    try:
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(bytes(2**20))
        free = shutil.disk_usage(parent).free
    except OSError as problem:
        said = f"{parent}: {problem.strerror or problem}"
        return failure("Disk", said, "choose another folder: --state DIR")
    said = f"{format_bytes(free)} free in {parent}"
    if free + StateDirectory(folder).kept_bytes < LEAST_DISK_BYTES:
        fix = "free some space, or choose another disk: [state] directory in the peer file"
        return failure("Disk", said, fix)
    return ok("Disk", said)


def ports(peer: PeerFile, is_ours: bool) -> Iterator[Finding]:
    """Check each port that the peer file names.

    Args:
        peer: Peer file.
        is_ours: True if our daemon runs, which uses the ports itself.
    """
    host = parse_listen(peer.network.listen).host
    for name, number in peer.ports().items():
        section, key = name.split(".")
        where = peer.metrics.host if section == "metrics" else host
        yield port(f"[{section}] {key}", where, number, is_ours)


def port(setting: str, host: str, number: int, is_ours: bool) -> Finding:
    """Check that a port is free, by opening it.

    Args:
        setting: Key of the port in the peer file.
        host: Address or name to listen on.
        number: Port number; 0: any free port.
        is_ours: True if this peer's daemon runs, which then has the port.
    """
    if is_ours:
        return ok(setting, "your daemon listens")
    try:
        listening(host, number, f"{setting} in a peer file").close()
    except UserError as problem:
        return failure(setting, problem.message, problem.hint)
    if number:
        return ok(setting, f"{number} is free")
    return ok(setting, "any free port; behind a router, choose a number")


def router(peer: PeerFile, find: Callable[[], tuple[str, str]] = find_router) -> Finding:
    """Report whether the home router would open this peer's ports; open nothing.

    Args:
        peer: Peer file.
        find: Returns the protocol that the router answers, and its outside address.
    """
    listen = parse_listen(peer.network.listen)
    if class_of(own_hosts(listen.host)[0]) not in LOCAL:
        return ok("Router", "not needed: this machine's address is not private")
    try:
        protocol, host = find()
    except PortRefused as none:
        return unchecked("Router", none.message)
    if class_of(host) in LOCAL:
        return ok("Router", "your provider uses NAT: other peers must be reachable")
    numbers = " and ".join(str(port) for port in (listen.port, peer.network.data_port) if port)
    return ok("Router", f"it supports {protocol}: --map-ports would open {numbers or 'two ports'}")


def daemon_runs(state: Path) -> bool:
    """Return True if a daemon runs here, in `state` or in any default state directory."""
    others = (each for each in base_folder("data").glob("*") if each.name[0] not in "._")
    return any(StateDirectory(each).in_use for each in (state, *others))
