"""An architecture's way through a run: founded from its config.json, trained beside the library's
own model in plain PyTorch, exported, and loaded by the library."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from atom.base.errors import AtomError
from atom.daemon.model.exporting import export_run
from atom.daemon.model.weight_files import given_values
from atom.daemon.peer.founding import Membership
from tests.architectures.configs import TOKENS, VOCABULARY, Config
from tests.daemon.model.kept_runs import Folder, folder_in, round_zero
from tests.daemon.silence import Silence

STEPS, SEQUENCES, RATE = 3, 4, 1e-2
BOUND = 1e-6
"""Bound on the relative difference of losses, and on the difference of weights."""
_PLACE = re.compile(r"\S*/site-packages/")

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """How far a run was from plain PyTorch after three steps."""

    loss: float
    """The largest difference of a step's loss, relative."""
    weight: float
    """The largest difference of a weight at the end."""
    logits_equal: bool
    """True if the exported model, as the library loaded it, and the library's model with the run's
    weights give the same logits, and a run that begins from the export has the same weights."""


def walk(root: Path, config: Config) -> Trained:
    """Train one architecture. Raises: AtomError if Atom refuses the architecture."""
    with folder_in(root, config=config) as folder:
        model = f'huggingface = "config.json"\nsequence_tokens = {TOKENS}'
        member = folder.found(model, more="weight_decay = 0.0")
        round_zero(member).initialise()
        plain = library_model(config)
        round_zero(member).fill_frozen()
        fill(plain, member.replica.export_parameters())
        pairs = list(_steps(member, plain))
        weights = member.replica.export_parameters()
        apart = (
            (weights[name] - value.detach()).abs().max().item()
            for name, value in plain.named_parameters()
            if name in weights
        )
        return Trained(
            loss=max(abs(ours - theirs) / abs(theirs) for ours, theirs in pairs),
            weight=max(apart),
            logits_equal=_exported_alike(folder, member, plain, _auto_class(config)),
        )


def refusal(error: AtomError) -> str:
    """Return the message of a refusal, without the library's folder on this machine."""
    return _PLACE.sub("", f"{error.message}; {error.hint}")


def library_model(config: Config) -> Any:
    """Build the model by the library alone."""
    parsed = transformers.AutoConfig.for_model(**config)
    return _auto_class(config).from_config(parsed).float()


def _auto_class(config: Config) -> Any:
    """Return the library's auto class, which for some models with an encoder is another one."""
    known = type(transformers.AutoConfig.for_model(**config))
    named = (config.get("architectures") or [""])[0]
    if known not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING or named.endswith("Generation"):
        return transformers.AutoModelForImageTextToText
    return transformers.AutoModelForCausalLM


def fill(model: Any, values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values.get(name, parameter))


def batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, VOCABULARY, (SEQUENCES, TOKENS), generator=generator)
    return {"input_ids": tokens, "labels": tokens.clone()}


def _steps(member: Membership, plain: Any) -> Iterator[tuple[float, float]]:
    """Losses of the run, and of plain PyTorch."""
    replica, betas = member.replica, member.run.optimizer.betas
    optimizer = torch.optim.AdamW(
        plain.parameters(), lr=RATE, betas=betas, weight_decay=0.0, fused=True
    )
    plain.train()
    for step in range(STEPS):
        replica.reset_gradients()
        replica.run_pass([batch(step)])
        replica.begin_own_step()
        replica.finish_step()
        optimizer.zero_grad()
        loss = plain(**batch(step), use_cache=False).loss
        loss.backward()
        optimizer.step()
        yield replica.loss_sum / SEQUENCES, loss.item()


def _exported_alike(folder: Folder, member: Membership, plain: Any, auto_class: Any) -> bool:
    """Return True if library and Atom read the run's weights in the export, and no other weight."""
    folder.as_first_state(member)
    export_run(folder.root / "out", folder.root / "a", Silence())
    weights = member.replica.export_parameters()
    value_of = given_values(member.recipe.source, folder.root / "out")
    imported = (torch.equal(value_of(n, tuple(v.shape)), v) for n, v in weights.items())
    loaded, told = auto_class.from_pretrained(folder.root / "out", output_loading_info=True)
    fill(plain, weights)
    with torch.no_grad():
        ours, theirs = (
            model.eval()(batch(STEPS)["input_ids"], use_cache=False).logits
            for model in (loaded, plain)
        )
    return torch.equal(ours, theirs) and not any(told.values()) and all(imported)
