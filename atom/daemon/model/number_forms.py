"""In which numbers a run keeps its state, and in which it sums its gradients."""

import torch

from atom.config.run_file import RunFile
from atom.swap.state_form import StateForm


def state_form(run: RunFile) -> StateForm:
    return StateForm(run.optimizer.state)


def gradients(run: RunFile) -> torch.dtype:
    """In which numbers they leave the device and are summed."""
    return torch.bfloat16 if run.optimizer.gradients == "bfloat16" else torch.float32
