"""The front door: a module of the reader's own, trained without a swarm as plain PyTorch trains."""

import copy
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import atom
from atom.base.errors import DeviceError
from atom.swap.device import CpuDevice
from tests.offloaded_net import Net, X, Y, offloaded_net

WIDTH, SEQUENCES, STEPS = 32, 8, 3


class Tower(nn.Module):
    """Blocks with a skip, dropout if wanted, and an output tied to nothing."""

    def __init__(self, blocks: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(blocks))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, 5)
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = inputs + self.dropout(torch.tanh(block(inputs))) * self.scale
        return self.head(inputs)


def batches(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(SEQUENCES, WIDTH, generator=generator),
            torch.randint(5, (SEQUENCES,), generator=generator),
        )
        for _ in range(count)
    ]


def plain_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, some: Sequence[tuple[Tensor, Tensor]]
) -> float:
    optimizer.zero_grad()
    losses = [functional.cross_entropy(model(inputs), targets) for inputs, targets in some]
    loss = torch.stack(losses).mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def require_plain_training(
    plain: nn.Module, gpu_memory: str, steps: Sequence[list[tuple[Tensor, Tensor]]]
) -> dict[str, Tensor]:
    """Train a module and an offloaded copy of it with AdamW, and compare losses and weights.

    Returns:
        The offloaded weights.
    """
    trains = (parameter for parameter in plain.parameters() if parameter.requires_grad)
    optimizer = torch.optim.AdamW(trains, lr=1e-2, weight_decay=0.0)
    with atom.offload(
        copy.deepcopy(plain),
        functional.cross_entropy,
        batches(1, 0)[0],
        gpu_memory=gpu_memory,
        optimizer=atom.AdamW(betas=(0.9, 0.999), weight_decay=0.0),
        learning_rate=1e-2,
    ) as offloaded:
        for some in steps:
            expected = plain_step(plain, optimizer, some)
            assert offloaded.step(some) == pytest.approx(expected, rel=1e-5)
        weights: dict[str, Tensor] = offloaded.state_dict()["model"]
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)
    return weights


def test_a_step_is_plain_pytorchs() -> None:
    torch.manual_seed(1)
    plain = Tower(blocks=6)
    weights = require_plain_training(plain, "64 KiB", [batches(9, n) for n in range(STEPS)])
    plain.load_state_dict(weights)


class Adapted(nn.Module):
    """Model with a frozen matrix of 1 MiB and a trained adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(512, 512).requires_grad_(False)
        self.down, self.up = nn.Linear(512, 4, bias=False), nn.Linear(4, 512, bias=False)
        self.head = nn.Linear(512, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        wide = inputs.repeat(1, 16)
        return self.head(torch.tanh(self.base(wide) + self.up(self.down(wide))))


def test_a_frozen_matrix_that_does_not_fit_is_cut_and_its_adapter_trains() -> None:
    torch.manual_seed(1)
    plain = Adapted()
    memory = f"{2 * plain.base.weight.nbytes // 1024 - 1} KiB"  # not even its slots fit
    weights = require_plain_training(plain, memory, [[each] for each in batches(STEPS, 2)])
    assert torch.equal(weights["base.weight"], plain.base.weight)


def test_dropout_is_in_training_alone_whatever_the_modules_mode_was() -> None:
    torch.manual_seed(2)
    plain, some = Tower(blocks=2, dropout=0.5).eval(), batches(2, seed=5)
    loss = functional.cross_entropy
    with atom.offload(copy.deepcopy(plain), loss, some[0], learning_rate=0.0) as offloaded:
        before = offloaded.state_dict()["state"]
        for found, (inputs, _) in zip(offloaded.evaluate(some), some, strict=True):
            assert torch.equal(found, plain(inputs))
        after = offloaded.state_dict()["state"]
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert len({offloaded.step(some) for _ in range(4)}) > 1


def test_a_saved_state_goes_on_with_the_same_bits_and_rate() -> None:
    model = Net()
    with offloaded_net(model) as one, offloaded_net(model) as other:
        one.step((X, Y))
        one.learning_rate = 0.25
        other.load_state_dict(one.state_dict())
        assert (other.steps, other.learning_rate) == (1, 0.25)
        assert one.step((X, Y)) == other.step((X, Y))
        first, second = one.state_dict()["state"], other.state_dict()["state"]
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_forward_does_not_use_keeps_its_values() -> None:
    model = Net()
    pooler = model.pooler = nn.Linear(3, 3)
    unused = pooler.weight.detach().clone()
    with offloaded_net(copy.deepcopy(model)) as offloaded:
        offloaded.step((X, Y))
        model.load_state_dict(offloaded.state_dict()["model"])
    assert torch.equal(pooler.weight, unused)


def test_tied_parameters_have_both_names() -> None:
    class Tied(Net):
        def __init__(self) -> None:
            super().__init__()
            self.c = nn.Linear(16, 32)
            self.c.weight = self.a.weight

        def forward(self, inputs: Tensor, scale: Tensor | None = None) -> Tensor:
            return self.c(super().forward(inputs, scale))

    with offloaded_net(Tied()) as offloaded:
        offloaded.step((X, Y))
        weights = offloaded.state_dict()["model"]
        assert torch.equal(weights["a.weight"], weights["c.weight"])


def test_a_budget_that_is_too_small_names_what_does_not_fit_and_leaves_no_cap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = list[CpuDevice]()
    monkeypatch.setattr(CpuDevice, "close", lambda device: closed.append(device))
    with pytest.raises(DeviceError) as small:
        offloaded_net(gpu_memory="1 KiB")
    assert re.match(r"(a|norm|b)\b", small.value.message)
    assert re.search(r"there are 1\.0 kB, and \d+ kB \(", small.value.message)
    assert "gpu_memory" in small.value.hint
    assert len(closed) == 1


def test_the_readmes_example_learns(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    assert len(example.splitlines()) <= 15
    torch.manual_seed(0)
    exec(compile(example, "README.md", "exec"), {})
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
