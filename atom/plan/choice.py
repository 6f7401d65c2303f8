"""One way to run a model on a device: a cut and an arrangement, their memory and their seconds."""

from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from atom.base.units import format_bytes
from atom.graph.ir import Program
from atom.graph.layers import ends_alike
from atom.graph.matrix_parts import in_parts
from atom.graph.program import build_program
from atom.graph.traced import Graph
from atom.plan.memory import Cut, DeviceMemory, trained_parameters
from atom.plan.residency import waiting
from atom.swap.schedule import Arrangement, Shape
from atom.swap.timeline import Durations, Timeline, group_pass, landed_s, simulate

ALIKE = 3
"""Number of simulated passes per round; each further pass takes as long as the last one."""


@dataclass(frozen=True)
class HostStep:
    """Rates of an optimizer step on the host."""

    elements_per_s: float
    """Parameters updated per second while nothing else uses the host's memory."""
    element_bytes: float
    """Bytes of host memory that the step reads and writes per parameter."""


@dataclass(frozen=True)
class Choice:
    """Cut of a model and its arrangement on the devices.

    Memory and seconds are computed when they are first read.
    """

    cut: Cut
    arrangement: Arrangement
    _landed_s: dict[tuple[int, HostStep | None, bool], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def shape(self) -> Shape:
        """Shape of its passes, which simulations of a pass take."""
        return self.cut.shape(self.arrangement)

    @cached_property
    def memory(self) -> DeviceMemory:
        """Memory of the device that needs most."""
        return self.cut.memory(self.arrangement)

    @cached_property
    def timeline(self) -> Timeline:
        """Timeline of the first pass after an optimizer step, when nothing is loaded yet."""
        shape, on = self.shape, self._on
        return simulate(group_pass(shape, on), shape, self._durations, on)

    @cached_property
    def _durations(self) -> Durations:
        return self.cut.durations_in(self.arrangement)

    @cached_property
    def _on(self) -> tuple[int, ...]:
        """Device of each sub-model in a group; empty: each device runs all sub-models."""
        return self.cut.on(self.arrangement)

    @cached_property
    def trained(self) -> dict[str, int]:
        """Parameters that are trained on the device: name → elements."""
        return trained_parameters(self.cut.pieces, self.arrangement)

    @property
    def trained_elements(self) -> int:
        """Number of elements of the parameters that are trained on the device."""
        return sum(self.trained.values())

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches in a pass of one group."""
        return self.cut.limits.micro_batches

    @property
    def group_devices(self) -> int:
        """Number of devices that run a pass together."""
        return self.arrangement.devices

    @property
    def groups(self) -> int:
        """Number of groups, which run separate passes at the same time."""
        return self.devices // self.group_devices

    @property
    def devices(self) -> int:
        """Number of devices in all groups."""
        return self.cut.limits.devices

    def allowing(self, **limits: int) -> "Choice":
        """Return this choice with some fields of its `Limits` changed; the size of groups stays."""
        limited = replace(self.cut.limits, **limits)
        return replace(self, cut=replace(self.cut, limits=limited))

    @property
    def host_bytes(self) -> int:
        """Host memory for the offloaded values between sub-models of one group."""
        return self.shape.host_bytes

    @property
    def waiting(self) -> list[int]:
        """Sub-models with outputs that are offloaded to the host during a pass."""
        return waiting(self.shape)

    @property
    def seconds_per_micro_batch(self) -> float:
        """Seconds per micro-batch, with all groups working at the same time."""
        return self.timeline.seconds / (self.micro_batches * self.groups)

    @property
    def least_per_micro_batch_s(self) -> float:
        """Lower bound of `seconds_per_micro_batch`, which takes no simulation.

        It leaves out waits of one lane for another, except at the beginning and end of a pass.
        """
        on = self._on or (0,) * len(self.cut.pieces)
        each = ([s for s, its in enumerate(on) if its == n] for n in range(self.group_devices))
        return max(map(self._least_s, each)) / (self.micro_batches * self.groups)

    def _least_s(self, mine: Sequence[int]) -> float:
        """Return a lower bound of the seconds of a pass on a device with the sub-models `mine`."""
        d, arrangement, last = self._durations, self.arrangement, len(self.cut.pieces) - 1
        again = sum(d.forward_s[s] for s in mine if s != last and s not in arrangement.kept)
        once = sum(d.forward_s[s] + d.backward_s[s] for s in mine)
        swapped = [s for s in mine if s not in arrangement.resident]
        twice = swapped[: -arrangement.slots]  # the last ones are still in their slots
        loading = sum(d.load_s[s] for s in (*mine, *twice))
        out_s = max(
            sum(d.gradient_out_s[s] for s in mine), sum(d.sum_s[s] for s in mine if d.sum_s)
        )
        first = mine[0]
        computing = d.load_s[first] + self.micro_batches * (once + again) + d.gradient_out_s[first]
        return max(computing, loading, out_s)

    def passes_s(self, passes: int, step: HostStep | None = None, norm: bool = False) -> float:
        """Return the seconds until the gradients of a round's first passes are summed on the host.

        Args:
            passes: Number of passes.
            step: Optimizer step that starts with the first pass. Each load waits until the step has
                updated its parameters, in the order of their first use. None: no step is running.
            norm: Include the sums of squares of the last pass's gradients, which the host computes
                as they arrive.
        """
        more = max(passes - ALIKE, 0)
        one_more_s = self._landed(ALIKE, step) - self._landed(ALIKE - 1, step) if more else 0.0
        return self._landed(passes - more, step, norm) + more * one_more_s

    def _landed(self, passes: int, step: HostStep | None, norm: bool = False) -> float:
        key = passes, step, norm
        if key not in self._landed_s:
            durations = self._durations if step is None else self.under_step(step)
            shape, on = self.shape, self._on
            again = group_pass(shape, on, self.still_loaded)
            schedules = [group_pass(shape, on), *(again for _ in range(1, passes))]
            squares_s = self._squares_s() if norm else ()
            several = self.groups > 1
            self._landed_s[key] = landed_s(schedules, shape, durations, squares_s, several, on)
        return self._landed_s[key]

    def _squares_s(self) -> list[float]:
        """Return per sub-model the seconds of sums of squares once its gradients have arrived.

        The backward visits the first user of a parameter last, so the parameter counts there.
        Parameters that are trained on the device are not on the host and do not count.
        """
        last = (
            (n for name, n in new.items() if name not in self.trained)
            for new in self.cut.first_uses
        )
        return [self.norm_s(sum(elements)) for elements in last]

    def norm_s(self, elements: int) -> float:
        """Return the seconds in which the host computes the norm of so many gradient elements."""
        size, machine = elements * self.cut.limits.gradient_element_bytes, self.cut.machine
        return size / machine.sum_bytes_per_s

    def under_step(self, step: HostStep) -> Durations:
        """Return the durations of a pass during which the host takes an optimizer step.

        The host's memory limits the rate of the step, because the loads of the updated parameters
        use it too.
        """
        durations, machine = self._durations, self.cut.machine
        loaded_bytes = self.groups * self.cut.limits.element_bytes
        most = machine.memory_bytes_per_s / (step.element_bytes + loaded_bytes)
        elements_per_s = min(step.elements_per_s, most)
        step_share = machine.share(elements_per_s * step.element_bytes)
        ready_s = _ready_s(self.cut, elements_per_s, self.trained)
        return replace(durations, ready_s=ready_s, step_share=step_share)

    @property
    def still_loaded(self) -> list[int]:
        """Sub-models that are in their slots after a pass, so the next pass need not load them."""
        arrangement, on = self.arrangement, self._on or (0,) * len(self.cut.pieces)
        swapped: list[list[int]] = [[] for _ in range(self.group_devices)]
        for s, device in enumerate(on):
            if s not in arrangement.resident:
                swapped[device].append(s)
        return [*arrangement.resident, *(s for own in swapped for s in own[: arrangement.slots])]

    @property
    def summary(self) -> str:
        """The choice in one line, for the log of a daemon."""
        count, kept = len(self.cut.pieces), len(self.arrangement.kept)
        resident = len(self.arrangement.resident)
        stays = "all stay" if resident == count else f"{resident} stay, {kept} not recomputed"
        if self.arrangement.trained:
            stays += f", {len(self.arrangement.trained)} are trained there"
        if self.cut.matrix_parts:
            stays += f", matrices in parts: {len(self.cut.matrix_parts)}"
        waiting = f" and {format_bytes(self.host_bytes)} on the host" if self.host_bytes else ""
        budget = format_bytes(self.cut.limits.device_bytes)
        checkpoints = ", without the model's own checkpoints" if self.cut.remembers else ""
        where = "in each group" if self.groups > 1 else "in a group"
        of_several = f", on each of {self.devices} devices" if self.devices > 1 else ""
        if self.group_devices > 1:
            of_several = f", {where} of {self.group_devices} devices"
        return (
            f"{count} sub-model{'' if count == 1 else 's'} on the device ({stays}{checkpoints}), "
            f"{format_bytes(self.memory.total_bytes)} of {budget}{waiting}, "
            f"up to {self.micro_batches} micro-batch"
            f"{'' if self.micro_batches == 1 else 'es'} per pass"
            f"{of_several}"
        )

    def program(self, graph: Graph) -> Program:
        """Return the program of the graph with this cut.

        Args:
            graph: The graph for which this choice was made.

        Raises:
            ValueError: This choice was made for another graph, which is cut at other positions.
        """
        # Split matrices first: the positions of the parts depend on the recomputed spans, which
        # `remembering` drops.
        cut = in_parts(graph, self.cut.matrix_parts)
        return build_program(cut.remembering() if self.cut.remembers else cut, ends=self.cut.ends)

    def program_alike(self, other: Graph, graph: Graph) -> Program:
        """Return the program of another graph of the same model, with a corresponding cut.

        Args:
            other: Graph with other calls, for example the evaluation graph.
            graph: The graph for which this choice was made.
        """
        other, graph = (in_parts(each, self.cut.matrix_parts) for each in (other, graph))
        return build_program(other, ends=ends_alike(graph, other, self.cut.ends))

    def to_json(self, program: Program) -> dict[str, Any]:
        """Return the choice as JSON, for people and tools.

        Seconds and bytes of sub-models are for one micro-batch; `pass`, `host_bytes` and
        `device_memory` are for a whole pass.

        Args:
            program: Result of `program` for the graph of this choice.
        """
        arrangement, timeline, parts = self.arrangement, self.timeline, program.sub_models
        return {
            "groups": self.groups,
            "group_devices": self.group_devices,
            "micro_batches": self.micro_batches,
            "slots": arrangement.slots,
            "remembers": self.cut.remembers,
            "matrix_parts": dict(self.cut.matrix_parts),
            "host_bytes": self.host_bytes,
            "device_memory": asdict(self.memory) | {"total_bytes": self.memory.total_bytes},
            "pass": {
                "seconds": timeline.seconds,
                "computing": timeline.computing,
                "load_s": timeline.busy_s("load"),
                "compute_s": timeline.busy_s("compute"),
                "gradients_out_s": timeline.busy_s("gradients"),
                "sums_s": timeline.busy_s("sums"),
            },
            "sub_models": [
                {
                    "name": parts[s].name,
                    "classes": list(dict.fromkeys(each.class_name for each in parts[s].layers)),
                    "operations": [(0, *self.cut.ends)[s], self.cut.ends[s]],
                    "parameter_elements": piece.elements,
                    "forward_s": piece.forward_s,
                    "backward_s": piece.backward_s,
                    "activation_bytes": piece.activation_bytes,
                    "out_bytes": piece.out_bytes,
                    "resident": s in arrangement.resident,
                    "activations_kept": s in arrangement.kept,
                    "trained_on_device": s in arrangement.trained,
                    "values_offloaded": s in self.waiting,
                }
                for s, piece in enumerate(self.cut.pieces)
            ],
        }


def _ready_s(cut: Cut, elements_per_s: float, trained: Container[str]) -> tuple[float, ...]:
    """Return per sub-model the seconds until an optimizer step has updated its parameters.

    The host updates parameters in the order of the sub-models that use them first. Parameters that
    are `trained` on the device add no time.
    """
    updated_s: dict[str, float] = {}
    ready_s, elements = list[float](), 0
    for piece, new in zip(cut.pieces, cut.first_uses, strict=True):
        elements += sum(n for name, n in new.items() if name not in trained)
        updated_s.update(dict.fromkeys(new, elements / elements_per_s))
        waited = (updated_s[name] for name in piece.parameters.keys() - piece.frozen)
        ready_s.append(max(waited, default=0.0))
    return tuple(ready_s)
