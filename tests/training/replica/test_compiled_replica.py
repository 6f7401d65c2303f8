"""Compiled sub-models train as plain ones do, up to rounding; what cannot be compiled says so."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from atom.graph.ir import Program
from atom.graph.program import compile_program
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.swap.arrangement import Arrangement
from atom.swap.compiled import Compilation
from atom.swap.device import CpuDevice
from atom.swap.engine import Observer
from atom.swap.schedule import ValuesIn, ValuesOut
from atom.swap.timeline import Recording
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.training.small_replica import RATE

CONFIG = GPT3Config(2, 2, 16, sequence_tokens=300, vocabulary_size=80, dropout=0.1)
"""Its loss comes in two chunks, each under a checkpoint."""

Told = list[tuple[str, str]]


def batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {name: torch.randint(80, (1, 300), generator=generator) for name in ("tokens", "targets")}
        for _ in range(2)
    ]


@functools.cache
def program() -> Program:
    """Two sub-models of two layers each; a block in both, the head's weight in the first, too."""
    made = compile_program(GPT3(CONFIG, device="meta"), batches()[0], [(0, 1), (2, 3)])
    assert "= checkpoint(" in made.source
    return made


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


Value = Callable[[str, tuple[int, ...]], Tensor]
VALUE = functools.partial(initial_value, CONFIG, seed=1)


def passed(
    how: Compilation | None,
    program: Program,
    batches: Sequence[dict[str, Tensor]],
    value: Value = VALUE,
    arrangement: Arrangement | None = None,
    observer: Observer | None = None,
) -> tuple[list[float], Tensor]:
    """Losses of two passes, and the gradients of both."""
    settings = ReplicaSettings(
        RATE, compilation=how, arrangement=arrangement or Arrangement(), micro_batches=2
    )
    with closing(CpuDevice()) as device:
        replica = Replica(program, None, settings, device, observer=observer)
        replica.initialise(value)
        losses = [replica.run_pass(batches).loss_sum for _ in range(2)]
        return losses, replica.gradient_sums().clone()


def compilation(backend: str) -> tuple[Compilation, Told]:
    told: Told = []
    return Compilation(lambda kind, why: told.append((kind, why)), backend), told


def assert_close(found: tuple[list[float], Tensor], expected: tuple[list[float], Tensor]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert (found[1] - expected[1]).norm() <= 1e-5 * expected[1].norm()


def test_losses_and_gradients_are_those_of_plain_sub_models() -> None:
    how, told = compilation("aot_eager")
    found = passed(how, program(), batches())
    assert told == []
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3  # embedding, block, head
    assert_close(found, passed(None, program(), batches()))


def test_values_that_wait_on_the_host_do_not_show_in_compiled_sub_models() -> None:
    """Where they lie is not what they are: the same bits, and close to plain sub-models."""
    fine = compile_program(GPT3(CONFIG, device="meta"), batches()[0])
    offloaded = Arrangement(offloaded=frozenset(range(4)), least_offloaded_bytes=1)
    (here, told), (there, told_too) = compilation("aot_eager"), compilation("aot_eager")
    recording = Recording()
    waiting = passed(there, fine, batches(), arrangement=offloaded, observer=recording)
    moved = [type(span.event) for span in recording.take().spans]
    assert moved.count(ValuesOut) == moved.count(ValuesIn) > 0
    staying = passed(here, fine, batches())
    assert told == told_too == []
    assert waiting[0] == staying[0]
    assert torch.equal(waiting[1], staying[1])
    assert_close(waiting, passed(None, fine, batches(), arrangement=offloaded))


class Layers(nn.Module):
    """Small enough for a compiler of C++."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = functional.dropout(layer(x).tanh(), 0.3)
        return x.square().mean()


def test_the_same_with_generated_kernels_and_random_numbers() -> None:
    torch.manual_seed(0)
    model, batch = Layers(), {"x": torch.randn(8, 16)}
    parameters = dict(model.named_parameters())
    small = compile_program(model, batch, [(0, 1), (2, 2)])
    how, told = compilation("inductor")
    run = functools.partial(passed, program=small, batches=[batch, batch])
    found = run(how, value=lambda name, shape: parameters[name])
    assert told == []
    assert_close(found, run(None, value=lambda name, shape: parameters[name]))


@torch._dynamo.register_backend(name="tests_wrong")
def wrong(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return lambda *values: [value * 1.1 for value in graph(*values)]


@pytest.mark.parametrize(
    ("backend", "why"),
    [("no_such_backend", "no_such_backend"), ("tests_wrong", "its results differ")],
)
def test_what_cannot_be_compiled_or_comes_out_wrong_runs_plainly_and_says_so_once(
    backend: str, why: str
) -> None:
    how, told = compilation(backend)
    found, expected = passed(how, program(), batches()), passed(None, program(), batches())
    assert [kind for kind, _ in told] == ["Embedding", "Block", "Head"]
    assert all(why in reason for _, reason in told)
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])


def test_nothing_is_compiled_to_evaluate(device: CpuDevice) -> None:
    how, told = compilation("no_such_backend")
    replica = Replica(program(), None, ReplicaSettings(RATE, compilation=how), device)
    replica.initialise(VALUE)
    replica.evaluate(batches())
    assert told == []
