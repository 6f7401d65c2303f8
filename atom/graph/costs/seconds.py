"""Profiles: seconds of a graph's layers and calls on a device.

They are either estimated from the device's rates, or measured layer by layer. A layer's measured
seconds are divided among its calls in proportion to the estimates.

A table of rates makes plans possible without a device. `flops_per_s` and `memory_bytes_per_s` are
rates that programs sustain, not nominal ones: matrix products reach about three quarters of the
tensor cores' peak (85 % of the plain units'), streaming kernels about 85 % of the memory bandwidth.
Links reach three quarters of the nominal rate: a PCIe 5 x16 link was measured at 47 of 63 GB/s in
each direction while both directions were busy.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from atom.base.errors import DeviceError
from atom.graph.chain import Chain, Kernel, Machine, Operation, Seconds
from atom.graph.costs.operations import operation_chain, operation_costs
from atom.graph.layers import layers_of
from atom.graph.traced import Graph

_TENSOR_CORES, _PLAIN_UNITS, _MEMORY, _LINK = 0.75, 0.85, 0.85, 0.75
_Host = tuple[float, float]
_DESKTOP: _Host = 60e9, 60e9
"""Bytes per second that the host moves while it only adds gradients, and that its memory moves in
total: two thirds of the nominal rate of two channels of DDR5-5600."""
_SERVER: _Host = 100e9, 140e9
"""Rates of a server, in the same order; the second was measured on the host of an H200."""
_LAUNCH_S = 5e-6
"""Seconds per launch: PyTorch's eager mode launches 150,000 to 250,000 kernels per second."""


@dataclass(frozen=True)
class Rates:
    """Rates that a device sustains."""

    flops_per_s: Mapping[torch.dtype, float]
    """Rate of matrix products by dtype. The rate of float32 is also used for absent dtypes."""
    memory_bytes_per_s: float
    launch_s: float
    """Seconds that each kernel takes in addition, independent of its size."""

    def seconds(self, kernels: Iterable[Kernel]) -> float:
        """Return the seconds of kernels that run one after the other.

        Each kernel takes the larger of its computing time and its memory time, and its launch.
        """
        return sum(map(self._kernel_seconds, kernels))

    def _kernel_seconds(self, kernel: Kernel) -> float:
        flops_per_s = self.flops_per_s.get(kernel.dtype, self.flops_per_s[torch.float32])
        busy = max(kernel.flops / flops_per_s, kernel.moved_bytes / self.memory_bytes_per_s)
        return busy + self.launch_s


TYPICAL = {
    "cpu": Rates({torch.float32: 1e11}, 1.5e10, 4e-6),
    "cuda": Rates({torch.float32: 2e13, torch.float16: 2e14, torch.bfloat16: 2e14}, 1.5e12, 4e-6),
}
"""Rates of a usual device by type.

They divide a measured layer's seconds among its calls, and replace measurements that are not
possible.
"""


@dataclass(frozen=True)
class AssumedDevice:
    """Device whose rates are known, for plans without that device."""

    name: str
    title: str
    memory_bytes: int
    rates: Rates
    """Sustained rates. The device does not support dtypes that are absent in `flops_per_s`."""
    link: Machine


def assumed_device(name: str, precision: torch.dtype) -> AssumedDevice:
    """Return a device of the table.

    Args:
        name: name in `DEVICES`.
        precision: dtype in which the device must compute.

    Raises:
        DeviceError: the name is unknown, or the device does not support the precision.
    """
    if name not in DEVICES:
        raise DeviceError(
            f"{name!r} is not a device with known rates",
            f"the devices known are {', '.join(DEVICES)}",
        )
    device = DEVICES[name]
    if precision not in device.rates.flops_per_s:
        wanted = str(precision).removeprefix("torch.")
        has = ", ".join(str(dtype).removeprefix("torch.") for dtype in device.rates.flops_per_s)
        raise DeviceError(f"a {device.title} does not compute in {wanted}", f"choose one of {has}")
    return device


def _card(
    name: str,
    title: str,
    gib: int,
    full: float,
    half: float,
    memory: float,
    link: float,
    bfloat16: bool = True,
    host: _Host = _DESKTOP,
) -> AssumedDevice:
    """Return a device of the table.

    Args:
        name: name by which users select the device.
        title: name in messages.
        gib: memory in GiB.
        full: nominal float32 operations per second.
        half: sustained 16-bit operations per second of matrix products.
        memory: nominal bandwidth of the memory in bytes per second.
        link: nominal rate of the link in bytes per second.
        bfloat16: True if the device supports bfloat16.
        host: rates of the host's memory.
    """
    flops = {torch.float16: half, torch.float32: full * _PLAIN_UNITS}
    rates = Rates(
        {torch.bfloat16: half, **flops} if bfloat16 else flops, memory * _MEMORY, _LAUNCH_S
    )
    link *= _LINK
    return AssumedDevice(name, title, gib * 2**30, rates, Machine(link, link, *host))


# Links: PCI Express base specification, x16.
_CARDS = (
    # NVIDIA Ada GPU architecture white paper; 16 bits dense, with float32 accumulation.
    _card("rtx4090-24g", "GeForce RTX 4090", 24, full=82.6e12, half=165.2e12 * _TENSOR_CORES,
          memory=1008e9, link=31.5e9),
    # NVIDIA RTX Blackwell GPU architecture white paper; as above.
    _card("rtx5090-32g", "GeForce RTX 5090", 32, full=104.8e12, half=209.5e12 * _TENSOR_CORES,
          memory=1792e9, link=63e9),
    # NVIDIA Ampere GA102 GPU architecture white paper; as above.
    _card("rtx3090-24g", "GeForce RTX 3090", 24, full=35.6e12, half=71e12 * _TENSOR_CORES,
          memory=936e9, link=31.5e9),
    # NVIDIA's product page: 3584 cores at 1.78 GHz, 192 bit at 15 Gbit/s. Tensor cores per SM:
    # Ampere GA102 white paper, at 28 SMs; dense, with float32 accumulation.
    _card("rtx3060-12g", "GeForce RTX 3060", 12, full=12.7e12, half=25.5e12 * _TENSOR_CORES,
          memory=360e9, link=31.5e9),
    # NVIDIA's product page: 3584 cores at 1.58 GHz. No tensor cores: 16 bits as float32.
    _card("gtx1080ti-11g", "GeForce GTX 1080 Ti", 11, full=11.3e12, half=11.3e12 * _PLAIN_UNITS,
          memory=484e9, link=15.75e9, bfloat16=False),
    # NVIDIA Tesla V100 data sheet, PCIe, 32 GB.
    _card("v100-32g", "Tesla V100", 32, full=14e12, half=112e12 * _TENSOR_CORES,
          memory=900e9, link=15.75e9, bfloat16=False),
    # NVIDIA A100 and H100 data sheets, SXM, 80 GB.
    _card("a100-80g", "A100", 80, full=19.5e12, half=312e12 * _TENSOR_CORES, memory=2039e9,
          link=31.5e9, host=_SERVER),
    _card("h100-80g", "H100", 80, full=67e12, half=989e12 * _TENSOR_CORES, memory=3350e9,
          link=63e9, host=_SERVER),
    # NVIDIA H200 data sheet, SXM. Measured on an H200 box: memory, link, and 690 to 790e12 in large
    # products. The driver offers 139 GB of 141.
    _card("h200", "H200", 139, full=67e12, half=700e12, memory=4.8e12, link=63e9, host=_SERVER),
)  # fmt: skip

DEVICES: dict[str, AssumedDevice] = {device.name: device for device in _CARDS}
"""Table of devices, by the name with which users select one."""


BUSY_SHARE = 0.25
"""Fraction of a device used by other programs from which measured seconds are doubtful."""


@dataclass(frozen=True)
class Profile:
    """Costs of a graph on a device."""

    source: str
    """`live` (passes of a peer that runs here), `measured`, or `assumed` (rates of the table, or
    typical ones)."""
    layers: tuple[Seconds, ...]
    """Seconds of each layer, in order."""
    chain: Chain
    """One operation per entry of `graph.calls`."""
    link: Machine
    """Rates of copies and of the host's memory."""
    chain_of: Callable[[Graph], Chain] = field(compare=False, repr=False)
    """Function that returns the chain of the same graph with matrices in parts. The seconds of its
    layers are the same."""
    measured_at: float = field(default=0.0, compare=False)
    """Unix time of the measurement; 0: nothing was measured."""
    others_share: float = field(default=0.0, compare=False)
    """Fraction of the device that other programs used during the measurement."""

    @property
    def doubtful(self) -> bool:
        """True if other programs made the measured seconds too long."""
        return self.others_share > BUSY_SHARE


def live_graph(graph: Graph, device: torch.device, profile: Profile, times: float) -> Profile:
    """Return a profile whose seconds, of layers and of copies, are a multiple of another profile's.

    Args:
        graph: the traced model.
        device: device of the profile.
        profile: profile with realistic proportions.
        times: seconds of a live pass, as a multiple of its seconds by `profile`.
    """
    layers = [Seconds(s.forward_s * times, s.backward_s * times) for s in profile.layers]
    link = Machine(*(rate / times for rate in vars(profile.link).values()))
    return replace(measured_graph(graph, device, layers, link), source="live")


def assume_graph(graph: Graph, device: str) -> Profile:
    """Return the profile of a graph on a device that need not be present.

    Args:
        graph: the traced model.
        device: name in `DEVICES`.

    Raises:
        DeviceError: the device is unknown or does not support the graph's precision.
    """
    assumed = assumed_device(device, graph.parameter_dtype)
    return _profile(graph, assumed.rates, assumed.link, fused=True)


def typical_graph(graph: Graph, device: torch.device, link: Machine) -> Profile:
    """Return a profile with the rates of a usual device, for cuts where measuring is impossible.

    Its proportions are realistic, its absolute seconds are not.
    """
    return _profile(graph, TYPICAL[device.type], link, fused=device.type == "cuda")


def measured_graph(
    graph: Graph, device: torch.device, layers: Sequence[Seconds], link: Machine
) -> Profile:
    """Return the profile of a graph from measured seconds of its layers and measured copy rates.

    Args:
        graph: the traced model.
        device: device that was measured.
        layers: seconds of each measured layer.
        link: copy rates between host and device.
    """
    fused = device.type == "cuda"
    return _profile(graph, TYPICAL[device.type], link, fused, measured=tuple(layers))


def _profile(
    graph: Graph,
    rates: Rates,
    link: Machine,
    fused: bool,
    measured: tuple[Seconds, ...] | None = None,
) -> Profile:
    """Return the profile of a graph.

    Args:
        graph: the traced model.
        rates: rates for the estimated seconds of calls.
        link: rates of copies.
        fused: use the kernels of a GPU.
        measured: measured seconds of the layers; by default the estimates are used.
    """
    chain = operation_costs(graph, fused)
    costs = iter(chain.operations)
    estimated = [
        [_estimated(cost, rates) for cost in islice(costs, len(layer.calls))]
        for layer in layers_of(graph)
    ]
    layers = tuple(map(_sum, estimated)) if measured is None else measured
    calls = list[Seconds]()
    for seconds, estimates in zip(layers, estimated, strict=True):
        forward_s = _shares(seconds.forward_s, [call.forward_s for call in estimates])
        backward_s = _shares(seconds.backward_s, [call.backward_s for call in estimates])
        calls += map(Seconds, forward_s, backward_s)
    source = "assumed" if measured is None else "measured"
    timed = operation_chain(graph, chain, calls, fused)
    return Profile(
        source, layers, timed, link, lambda cut: _profile(cut, rates, link, fused, measured).chain
    )


def _estimated(cost: Operation, rates: Rates) -> Seconds:
    return Seconds(rates.seconds(cost.forward), rates.seconds(cost.backward))


def _sum(calls: Sequence[Seconds]) -> Seconds:
    return Seconds(sum(c.forward_s for c in calls), sum(c.backward_s for c in calls))


def _shares(total: float, parts: Sequence[float]) -> list[float]:
    """Divide `total` in the proportions of `parts` (equally if they are all zero)."""
    whole = sum(parts)
    return [part * (total / whole) if whole else total / len(parts) for part in parts]
