"""Optimizer, update rule and number formats that a run file names, and the state they need."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from atom.base.errors import ConfigError
from atom.config.load import load_run_file
from atom.config.run_file import LOCAL_STEPS, OPTIMIZERS, UPDATE_RULES, RunFile
from atom.graph.ir import ParameterLayout
from atom.optim.optimizer import Optimizer, optimizer_state
from atom.optim.rate import RateSettings
from atom.swap.host_store import StateArena, StateForm, state_arenas
from atom.swarm.exchange.codec import Codec, codec_named
from atom.training.replica.update_rule import EveryStep, UpdateRule


def load_run(path: Path) -> RunFile:
    """Read a run file, and check that its optimizer and update rule can be combined.

    Raises:
        ConfigError: the file is not valid; the message names it.
    """
    run = load_run_file(path)
    try:
        optimizer(run)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem.message}", problem.hint) from problem
    return run


def optimizer(run: RunFile) -> Optimizer:
    """Return the optimizer that the run file names.

    Raises:
        ConfigError: the update rule needs equal steps on all peers, and the optimizer's steps
            differ in their last bits from machine to machine.
    """
    o = run.optimizer
    make: type[Optimizer] = _at(OPTIMIZERS[o.name])
    if update_rule(run).same_steps and not make.reproducible:
        raise ConfigError(
            f"optimizer.name: {o.name} takes steps that differ in their last bits from machine to "
            f'machine, and with rule = "{run.update.rule}" all peers must take the same',
            f'set [update] rule = "{LOCAL_STEPS}", or name = "adamw"',
        )
    new: Callable[..., Optimizer] = make
    return new(betas=o.betas, epsilon=o.epsilon, weight_decay=o.weight_decay, seed=run.run.seed)


def rate_settings(run: RunFile) -> RateSettings:
    """Return the schedule of the learning rate that the run file describes."""
    o = run.optimizer
    terms = o.learning_rate, o.final_learning_rate, o.warmup_rounds, o.decay
    return RateSettings(*terms, rounds=run.run.rounds, decay_rounds=o.decay_rounds)


def update_rule(run: RunFile) -> type[UpdateRule]:
    """Return the class of the update rule that the run file names."""
    rule: type[UpdateRule] = _at(UPDATE_RULES[run.update.rule])
    return rule


def new_update_rule(run: RunFile) -> Callable[..., UpdateRule]:
    """Return a constructor of the update rule, with the options of the run file filled in."""
    rule, options = update_rule(run), run.update.model_dump(exclude={"rule"})
    keeps_lost = codec_named(run.swarm.codec).given_back > 0
    return partial(rule, keeps_lost=keeps_lost, **options)


@dataclass(frozen=True)
class ReplicaTerms:
    """Optimizer, update rule and number formats of a replica; its memory follows from them."""

    layout: ParameterLayout
    precision: torch.dtype
    """Dtype in which devices compute."""
    optimizer: Optimizer
    form: StateForm = StateForm.EXACT
    """Form in which weights and optimizer state are stored."""
    gradients: torch.dtype = torch.float32
    """Dtype of gradients on the device-to-host copy and in the host sum."""
    update_rule: type[UpdateRule] = EveryStep
    codec: Codec | None = None
    """Codec of averages; None: nothing is averaged, because there are no other peers."""

    @classmethod
    def of(cls, run: RunFile, layout: ParameterLayout) -> "ReplicaTerms":
        """Return the terms of a run.

        Args:
            run: the run.
            layout: the model's parameters.

        Raises:
            ConfigError: the optimizer and the update rule cannot be combined, or the optimizer's
                state cannot be stored in the form that the run file names.
        """
        terms = cls(
            layout=layout,
            precision=getattr(torch, run.model.precision),
            optimizer=optimizer(run),
            form=StateForm(run.optimizer.state),
            gradients=getattr(torch, run.optimizer.gradients),
            update_rule=update_rule(run),
            codec=codec_named(run.swarm.codec),
        )
        try:
            assert terms.state
        except ValueError as problem:
            name, form = run.optimizer.name, terms.form.value
            what = f'optimizer.state: {name} has no "{form}" state: {problem}'
            raise ConfigError(what, "choose another form: [optimizer] state") from problem
        return terms

    @cached_property
    def state(self) -> dict[str, StateArena]:
        """Arenas of the weights and the optimizer's state, by name.

        Raises:
            ValueError: the optimizer's state cannot be stored in this form.
        """
        kept = optimizer_state(self.optimizer, self.layout, self.form)
        return state_arenas(self.layout, self.form, kept)

    @property
    def frozen_bytes(self) -> int:
        """Bytes of the parameters that are not trained."""
        frozen = self.layout.total_elements - self.layout.trained_elements
        return frozen * self.precision.itemsize

    @property
    def average_bytes(self) -> int:
        """Bytes of an average as it travels."""
        return 0 if self.codec is None else self.codec.wire_bytes(self.layout.trained_elements)

    @property
    def shared(self) -> Mapping[str, StateArena]:
        """Arenas of `state` that are equal on all peers and stored in snapshots."""
        return self.update_rule.shared_arenas(self.state)


def _at(place: str) -> Any:
    """Import the object that a registry names as "module:name"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
