"""Estimate what training needs on a machine: device memory, host memory, disk and network.

This is the only such estimate: `atom plan`, `atom doctor`, `atom start` and `atom.offload` read
their figures here. The device's part is computed in `memory.py` beside this file, because the
search for a cut needs it many times.
"""

from dataclasses import dataclass, replace

import torch

from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.graph.ir import ParameterLayout, Program
from atom.plan.choice import Choice
from atom.plan.devices import free_host_bytes
from atom.plan.memory import DeviceMemory
from atom.plan.prediction import exchange_bytes
from atom.swap.device_slots import staging_bytes, waiting_elements
from atom.swap.host_store import HIGH, LOW, MASTER, WEIGHTS, beside_bytes
from atom.swarm.exchange.codec import Codec
from atom.training.replica.update_rule import EveryStep
from atom.training.run_optimizer import ReplicaTerms

WEIGHT_TITLES = {MASTER: "master weights", HIGH: "high halves", LOW: "low halves"}


@dataclass(frozen=True)
class HostMemory:
    """Host memory that training needs, and how much may be used."""

    arenas: tuple[tuple[str, int], ...]
    """Pairs (purpose, bytes)."""
    have_bytes: int
    """Host memory that may be used: the limit in the peer file, or the free memory."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all arenas."""
        return sum(size for _, size in self.arenas)

    @property
    def left_bytes(self) -> int:
        """Memory that may be used for other purposes; negative if there is too little."""
        return self.have_bytes - self.total_bytes


@dataclass(frozen=True)
class DiskSpace:
    """Estimate of the largest size of the state directory, by purpose; 0: nothing is stored.

    `joiners_bytes` are not part of the total: they are stored only if the disk has room.
    """

    snapshot_bytes: int = 0
    """Bytes of a snapshot, and of the next snapshot while it is written."""
    checkpoint_bytes: int = 0
    """Bytes of the checkpoints that the peer file asks for, and of one that is being written."""
    result_bytes: int = 0
    """Bytes of the averages of the rounds since the snapshot, and of the round in progress."""
    text_bytes: int = 0
    """Bytes of text that comes through the swarm."""
    joiners_bytes: int = 0
    """Bytes of older snapshots and averages, stored for joiners only if there is space."""
    have_bytes: int = 0
    """Disk space that is free now, or already taken by such files."""

    @property
    def total_bytes(self) -> int:
        """Bytes that training needs on the disk, without those for joiners."""
        return self.snapshot_bytes + self.checkpoint_bytes + self.result_bytes + self.text_bytes


NOTHING_STORED = DiskSpace()
NOT_CUT = DeviceMemory(0, 0, 0, 0, 0)
"""Device memory of a model that is not cut yet."""


@dataclass(frozen=True)
class Footprint:
    """Memory, disk space and traffic that training needs on a machine."""

    host: HostMemory
    disk: DiskSpace
    wire_bytes: float
    """Bytes that this peer sends in a round; it receives as many."""
    device: DeviceMemory = NOT_CUT
    """Memory of the device that needs most."""

    @property
    def fits(self) -> bool:
        """True if host memory and disk suffice; a cut is chosen only if it fits the device."""
        return self.host.left_bytes >= 0 and self.disk.total_bytes <= self.disk.have_bytes

    @classmethod
    def of(
        cls, terms: ReplicaTerms, have_bytes: int, disk: DiskSpace = NOTHING_STORED, peers: int = 1
    ) -> "Footprint":
        """Estimate what a replica needs on this machine with any cut of its model.

        Args:
            terms: Optimizer, update rule and number formats of the replica.
            have_bytes: Host memory that may be used.
            disk: Space for the state directory.
            peers: Number of peers that average together, including this peer.
        """
        elements, element_bytes = terms.layout.trained_elements, average_element_bytes(terms.codec)
        host = HostMemory(host_arenas(terms), have_bytes)
        return cls(host, disk, exchange_bytes(elements, element_bytes, peers))

    @classmethod
    def of_run(
        cls,
        run: RunFile,
        layout: ParameterLayout,
        peer: PeerFile,
        disk_bytes: int,
        text_bytes: int = 0,
        peers: int = 1,
    ) -> "Footprint":
        """Estimate what a run needs on this machine with any cut of its model.

        Args:
            run: Settings of the run.
            layout: The model's parameters.
            peer: Limits of this machine, and number of snapshots and checkpoints to keep.
            disk_bytes: Disk space that is free now, or already taken by the run's files.
            text_bytes: Bytes of text that comes through the swarm.
            peers: Number of peers that average together, including this peer.

        Raises:
            ConfigError: The run's optimizer cannot be used as the run file says.
        """
        terms, wished = ReplicaTerms.of(run, layout), peer.checkpoints
        sizes = {name: each.size_bytes for name, each in terms.shared.items()}
        state_bytes, every = sum(sizes.values()), run.snapshot.every_rounds
        weight_bytes = sum(size for name, size in sizes.items() if name in WEIGHTS)
        checkpoints = (wished.keep if wished.every_rounds else 0) + wished.best
        own_bytes = terms.update_rule.saved_bytes(terms.state)
        disk = DiskSpace(
            snapshot_bytes=2 * state_bytes + 2 * own_bytes + terms.frozen_bytes,
            checkpoint_bytes=(checkpoints + 1) * weight_bytes if checkpoints else 0,
            result_bytes=(every + 1) * terms.average_bytes,
            text_bytes=text_bytes,
            joiners_bytes=(peer.state.snapshots - 1) * (state_bytes + every * terms.average_bytes),
            have_bytes=disk_bytes,
        )
        return cls.of(terms, free_host_bytes(peer.host.memory_bytes), disk, peers)

    def with_cut(
        self, program: Program, choice: Choice, gradients: torch.dtype, on_gpu: bool
    ) -> "Footprint":
        """Add the memory that follows from a cut.

        Args:
            program: Program with this cut.
            choice: Cut, arrangement and number of devices.
            gradients: Dtype of gradients on the copy to the host.
            on_gpu: True if the devices are GPUs.
        """
        landing = choice.devices * staging_bytes(program, gradients) if on_gpu else 0
        waits = waiting_elements(program, program.parameter_dtype) if choice.groups > 1 else {}
        landing += choice.groups * sum(waits.values()) * gradients.itemsize
        arenas = (
            ("gradients in transit from the device", landing),
            ("values between sub-models", choice.devices * choice.host_bytes),
        )
        added = tuple(each for each in arenas if each[1] > 0)
        host = replace(self.host, arenas=self.host.arenas + added)
        return replace(self, host=host, device=choice.memory)


def host_arenas(terms: ReplicaTerms) -> tuple[tuple[str, int], ...]:
    """Return the host memory that a replica needs with any cut, as pairs (purpose, bytes)."""
    layout, codec = terms.layout, terms.codec
    narrow = " in bfloat16" if terms.gradients == torch.bfloat16 else ""
    keeps_lost = codec is not None and codec.given_back > 0
    titles = {name: WEIGHT_TITLES.get(name, f"optimizer's {name}") for name in terms.state}
    arenas = (
        *((titles[name], arena.size_bytes) for name, arena in terms.state.items()),
        ("copies that the device loads", beside_bytes(layout, terms.precision, terms.form)),
        (f"gradients{narrow}", terms.gradients.itemsize * layout.trained_elements),
        # the result that is voted on, and the next one
        ("averages in transit", 2 * terms.average_bytes),
        ("update rule's state", terms.update_rule.own_bytes(layout, keeps_lost)),
    )
    return tuple(each for each in arenas if each[1] > 0)


def trained_element_bytes(terms: ReplicaTerms) -> int:
    """Return the device memory per element that is trained on the device.

    It holds optimizer state, weights and gradient sums. 0: devices cannot train such a replica.
    """
    layout, rule = terms.layout, terms.update_rule
    on_device = terms.optimizer.steps_on_devices and terms.gradients == torch.float32
    if not (on_device and rule.same_steps):
        return 0
    alone = host_arenas(replace(terms, update_rule=EveryStep, codec=None))
    state_bytes = sum(size for _, size in alone) - terms.frozen_bytes
    return -(-state_bytes // max(layout.trained_elements, 1))


def average_element_bytes(codec: Codec | None) -> float:
    """Return the bytes per averaged number on the network; 0 without a codec."""
    return 0.0 if codec is None else codec.wire_bytes(2**20) / 2**20


def step_element_bytes(terms: ReplicaTerms) -> float:
    """Return the bytes of host memory that an optimizer step reads and writes per parameter."""
    state = sum(each.size_bytes for each in terms.state.values())
    copied = not terms.form.splits and terms.precision != torch.float32
    copy_bytes = terms.precision.itemsize if copied else 0
    return 2 * state / terms.layout.trained_elements + copy_bytes + terms.gradients.itemsize
