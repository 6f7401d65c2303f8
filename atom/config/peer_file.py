"""The peer file: settings of one machine. Every key is optional; an empty file is valid."""

import json
import re
from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from atom.config.address import parse_announcement, parse_host_port, parse_interface
from atom.config.hours import Window, parse_window
from atom.config.model_and_data import MAX_TEXTS, SourceKey
from atom.config.places import LocalPath, LocalTable, LocalText, LocalTokenizer
from atom.config.section import (
    PEER_NAME,
    WORDS,
    BitsPerSecond,
    Bytes,
    Count,
    Seconds,
    Section,
    refuse,
)


def _checked(parse: Callable[[str], object]) -> AfterValidator:
    """Return a validator that keeps a text as written, but refuses it if `parse` raises."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


_AUTO = BeforeValidator(lambda value: None if value == "auto" else value)
BytesOrAuto = Annotated[Annotated[Bytes, Field(gt=0)] | None, _AUTO]
HostPortText = Annotated[str, _checked(parse_host_port)]
InterfaceText = Annotated[str, AfterValidator(parse_interface)]
WindowText = Annotated[str, _checked(parse_window)]
PeerName = Annotated[str, Field(pattern=rf"^{PEER_NAME}$")]
AnnouncementText = Annotated[str, _checked(parse_announcement)]

DEVICE_PATTERN = r"^(auto|cpu|cuda(:[0-9]{1,3})?)$"
MAX_DEVICES = 16
"""Maximum number of devices of one peer: no common host has more GPUs."""


def _as_tuple(value: Any) -> Any:
    """Return a string as a tuple of one, a list as a tuple, and any other value as it is."""
    return (
        (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    )


class Device(Section):
    """Section [device]: the devices that compute, and how much of them may be used."""

    use: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = ("auto",)
    """Devices to compute on: "auto" (the first GPU, else the CPU), "all" (all GPUs), "cpu", "cuda",
    "cuda:1", or a list: ["cuda:0", "cuda:1"]."""
    memory_bytes: BytesOrAuto = Field(default=None, alias="memory")
    """Most memory of each device that training may take: "8 GiB"; "auto": the free memory, less a
    reserve."""
    cpu_threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads for computing on the CPU; omitted: as many as PyTorch chooses and the container or
    service may use."""
    deterministic: bool = False
    """True: repeating a pass gives the same bits on a GPU as well, at some cost of speed."""

    @model_validator(mode="after")
    def _check(self) -> "Device":
        unknown = [n for n in self.use if n != "all" and not re.match(DEVICE_PATTERN, n)]
        if unknown or not 0 < len(self.use) <= MAX_DEVICES:
            refuse("use", f"cannot be {json.dumps(unknown[0] if unknown else self.use)}")
        if len(self.use) > 1 and {"auto", "all"} & set(self.use):
            hint = 'use = "all", or ["cuda:0", "cuda:1"]'
            refuse("use", '"auto" and "all" must stand alone', hint)
        gpus = [int(n.partition(":")[2] or 0) for n in self.use if n.startswith("cuda")]
        if gpus and "cpu" in self.use:
            hint = "name only the GPUs; to use the CPU as well, start a separate peer on it"
            refuse("use", "a CPU and GPUs round differently", hint)
        if len(gpus) > len(set(gpus)):
            hint = '"cuda" means "cuda:0": name each GPU once'
            refuse("use", "a GPU is named twice", hint)
        return self


class Host(Section):
    """Section [host]: the memory of this machine, outside its GPUs."""

    memory_bytes: BytesOrAuto = Field(default=None, alias="memory")
    """Host memory for weights, moments and gradients: "48 GiB"; "auto": the free memory."""


class Network(Section):
    """Section [network]: addresses, bandwidth and monthly traffic."""

    name: PeerName | None = None
    """Name that other peers see next to this peer's id; it proves nothing. Omitted: none."""
    listen: HostPortText = "0.0.0.0:0"
    """HOST:PORT where the DHT node listens; port 0: any free port."""
    data_port: int = Field(default=0, ge=0, lt=1 << 16)
    """TCP port for gradients and state, on the same host as `listen`; 0: any free port."""
    announce: Annotated[tuple[AnnouncementText, ...], Field(max_length=8)] = ()
    """Hosts or HOST:PORTs where other peers reach this machine; empty: its own addresses."""
    upload_bits_per_s: BitsPerSecond | None = Field(default=None, alias="upload", gt=0)
    """Most bandwidth to send with: "400 Mbit/s"; omitted: no limit."""
    download_bits_per_s: BitsPerSecond | None = Field(default=None, alias="download", gt=0)
    """Most bandwidth to receive with; omitted: no limit."""
    per_month_bytes: Annotated[Bytes, Field(gt=0)] | None = Field(default=None, alias="per_month")
    """Most traffic in a calendar month, sent and received together: "500 GB"; omitted: no limit.
    Shortly before the limit the peer leaves in order; it may start again in the next month."""
    reachable: str = Field(default="auto", pattern=r"^(auto|yes|no)$")
    """Reachability of the data port for other peers: "auto" asks some of them to try; "no" opens no
    port, and this machine only connects to others."""
    map_ports: bool | None = None
    """True: ask the home router to open both ports of this peer while it runs, so that other peers
    can dial it (PCP, NAT-PMP or UPnP). Omitted: a terminal asks at the first start."""
    lan: bool = False
    """True: connect to private addresses of other peers although this machine announces a public
    one."""

    seed: bool = False
    """True: stay after the run's last round, and serve its state, text and chain to others until
    `atom leave`."""


class Schedule(Section):
    """Section [schedule]: when this machine may work; all conditions must hold at once."""

    hours: Annotated[tuple[WindowText, ...], Field(max_length=64)] = ()
    """Days and times by this machine's clock: ["mon-fri 18:00-08:00", "sat,sun 00:00-24:00"];
    empty: always."""
    idle_for_s: Seconds | None = Field(default=None, alias="idle_for", gt=0)
    """Time without user input before work starts: "10 min"; omitted: user input does not matter."""
    pause_on_battery: bool = True
    """True: pause while the machine runs on battery."""

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """Parsed form of `hours`."""
        return tuple(map(parse_window, self.hours))


class State(Section):
    """Section [state]: the state directory on disk."""

    directory: LocalPath | None = None
    """Folder for identity, snapshots, events and tokens, relative to this file."""
    snapshots: int = Field(default=2, ge=1, le=64)
    """Snapshots kept on disk; the oldest is deleted first."""


class Checkpoints(Section):
    """Section [checkpoints]: weights kept for `atom export`, in addition to the snapshots."""

    every_rounds: Count | None = None
    """Rounds between two checkpoints; omitted: none are written at intervals."""
    keep: int = Field(default=5, ge=1, le=1000)
    """Number of newest checkpoints to keep, of those written every `every_rounds`."""
    best: bool = False
    """True: also keep the checkpoint with the lowest validation loss."""

    @model_validator(mode="after")
    def _check(self) -> "Checkpoints":
        if self.every_rounds is None:
            what = "has no effect without every_rounds"
            self.refuse_given(["keep"], what, "every_rounds = 100")
        return self


class LocalSource(Section):
    """Section [data.sources.NAME]: this machine's copy of one of the run's several texts."""

    paths: Annotated[tuple[LocalText, ...], Field(max_length=1024)] | None = None
    """Files, folders and globs of the run's text, relative to this file."""
    path: LocalTable | None = None
    """Copy of the run's table: a folder relative to this file, or OWNER/NAME on the hub."""


class LocalData(LocalSource):
    """Section [data]: this machine's copy of the run's text."""

    sources: dict[SourceKey, LocalSource] = Field(default_factory=dict, max_length=MAX_TEXTS)
    """Copies of a run's several texts, each under its name in the run file."""
    tokenizer: LocalTokenizer | None = None
    """Copy of the run's tokenizer.json, relative to this file."""


class Sample(Section):
    """Section [sample]: texts that this peer's replica writes while it is trained."""

    prompts: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=100, pattern=WORDS)], ...],
        Field(max_length=16),
    ] = ()
    """Beginnings of the texts, used in turn; empty: no text is written."""
    every_rounds: Count = 10
    """Rounds between two texts."""


class Metrics(Section):
    """Section [metrics]: figures served to a Prometheus server."""

    port: int | None = Field(default=None, ge=0, lt=1 << 16)
    """HTTP port that serves the metrics; 0: any free port; omitted: no metrics are served."""
    host: InterfaceText = "127.0.0.1"
    """Address of this machine that serves the metrics, which no password protects."""


class PeerFile(Section):
    """Complete peer file."""

    device: Device = Device()
    host: Host = Host()
    network: Network = Network()
    schedule: Schedule = Schedule()
    state: State = State()
    checkpoints: Checkpoints = Checkpoints()
    data: LocalData = LocalData()
    sample: Sample = Sample()
    metrics: Metrics = Metrics()

    def ports(self) -> dict[str, int]:
        """Return key → TCP port to listen on (0: any free port), without unused ports."""
        network = self.network
        ports = {"network.listen": parse_host_port(network.listen)[1]}
        if network.reachable != "no":
            ports["network.data_port"] = network.data_port
        if self.metrics.port is not None:
            ports["metrics.port"] = self.metrics.port
        return ports
