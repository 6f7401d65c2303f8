"""Several devices: Atom's ways to use them, beside PyTorch's own.

    python benchmarks/devices.py --devices 1 2 4
    python benchmarks/devices.py --devices 1 2 --device cuda --width 2048 --tokens 2048

Every side trains the same GPT on the same micro-batches, in turn; losses must be alike, and Atom's
weights the bits of one device with passes of that size. Atom's replica is as a daemon has it; the
others are in `devices_torch.py`. On a CPU a device's time is asleep: `--block-ms` for the forward
of a block and one micro-batch, of the embedding and the head by their parameters, twice that for a
backward, in Atom the forward again besides; and on each of its devices' own link bytes by
`--link-gb`. What is real is the host's work: issuing, copies, additions, AdamW, and what PyTorch's
sides send over loopback.

inter: so many of Atom's devices run a pass together, of as many times the micro-batches: each loads
a part of the sub-models, and holds as much as it would alone.

speed: micro-batches per second beside the first row's. device MB: what a device held at the most.
beside foretold: seconds of a step by what the planner's timeline says of its passes (without the
host's work); a pass on a CPU ends when its gradients have landed. late: what forwards and backwards
took by what they were to take: where other programs have the cores, steps are late as well.
issuing: the process's own seconds by those that passed; Atom issues for all devices in one.
"""

import argparse
import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import devices_torch
import torch
from devices_torch import PLAIN, UNTIMED_STEPS, Work
from held import Allocated, CountingDevice
from sides import machine, positive, publish
from swap_setup import LEARNING_RATE, SEED

from atom.graph.ir import Program
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim.rate import RateSettings
from atom.swap.arrangement import Arrangement, device_of
from atom.swap.crossing import Crossing
from atom.swap.device import Copy, CpuDevice, Device, RandomState, Report, at_once
from atom.swap.device_slots import SlotLayout
from atom.swap.host_sums import HostSum
from atom.swap.schedule import Shape
from atom.swap.timeline import Durations, group_pass, landed_s
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica
from atom.training.replica.settings import ReplicaSettings

ATOM, VOCABULARY, MICRO_BATCHES = "Atom", 512, 4
COLUMNS = {
    "side": "", "devices": "", "inter": "", "micro-batches/s": ".1f", "speed": ".2f",
    "device MB": ".1f", "loss": ".6f", "beside foretold": ".2f", "late": ".2f", "issuing": ".2f",
    "same bits": "",
}  # fmt: skip
MOVES = 100
"""Above the numbers of the gradient slots: what lies on the link before they are added."""


class _Outside(RandomState):
    """Asked for beside all computing: who asks leaves it as it was."""


class SleepingDevice(CpuDevice):
    """Takes as long as it is told, its computing included. Nothing random may be computed on it."""

    def __init__(self, element_s: float, bytes_per_s: float) -> None:
        """`element_s`: of a forward, by parameter."""
        super().__init__()
        self._element_s, self._bytes_per_s = element_s, bytes_per_s
        self._elements, self._forward_s = dict[int, int](), 0.0
        """What was loaded last into each slot; of what is computed now."""
        self._computes, self.due_s, self.computed_s = False, 0.0, 0.0

    def random_state(self) -> RandomState:
        state = super().random_state()
        return state if self._computes else _Outside(state.cpu, state.device)

    @contextmanager
    def drawing(self, state: RandomState | None = None) -> Iterator[None]:
        began, self._computes = time.perf_counter(), not isinstance(state, _Outside)
        yield
        takes_s = self._forward_s if state is not None else 2 * self._forward_s
        if self._computes:
            time.sleep(max(began + takes_s - time.perf_counter(), 0.0))  # stands for its computing
            self.due_s += takes_s
            self.computed_s += time.perf_counter() - began
        self._computes = False

    def load(
        self,
        slot: int,
        copies: Sequence[Copy],
        report: Report | None = None,
        ready: Callable[[], None] = at_once,
    ) -> None:
        self._elements[slot] = sum(copy.source.numel() for copy in copies)

        def arrive() -> None:
            ready()
            self._move(copy.source for copy in copies)

        super().load(slot, copies, report, arrive)

    def wait_loaded(self, slot: int) -> None:
        super().wait_loaded(slot)
        self._forward_s = self._element_s * self._elements[slot]

    def gradients_out(self, gradient_slot: int, sums: Sequence[HostSum], *rest: Any) -> None:
        way = partial(self._move, [part.source for part in sums])
        self._gradients.submit(MOVES + gradient_slot, way)
        super().gradients_out(gradient_slot, sums, *rest)

    def _move(self, tensors: Iterable[torch.Tensor]) -> None:
        moved_bytes = sum(tensor.nbytes for tensor in tensors)
        time.sleep(moved_bytes / self._bytes_per_s)  # stands for the link


class LookingDevice(CountingDevice):
    allocated = Allocated()

    @contextmanager
    def drawing(self, state: RandomState | None = None) -> Iterator[None]:
        yield
        self.allocated.look()


def foretold_s(program: Program, work: Work, inter: int, passes: int, bytes_per_s: float) -> float:
    """Of so many passes on one device or group, one after the other. To hand a value over takes no
    time."""
    parts = program.sub_models
    owners = device_of([program.layout.elements(part) for part in parts], inter)
    elements = [SlotLayout.of(part.parameter_names, program.layout).elements for part in parts]
    moves = tuple(each * 4 / bytes_per_s for each in elements)
    forward = tuple(each * work.element_s for each in elements)
    durations = Durations(moves, forward, tuple(2 * each for each in forward), moves)
    chain = tuple(Crossing(s, (s + 1,), 1, 1) for s in range(len(parts) - 1))
    shape = Shape(len(parts), MICRO_BATCHES * inter, Arrangement(devices=inter), chain)
    own = [[s for s, owner in enumerate(owners) if owner == n] for n in range(inter)]
    again = [s for each in own for s in each[: shape.arrangement.slots]]
    on = owners if inter > 1 else ()
    first_s, again_s = (
        landed_s([group_pass(shape, on, loaded)], shape, durations, on=on) for loaded in ((), again)
    )
    return first_s + (passes - 1) * again_s


def opened(work: Work, count: int, bytes_per_s: float) -> list[Device]:
    if not work.on_gpus:
        return [SleepingDevice(work.element_s, bytes_per_s) for _ in range(count)]
    from atom.swap.streams import CudaDevice

    return [CudaDevice(index) for index in range(count)]


def made(
    work: Work, devices: Sequence[Device], inter: int, micro_batches: int
) -> tuple[Program, Replica]:
    """`inter`: how many devices run a pass together. `micro_batches`: of a pass."""
    example = dict.fromkeys(("tokens", "targets"), work.tokens()[0])
    program = build_program(trace(GPT3(work.config), example))
    settings = ReplicaSettings(
        RateSettings(LEARNING_RATE),
        arrangement=Arrangement(devices=inter),
        micro_batches=micro_batches,
    )
    replica = Replica(program, None, settings, devices[0], beside=devices[1:])
    replica.initialise(lambda name, shape: initial_value(work.config, name, shape, SEED))
    return program, replica


@contextmanager
def closed(devices: Sequence[Device]) -> Iterator[Sequence[Device]]:
    """When it ends."""
    try:
        yield devices
    finally:
        for device in devices:
            device.close()


def measured(count: int, inter: int, work: Work, bytes_per_s: float) -> dict[str, Any]:
    micro_batches = MICRO_BATCHES * inter
    with closed(opened(work, count, bytes_per_s)) as devices:
        program, replica = made(work, devices, inter, micro_batches)
        batches, losses, seconds, busy = batches_of(work), [], [], []
        for _ in range(UNTIMED_STEPS + work.steps):  # the first one finds out how fast they are
            began, own = time.perf_counter(), time.process_time()
            losses.append(train(replica, batches))
            seconds.append(time.perf_counter() - began)
            busy.append((time.process_time() - own) / seconds[-1])
        state = state_digest(replica.state_arenas())
        asleep = [each for each in devices if isinstance(each, SleepingDevice)]
    step_s = statistics.median(seconds[UNTIMED_STEPS:])
    found: dict[str, Any] = {
        "side": ATOM,
        "devices": count,
        "inter": inter,
        "micro-batches/s": work.micro_batches / step_s,
        "device MB": held_bytes(work, inter) / 1e6,
        "loss": losses[-1],
        "issuing": max(busy[UNTIMED_STEPS:]),
        "same bits": state == state_of_one(work, micro_batches),
    }
    if asleep:
        found["late"] = sum(each.computed_s for each in asleep) / sum(each.due_s for each in asleep)
        passes = -(-work.micro_batches // MICRO_BATCHES // count)
        foretold = foretold_s(program, work, inter, passes, bytes_per_s)
        found["beside foretold"] = step_s / foretold
    return found


def state_of_one(work: Work, micro_batches: int) -> bytes:
    """After as many steps on one device, without sleep."""
    with closed(opened(replace(work, block_s=0.0), 1, math.inf)) as devices:
        _, replica = made(work, devices, 1, micro_batches)
        for _ in range(UNTIMED_STEPS + work.steps):
            train(replica, batches_of(work))
        return state_digest(replica.state_arenas())


def batches_of(work: Work) -> list[dict[str, torch.Tensor]]:
    return [{"tokens": each, "targets": each} for each in work.tokens()]


def train(replica: Replica, batches: Sequence[dict[str, torch.Tensor]]) -> float:
    """A step; the mean loss."""
    replica.reset_gradients()
    while batches:
        some, batches = batches[: replica.micro_batches], batches[replica.micro_batches :]
        replica.run_pass(some, last=not batches)
    loss = replica.loss_sum / replica.sequences
    replica.begin_own_step()
    return loss


def held_bytes(work: Work, inter: int) -> float:
    """Of a device, in the mean of its group, the most. On a CPU that of one pass, once more without
    sleep."""
    if work.on_gpus:
        return torch.cuda.max_memory_allocated(0)
    counted = [LookingDevice() for _ in range(inter)]
    with closed(counted) as devices:
        _, replica = made(work, devices, inter, MICRO_BATCHES * inter)
        LookingDevice.allocated = Allocated()
        replica.run_pass(batches_of(work)[: replica.micro_batches])
        passing = LookingDevice.allocated.most_bytes
    return (sum(device.slot_bytes for device in counted) + passing) / inter


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    on_gpus = options.device == "cuda"
    shape = options.blocks, options.width // 64, options.width, options.tokens, VOCABULARY
    work = Work(
        GPT3Config(*shape), on_gpus, 0.0 if on_gpus else options.block_ms / 1e3,
        options.passes * MICRO_BATCHES, options.steps,
    )  # fmt: skip
    rows = list[dict[str, Any]]()
    for side, count, inter in _cases(options):
        if side == ATOM:
            rows.append(measured(count, inter, work, options.link_gb * 1e9))
        else:
            rows.append(devices_torch.measured(side, count, work))
        rows[-1]["speed"] = rows[-1]["micro-batches/s"] / rows[0]["micro-batches/s"]
        rows[-1]["load"] = os.getloadavg()[0]
        named = zip(COLUMNS, _cells(rows[-1]), strict=True)
        told = (f"{name} {cell}" for name, cell in named if cell)
        sys.stderr.write(", ".join(told) + "\n")
    body = {"benchmark": "devices", "rows": rows, "machine": machine()}
    publish(list(COLUMNS), [*map(_cells, rows)], body)


def _cases(options: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    for side, count in itertools.product(options.sides, options.devices):
        if side == ATOM:
            yield from ((side, count, inter) for inter in options.inter if count % inter == 0)
        elif count > 1 or side == PLAIN:
            yield side, count, 1


def _cells(row: dict[str, Any]) -> list[str]:
    return [format(row[name], how) if name in row else "" for name, how in COLUMNS.items()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    sides = [ATOM, *devices_torch.SIDES]
    parser.add_argument("--sides", choices=sides, nargs="+", default=sides)
    parser.add_argument("--devices", type=positive, nargs="+", default=[1, 2, 4])
    parser.add_argument(
        "--inter", type=positive, nargs="+", default=[1], help="of them run a pass together (Atom)"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--blocks", type=positive, default=8)
    parser.add_argument("--width", type=positive, default=256)
    parser.add_argument("--tokens", type=positive, default=8, help="of a sequence")
    parser.add_argument("--block-ms", type=float, default=6.0)
    parser.add_argument("--link-gb", type=float, default=0.5, help="per second, each way")
    parser.add_argument("--passes", type=positive, default=16, help="in each step")
    parser.add_argument("--steps", type=positive, default=3)
    options = parser.parse_args()
    for inter in options.inter:
        if all(count % inter for count in options.devices):
            said = ", ".join(map(str, options.devices))
            parser.error(f"groups of {inter} divide none of --devices {said}")
    if not [*_cases(options)]:
        parser.error("PyTorch's sides, but for DDP, take --devices 2 or more")
    return options


if __name__ == "__main__":
    main()
