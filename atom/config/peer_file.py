"""The peer file: what one box gives. Every key is optional, an empty file is a valid one."""

import json
import re
from collections.abc import Callable, Sequence
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
    """A text that stays as it was written, if it can be parsed."""

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
"""That the chassis of one host holds."""


def _listed(value: Any) -> Any:
    """A word is a list of one."""
    return (
        (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    )


def _why_not_used(names: Sequence[str]) -> tuple[str, str]:
    """What is wrong with these as [device] use, and what would do; empty: nothing is."""
    unknown = [n for n in names if n != "all" and not re.match(DEVICE_PATTERN, n)]
    if unknown or not 0 < len(names) <= MAX_DEVICES:
        return f"cannot be {json.dumps(unknown[0] if unknown else names)}", ""
    if len(names) > 1 and {"auto", "all"} & set(names):
        return '"auto" and "all" stand alone', 'use = "all", or name each: ["cuda:0", "cuda:1"]'
    gpus = [int(n.partition(":")[2] or 0) for n in names if n.startswith("cuda")]
    if gpus and "cpu" in names:
        hint = "name the GPUs alone; a daemon that uses the CPU is a peer of its own"
        return "a CPU and GPUs round differently", hint
    if len(gpus) > len(set(gpus)):
        return "a GPU is named twice", '"cuda" is "cuda:0": name each once'
    return "", ""


class Device(Section):
    """[device]"""

    use: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ("auto",)
    """"auto" (the first GPU, else the CPU), "all" (GPUs), "cpu", "cuda", "cuda:1", or a list:
    ["cuda:0", "cuda:1"]."""
    memory_bytes: BytesOrAuto = Field(default=None, alias="memory")
    """Of each device, what sub-models may fill: "8 GiB"; "auto": what is free."""
    cpu_threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads for computing on the CPU; omitted: PyTorch decides."""
    deterministic: bool = False
    """Whether a pass that is repeated gives the same bits on a GPU, too, at some cost of speed."""

    @model_validator(mode="after")
    def _check(self) -> "Device":
        what, hint = _why_not_used(self.use)
        if what:
            refuse("use", what, hint)
        return self


class Host(Section):
    """[host]"""

    memory_bytes: BytesOrAuto = Field(default=None, alias="memory")
    """Host memory for weights, moments and gradients: "48 GiB"; "auto": what is free."""


class Network(Section):
    """[network]"""

    name: PeerName | None = None
    """What others see beside this peer's id; it proves nothing. Omitted: none."""
    listen: HostPortText = "0.0.0.0:0"
    """HOST:PORT where the DHT node listens; port 0: any free one."""
    data_port: int = Field(default=0, ge=0, lt=1 << 16)
    """Where gradients and state travel; 0: any free port. Same host as `listen`."""
    announce: Annotated[tuple[AnnouncementText, ...], Field(max_length=8)] = ()
    """Hosts or HOST:PORTs where others reach this box; empty: its own addresses."""
    upload_bits_per_s: BitsPerSecond | None = Field(default=None, alias="upload", gt=0)
    """Most bandwidth to send with: "400 Mbit/s"; omitted: no limit."""
    download_bits_per_s: BitsPerSecond | None = Field(default=None, alias="download", gt=0)
    """Most bandwidth to receive with; omitted: no limit."""
    per_month_bytes: Annotated[Bytes, Field(gt=0)] | None = Field(default=None, alias="per_month")
    """What the line may carry in a calendar month, both ways together: "500 GB"; omitted: no
    limit. Near it the peer leaves in order, and may start again with the next month."""
    reachable: str = Field(default="auto", pattern=r"^(auto|yes|no)$")
    """Whether other peers can connect to the data port; "auto": some of them are asked to try;
    "no": nothing listens there, this box only connects to others."""
    lan: bool = False
    """Whether to connect to private addresses of other peers although this box announces a public
    one."""


class Schedule(Section):
    """[schedule]: when this box may work. All wishes hold at once."""

    hours: Annotated[tuple[WindowText, ...], Field(max_length=64)] = ()
    """Days and times by this machine's clock: ["mon-fri 18:00-08:00", "sat,sun 00:00-24:00"];
    empty: always."""
    idle_for_s: Seconds | None = Field(default=None, alias="idle_for", gt=0)
    """Only when nobody has sat at the machine for so long: "10 min"; omitted: whether or not."""
    pause_on_battery: bool = True
    """Whether to stand still while the machine runs on battery."""
    pause_for_gpu_programs: bool = False
    """Whether to stand still while another program uses the GPU."""

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """`hours`, understood."""
        return tuple(map(parse_window, self.hours))


class State(Section):
    """[state]"""

    directory: LocalPath | None = None
    """Where identity, snapshots, events and tokens are kept, relative to this file."""
    snapshots: int = Field(default=2, ge=1, le=64)
    """States kept on disk; the oldest goes first."""


class Checkpoints(Section):
    """[checkpoints]: weights that are kept for `atom export`, beside the states."""

    every_rounds: Count | None = None
    """Rounds between two that are kept; omitted: none are."""
    keep: int = Field(default=5, ge=1, le=1000)
    """How many of those, the newest."""
    best: bool = False
    """Whether to keep the best one by validation, too."""

    @model_validator(mode="after")
    def _check(self) -> "Checkpoints":
        if self.every_rounds is None and self.keep != Checkpoints.model_fields["keep"].default:
            refuse("keep", "says nothing without every_rounds", "every_rounds = 100")
        return self


class LocalSource(Section):
    """[data.sources.NAME]: where this box keeps one of the run's several texts."""

    paths: Annotated[tuple[LocalText, ...], Field(max_length=1024)] | None = None
    """Files, folders and globs, relative to this file."""
    path: LocalTable | None = None
    """The run's table: a folder relative to this file, or OWNER/NAME on the hub."""


class LocalData(LocalSource):
    """[data]: where this box keeps the run's text, if not where the run file says."""

    sources: dict[SourceKey, LocalSource] = Field(default_factory=dict, max_length=MAX_TEXTS)
    """Of a run with several texts, each by its name in the run file."""
    tokenizer: LocalTokenizer | None = None
    """The run's tokenizer.json, relative to this file."""


class Sample(Section):
    """[sample]: texts that this peer's replica writes as it is trained."""

    prompts: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=100, pattern=WORDS)], ...],
        Field(max_length=16),
    ] = ()
    """How they begin; they take turns. Empty: none is written."""
    every_rounds: Count = 10
    """Between two of them."""


class Metrics(Section):
    """[metrics]: for a Prometheus server."""

    port: int | None = Field(default=None, ge=0, lt=1 << 16)
    """Where metrics are served over HTTP; omitted: nowhere; 0: any free one."""
    host: InterfaceText = "127.0.0.1"
    """Address of this machine to serve them on; they have no password."""


class PeerFile(Section):
    """A whole peer file."""

    device: Device = Device()
    host: Host = Host()
    network: Network = Network()
    schedule: Schedule = Schedule()
    state: State = State()
    checkpoints: Checkpoints = Checkpoints()
    data: LocalData = LocalData()
    sample: Sample = Sample()
    metrics: Metrics = Metrics()

    @model_validator(mode="after")
    def _check(self) -> "PeerFile":
        taken: dict[int, str] = {}
        for key, port in self.ports().items():
            if port in taken:
                hint = "give each a number of its own, or 0 for any free one"
                refuse(key, f"{port} is the port of {taken[port]} as well", hint)
            if port:
                taken[port] = key
        return self

    def ports(self) -> dict[str, int]:
        """Key → the number that is listened on; 0: any free one."""
        network = self.network
        ports = {"network.listen": parse_host_port(network.listen)[1]}
        if network.reachable != "no":
            ports["network.data_port"] = network.data_port
        if self.metrics.port is not None:
            ports["metrics.port"] = self.metrics.port
        return ports
