"""What [optimizer] and [update] in a run file stand for, and what a replica keeps for them."""

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
    """The run of a file, whose optimizer goes with its update rule. Raises: ConfigError."""
    run = load_run_file(path)
    try:
        optimizer(run)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem.message}", problem.hint) from problem
    return run


def optimizer(run: RunFile) -> Optimizer:
    """The one that the run file names. Raises: ConfigError if it does not go with the rule."""
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
    o = run.optimizer
    terms = o.learning_rate, o.final_learning_rate, o.warmup_rounds, o.decay
    return RateSettings(*terms, rounds=run.run.rounds, decay_rounds=o.decay_rounds)


def update_rule(run: RunFile) -> type[UpdateRule]:
    """The one that the run file names."""
    rule: type[UpdateRule] = _at(UPDATE_RULES[run.update.rule])
    return rule


def new_update_rule(run: RunFile) -> Callable[..., UpdateRule]:
    """What makes it, with the options of the run file."""
    rule, options = update_rule(run), run.update.model_dump(exclude={"rule"})
    keeps_lost = codec_named(run.swarm.codec).given_back > 0
    return partial(rule, keeps_lost=keeps_lost, **options)


def state_form(run: RunFile) -> StateForm:
    return StateForm(run.optimizer.state)


def gradients(run: RunFile) -> torch.dtype:
    return torch.bfloat16 if run.optimizer.gradients == "bfloat16" else torch.float32


def replica_state(run: RunFile, layout: ParameterLayout) -> dict[str, StateArena]:
    """The weights and the optimizer's state, as a replica of the run holds them. Raises:
    ConfigError if the optimizer's state has no such form."""
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
    """Of that, what all peers of the run have alike: what a snapshot holds."""
    return update_rule(run).shared_arenas(replica_state(run, layout))


def _at(place: str) -> Any:
    """What a registry's "module:name" stands for."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
