"""An optimizer that the code has never heard of: trained and planned (joined: `test_optimizer`)."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
from toy_sign_sgd import SignSGD

from atom.base.errors import ConfigError
from atom.config.run_file import OPTIMIZERS, RunFile
from atom.graph.ir import ParameterLayout
from atom.optim.rate import RateSettings
from atom.swap.device import CpuDevice
from atom.training.run_optimizer import ReplicaTerms, optimizer
from tests.training.plain_training import CLIP_NORM, PlainTraining
from tests.training.small_replica import batches, filled, program, step_once

RATE, BETA, ROUNDS = 1e-2, 0.8, 4


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that a contributor adds to `OPTIMIZERS`."""
    monkeypatch.setitem(OPTIMIZERS, "sign-sgd", "toy_sign_sgd:SignSGD")


@pytest.fixture
def run(run_with: Callable[..., RunFile]) -> RunFile:
    """Return a run file with the toy's name, set after the check.

    The check only knows names that existed at import.
    """
    run = run_with("adamw")
    return run.model_copy(
        update={"optimizer": run.optimizer.model_copy(update={"name": "sign-sgd"})}
    )


class PlainSignSGD(torch.optim.Optimizer):
    """The rule in plain PyTorch."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            kept = self.state[parameter]
            momentum = kept.setdefault("momentum", torch.zeros_like(parameter))
            momentum.mul_(BETA).add_(parameter.grad.mul(1 - BETA))
            parameter.sub_(momentum.sign().mul_(RATE))


def test_training_is_bit_equal_to_plain_pytorch(run: RunFile) -> None:
    settings = {"optimizer": optimizer(run), "clip_norm": CLIP_NORM}
    plain = PlainTraining(0.0, False, lambda model: PlainSignSGD(model.parameters()))
    with closing(CpuDevice()) as device:
        replica = filled(device, program(), rate=RateSettings(RATE), **settings)
        for round_number in range(1, ROUNDS + 1):
            step_once(replica, batches(1, round_number), round_number)
            plain.step(batches(1, round_number), round_number)
            for name, weight in replica.export_parameters().items():
                assert torch.equal(weight, plain.parameters[name]), (round_number, name)


def test_a_form_that_it_does_not_have_is_refused(
    run: RunFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state(*given: object) -> None:
        raise ValueError("signs are whole")

    monkeypatch.setattr(SignSGD, "state", state)
    with pytest.raises(ConfigError, match=r'sign-sgd has no "exact" state: signs are whole'):
        ReplicaTerms.of(run, ParameterLayout.of({"matrix": (32, 16)}))
