"""What it would cost to step before a round is decided, so that it can be undone, beside the step.

`undo log` copies weights and moments away, to be put back. `adopt` copies them from a shadow, where
they were stepped meanwhile, to their place. `preview` steps pieces in scratch memory and keeps what
the device would load of them. One thread, float32, in turn.

    python benchmarks/shadow_step.py
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from sides import Timing, machine, positive, publish, ratio
from torch import Tensor

from atom.base.clock import BootClock
from atom.graph.ir import ParameterLayout
from atom.optim.adamw import MOMENTS, AdamW
from atom.optim.optimizer import PIECE_ELEMENTS, StepTerms, optimizer_state, parts_of
from atom.optim.stepper import Stepper
from atom.swap.host_store import HostStore
from atom.swap.state_form import MASTER, StateForm

RATE = 1e-4


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    state = State(options.elements)
    sides: dict[str, Callable[[], None]] = {
        "step": state.step,
        "undo log": state.save,
        "adopt": state.adopt,
        "preview": state.preview,
    }
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for run in range(options.runs + 1):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            if run:  # the first one warms up
                taken[name].append(time.perf_counter() - began)
    state.check()
    timings = {name: Timing(tuple(seconds)) for name, seconds in taken.items()}
    ratios = {name: ratio(timing, timings["step"]) for name, timing in timings.items()}
    body = {
        "benchmark": "shadow_step",
        "machine": machine(),
        "parameters": state.elements,
        "sides": {name: {**timings[name].to_json(), "ratio": ratios[name]} for name in sides},
    }
    rows = [[n, f"{1e3 * timings[n].median_s:.1f}", f"{ratios[n]:.2f}"] for n in sides]
    publish(["side", "ms", "ratio to the step"], rows, body)


class State:
    """Weights and moments, a shadow of them, and a gradient."""

    def __init__(self, elements: int) -> None:
        layout = ParameterLayout.of({"w": (elements,)})
        state = optimizer_state(AdamW(), layout, StateForm.EXACT)
        self._store = HostStore.allocate(layout, optimizer_state=state)
        self.elements = self._store.layout.total_elements
        self._gradient = torch.randn(self.elements) * 1e-3
        self._adamw, self._steps = AdamW(), 0
        self._stepper = Stepper(self._store, self._adamw, BootClock())
        self._arenas = [self._store.state[name] for name in (MASTER, *MOMENTS)]
        self._shadow = [torch.zeros_like(arena) for arena in self._arenas]
        self._scratch = [torch.zeros(PIECE_ELEMENTS) for _ in self._arenas]
        self._previewed = torch.zeros(self.elements)

    def step(self) -> None:
        self._steps += 1
        self._stepper.begin(self._gradient, RATE, self._steps)
        self._stepper.wait()

    def save(self) -> None:
        _copy(self._shadow, self._arenas)

    def adopt(self) -> None:
        _copy(self._arenas, self._shadow)

    def preview(self) -> None:
        terms = StepTerms(self._steps + 1, RATE)
        for part in parts_of(self._adamw, self._store):
            piece = slice(part.start, part.stop)
            scratch = [each[: part.stop - part.start] for each in self._scratch]
            _copy(scratch, [arena[piece] for arena in self._arenas])
            weights, *moments = scratch
            elsewhere = replace(
                part,
                state=dict(zip(MOMENTS, moments, strict=True)),
                stored={MASTER: weights},
            )
            self._adamw.update(elsewhere, part.of(self._gradient), terms)
            self._previewed[piece].copy_(weights)

    def check(self) -> None:
        """A preview has the bits of the step that follows. Raises: AssertionError."""
        self.preview()
        self.step()
        assert torch.equal(self._previewed, self._store.master)


def _copy(destinations: list[Tensor], sources: list[Tensor]) -> None:
    for destination, source in zip(destinations, sources, strict=True):
        destination.copy_(source)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--elements", type=positive, default=25_169_920)
    parser.add_argument("--runs", type=positive, default=15)
    return parser.parse_args()


if __name__ == "__main__":
    main()
