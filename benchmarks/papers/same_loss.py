"""Row `same-loss`: losses and bits beside plain PyTorch in one process, on the same batches."""

import argparse
import contextlib
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from atom.models.gpt3 import GPT3Config
from atom.optim.clipping import gradient_norm
from atom.swap.device import CpuDevice
from atom.swarm.exchange.contribution import Sums
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica
from benchmarks.devices import sleeping as devices
from benchmarks.devices.torch_sides import Work
from benchmarks.papers.result import Result, result
from benchmarks.shared.exchange import exchanged, introduce, opened
from benchmarks.swap.atom_side import Atom
from benchmarks.swap.exactness import Exactness, Reference, Text
from benchmarks.swap.setup import Setup

STEPS, MEMBERS, SAME = 500, 3, "the same curve"
GRIDS, GRID_TOKENS = ((2, 1), (2, 2), (4, 1), (4, 2), (4, 4)), 32
"""Numbers of devices, and of devices that run a pass together."""


def same_loss(_: argparse.Namespace) -> list[Result]:
    """Compare losses as AxoNN's figure 10, beside plain PyTorch in one process."""
    found = []
    for precision in ("float32", "bfloat16"):
        setup = Setup("exactness", "tiny", 1, precision, "cpu", micro_batches=2)
        with contextlib.closing(Exactness(setup)) as sides:
            for step in range(STEPS):
                sides.step(setup.batches(2, step))
        case = f"one device, sub-models swapped, {precision}: steps with equal bits"
        found.append(result(case, f"{sides.equal_steps} of {STEPS} {sides.differs or ''}", SAME))
    torch.use_deterministic_algorithms(False)
    case = f"{MEMBERS} replicas, float32: rounds with equal replicas; loss apart at most"
    equal, apart = together(MEMBERS, STEPS)
    found.append(result(case, f"{equal} of {STEPS}; {apart:.1e}", SAME))
    case = f"grids of devices, {', '.join(f'{n} in groups of {g}' for n, g in GRIDS)}, float32"
    return [*found, result(f"{case}: steps with equal bits", f"{on_grids(STEPS)} of {STEPS}", SAME)]


def on_grids(steps: int) -> int:
    """Count steps after which replicas on all grids and on one device have the same digest."""
    config, text = GPT3Config(4, 2, 64, GRID_TOKENS, 256), Text(Setup("", "tiny", 1, "", "cpu"))
    work = Work(config, False, 0.0, 8, steps)
    equal = 0
    with contextlib.ExitStack() as stack:
        replicas = list[Replica]()
        for count, group in ((1, 1), *GRIDS):
            opened = stack.enter_context(devices.closed([CpuDevice() for _ in range(count)]))
            replicas.append(devices.made(work, opened, group, micro_batches=2)[1])
        for _ in range(steps):
            batches = [
                {name: each[:, :GRID_TOKENS] for name, each in batch.items()}
                for batch in text.batches(work.micro_batches)
            ]
            losses = {devices.train(replica, batches) for replica in replicas}
            digests = {state_digest(replica.state_arenas()) for replica in replicas}
            equal += len(losses) == len(digests) == 1
    return equal


def together(members: int, steps: int) -> tuple[int, float]:
    """Compare replicas whose gradients meet in a ring over TLS with plain PyTorch on all batches.

    Returns:
        Rounds after which all replicas have the same digest, and the largest relative distance of
        the losses.
    """
    setup, equal, apart = Setup("atom", "tiny", 1, "float32", "cpu"), 0, 0.0
    atoms, text = [Atom(setup) for _ in range(members)], Text(setup)
    reference = Reference(setup, atoms[0].program.layout)
    transports = [opened() for _ in range(members)]
    contacts = [(transport.peer_id, transport.address) for transport in transports]
    order = [peer_id for peer_id, _ in contacts]
    for transport in transports:
        introduce(transport, contacts)

    def take(rank: int, step: int, batch: dict[str, Tensor]) -> tuple[bytes, float]:
        replica = atoms[rank].replica
        replica.reset_gradients()
        replica.run_pass([batch])
        loss, sums = replica.loss_sum / replica.sequences, Sums(replica.gradient_sums())
        mean, _ = exchanged(transports[rank], order, step, sums, replica.elements)
        replica.begin_step(mean, gradient_norm(mean), step)
        return state_digest(replica.state_arenas()), loss

    with contextlib.ExitStack() as stack:
        for each in (*transports, *atoms):
            stack.callback(each.close)
        pool = stack.enter_context(ThreadPoolExecutor(members))
        for step in range(1, steps + 1):
            batches = text.batches(members)
            taken = pool.map(take, range(members), [step] * members, batches)
            digests, losses = zip(*taken, strict=True)
            equal += len(set(digests)) == 1
            apart = max(apart, abs(sum(losses) / members / reference.step(batches) - 1))
    return equal, apart
