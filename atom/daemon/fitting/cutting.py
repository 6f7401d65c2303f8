"""A run's model cut for this box: when its replica is built, and when its caps are changed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from atom.base.errors import DeviceError, ShortageError
from atom.base.units import format_bytes
from atom.config.peer_file import PeerFile
from atom.daemon.console import Progress
from atom.daemon.fitting.device_choice import (
    BOUNDARY_SHARE,
    choice_text,
    cut_arenas,
    ends_alike,
    free_host_bytes,
    most_micro_batches,
    peer_bytes,
    question,
    usable_device_bytes,
    whole_device_bytes,
)
from atom.daemon.fitting.profiling import profile_or_guess
from atom.daemon.model.recipe import PRECISIONS, Recipe, evaluation_graph
from atom.daemon.model.run_optimizer import gradients, new_update_rule, optimizer, state_form
from atom.daemon.usable_memory import usable_memory
from atom.graph.ir import Program
from atom.graph.program import build_program
from atom.optim.rate import RateSettings
from atom.placement.choice import Choice
from atom.placement.choosing import Question, choose
from atom.swap.device import Device
from atom.swap.voided import is_out_of_memory
from atom.training.replica.replica import ReplicaSettings


@dataclass(frozen=True)
class Callbacks:
    """What a caller wants to be told."""

    note: Callable[[str], None]
    """One line of what is being done."""
    progress: Progress
    """How far a long step is."""


@dataclass(frozen=True)
class Cut:
    """What a replica is made of, or rearranged to."""

    training: Program
    evaluation: Program | None
    settings: ReplicaSettings


class Cutter:
    """Of one run's model, for one device, measured and traced once."""

    def __init__(
        self,
        recipe: Recipe,
        device: Device,
        peer: PeerFile,
        dropout_seed: int,
        callbacks: Callbacks,
    ) -> None:
        """`dropout_seed`: of this peer. Raises: ModelError if validation would be random."""
        self._recipe, self._seed, self._callbacks = recipe, dropout_seed, callbacks
        self._peer, self._kind = peer, device.torch_device
        run, graph = recipe.run, recipe.graph
        validated = run.validation is not None
        self._evaluation = evaluation_graph(recipe, callbacks.note) if validated else None
        self._profile = profile_or_guess(graph, self._kind, callbacks.note, self._measuring)
        self._others_bytes = _own_bytes()
        self.micro_batch_s: float | None = None
        """Seconds, as cut last; None: they are not measured."""

    def cut(self, peer: PeerFile) -> Cut:
        """With the memory that this peer file allows, and all else as it was. From any thread.

        Raises: DeviceError for memory that is too small, ShortageError if other programs have it;
        before anything is allocated.
        """
        run, graph, note = self._recipe.run, self._recipe.graph, self._callbacks.note
        device = self._peer.device.model_copy(update={"memory_bytes": peer.device.memory_bytes})
        allowed = self._peer.model_copy(update={"device": device, "host": peer.host})
        held_bytes = max(_own_bytes() - self._others_bytes, 0)
        have_bytes = free_host_bytes(peer.host.memory_bytes, held_bytes)
        need_bytes = peer_bytes(run, graph.layout)
        require_host_memory(need_bytes, have_bytes, peer.host.memory_bytes)
        asked = self._question(allowed, have_bytes)
        choice = self._answer(asked, allowed)
        if self._profile.source == "measured":
            self.micro_batch_s = choice.seconds_per_micro_batch
        training = choice.program(graph)
        on_gpu = self._kind.type == "cuda"
        arenas = cut_arenas(training, choice, on_gpu, gradients(run))
        beyond_bytes = sum(size for _, size in arenas)
        require_host_memory(need_bytes + beyond_bytes, have_bytes, peer.host.memory_bytes)
        note(choice_text(choice, asked.limits.device_bytes))
        evaluation = self._evaluation
        if evaluation is None:
            return Cut(training, None, self._settings(choice))
        ends = ends_alike(graph, evaluation, choice)
        return Cut(training, build_program(evaluation, ends=ends), self._settings(choice))

    def _measuring(self, done: int, total: int) -> None:
        # A note has said what is done and why: a line of progress beside it must not say it again.
        self._callbacks.progress("layers measured", done, total, "layers")

    def _question(self, peer: PeerFile, host_bytes: int) -> Question:
        """`host_bytes`: that may be used in all."""
        run, graph = self._recipe.run, self._recipe.graph
        left = host_bytes - peer_bytes(run, graph.layout)
        return question(
            graph,
            self._profile,
            device_bytes=peer.device.memory_bytes or usable_device_bytes(self._kind, left),
            micro_batches=most_micro_batches(run),
            on_gpu=self._kind.type == "cuda",
            host_bytes=int(left * BOUNDARY_SHARE),
            gradients=gradients(run),
        )

    def _answer(self, asked: Question, peer: PeerFile) -> Choice:
        """Raises: DeviceError; ShortageError if it would fit, were nobody else there."""
        try:
            return choose(asked)
        except DeviceError as problem:
            if peer.device.memory_bytes is not None or not self._would_fit_alone(peer):
                raise
            raise ShortageError(
                f"{problem.message}; other programs have the rest", "end them, then try again"
            ) from problem

    def _would_fit_alone(self, peer: PeerFile) -> bool:
        run, graph = self._recipe.run, self._recipe.graph
        host_bytes = peer.host.memory_bytes or usable_memory().total_bytes
        device_bytes = whole_device_bytes(self._kind, host_bytes - peer_bytes(run, graph.layout))
        device = peer.device.model_copy(update={"memory_bytes": device_bytes})
        alone = peer.model_copy(update={"device": device})
        try:
            choose(self._question(alone, host_bytes))
        except DeviceError:
            return False
        return True

    def _settings(self, choice: Choice) -> ReplicaSettings:
        run, o = self._recipe.run, self._recipe.run.optimizer
        return ReplicaSettings(
            rate=RateSettings(
                learning_rate=o.learning_rate,
                final_learning_rate=o.final_learning_rate,
                warmup_rounds=o.warmup_rounds,
                decay=o.decay,
                rounds=run.run.rounds,
            ),
            optimizer=optimizer(run),
            update_rule=new_update_rule(run),
            clip_norm=o.clip_norm or None,
            precision=PRECISIONS[run.model.precision],
            arrangement=choice.arrangement,
            micro_batches=choice.micro_batches,
            dropout_seed=self._seed,
            state_form=state_form(run),
            gradients=gradients(run),
        )


@contextmanager
def named_if_out_of_memory(when: str) -> Iterator[None]:
    """What was free when it was reckoned may be taken when it is wanted. Raises: ShortageError."""
    try:
        yield
    except Exception as failure:
        if not is_out_of_memory(failure):
            raise
        raise ShortageError(
            f"memory ran out while the replica was {when}: {str(failure).partition(chr(10))[0]}",
            "other programs use it: end them, or lower [device] memory in the peer file",
        ) from failure


def require_host_memory(need_bytes: int, have_bytes: int, cap_bytes: int | None) -> None:
    """`have_bytes`: the owner's cap, or what is free now.

    Raises: DeviceError; ShortageError if this box has enough, and other programs hold it.
    """
    if need_bytes <= have_bytes:
        return
    takes = f"a replica of this model takes {format_bytes(need_bytes)} of host memory, here "
    total_bytes = usable_memory().total_bytes
    if cap_bytes is None and need_bytes <= total_bytes:
        raise ShortageError(
            f"{takes}{format_bytes(have_bytes)} of {format_bytes(total_bytes)} are free",
            "end other programs, then try again",
        )
    raise DeviceError(
        f"{takes}{format_bytes(have_bytes)} may be used",
        "join a run with a smaller model, or free memory (peer file: [host] memory)",
    )


def _own_bytes() -> int:
    """What this process has of the host's memory, without files that it looks into."""
    seen = psutil.Process().memory_info()
    return int(seen.rss - seen.shared)
