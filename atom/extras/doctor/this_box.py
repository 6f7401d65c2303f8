"""What a check finds, and the checks of this box. Each ends within a second, changes nothing, and
raises nothing."""

import shutil
import tempfile
from collections.abc import Iterator
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
from atom.daemon.model.devices import named_devices, require_alike
from atom.daemon.state_directory import StateDirectory
from atom.daemon.usable_memory import UsableMemory, usable_memory
from atom.swap import host_kernels
from atom.swarm.addresses import listening, parse_listen
from atom.swarm.records.lease import CLOCKS_APART_SECONDS


class Level(StrEnum):
    OK = "ok"
    UNCHECKED = "not checked"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """`fix`: a command or a key, for what is not as it should be."""

    topic: str
    level: Level
    said: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert bool(self.fix) == (self.level in (Level.WARNING, Level.FAILURE)), self.topic


def ok(topic: str, said: str) -> Finding:
    return Finding(topic, Level.OK, said)


def unchecked(topic: str, said: str) -> Finding:
    return Finding(topic, Level.UNCHECKED, said)


def warning(topic: str, said: str, fix: str) -> Finding:
    return Finding(topic, Level.WARNING, said, fix)


def failure(topic: str, said: str, fix: str) -> Finding:
    return Finding(topic, Level.FAILURE, said, fix)


LEAST_DISK_BYTES = 2 * 10**9
LEAST_GPU_SHARE = 0.5
"""Of its memory: when less is free, somebody else is using it."""
_NVIDIA, _DISPLAYS = "0x10de", "0x03"
"""In PCI's numbers: a vendor, and the beginning of a class of devices."""
_MEND_GPU = (
    "install its driver until nvidia-smi lists it, and PyTorch with CUDA: make clean && make .venv"
    "; in a container: docker run --gpus all"
)


def kernels() -> Finding:
    try:
        host_kernels.host_kernels()
    except (AtomError, OSError) as problem:
        return failure("Host kernels", str(problem), BUILDING)
    return ok("Host kernels", "compiled")


def gpus(device: Device, daemon_runs: bool) -> Iterator[Finding]:
    """Each that the peer file names."""
    if "cpu" in device.use:
        yield ok("GPU", "none is used: the peer file says cpu")
        return
    named = named_devices(device.use)
    indices = [each.index or 0 for each in named]
    if missing := next(filter(None, map(_gpu_problem, indices)), ""):
        yield _no_gpu(missing, "auto" not in device.use, card_seen())
        return
    try:
        require_alike(named)
    except DeviceError as problem:
        yield failure("GPU", problem.message, problem.hint)
    yield from (_gpu(index, daemon_runs) for index in indices)


def _gpu(index: int, daemon_runs: bool) -> Finding:
    free, total = torch.cuda.mem_get_info(index)
    said = f"{torch.cuda.get_device_name(index)}, "
    said += f"{format_bytes(free)} of {format_bytes(total)} free"
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        said += ", computes in no bfloat16"
    if daemon_runs:
        return ok("GPU", f"{said}: your daemon is at work")
    if free < LEAST_GPU_SHARE * total:
        fix = "end what uses it: nvidia-smi lists the programs"
        return warning("GPU", f"{said}: other programs use the rest", fix)
    return ok("GPU", said)


def _gpu_problem(index: int) -> str:
    """Why there is none; empty: there is."""
    if torch.version.cuda is None:
        return "this PyTorch is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch finds no driver, or no device"
    count = torch.cuda.device_count()
    return "" if index < count else f"there are {count}, not number {index}"


def _no_gpu(problem: str, wanted: bool, card: bool) -> Finding:
    """Where there is no card to mend, nothing is wrong: it is a slower box."""
    if wanted:
        fix = f'{_MEND_GPU}; or [device] use = "cpu"'
        return failure("GPU", f"{problem}, and the peer file wants one", fix)
    means = "trains on the CPU, many times slower than a GPU: choose a run of a small model"
    if card:
        return warning("GPU", f"none that can be used, {problem}; {means}", _MEND_GPU)
    return ok("GPU", f"none found; {means}")


def card_seen(bus: Path = Path("/sys/bus/pci/devices"), wsl: Path = Path("/dev/dxg")) -> bool:
    """Whether a card of NVIDIA's is plugged in; in WSL, whether Windows lends any."""
    for device in bus.glob("*/vendor"):
        try:
            vendor, kind = (device.with_name(n).read_text() for n in ("vendor", "class"))
        except OSError:
            continue
        if vendor.strip() == _NVIDIA and kind.startswith(_DISPLAYS):
            return True
    return wsl.exists()


def memory(seen: UsableMemory | None = None) -> Finding:
    seen = seen or usable_memory()
    said = f"{format_bytes(seen.available_bytes)} of {format_bytes(seen.total_bytes)} free"
    if seen.is_limited:
        said += ": this container or service may have no more"
    return ok("Host memory", said)


def disk(folder: Path) -> Finding:
    """Of the folder, or of the nearest one above it that is there: none is made."""
    there = nearest_folder(folder)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(2**20))
        free = shutil.disk_usage(there).free
    except OSError as problem:
        said = f"{there}: {problem.strerror or problem}"
        return failure("Disk", said, "choose another folder: --state DIR")
    said = f"{format_bytes(free)} free in {there}"
    if free + StateDirectory(folder).kept_bytes < LEAST_DISK_BYTES:
        fix = "free some space, or choose another disk: [state] directory in the peer file"
        return failure("Disk", said, fix)
    return ok("Disk", said)


def ports(peer: PeerFile, is_ours: bool) -> Iterator[Finding]:
    """`is_ours`: the daemon of this state directory runs: it listens there."""
    host = parse_listen(peer.network.listen).host
    for name, number in peer.ports().items():
        section, key = name.split(".")
        where = peer.metrics.host if section == "metrics" else host
        yield port(f"[{section}] {key}", where, number, is_ours)


def port(setting: str, host: str, number: int, is_ours: bool) -> Finding:
    if is_ours:
        return ok(setting, "your daemon listens")
    try:
        listening(host, number, f"{setting} in a peer file").close()
    except UserError as problem:
        return failure(setting, problem.message, problem.hint)
    if number:
        return ok(setting, f"{number} is free")
    return ok(setting, "any free one; behind a router, choose a number")


def clock(offset_s: tuple[float, float] | None) -> Finding:
    """`offset_s`: ours minus the swarm's lies between these; None: no other peer was seen."""
    if offset_s is None:
        return unchecked("Clock", "there is no other peer to compare it with")
    low, high = offset_s
    if low <= 0 <= high:
        return ok("Clock", f"within {high - low:.0f} s of the swarm's")
    way, least = ("ahead of", low) if low > 0 else ("behind", -high)
    said = f"at least {least:.1f} s {way} the swarm's; {CLOCKS_APART_SECONDS:.0f} s are allowed"
    if least > CLOCKS_APART_SECONDS:
        return failure("Clock", said, "timedatectl set-ntp true; in a container, on its host")
    return ok("Clock", said)


def daemon_runs(state: Path) -> bool:
    """Whether a daemon of this user's computes here: in `state`, or in the usual place."""
    others = (each for each in base_folder("data").glob("*") if each.name[0] not in "._")
    return any(StateDirectory(each).in_use for each in (state, *others))
