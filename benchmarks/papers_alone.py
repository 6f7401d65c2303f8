"""Rows of `papers.py` without a pipeline: what sides hold and what fits, the all-reduce beside its
model, and the loss beside one process's.

In the model of an all-reduce a step has a latency, and a byte a time on its line (Patarasu & Yuan,
"Bandwidth optimal all-reduce algorithms", 2009).
"""

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import devices
import torch
from devices_torch import Work
from foretold import graph_of, profile_of
from held import CountingDevice, peak_bytes
from planned import Planner, layer_ends
from ring import Links, measured
from ring_links import WIRE_SHARE, loopback
from ring_member import ONE_SHOT, Side, member_transport
from swap_atom import Atom
from swap_exactness import Exactness, Reference, Text
from swap_memory import BYTES_PER_PARAMETER, Recomputed
from swap_setup import Setup
from torch import Tensor, nn

from atom.base.errors import DeviceError
from atom.graph.profile.seconds import assume_graph
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim.clipping import gradient_norm
from atom.optim.rate import RateSettings
from atom.plan.choosing import enough_bytes
from atom.plan.memory import Piece, pieces_of
from atom.swap.device import CpuDevice
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.allreduce import Sums, Terms, all_reduce, open_exchange
from atom.swarm.exchange.choice import ASSUMED_LATENCY_S, averages_moved
from atom.swarm.exchange.codec import codec_named
from atom.swarm.exchange.plans import ring_tag
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica, ReplicaSettings

Result = dict[str, Any]
GB, MEGABYTE = 10**9, 10**6
SIZES, NODES = ("small", "xl", "2.7b", "6.7b", "13b", "175b"), (2, 4, 8)
CARD_BYTES = 7 << 30
"""Of a card of 8 GB, what is left beside PyTorch and the driver."""
SMALL = GPT3Config(8, 4, 256, sequence_tokens=128, vocabulary_size=2048)
FLOAT32_BYTES_PER_PARAMETER = 16


def told(case: str, ours: str, theirs: str = "not given here", **more: Any) -> Result:
    return {"case": case, "ours": ours, "theirs": theirs, **more}


# --- device memory ------------------------------------------------------------------------------


def memory(_: argparse.Namespace) -> list[Result]:
    """Atom, tables II and III: of each side, and what a card of 8 GB takes."""
    return [*map(_foretold, SIZES), *_held()]


def stage_bytes(pieces: Sequence[Piece], in_flight: int, parameter_bytes: int) -> int:
    """Device memory of a pipeline's stage of these layers: all that belongs to its parameters, what
    lies between layers of every micro-batch in flight, and what one layer takes that is computed
    again in the backward. Of the whole model: one stage, one in flight."""
    parameters = {name: n for piece in pieces for name, n in piece.parameters.items()}
    between = in_flight * sum(piece.out_bytes for piece in pieces)
    at_work = max(piece.activation_bytes for piece in pieces)
    return parameter_bytes * sum(parameters.values()) + between + at_work


def largest_stage_bytes(pieces: Sequence[Piece], nodes: int) -> int:
    """Of as many layers each, or one more, under 1F1B: stage n holds nodes - n micro-batches."""
    ends = [len(pieces) * n // nodes for n in range(nodes + 1)]
    return max(
        stage_bytes(pieces[begin:end], nodes - n, BYTES_PER_PARAMETER)
        for n, (begin, end) in enumerate(pairwise(ends))
    )


def _foretold(size: str) -> Result:
    """With one sequence of 2,048 tokens in bfloat16 as a micro-batch."""
    graph, profile = graph_of(size), profile_of(size, "rtx3060-12g")
    pieces = pieces_of(profile.chain, layer_ends(graph))
    held = [largest_stage_bytes(pieces, nodes) / GB for nodes in (1, *NODES)]
    planner = Planner(graph, torch.device("cuda"), micro_batches=1)
    least, fits = enough_bytes(planner.question(profile, CARD_BYTES)) / GB, "no plan"
    with contextlib.suppress(DeviceError):
        fits = f"{len(planner.choose(profile, CARD_BYTES).cut.pieces)} sub-models"
    words = ", ".join(f"{each:,.3g}" for each in held)
    case = f"GPT-3 {size}: GB whole; a stage of 2, 4, 8 nodes; Atom at the least; on 8 GB"
    return told(case, f"{words}; {least:.2g}; {fits}", held_gb=held, least_gb=least)


def _held() -> Iterator[Result]:
    """A small model on the CPU twin, in float32: reckoned as above, and allocated."""
    layers, batch = (
        2,
        {name: torch.zeros(1, 128, dtype=torch.int64) for name in ("tokens", "targets")},
    )
    graph = trace(GPT3(SMALL, device="meta"), batch)
    profile = assume_graph(graph, "rtx3060-12g")
    pieces = pieces_of(profile.chain, layer_ends(graph))
    planner = Planner(graph, torch.device("cpu"), micro_batches=1)
    choice = planner.choose(profile, planner.budgets(profile)["swapped"])
    with contextlib.closing(CountingDevice()) as device:
        rate = RateSettings(1e-4, 1e-4, 0, "constant", None)
        settings = ReplicaSettings(rate, arrangement=choice.arrangement, micro_batches=1)
        replica = Replica(choice.program(graph), None, settings, device)
        replica.initialise(partial(initial_value, SMALL, seed=1))
        atom = device.slot_bytes + peak_bytes(lambda: replica.run_pass([batch]))
    whole, stage = partial(_train_whole, batch), partial(_train_stage, layers, 4)
    reckon = partial(stage_bytes, parameter_bytes=FLOAT32_BYTES_PER_PARAMETER)
    for name, reckoned, held in (
        ("whole", reckon(pieces, 1), peak_bytes(whole)),
        ("2 of 10 layers, 4 in flight", reckon(pieces[1 : 1 + layers], 4), peak_bytes(stage)),
        ("Atom", choice.memory.total_bytes, atom),
    ):
        case = f"{graph.layout.total_elements:,} parameters, CPU twin, {name}: MB reckoned, held"
        yield told(case, f"{reckoned / MEGABYTE:.1f}, {held / MEGABYTE:.1f}")


def _train_whole(batch: dict[str, Tensor]) -> None:
    model = GPT3(SMALL)
    for number, block in enumerate(model.blocks):
        model.blocks[number] = Recomputed(block)
    _train(model, lambda: [model(**batch)], [None])


def _train_stage(layers: int, in_flight: int) -> None:
    stage = nn.Sequential(*(Recomputed(block) for block in GPT3(SMALL).blocks[:layers]))
    came = torch.zeros(1, SMALL.sequence_tokens, SMALL.model_dim, requires_grad=True)
    forward = lambda: [stage(came) for _ in range(in_flight)]  # noqa: E731 - as in the other
    _train(stage, forward, [torch.zeros_like(came)] * in_flight)


def _train(model: nn.Module, forward: Callable[[], list[Tensor]], gradients: list[Any]) -> None:
    """Two steps: an optimizer makes its state in the first."""
    adamw = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        for made, gradient in zip(forward(), gradients, strict=True):
            made.backward(gradient)
        adamw.step()
        adamw.zero_grad(set_to_none=False)


# --- the all-reduce -----------------------------------------------------------------------------

RING, PARTS = "ring", "parts with owners"
SIDES = {RING: "tls", PARTS: "tls/float32/parts", ONE_SHOT: ONE_SHOT}
GROUPS = (
    *((members, 100.0, 0.0, (0.25, 4.0)) for members in (2, 4, 8)),
    (4, 20.0, 0.02, (0.05, 0.5)),
)
"""Members, Mbit/s of each line, seconds from one to another, megabytes."""


def reckoned(side: str, members: int) -> tuple[int, float]:
    """Of one member: steps one after the other, and averages that it sends."""
    parts = averages_moved((1,) * members, 0)
    return {RING: (2 * (members - 1), parts), PARTS: (2, parts), ONE_SHOT: (1, members - 1)}[side]


def exchanges(_: argparse.Namespace) -> list[Result]:
    """HotChips 2020. Without opening connections, which one-shot (over gloo) does once before."""
    found, sides = list[Result](), [Side(name) for name in SIDES.values()]
    for members, mbit, delay_s, sizes in GROUPS:
        links, bytes_per_s = Links((mbit,) * members, delay_s), mbit * 1e6 / 8 * WIRE_SHARE
        for megabytes, by_side in measured(members, sizes, sides, links, runs=3):
            for name, side in SIDES.items():
                seen, (steps, averages) = by_side[side], reckoned(name, members)
                seconds, sent = seen["seconds"].median_s - seen["opening_s"], averages * megabytes
                model = steps * (delay_s or ASSUMED_LATENCY_S) + sent * MEGABYTE / bytes_per_s
                found.append(told(
                    f"{members} members, {mbit:.0f} Mbit/s, {1e3 * delay_s:.0f} ms, "
                    f"{megabytes:.2f} MB, {name}: s, MB sent",
                    f"{seconds:.3f} ({seconds / model:.2f} x), {seen['sent_megabytes']:.2f}; "
                    f"opening {seen['opening_s']:.3f}",
                    f"{model:.3f}, {sent:.2f} (the model)",
                ))  # fmt: skip
    return found


# --- the same loss ------------------------------------------------------------------------------

STEPS, MEMBERS, SAME = 500, 3, "the same curve"
GRIDS, GRID_TOKENS = ((2, 1), (2, 2), (4, 1), (4, 2), (4, 4)), 32
"""Devices, and how many of them run a pass together."""


def same_loss(_: argparse.Namespace) -> list[Result]:
    """AxoNN fig. 10: beside plain PyTorch in one process, on the same batches."""
    found = []
    for precision in ("float32", "bfloat16"):
        setup = Setup("exactness", "tiny", 1, precision, "cpu", micro_batches=2)
        with contextlib.closing(Exactness(setup)) as sides:
            for step in range(STEPS):
                sides.step(setup.batches(2, step))
        case = f"one device, sub-models swapped, {precision}: steps with equal bits"
        found.append(told(case, f"{sides.equal_steps} of {STEPS} {sides.differs or ''}", SAME))
    torch.use_deterministic_algorithms(False)
    case = f"{MEMBERS} replicas, float32: rounds with equal replicas; loss apart at most"
    equal, apart = together(MEMBERS, STEPS)
    found.append(told(case, f"{equal} of {STEPS}; {apart:.1e}", SAME))
    case = f"grids of devices, {', '.join(f'{n} in groups of {g}' for n, g in GRIDS)}, float32"
    return [*found, told(f"{case}: steps with equal bits", f"{on_grids(STEPS)} of {STEPS}", SAME)]


def on_grids(steps: int) -> int:
    """Steps after which replicas on each of the grids, and on one device, have the same digest."""
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
    """Replicas with a micro-batch each, whose gradients meet in a ring over TLS, beside plain
    PyTorch with all of them: rounds after which all replicas have the same digest, and how far
    losses are apart, relatively, at the most."""
    setup, equal, apart = Setup("atom", "tiny", 1, "float32", "cpu"), 0, 0.0
    atoms, text = [Atom(setup) for _ in range(members)], Text(setup)
    reference = Reference(setup, atoms[0].program.layout)
    transports = [member_transport(seat) for seat in loopback(members)]
    order = tuple(transport.peer_id for transport in transports)
    for transport in transports:
        for other in transports:
            transport.set_addresses(other.peer_id, ["{}:{}".format(*other.address)])

    def take(rank: int, step: int, batch: dict[str, Tensor]) -> tuple[bytes, float]:
        replica, tag = atoms[rank].replica, ring_tag(bytes(32), Ballot(step, order[0], bytes(16)))
        replica.reset_gradients()
        replica.run_pass([batch])
        loss, sums = replica.loss_sum / replica.sequences, Sums(replica.gradient_sums())
        terms = Terms(order, rank, tag, 1 / members, codec_named("float32"), (), 60.0)
        wires = terms.mean_wires(replica.elements)
        all_reduce(sums, wires, terms, open_exchange(transports[rank], terms, 60.0))
        replica.begin_step(wires.numbers, gradient_norm(wires.numbers), step)
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


ROWS = {
    "memory": memory,
    "all-reduce": exchanges,
    "same-loss": same_loss,
}
