"""What was seen of a box: numbers and words, no judgement. None: it could not be seen."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """A library that we need."""

    name: str
    wanted: str
    """As pyproject.toml says: "<2,>=1.67"."""
    installed: str | None
    fits: bool


@dataclass(frozen=True)
class Software:
    python: tuple[int, int]
    packages: tuple[Package, ...]
    kernels: str | None
    """Why the host kernels cannot be used; None: they can."""


@dataclass(frozen=True)
class Gpu:
    name: str
    driver: str
    free_bytes: int
    total_bytes: int
    computes_bfloat16: bool
    load_bytes_per_s: float | None
    """Host to device, page-locked, measured."""
    unload_bytes_per_s: float | None


@dataclass(frozen=True)
class Machine:
    system: str
    processor: str
    threads: int
    gpu: Gpu | None
    gpu_problem: str
    """Why there is none; empty: none is wanted."""
    wants_gpu: bool
    """Says the peer file."""
    card_seen: bool = False
    """NVIDIA's, on the bus: whether or not it can be used."""
    in_container: bool = False
    """Docker's or Podman's: drivers are the host's."""


@dataclass(frozen=True)
class Memory:
    total_bytes: int
    available_bytes: int
    lockable_bytes: int | None
    """RLIMIT_MEMLOCK; None: no limit."""
    adamw_per_s: float | None
    """Parameters per second, measured with the host kernel."""
    cap_bytes: int | None = None
    """[host] memory of the peer file; None: what is free."""
    is_limited: bool = False
    """The total is what a container or a service is allowed, not the machine's."""


@dataclass(frozen=True)
class Disk:
    folder: str
    free_bytes: int
    write_bytes_per_s: float | None
    """To the platter: synced."""
    problem: str = ""
    """Why nothing can be written there."""
    kept_bytes: int = 0
    """What the peer's own states and results take of it already."""


@dataclass(frozen=True)
class Port:
    key: str
    """Of the peer file, in [network]; or "metrics"."""
    host: str
    number: int
    """0: any free one."""
    problem: str = ""
    is_ours: bool = False
    """The daemon of this state directory runs: it listens there."""

    @property
    def setting(self) -> str:
        """How the peer file chooses it."""
        return "[metrics] port" if self.key == "metrics" else f"[network] {self.key}"


@dataclass(frozen=True)
class Clock:
    synchronised: bool | None
    """As the kernel says."""
    offset_s: tuple[float, float] | None = None
    """Ours minus the swarm's lies between these."""


@dataclass(frozen=True)
class Swarm:
    """What is seen through an address."""

    problem: str = ""
    """Why nothing is seen."""
    hint: str = ""
    run: str = ""
    peers: int = 0
    only_own: bool = False
    """The one peer is this box's own."""
    versions: tuple[tuple[str, str, str | None], ...] = ()
    """(package, the run's version, ours)."""
    data: str = ""
    """How much the run trains on; empty: its founder's version did not say."""
    reached: str = ""
    """"yes", "no", or why nobody could be asked."""


@dataclass(frozen=True)
class Fit:
    """What a model takes here, by the planner's arithmetic."""

    title: str
    host_bytes: int
    host_have_bytes: int
    disk_bytes: int
    disk_have_bytes: int
    device_problem: str = ""
    """What fits the device in no way."""

    @property
    def fits_memory(self) -> bool:
        return self.host_bytes <= self.host_have_bytes and not self.device_problem


@dataclass(frozen=True)
class Capacity:
    largest: Fit | None
    """The largest model of the family that fits memory."""
    next_larger: Fit | None
    """What the next one takes: if none fits, the smallest of all."""
    run: Fit | None = None
    run_problem: str = ""
    """Why the run's model could not be looked at."""
    trains_it: bool = False
    """The daemon of this state directory takes part: what it needs of memory it has."""


@dataclass(frozen=True)
class Facts:
    software: Software
    machine: Machine
    memory: Memory
    disk: Disk
    ports: tuple[Port, ...]
    clock: Clock
    capacity: Capacity
    swarm: Swarm | None = None
    """None: no address was given."""
    daemon_runs: bool = False
    """A daemon of this user's is at work meanwhile, here or in another state directory."""
