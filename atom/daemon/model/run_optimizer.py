"""Optimizer and update rule that a run file names, and the arenas that a replica keeps for them."""

from collections.abc import Callable, Mapping
from functools import partial
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
from atom.swap.host_store import state_arenas
from atom.swap.state_form import StateArena, StateForm
from atom.swarm.exchange.codec import codec_named
from atom.training.replica.update_rule import UpdateRule


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


def state_form(run: RunFile) -> StateForm:
    """Return the form in which weights and optimizer state are stored ([optimizer] state)."""
    return StateForm(run.optimizer.state)


def gradients(run: RunFile) -> torch.dtype:
    """Return the dtype of gradients on the device-to-host copy and in the host sum."""
    return torch.bfloat16 if run.optimizer.gradients == "bfloat16" else torch.float32


def replica_state(run: RunFile, layout: ParameterLayout) -> dict[str, StateArena]:
    """Return the arenas of the weights and the optimizer's state in a replica of the run.

    Args:
        run: the run.
        layout: the model's parameters.

    Raises:
        ConfigError: the optimizer's state cannot be stored in the form that the run file names.
    """
    form, kept_by = state_form(run), optimizer(run)
    try:
        kept = optimizer_state(kept_by, layout, form)
    except ValueError as problem:
        raise ConfigError(
            f'optimizer.state: {run.optimizer.name} has no "{form.value}" state: {problem}',
            "choose another form: [optimizer] state",
        ) from problem
    return state_arenas(layout, form, kept)


def shared_state(run: RunFile, layout: ParameterLayout) -> Mapping[str, StateArena]:
    """Return those arenas of `replica_state` that are equal on all peers and stored in snapshots.

    Raises:
        ConfigError: as `replica_state`.
    """
    return update_rule(run).shared_arenas(replica_state(run, layout))


def _at(place: str) -> Any:
    """Import the object that a registry names as "module:name"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
