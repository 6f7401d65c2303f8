"""Several devices: Atom's ways to use them, beside PyTorch's own.

    python -m benchmarks.devices.run --devices 1 2 4
    python -m benchmarks.devices.run --devices 1 2 --device cuda --width 2048 --tokens 2048
    python -m benchmarks.devices.run --devices 2 --passes 2 --steps 1 --blocks 2 --width 64

Every side trains the same GPT on the same micro-batches, in turn; losses must agree, and Atom's
weights must have the bits of one device with passes of that size. Atom's replica is a daemon's; the
other sides are in `torch_sides.py`. On a CPU a device's time is asleep: `--block-ms` for the
forward of a block and one micro-batch, of the embedding and the head by their parameters, twice
that for a backward, in Atom the forward again besides; each of its devices has its own link
with a rate of `--link-gb`. The host's work is real: issuing, copies, additions, AdamW, and the
bytes of PyTorch's sides over loopback.

inter: number of Atom's devices that run a pass together, of as many times the micro-batches: each
loads a part of the sub-models, and holds as much as it would alone.

speed: micro-batches per second beside the first row's. device MB: peak of a device. beside
foretold: seconds of a step by the planner's estimate for its passes (without the host's work); a
pass on a CPU ends when its gradients are on the host. late: duration of forwards and backwards by
their planned duration, above 1 where other programs have the cores. issuing: processor time of the
process per second; Atom issues for all devices in one process.
"""

import argparse
import itertools
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from atom.graph.ir import Program
from atom.models.gpt3 import GPT3Config
from atom.swap.crossing import Crossing
from atom.swap.device import Device
from atom.swap.device_slots import SlotLayout
from atom.swap.schedule import Arrangement, Shape, device_of
from atom.swap.timeline import Durations, group_pass, landed_s
from atom.swarm.state.arenas import state_digest
from benchmarks.devices import torch_sides
from benchmarks.devices.sleeping import (
    LookingDevice,
    SleepingDevice,
    batches_of,
    closed,
    made,
    train,
)
from benchmarks.devices.torch_sides import PLAIN, UNTIMED_STEPS, Work
from benchmarks.shared.device_memory import Allocated
from benchmarks.shared.program import parser_of, publish, say_row

ATOM, VOCABULARY, MICRO_BATCHES = "Atom", 512, 4
COLUMNS = {
    "side": "", "devices": "", "inter": "", "micro-batches/s": ".1f", "speed": ".2f",
    "device MB": ".1f", "loss": ".6f", "beside foretold": ".2f", "late": ".2f", "issuing": ".2f",
    "same bits": "",
}  # fmt: skip


def foretold_s(program: Program, work: Work, inter: int, passes: int, bytes_per_s: float) -> float:
    """Return estimated seconds of successive passes on one device or group.

    Handing values over takes no time.
    """
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


def measured(count: int, inter: int, work: Work, bytes_per_s: float) -> dict[str, Any]:
    micro_batches = MICRO_BATCHES * inter
    with closed(opened(work, count, bytes_per_s)) as devices:
        program, replica = made(work, devices, inter, micro_batches)
        batches, losses, seconds, busy = batches_of(work), [], [], []
        for _ in range(UNTIMED_STEPS + work.steps):  # the first step measures the devices
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
    """Return the digest after as many steps on one device, without sleep."""
    with closed(opened(replace(work, block_s=0.0), 1, math.inf)) as devices:
        _, replica = made(work, devices, 1, micro_batches)
        for _ in range(UNTIMED_STEPS + work.steps):
            train(replica, batches_of(work))
        return state_digest(replica.state_arenas())


def held_bytes(work: Work, inter: int) -> float:
    """Return the peak of a device, the mean over its group; on a CPU from a pass without sleep."""
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
            rows.append(torch_sides.measured(side, count, work))
        rows[-1]["speed"] = rows[-1]["micro-batches/s"] / rows[0]["micro-batches/s"]
        rows[-1]["load"] = os.getloadavg()[0]
        say_row(rows[-1], COLUMNS)
    publish("devices", rows, COLUMNS)


def _cases(options: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    for side, count in itertools.product(options.sides, options.devices):
        if side == ATOM:
            yield from ((side, count, inter) for inter in options.inter if count % inter == 0)
        elif count > 1 or side == PLAIN:
            yield side, count, 1


def _options() -> argparse.Namespace:
    sides = [ATOM, *torch_sides.SIDES]
    parser = parser_of(
        __doc__,
        sides={"choices": sides, "nargs": "+", "default": sides},
        devices=[1, 2, 4],
        inter=[1],
        device={"choices": ["cpu", "cuda"], "default": "cpu"},
        blocks=8,
        width=256,
        tokens=8,
        block_ms=6.0,
        link_gb=0.5,
        passes=16,
        steps=3,
    )
    options = parser.parse_args()
    for inter in options.inter:
        if all(count % inter for count in options.devices):
            parser.error(f"groups of {inter} divide none of --devices {options.devices}")
    if not [*_cases(options)]:
        parser.error("PyTorch's sides, except DDP, need --devices 2 or more")
    return options


if __name__ == "__main__":
    main()
