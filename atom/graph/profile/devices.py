"""Devices that a plan can be made for without having one, and where each figure comes from.

`flops_per_s` and `memory_bytes_per_s` are what programs sustain, not what the box says: matrix
products reach about three quarters of the tensor cores' peak (of the plain units 85 %), streaming
kernels about 85 % of the memory's. Links: three quarters of the nominal rate, which is what a
PCIe 5 x16 link was seen to give each way with both ways busy (47 of 63 GB/s).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from atom.base.errors import DeviceError
from atom.graph.profile.roofline import Rates

_TENSOR_CORES, _PLAIN_UNITS, _MEMORY, _LINK = 0.75, 0.85, 0.85, 0.75
_PCIE_3_X16, _PCIE_4_X16 = 15.75e9, 31.5e9
_LAUNCH_S = 5e-6


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


def _launch() -> Figure:
    return Figure(_LAUNCH_S, "PyTorch's eager mode launches 150,000 to 250,000 kernels per second")


def _nominal(value: float, share: float, source: str) -> Figure:
    return Figure(value * share, f"{share:.0%} of {value / 1e9:,.0f} G per second: {source}")


def _rtx_4090() -> AssumedDevice:
    ada = "NVIDIA Ada GPU architecture white paper, GeForce RTX 4090"
    tensor = _nominal(165.2e12, _TENSOR_CORES, f"{ada}, dense, float32 accumulation")
    return AssumedDevice(
        name="rtx4090-24g",
        title="GeForce RTX 4090",
        memory_bytes=Figure(24 * 2**30, ada),
        flops_per_s={
            torch.bfloat16: tensor,
            torch.float16: tensor,
            torch.float32: _nominal(82.6e12, _PLAIN_UNITS, ada),
        },
        memory_bytes_per_s=_nominal(1008e9, _MEMORY, ada),
        link_bytes_per_s=_nominal(_PCIE_4_X16, _LINK, "PCI Express 4.0 base specification, x16"),
        launch_s=_launch(),
    )


def _rtx_3060() -> AssumedDevice:
    page = "NVIDIA GeForce RTX 3060 product page (12 GB)"
    ampere = "NVIDIA Ampere GA102 white paper, tensor cores per SM, at 28 SMs and 1.78 GHz"
    tensor = _nominal(25.5e12, _TENSOR_CORES, f"{ampere}, dense, float32 accumulation")
    return AssumedDevice(
        name="rtx3060-12g",
        title="GeForce RTX 3060",
        memory_bytes=Figure(12 * 2**30, page),
        flops_per_s={
            torch.bfloat16: tensor,
            torch.float16: tensor,
            torch.float32: _nominal(12.7e12, _PLAIN_UNITS, f"{page}: 3584 cores at 1.78 GHz"),
        },
        memory_bytes_per_s=_nominal(360e9, _MEMORY, f"{page}: 192 bit at 15 Gbit/s"),
        link_bytes_per_s=_nominal(_PCIE_4_X16, _LINK, "PCI Express 4.0 base specification, x16"),
        launch_s=_launch(),
    )


def _gtx_1080_ti() -> AssumedDevice:
    page = "NVIDIA GeForce GTX 1080 Ti product page"
    plain = _nominal(11.3e12, _PLAIN_UNITS, f"{page}: 3584 cores at 1.58 GHz")
    half = "no tensor cores: products of float16 are computed in float32"
    return AssumedDevice(
        name="gtx1080ti-11g",
        title="GeForce GTX 1080 Ti",
        memory_bytes=Figure(11 * 2**30, page),
        flops_per_s={
            torch.float16: Figure(plain.value, f"{plain.source}; {half}"),
            torch.float32: plain,
        },
        memory_bytes_per_s=_nominal(484e9, _MEMORY, page),
        link_bytes_per_s=_nominal(_PCIE_3_X16, _LINK, "PCI Express 3.0 base specification, x16"),
        launch_s=_launch(),
    )


def _v100() -> AssumedDevice:
    sheet = "NVIDIA Tesla V100 data sheet, PCIe, 32 GB"
    return AssumedDevice(
        name="v100-32g",
        title="Tesla V100",
        memory_bytes=Figure(32 * 2**30, sheet),
        flops_per_s={
            torch.float16: _nominal(112e12, _TENSOR_CORES, sheet),
            torch.float32: _nominal(14e12, _PLAIN_UNITS, sheet),
        },
        memory_bytes_per_s=_nominal(900e9, _MEMORY, sheet),
        link_bytes_per_s=_nominal(_PCIE_3_X16, _LINK, "PCI Express 3.0 base specification, x16"),
        launch_s=_launch(),
    )


def _h200() -> AssumedDevice:
    sheet, box = "NVIDIA H200 data sheet, SXM", "measured on an H200 box"
    tensor = Figure(700e12, f"{box}: 690 to 790 in large products")
    return AssumedDevice(
        name="h200",
        title="H200",
        memory_bytes=Figure(139 * 2**30, f"{box}: what the driver offers of 141 GB"),
        flops_per_s={
            torch.bfloat16: tensor,
            torch.float16: tensor,
            torch.float32: _nominal(67e12, _PLAIN_UNITS, sheet),
        },
        memory_bytes_per_s=_nominal(4.8e12, _MEMORY, sheet),
        link_bytes_per_s=Figure(47e9, f"{box}: each way, both ways busy (55 alone)"),
        launch_s=_launch(),
    )


DEVICES: dict[str, AssumedDevice] = {
    device.name: device for device in (_rtx_4090(), _rtx_3060(), _gtx_1080_ti(), _v100(), _h200())
}
"""By the name that a user gives."""
