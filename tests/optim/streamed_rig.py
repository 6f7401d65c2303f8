"""Stores of awkward numbers, a step by the host alone, and one with a device beside it."""

import torch
from awkward import numbers
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim.adamw import AdamW, AdamWSettings
from atom.optim.conveyor import Conveyor
from atom.optim.device_share import DeviceShare
from atom.swap.device import CpuDevice
from atom.swap.host_store import HostStore
from atom.swap.state_form import MOMENTS, StateForm
from atom.swap.workbench import CpuWorkbench, Workbench

LAYOUT = ParameterLayout.of({"matrix": (61, 53), "bias": (37,), "wide": (3, 700), "long": (4099,)})
SETTINGS = AdamWSettings(betas=(0.9, 0.99), epsilon=1e-8, weight_decay=0.1, seed=5)
FORMS = [
    (torch.float32, StateForm.EXACT),
    (torch.float16, StateForm.EXACT),
    *((torch.bfloat16, form) for form in StateForm),
]


def filled_store(
    precision: torch.dtype, form: StateForm, layout: ParameterLayout = LAYOUT
) -> HostStore:
    store = HostStore.allocate(layout, precision, form=form)
    for seed, spec in enumerate(layout.specs):
        store.write_weights(spec.name, numbers(spec.numel, seed).view(spec.shape))
        for place, name in enumerate(MOMENTS):
            value = numbers(spec.numel, 100 * place + seed)
            value = value.abs() if place else value  # a mean of squares is not negative
            layout.view(store.state[name], spec.name).copy_(value.view(spec.shape))
    store.round_master()
    return store


def gradient(step: int) -> Tensor:
    flat = torch.zeros(LAYOUT.total_elements)
    for seed, spec in enumerate(LAYOUT.specs):
        value = numbers(spec.numel, 1000 * step + seed)
        LAYOUT.view(flat, spec.name).copy_(value.view(spec.shape))
    return flat


def same_bits(one: HostStore, other: HostStore) -> bool:
    pairs = [(one.state[name], other.state[name]) for name in one.state]
    return all(map(_equal, *zip(*pairs, (one.working, other.working), strict=True)))


def _equal(one: Tensor, other: Tensor) -> bool:
    whole = torch.int32 if one.element_size() == 4 else torch.int16
    return torch.equal(one.view(whole), other.view(whole))


class BenchedDevice(CpuDevice):
    """With a workbench of the test's own. `made`: all the memory it has given."""

    def __init__(self, bench: Workbench | None = None) -> None:
        super().__init__()
        self._bench = bench or CpuWorkbench()
        self.made = list[Tensor]()

    def slot_memory(self, elements: int, dtype: torch.dtype) -> Tensor:
        self.made.append(super().slot_memory(elements, dtype))
        return self.made[-1]

    def workbench(self) -> Workbench:
        return self._bench


class Beside:
    """A store, and an optimizer whose steps a device has a share in."""

    def __init__(
        self,
        precision: torch.dtype = torch.bfloat16,
        form: StateForm = StateForm.EXACT,
        share: float = 1.0,
        bench: Workbench | None = None,
        threads: int = 0,
        settings: AdamWSettings = SETTINGS,
    ) -> None:
        """No `threads`: the device does all that is meant for it, whoever is faster."""
        self.store, self.told = filled_store(precision, form), list[str]()
        self.whole = filled_store(precision, form)
        self.device = BenchedDevice(bench)
        self.conveyor = Conveyor(
            self.device, LAYOUT.total_elements, precision, form, self.told.append
        )
        its_own = DeviceShare(self.conveyor, share, least_elements=1)
        self.adamw = AdamW(self.store, settings, threads=threads, share=its_own)
        self.host = AdamW(self.whole, settings, threads=1)

    def step(self, number: int, coefficient: float = 1.0) -> None:
        """On both stores."""
        self.host.step(gradient(number), 1e-2, number, coefficient)
        self.adamw.step(gradient(number), 1e-2, number, coefficient)

    @property
    def equal(self) -> bool:
        return same_bits(self.store, self.whole)
