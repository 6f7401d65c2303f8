"""Several devices of one peer: what each more brings, and what it costs in the interpreter.

    python benchmarks/devices.py --devices 1 2 4
    python benchmarks/devices.py --devices 1 2 --device cuda

Every count of devices trains the same GPT on the same micro-batches, in turn, by a replica as a
daemon has it; the weights must be the same bits afterwards. On a CPU a device's time is asleep:
`--block-ms` for the forward of a sub-model and one micro-batch, twice that and the forward again
for its backward, and on each device's own link bytes by `--link-gb`. What is real is the host's
work: issuing, copies, additions, AdamW; and that one interpreter issues for all devices.

speed: micro-batches per second beside the first count's. beside foretold: seconds of a step by
what the planner's timeline says of its passes (without the host's work); a pass on a CPU ends when
its gradients have landed. issuing: the process's own seconds by those that passed.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from atom.graph.ir import Program
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim.rate import RateSettings
from atom.swap.arrangement import Arrangement
from atom.swap.device import Copy, CpuDevice, Device, RandomState, Report, at_once
from atom.swap.device_slots import SlotLayout
from atom.swap.host_sums import HostSum
from atom.swap.schedule import Shape, training_pass
from atom.swap.timeline import Durations, landed_s
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica
from atom.training.replica.settings import ReplicaSettings

TOKENS, VOCABULARY, MICRO_BATCHES = 8, 512, 4
MOVES = 100
"""Above the numbers of the gradient slots: what lies on the link before they are added."""


class SleepingDevice(CpuDevice):
    """Takes as long as it is told, its computing included. Nothing random may be computed on it."""

    def __init__(self, forward_s: float, bytes_per_s: float) -> None:
        super().__init__()
        self._forward_s, self._bytes_per_s = forward_s, bytes_per_s

    @contextmanager
    def drawing(self, state: RandomState | None = None) -> Iterator[None]:
        began = time.perf_counter()
        yield
        takes_s = self._forward_s if state is not None else 2 * self._forward_s
        time.sleep(max(began + takes_s - time.perf_counter(), 0.0))  # stands for its computing

    def load(
        self,
        slot: int,
        copies: Sequence[Copy],
        report: Report | None = None,
        ready: Callable[[], None] = at_once,
    ) -> None:
        def arrive() -> None:
            ready()
            self._move(copy.source for copy in copies)

        super().load(slot, copies, report, arrive)

    def gradients_out(self, gradient_slot: int, sums: Sequence[HostSum], *rest: Any) -> None:
        way = partial(self._move, [part.source for part in sums])
        self._gradients.submit(MOVES + gradient_slot, way)
        super().gradients_out(gradient_slot, sums, *rest)

    def _move(self, tensors: Iterable[torch.Tensor]) -> None:
        moved_bytes = sum(tensor.nbytes for tensor in tensors)
        time.sleep(moved_bytes / self._bytes_per_s)  # stands for the link


def foretold_s(program: Program, passes: int, forward_s: float, bytes_per_s: float) -> float:
    """Of so many passes on one device, one after the other."""
    parts = [SlotLayout.of(part, program.layout) for part in program.sub_models]
    moves = tuple(part.elements * 4 / bytes_per_s for part in parts)
    forward = (forward_s,) * len(parts)
    durations = Durations(moves, forward, tuple(2 * each for each in forward), moves)
    shape = Shape(len(parts), MICRO_BATCHES, Arrangement())
    first, again = (
        landed_s([training_pass(shape, loaded)], shape, durations)
        for loaded in ((), range(shape.arrangement.slots))
    )
    return first + (passes - 1) * again


def opened(kind: str, count: int, *speed: float) -> list[Device]:
    if kind == "cpu":
        return [SleepingDevice(*speed) for _ in range(count)]
    from atom.swap.streams import CudaDevice

    return [CudaDevice(index) for index in range(count)]


def measured(config: GPT3Config, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each step, and the digest of what they led to."""
    speed = options.block_ms / 1e3, options.link_gb * 1e9
    devices = opened(options.device, count, *speed)
    torch.manual_seed(0)
    shape = options.passes * MICRO_BATCHES, 1, TOKENS
    tokens = torch.randint(VOCABULARY, shape)
    batches = [{"tokens": each, "targets": each} for each in tokens]
    program = build_program(trace(GPT3(config), batches[0]))
    settings = ReplicaSettings(RateSettings(1e-3, 1e-4), micro_batches=MICRO_BATCHES)
    replica = Replica(program, None, settings, devices[0], beside=devices[1:])
    try:
        replica.initialise(lambda name, shape: initial_value(config, name, shape, 1))
        seconds, busy = [], []
        for step in range(options.steps + 1):
            began, own = time.perf_counter(), time.process_time()
            train(replica, batches)
            if step:  # the first one finds out how fast they are
                seconds.append(time.perf_counter() - began)
                busy.append((time.process_time() - own) / seconds[-1])
        digest = state_digest(replica.state_arenas()).hex()[:16]
    finally:
        for device in devices:
            device.close()
    step_s = statistics.median(seconds)
    return {
        "devices": count,
        "micro-batches/s": len(batches) / step_s,
        "beside foretold": step_s / foretold_s(program, -(-options.passes // count), *speed),
        "issuing": max(busy),
        "state": digest,
    }


def train(replica: Replica, batches: Sequence[Any]) -> None:
    replica.reset_gradients()
    while batches:
        some, batches = batches[: replica.micro_batches], batches[replica.micro_batches :]
        replica.run_pass(some, last=not batches)
    replica.begin_own_step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--block-ms", type=float, default=6.0)
    parser.add_argument("--link-gb", type=float, default=0.5, help="per second, each way")
    parser.add_argument("--passes", type=int, default=16, help="in each step")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = GPT3Config(options.blocks, 4, options.width, TOKENS, VOCABULARY, 0.0)
    rows = [measured(config, count, options) for count in options.devices]
    for row in rows:
        row["speed"] = row["micro-batches/s"] / rows[0]["micro-batches/s"]
        row["same bits"] = row["state"] == rows[0]["state"]
    sys.stdout.write(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
