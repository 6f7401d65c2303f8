"""Looking at this box. Every look ends in seconds, and none of them raises."""

import ctypes
import errno
import os
import platform
import resource
import socket
import sys
import tempfile
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import torch
from packaging.requirements import Requirement

from atom.base.errors import AtomError, PeerRefused
from atom.base.home import nearest_folder
from atom.config.peer_file import PeerFile
from atom.config.places import state_home
from atom.daemon.doctor.facts import Disk, Gpu, Machine, Memory, Package, Port, Software
from atom.daemon.fitting.profiling import step_elements_per_s
from atom.daemon.state_directory import StateDirectory
from atom.daemon.usable_memory import usable_memory
from atom.graph.profile.rates import measure_link
from atom.optim.adamw import AdamW
from atom.swarm.addresses import parse_listen
from atom.swarm.records.codec import decode_manifest
from atom.swarm.records.manifest import manifest_digest

_DISTRIBUTION = "atom-swarm"
_SAMPLE_BYTES = 64 * 2**20
_LEAST_GPU_BYTES = 256 * 2**20
_NVIDIA, _DISPLAYS = "0x10de", "0x03"
"""In PCI's numbers: a vendor, and the beginning of a class of devices."""
_TIME_ERROR = 5
"""What adjtimex(2) returns while nothing keeps the clock right."""


def software() -> Software:
    try:
        step_elements_per_s(AdamW(), torch.float32, elements=2**12)
        kernels = None
    except (AtomError, OSError) as problem:
        kernels = str(problem)
    try:
        wanted = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        wanted = []  # run from a folder that was never installed
    requirements = [Requirement(text) for text in wanted]
    needed = [each for each in requirements if each.marker is None or each.marker.evaluate()]
    python = sys.version_info
    return Software((python.major, python.minor), tuple(map(_package, needed)), kernels)


def _package(wanted: Requirement) -> Package:
    try:
        here = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return Package(wanted.name, str(wanted.specifier), None, False)
    fits = wanted.specifier.contains(here, prereleases=True)
    return Package(wanted.name, str(wanted.specifier), here, fits)


def machine(peer: PeerFile) -> Machine:
    wants_gpu = peer.device.kind.startswith("cuda")
    gpu, problem = None, ""
    if peer.device.kind != "cpu":
        gpu, problem = _gpu(peer.device.gpu_index)
    threads = peer.device.cpu_threads or len(os.sched_getaffinity(0))
    system = f"{platform.system()} {platform.release()}"
    return Machine(
        system, _processor(), threads, gpu, problem, wants_gpu, _card_seen(), _in_container()
    )


def _in_container(root: Path = Path("/")) -> bool:
    """By the marks that Docker and Podman leave in theirs."""
    return any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv"))


def _card_seen(bus: Path = Path("/sys/bus/pci/devices"), wsl: Path = Path("/dev/dxg")) -> bool:
    """Whether a card of NVIDIA's is plugged in; in WSL, whether Windows lends any."""
    for device in bus.glob("*/vendor"):
        try:
            vendor, kind = (device.with_name(n).read_text() for n in ("vendor", "class"))
        except OSError:
            continue
        if vendor.strip() == _NVIDIA and kind.startswith(_DISPLAYS):
            return True
    return wsl.exists()


def _gpu(index: int) -> tuple[Gpu | None, str]:
    if torch.version.cuda is None:
        return None, "this PyTorch is built without CUDA"
    if not torch.cuda.is_available():
        return None, "PyTorch finds no driver, or no device"
    if index >= torch.cuda.device_count():
        return None, f"there are {torch.cuda.device_count()}, not number {index}"
    device = torch.device("cuda", index)
    free, total = torch.cuda.mem_get_info(device)
    load, unload = _link_rates(device, free)
    found = Gpu(
        torch.cuda.get_device_name(device),
        _driver(),
        free,
        total,
        torch.cuda.is_bf16_supported(including_emulation=False),
        load,
        unload,
    )
    return found, ""


def _link_rates(device: torch.device, free_bytes: int) -> tuple[float | None, float | None]:
    if free_bytes < _LEAST_GPU_BYTES:
        return None, None
    try:
        rates = measure_link(device)
    except RuntimeError:  # out of memory, or no memory may be locked
        return None, None
    return rates.load_bytes_per_s.median, rates.gradient_bytes_per_s.median


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    words = text.splitlines()[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), "unknown")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def memory(peer: PeerFile) -> Memory:
    seen = usable_memory()
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        rate: float | None = step_elements_per_s(AdamW(), torch.float32)
    except (MemoryError, AtomError, OSError):
        rate = None
    lockable = None if limit == resource.RLIM_INFINITY else limit
    cap, total, free = peer.host.memory_bytes, seen.total_bytes, seen.available_bytes
    return Memory(total, free, lockable, rate, cap, seen.is_limited)


def disk(folder: Path) -> Disk:
    """Of the folder, or of the nearest one above it that is there: none is made."""
    there = nearest_folder(folder)
    try:
        seen = os.statvfs(there)
        free = seen.f_bavail * seen.f_frsize
        with tempfile.TemporaryFile(dir=there) as file:
            fits = free > 2 * _SAMPLE_BYTES
            rate = _write_rate(file.fileno()) if fits else None
    except OSError as problem:
        return Disk(str(there), 0, None, problem.strerror or str(problem))
    return Disk(str(there), free, rate, kept_bytes=StateDirectory(folder).kept_bytes)


def _write_rate(file: int) -> float:
    sample = os.urandom(2**20)
    start = time.perf_counter()
    for _ in range(_SAMPLE_BYTES // len(sample)):
        os.write(file, sample)
    os.fsync(file)
    return _SAMPLE_BYTES / max(time.perf_counter() - start, 1e-9)


def ports(peer: PeerFile, state: Path) -> tuple[Port, ...]:
    """`state`: the state directory of a daemon that may run, and then has them."""
    host, metrics = parse_listen(peer.network.listen).host, peer.metrics
    wanted = [(key, host, number) for key, number in peer.network.ports().items()]
    if metrics.port is not None:
        wanted.append(("metrics", metrics.host, metrics.port))
    if StateDirectory(state).in_use:
        return tuple(Port(*each, is_ours=True) for each in wanted)
    return tuple(Port(*each, _bind_problem(*each[1:])) for each in wanted)


def _bind_problem(host: str, number: int) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError as problem:
            if problem.errno == errno.EADDRINUSE:
                return "another program listens there"
            return problem.strerror or str(problem)
    return ""


def daemon_runs(state: Path) -> bool:
    """Whether a daemon of this user's computes here: in `state`, or in the usual place."""
    others = (each for each in state_home().glob("*") if each.name[0] not in "._")
    return any(StateDirectory(each).in_use for each in (state, *others))


def trains(state: Path, run: bytes) -> bool:
    """Whether a daemon runs in `state` that has got as far as to take part in this run."""
    directory = StateDirectory(state)
    with suppress(OSError, PeerRefused):
        kept = decode_manifest(directory.manifest.read_bytes(), None)
        return directory.in_use and manifest_digest(kept) == run
    return False


def clock_synchronised() -> bool | None:
    """Whether something keeps this clock right, as the kernel says; None: it does not say."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        state = library.adjtimex(ctypes.create_string_buffer(512))  # all zero: only reads
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR
