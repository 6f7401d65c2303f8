"""The GPU's kernels against the host's, bit for bit; without a GPU their text, compiled as C."""

import pytest
import torch
from torch import Tensor

from atom.optim.adamw import noise_key
from atom.swap.device_kernels import DeviceKernels, device_kernels
from atom.swap.host_kernels import (
    GRADIENT_FORMATS,
    MOMENT_FORMATS,
    NO_WORKING_COPY,
    SPLIT_MASTER,
    WHOLE_MASTER,
    WORKING_FORMATS,
    AdamWArguments,
    host_kernels,
)
from atom.swap.host_store import joined
from tests.gpu.conftest import ON_A_GPU
from tests.gpu.kernels_in_c import KernelsInC

PLACE = torch.device("cuda", 0) if ON_A_GPU else torch.device("cpu")
ELEMENTS = 2**18 + 37
BORDER = 2**32 - 1000
"""Border between elements whose numbers have different upper halves."""
EXACT, BFLOAT16 = torch.float32, torch.bfloat16
FORMS = [  # of the master, of what the device loads, of the moments
    (EXACT, None, EXACT), (EXACT, BFLOAT16, EXACT), (EXACT, torch.float16, EXACT),
    (torch.int16, BFLOAT16, EXACT), (torch.int16, BFLOAT16, BFLOAT16),
]  # fmt: skip


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> DeviceKernels | KernelsInC:
    return device_kernels(PLACE) if ON_A_GPU else KernelsInC(tmp_path_factory.mktemp("in-c"))


def bits(dtype: torch.dtype, seed: int) -> Tensor:
    """Every kind of number: subnormals, infinities, ties of any rounding, no numbers."""
    random = torch.randint(0, 2**32, (ELEMENTS,), generator=torch.Generator().manual_seed(seed))
    ties = torch.arange(0, 2**32, 2**16) + 2**15
    random[: len(ties)] = ties
    whole = random.to(torch.int32)
    return whole.view(dtype) if dtype.itemsize == 4 else (whole >> 16).to(torch.int16).view(dtype)


def state(form: tuple[torch.dtype, torch.dtype | None, torch.dtype]) -> dict[str, Tensor]:
    master, working, moments = form
    names = {"master": master, "working": working, "exp_avg": moments, "exp_avg_sq": moments}
    return {name: bits(dtype, seed) for seed, (name, dtype) in enumerate(names.items()) if dtype}


def arguments(state: dict[str, Tensor], gradient: Tensor, beta1: float) -> AdamWArguments:
    split, working = state["master"].dtype == torch.int16, state.get("working")
    copy = NO_WORKING_COPY if split or working is None else WORKING_FORMATS[working.dtype]
    return AdamWArguments(
        noise_key=noise_key(5, 1), gradient_format=GRADIENT_FORMATS[gradient.dtype],
        master_format=SPLIT_MASTER if split else WHOLE_MASTER, working_format=copy,
        moment_format=MOMENT_FORMATS[state["exp_avg"].dtype], coefficient=0.7310585,
        one_minus_beta1=1 - beta1, beta2=0.95, one_minus_beta2=0.05, root_of_correction2=0.2236,
        epsilon=1e-8, minus_step_size=-3e-3, gradient=gradient.data_ptr(),
        **{name: tensor.data_ptr() for name, tensor in state.items()},
    )  # fmt: skip


def same(one: Tensor, other: Tensor, where: Tensor) -> bool:
    kind = {2: torch.int16, 4: torch.int32}[one.itemsize]
    return torch.equal(one.view(kind)[where], other.view(kind)[where])


def numbers(state: dict[str, Tensor]) -> Tensor:
    """Return a mask of the elements that are numbers. Processors have different bits for NaN, and
    the gate refuses gradients with NaN."""
    weight = state["master"]
    if weight.dtype == torch.int16:
        weight = joined(state["working"], weight)
    return ~(weight.isnan() | state["exp_avg"].isnan() | state["exp_avg_sq"].isnan())


@pytest.mark.parametrize("beta1", [0.9, 0.3])
@pytest.mark.parametrize("gradients", [EXACT, BFLOAT16])
@pytest.mark.parametrize("form", FORMS)
def test_a_step_has_the_hosts_bits(
    kernels: DeviceKernels | KernelsInC,
    form: tuple[torch.dtype, torch.dtype | None, torch.dtype],
    gradients: torch.dtype,
    beta1: float,
) -> None:
    host, gradient = state(form), bits(gradients, 9)
    device, sent = {name: each.to(PLACE) for name, each in host.items()}, gradient.to(PLACE)
    host_kernels().adamw(arguments(host, gradient, beta1), ELEMENTS, BORDER, 0.99997)
    kernels.adamw(arguments(device, sent, beta1), ELEMENTS, BORDER, 0.99997)
    where = numbers(host)
    assert where.sum() > ELEMENTS / 4
    for name, each in host.items():
        assert same(each, device[name].cpu(), where), name


@pytest.mark.parametrize("elements", [7, 64 * 8, 64 * 8 * 3 + 129])
def test_squares_are_added_as_the_host_adds_them(
    kernels: DeviceKernels | KernelsInC, elements: int
) -> None:
    lanes, rows = 64, 8
    x = torch.randn(elements, generator=torch.Generator().manual_seed(1))
    blocks = x.split(lanes * rows)
    sums = torch.full((len(blocks), lanes), 3.0, dtype=torch.float64, device=PLACE)
    kernels.squares(x.to(PLACE), sums, lanes, rows)
    room = torch.empty(lanes, dtype=torch.float64)
    for block, lane in zip(blocks, sums.cpu(), strict=True):
        while len(lane) > 1:
            near, far = lane.chunk(2)
            lane = near + far
        assert lane.item() == host_kernels().sum_of_squares(block, room)
