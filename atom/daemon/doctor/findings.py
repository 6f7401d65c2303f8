"""From facts to findings: pure. Each that is not ok says what to do: a command, or a key."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from atom.base.kernel_library import BUILDING
from atom.base.units import format_bytes
from atom.daemon.doctor.facts import (
    Capacity,
    Clock,
    Disk,
    Facts,
    Fit,
    Machine,
    Memory,
    Port,
    Software,
    Swarm,
)
from atom.daemon.doctor.finding import Finding, Level
from atom.daemon.doctor.wsl import in_wsl
from atom.daemon.usable_memory import more_than_there_is
from atom.models.installing import install_package, install_version
from atom.swarm.records.lease import CLOCKS_APART_SECONDS

PYTHONS = ((3, 11), (3, 12))
LEAST_DISK_BYTES = 2 * 10**9
SLOW_DISK_BYTES_PER_S = 50e6
SLOW_LINK_BYTES_PER_S = 4e9
SLOW_ADAMW_PER_S = 50e6
LEAST_GPU_SHARE = 0.5
"""Of its memory: when less is free, somebody else is using it."""


def findings_of(facts: Facts) -> list[Finding]:
    """In the order in which a person mends them."""
    found = [
        *_software(facts.software),
        *_machine(facts.machine, facts.daemon_runs),
        *_memory(facts.memory, facts.machine.gpu is not None),
        _disk(facts.disk),
        *(_port(port) for port in facts.ports),
        _clock(facts.clock, facts.machine.in_container),
        *_swarm(facts.swarm),
        *_capacity(facts.capacity, facts.swarm),
    ]
    if facts.daemon_runs:
        found = beside_daemon(found)
    return in_wsl(found, facts.machine.system)


def _software(software: Software) -> Iterator[Finding]:
    version = ".".join(map(str, software.python))
    if software.python in PYTHONS:
        yield Finding("Python", Level.OK, version)
    else:
        yield Finding(
            "Python", Level.FAILURE, f"{version}; 3.11 or 3.12 is needed",
            "make clean && make .venv PYTHON=python3.12",
        )  # fmt: skip
    wrong = [package for package in software.packages if not package.fits]
    if not wrong:
        torch = next((p.installed for p in software.packages if p.name == "torch"), None)
        count = len(software.packages)
        yield Finding("Libraries", Level.OK, f"all {count} as wanted, torch {torch}")
    for package in wrong:
        said = f"{package.name} {package.installed or 'is missing'}; wanted: {package.wanted}"
        fix = install_package(f"{package.name}{package.wanted}")
        yield Finding("Libraries", Level.FAILURE, said, fix)
    if software.kernels is None:
        yield Finding("Host kernels", Level.OK, "compiled")
    else:
        yield Finding("Host kernels", Level.FAILURE, software.kernels, BUILDING)


def _machine(machine: Machine, daemon_runs: bool) -> Iterator[Finding]:
    gpu = machine.gpu
    threads = f"{machine.threads} thread{'' if machine.threads == 1 else 's'}"
    processor = f"{machine.processor}, {threads}"
    yield Finding("Processor", Level.OK, processor)
    if gpu is None and not machine.gpu_problem:
        yield Finding("GPU", Level.OK, "none is used: the peer file says cpu")
        return
    if gpu is None:
        yield _no_gpu(machine)
        return
    memory = f"{format_bytes(gpu.free_bytes)} of {format_bytes(gpu.total_bytes)} free"
    said = f"{gpu.name}, driver {gpu.driver}, {memory}"
    if gpu.free_bytes >= LEAST_GPU_SHARE * gpu.total_bytes:
        yield Finding("GPU", Level.OK, said)
    elif daemon_runs:
        yield Finding("GPU", Level.OK, f"{said}: your daemon is at work")
    else:
        fix = "end what uses it: nvidia-smi lists the programs"
        yield Finding("GPU", Level.WARNING, f"{said}: other programs use the rest", fix)
    if not gpu.computes_bfloat16:
        fix = 'choose runs with precision = "float16" or "float32"'
        yield Finding("bfloat16", Level.WARNING, "this GPU does not compute in it", fix)
    yield _link(gpu.load_bytes_per_s, gpu.unload_bytes_per_s)


_OWN_GPU = (
    "install its driver until nvidia-smi lists it, and PyTorch with CUDA: make clean && make .venv"
)
_CONTAINER_GPU = (
    "docker run --gpus all, with NVIDIA's container toolkit on the host, and the image built with "
    "CUDA"
)


def _no_gpu(machine: Machine) -> Finding:
    """Where there is no card to mend, nothing is wrong: it is a slower box."""
    means = "trains on the CPU, many times slower than a GPU: choose a run of a small model"
    if not machine.wants_gpu and not machine.card_seen:
        return Finding("GPU", Level.OK, f"none found; {means}")
    mend = _CONTAINER_GPU if machine.in_container else _OWN_GPU
    if not machine.wants_gpu:
        said = f"none that can be used, {machine.gpu_problem}; {means}"
        return Finding("GPU", Level.WARNING, said, mend)
    said = f"none that can be used, {machine.gpu_problem}, and the peer file wants one"
    return Finding("GPU", Level.FAILURE, said, f'{mend}; or [device] kind = "cpu"')


def _link(load: float | None, unload: float | None) -> Finding:
    if load is None or unload is None:
        return Finding("PCIe", Level.UNCHECKED, "the copies failed: too little memory was free")
    said = f"{load / 1e9:.1f} GB/s to the GPU, {unload / 1e9:.1f} GB/s back"
    if min(load, unload) >= SLOW_LINK_BYTES_PER_S:
        return Finding("PCIe", Level.OK, said)
    fix = "put the card into a slot with 16 lanes: nvidia-smi -q -d PCIE shows what it has"
    return Finding("PCIe", Level.WARNING, f"{said}: slow", fix)


def _memory(memory: Memory, for_gpu: bool) -> Iterator[Finding]:
    total, free = format_bytes(memory.total_bytes), format_bytes(memory.available_bytes)
    said = f"{free} of {total} free"
    if memory.is_limited:
        said += ": this container or service may have no more"
    if beyond := more_than_there_is(memory.cap_bytes, memory.total_bytes):
        fix = "lower [host] memory in the peer file, or leave it out: then it is what is free"
        yield Finding("Host memory", Level.WARNING, f"{said}; {beyond}", fix)
    else:
        yield Finding("Host memory", Level.OK, said)
    if memory.lockable_bytes is None:
        yield Finding("Locked memory", Level.OK, "no limit")
    else:
        # CUDA registers memory through its driver, which the limit does not bind everywhere.
        limit = format_bytes(memory.lockable_bytes)
        more = "a GPU's driver may lock more" if for_gpu else "only a GPU would need any"
        yield Finding("Locked memory", Level.OK, f"{limit} by ulimit -l; {more}")
    rate = memory.adamw_per_s
    if rate is None:
        said = "the host kernels cannot be used, or memory ran out"
        yield Finding("Optimizer", Level.UNCHECKED, said)
    elif rate < SLOW_ADAMW_PER_S:
        yield Finding(
            "Optimizer", Level.WARNING, f"{rate / 1e6:.0f} M parameters per second: slow",
            "end other programs: top lists them; or raise [device] cpu_threads in the peer file",
        )  # fmt: skip
    else:
        yield Finding("Optimizer", Level.OK, f"{rate / 1e6:,.0f} M parameters per second")


def _disk(disk: Disk) -> Finding:
    if disk.problem:
        said = f"{disk.folder}: {disk.problem}"
        return Finding("Disk", Level.FAILURE, said, "choose another folder: --state DIR")
    said = f"{format_bytes(disk.free_bytes)} free in {disk.folder}"
    if disk.free_bytes + disk.kept_bytes < LEAST_DISK_BYTES:
        fix = "free some space, or choose another disk: [state] directory in the peer file"
        return Finding("Disk", Level.FAILURE, said, fix)
    if disk.write_bytes_per_s is None:
        return Finding("Disk", Level.OK, f"{said}, speed not measured")
    said += f", writes {disk.write_bytes_per_s / 1e6:,.0f} MB/s"
    if disk.write_bytes_per_s < SLOW_DISK_BYTES_PER_S:
        fix = "choose a faster disk: [state] directory in the peer file"
        return Finding("Disk", Level.WARNING, f"{said}: slow for snapshots", fix)
    return Finding("Disk", Level.OK, said)


def _port(port: Port) -> Finding:
    topic = f"Port of {port.key}"
    if port.is_ours:
        return Finding(topic, Level.OK, "your daemon listens")
    if port.problem:
        said = f"{port.host}:{port.number}: {port.problem}"
        fix = f"choose another in the peer file: {port.setting}"
        return Finding(topic, Level.FAILURE, said, fix)
    if port.number:
        return Finding(topic, Level.OK, f"{port.number} is free")
    said = "any free one"
    if port.key != "metrics":
        said += f"; behind a router give it a number: {port.setting}"
    return Finding(topic, Level.OK, said)


def _clock(clock: Clock, in_container: bool) -> Finding:
    fix = "timedatectl set-ntp true"
    if in_container:
        fix += ", on the host: a container has no clock of its own"
    if clock.offset_s is not None:
        low, high = clock.offset_s
        if low <= 0 <= high:
            hidden = f"one below {high - low:.0f} s may not show"
            said = f"no difference from the swarm's was seen; {hidden}"
            return Finding("Clock", Level.OK, said)
        way, least = ("ahead of", low) if low > 0 else ("behind", -high)
        said = f"at least {least:.1f} s {way} the swarm's; {CLOCKS_APART_SECONDS:.0f} s are allowed"
        if least > CLOCKS_APART_SECONDS:
            return Finding("Clock", Level.FAILURE, said, fix)
        return Finding("Clock", Level.OK, said)
    if clock.synchronised is None:
        return Finding("Clock", Level.UNCHECKED, "the kernel does not tell")
    if clock.synchronised:
        return Finding("Clock", Level.OK, "synchronised")
    return Finding("Clock", Level.WARNING, "nothing keeps it right; 3 s off is too much", fix)


def _swarm(swarm: Swarm | None) -> Iterator[Finding]:
    if swarm is None:
        said = "no address was given: atom doctor ADDRESS looks at a swarm, too"
        yield Finding("Swarm", Level.UNCHECKED, said)
        return
    if swarm.problem:
        fix = swarm.hint or "ask for the run's present address"
        yield Finding("Swarm", Level.FAILURE, swarm.problem, fix)
        return
    people = "1 peer is" if swarm.peers == 1 else f"{swarm.peers} peers are"
    if swarm.only_own:
        said = f"{swarm.run} is reached; its only peer is the one on this box"
        yield Finding("Swarm", Level.OK, said)
    elif swarm.peers:
        yield Finding("Swarm", Level.OK, f"{swarm.run} is reached, {people} alive")
    else:
        fix = "ask its owner whether it goes on: atom status ADDRESS"
        yield Finding("Swarm", Level.WARNING, f"{swarm.run} is known, nobody is alive", fix)
    for package, wanted, here in swarm.versions:
        if here != wanted:
            said = f"the run was founded with {package} {wanted}, here is {here or 'none'}"
            fix = install_version(package, wanted)
            yield Finding("Versions", Level.WARNING, said, fix)
    if all(here == wanted for _, wanted, here in swarm.versions):
        yield Finding("Versions", Level.OK, "as the run's founder had them")
    if swarm.data:
        yield Finding("Its data", Level.OK, swarm.data)
    yield _reached(swarm.reached)


def _reached(reached: str) -> Finding:
    if reached == "yes":
        return Finding("From outside", Level.OK, "a peer of the run could connect to the data port")
    if reached == "no":
        return Finding(
            "From outside", Level.WARNING, "no peer of the run could connect to the data port",
            'forward it in the router, or say [network] reachable = "no" in the peer file',
        )  # fmt: skip
    return Finding("From outside", Level.UNCHECKED, reached)


def _capacity(capacity: Capacity, swarm: Swarm | None) -> Iterator[Finding]:
    largest = capacity.largest
    lack = "" if capacity.next_larger is None else _lack(capacity.next_larger)
    if largest is not None:
        said = f"{largest.title}: {format_bytes(largest.host_bytes)} of host memory"
        said += f"; {lack}" if lack else ""
        yield Finding("Largest model", Level.OK, said)
    else:
        yield Finding(
            "Largest model", Level.WARNING, f"none of the GPT-3 paper: {lack}",
            "free memory: top lists what takes it; runs of smaller models may still fit",
        )  # fmt: skip
    if swarm is None or swarm.problem:
        return
    if capacity.run is None and capacity.trains_it:
        yield Finding("This run", Level.OK, "your daemon runs with it")
    elif capacity.run is None:
        yield Finding("This run", Level.UNCHECKED, capacity.run_problem)
    elif not capacity.run.fits_memory and not capacity.trains_it:
        fix = "free memory: top lists what takes it; or raise [host] and [device] memory"
        yield Finding("This run", Level.FAILURE, f"does not fit: {_lack(capacity.run)}", fix)
    elif capacity.run.disk_bytes > capacity.run.disk_have_bytes:
        need, have = capacity.run.disk_bytes, capacity.run.disk_have_bytes
        said = f"needs up to {format_bytes(need)} of disk, {format_bytes(have)} are free or its own"
        fix = "choose a larger disk: [state] directory in the peer file"
        yield Finding("This run", Level.FAILURE, said, fix)
    else:
        verb = "your daemon runs with it" if capacity.trains_it else f"{capacity.run.title} fits"
        takes = format_bytes(capacity.run.host_bytes)
        yield Finding("This run", Level.OK, f"{verb}: {takes} of host memory")


def _lack(fit: Fit) -> str:
    if fit.host_bytes > fit.host_have_bytes:
        need, have = format_bytes(fit.host_bytes), format_bytes(fit.host_have_bytes)
        return f"{fit.title} takes {need} of host memory, {have} may be used"
    return f"{fit.title}: {fit.device_problem}"


_MEASURED = ("PCIe", "Optimizer", "Disk", "Largest model")
"""Topics whose warnings are about what is free, or fast, at this moment."""


def beside_daemon(findings: Iterable[Finding]) -> list[Finding]:
    """The findings as they are to be read while a daemon of ours is at work."""
    return [_read(finding) for finding in findings]


def _read(finding: Finding) -> Finding:
    if finding.level is not Level.WARNING or finding.topic not in _MEASURED:
        return finding
    said = f"{finding.said}; your daemon is at work, ask again without it"
    return replace(finding, level=Level.UNCHECKED, said=said, fix="")
