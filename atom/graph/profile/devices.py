"""What devices sustain: of a table, so that a plan needs no device, and as a usual one does.

`flops_per_s` and `memory_bytes_per_s` are what programs sustain, not what the box says: matrix
products reach about three quarters of the tensor cores' peak (of the plain units 85 %), streaming
kernels about 85 % of the memory's. Links: three quarters of the nominal rate, which is what a
PCIe 5 x16 link was seen to give each way with both ways busy (47 of 63 GB/s).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from atom.base.errors import DeviceError
from atom.graph.costs.call_cost import Kernel

_TENSOR_CORES, _PLAIN_UNITS, _MEMORY, _LINK = 0.75, 0.85, 0.85, 0.75
_LAUNCH_S = 5e-6
_LAUNCH_SOURCE = "PyTorch's eager mode launches 150,000 to 250,000 kernels per second"
_LINK_SOURCE = "PCI Express base specification, x16"


@dataclass(frozen=True)
class Rates:
    """What a device sustains."""

    flops_per_s: Mapping[torch.dtype, float]
    """Of matrix products, per precision; float32's also stands for those not named."""
    memory_bytes_per_s: float
    launch_s: float
    """Per kernel, whatever its size."""

    def seconds(self, kernels: Iterable[Kernel]) -> float:
        """One kernel after the other, each as slow as the slower of its computing and its memory
        traffic, and its launch."""
        return sum(map(self._kernel_seconds, kernels))

    def _kernel_seconds(self, kernel: Kernel) -> float:
        flops_per_s = self.flops_per_s.get(kernel.dtype, self.flops_per_s[torch.float32])
        busy = max(kernel.flops / flops_per_s, kernel.moved_bytes / self.memory_bytes_per_s)
        return busy + self.launch_s


TYPICAL = {
    "cpu": Rates({torch.float32: 1e11}, 1.5e10, 4e-6),
    "cuda": Rates({torch.float32: 2e13, torch.float16: 2e14, torch.bfloat16: 2e14}, 1.5e12, 4e-6),
}
"""To share a measured layer's seconds among its calls, and where nothing can be measured."""


@dataclass(frozen=True)
class Figure:
    """A number and who says so."""

    value: float
    source: str


@dataclass(frozen=True)
class AssumedDevice:
    name: str
    title: str
    memory_bytes: Figure
    flops_per_s: Mapping[torch.dtype, Figure]
    """Sustained by matrix products. A precision that is absent is one the device does not have."""
    memory_bytes_per_s: Figure
    link_bytes_per_s: Figure
    """Each way, both ways busy."""
    launch_s: Figure

    def rates(self) -> Rates:
        flops = {dtype: figure.value for dtype, figure in self.flops_per_s.items()}
        return Rates(flops, self.memory_bytes_per_s.value, self.launch_s.value)


def assumed_device(name: str, precision: torch.dtype) -> AssumedDevice:
    """A device of the table that computes in `precision`.

    Raises: DeviceError for an unknown name, or a precision that the device does not have.
    """
    if name not in DEVICES:
        raise DeviceError(
            f"{name!r} is no device whose rates are known", f"known are {', '.join(DEVICES)}"
        )
    device = DEVICES[name]
    if precision not in device.flops_per_s:
        wanted = str(precision).removeprefix("torch.")
        has = ", ".join(str(dtype).removeprefix("torch.") for dtype in device.flops_per_s)
        instead = "use float16" if wanted == "bfloat16" else f"it has {has}"
        raise DeviceError(f"a {device.title} does not compute in {wanted}", instead)
    return device


def _of(value: float, share: float, source: str) -> Figure:
    return Figure(value * share, f"{share:.0%} of {value / 1e9:,.0f} G per second: {source}")


def _card(
    name: str,
    title: str,
    source: str,
    gib: int,
    full: float,
    half: Figure,
    memory: float,
    link: float,
    bfloat16: bool = True,
) -> AssumedDevice:
    """From nominal rates per second: `full` of float32, `half` as sustained in 16 bits."""
    return AssumedDevice(
        name=name,
        title=title,
        memory_bytes=Figure(gib * 2**30, source),
        flops_per_s={
            **({torch.bfloat16: half} if bfloat16 else {}),
            torch.float16: half,
            torch.float32: _of(full, _PLAIN_UNITS, source),
        },
        memory_bytes_per_s=_of(memory, _MEMORY, source),
        link_bytes_per_s=_of(link, _LINK, _LINK_SOURCE),
        launch_s=Figure(_LAUNCH_S, _LAUNCH_SOURCE),
    )


_ADA = "NVIDIA Ada GPU architecture white paper, GeForce RTX 4090"
_GA102 = "NVIDIA Ampere GA102 white paper, tensor cores per SM, at 28 SMs and 1.78 GHz"
_3060 = "NVIDIA GeForce RTX 3060 product page (12 GB): 3584 cores at 1.78 GHz, 192 bit at 15 Gbit/s"
_1080TI = "NVIDIA GeForce GTX 1080 Ti product page: 3584 cores at 1.58 GHz"
_V100 = "NVIDIA Tesla V100 data sheet, PCIe, 32 GB"
_H200 = "NVIDIA H200 data sheet, SXM; memory and link measured on an H200 box"

DEVICES: dict[str, AssumedDevice] = {
    device.name: device
    for device in (
        _card("rtx4090-24g", "GeForce RTX 4090", _ADA, 24, full=82.6e12,
              half=_of(165.2e12, _TENSOR_CORES, f"{_ADA}, dense, float32 accumulation"),
              memory=1008e9, link=31.5e9),
        _card("rtx3060-12g", "GeForce RTX 3060", _3060, 12, full=12.7e12,
              half=_of(25.5e12, _TENSOR_CORES, f"{_GA102}, dense, float32 accumulation"),
              memory=360e9, link=31.5e9),
        _card("gtx1080ti-11g", "GeForce GTX 1080 Ti", _1080TI, 11, full=11.3e12,
              half=_of(11.3e12, _PLAIN_UNITS, f"{_1080TI}; no tensor cores, as in float32"),
              memory=484e9, link=15.75e9, bfloat16=False),
        _card("v100-32g", "Tesla V100", _V100, 32, full=14e12,
              half=_of(112e12, _TENSOR_CORES, _V100),
              memory=900e9, link=15.75e9, bfloat16=False),
        # The driver offers 139 GB of 141.
        _card("h200", "H200", _H200, 139, full=67e12,
              half=Figure(700e12, "measured on an H200 box: 690 to 790 in large products"),
              memory=4.8e12, link=63e9),
    )
}  # fmt: skip
"""By the name that a user gives."""
