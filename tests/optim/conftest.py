"""Every level of instructions that this processor has; run files that name an optimizer."""

from collections.abc import Callable

import pytest

from atom.config.load import parse_run_text
from atom.config.run_file import RunFile
from atom.optim import adamw
from atom.swap.host_kernels import LIBRARY, HostKernels, host_kernels, load

RUN = """
run = { name = "optimized" }
data = { source = "python-stdlib" }
batch = { global_sequences = 8, micro_batch_sequences = 1 }
model = { family = "gpt3", size = "small", vocabulary_size = 512 }
"""


@pytest.fixture(params=range(host_kernels().highest_level + 1))
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Level of instructions: plain ones, and all others that this processor has."""
    kernels = HostKernels(load(LIBRARY), request.param)
    monkeypatch.setattr(adamw, "host_kernels", lambda: kernels)
    return request.param


@pytest.fixture
def run_with() -> Callable[..., RunFile]:
    """Function of an optimizer's name and more text that returns a run file."""

    def make(name: str, more: str = "") -> RunFile:
        optimizer = f'{{ name = "{name}", learning_rate = 1e-2, betas = [0.8, 0.9] }}'
        return parse_run_text(f"{RUN}optimizer = {optimizer}\n{more}")

    return make
