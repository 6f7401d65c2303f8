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


@pytest.mark.parametrize("gpu_memory", [None, "64 KiB"])
def test_a_step_is_plain_pytorchs(gpu_memory: str | None) -> None:
    torch.manual_seed(1)
    plain = Tower(blocks=6)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.0)
    settings = atom.AdamW(betas=(0.9, 0.999), weight_decay=0.0)
    with atom.offload(
        copy.deepcopy(plain),
        functional.cross_entropy,
        batches(1, 0)[0],
        gpu_memory=gpu_memory,
        optimizer=settings,
        learning_rate=1e-2,
    ) as offloaded:
        for number in range(STEPS):
            some = batches(9, seed=number)
            expected = plain_step(plain, optimizer, some)
            assert offloaded.step(some) == pytest.approx(expected, rel=1e-5)
        weights = offloaded.state_dict()["model"]
        copy.deepcopy(plain).load_state_dict(weights)
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(weights[name], parameter.detach(), rtol=1e-4, atol=1e-6)


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
    plain, some = Adapted(), batches(STEPS, 2)
    memory = f"{2 * plain.base.weight.nbytes // 1024 - 1} KiB"  # not even its slots fit
    trains = (parameter for parameter in plain.parameters() if parameter.requires_grad)
    optimizer = torch.optim.AdamW(trains, lr=1e-2, weight_decay=0.0)
    with atom.offload(
        copy.deepcopy(plain),
        functional.cross_entropy,
        some[0],
        gpu_memory=memory,
        optimizer=atom.AdamW(betas=(0.9, 0.999), weight_decay=0.0),
        learning_rate=1e-2,
    ) as offloaded:
        for each in some:
            expected = plain_step(plain, optimizer, [each])
            assert offloaded.step([each]) == pytest.approx(expected, rel=1e-5)
        found = offloaded.state_dict()["model"]
    assert torch.equal(found["base.weight"], plain.base.weight)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def test_evaluation_is_without_dropout_and_changes_nothing() -> None:
    torch.manual_seed(2)
    plain = Tower(blocks=2, dropout=0.5)
    some = batches(2, seed=5)
    with atom.offload(copy.deepcopy(plain), functional.cross_entropy, some[0]) as offloaded:
        before = offloaded.state_dict()["state"]
        plain.eval()
        for found, (inputs, _) in zip(offloaded.evaluate(some), some, strict=True):
            assert torch.equal(found, plain(inputs))
        after = offloaded.state_dict()["state"]
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_saved_state_goes_on_with_the_same_bits() -> None:
    torch.manual_seed(3)
    model, example = Tower(blocks=2), batches(1, 0)[0]
    with (
        atom.offload(model, functional.cross_entropy, example) as one,
        atom.offload(model, functional.cross_entropy, example) as other,
    ):
        one.step(batches(2, 1))
        other.load_state_dict(one.state_dict())
        assert other.steps == 1
        assert one.step(batches(2, 2)) == other.step(batches(2, 2))
        first, second = one.state_dict(), other.state_dict()
        assert all(torch.equal(first["state"][n], second["state"][n]) for n in first["state"])


def test_a_module_that_was_in_evaluation_mode_trains_with_dropout() -> None:
    model, some = Tower(blocks=2, dropout=0.5).eval(), batches(1, 0)
    loss = functional.cross_entropy
    with atom.offload(model, loss, some[0], learning_rate=0.0) as offloaded:
        assert len({offloaded.step(some) for _ in range(4)}) > 1


def test_what_forward_does_not_use_keeps_its_values() -> None:
    class Spare(Tower):
        def __init__(self) -> None:
            super().__init__(blocks=1)
            self.pooler = nn.Linear(3, 3)

    model, example = Spare(), batches(1, 0)[0]
    unused = model.pooler.weight.detach().clone()
    with atom.offload(copy.deepcopy(model), functional.cross_entropy, example) as offloaded:
        offloaded.step([example])
        model.load_state_dict(offloaded.state_dict()["model"])
    assert torch.equal(model.pooler.weight, unused)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"clip_norm": float("nan")}, "clip_norm"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
    ],
)
def test_numbers_out_of_range_are_refused(given: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        atom.offload(Tower(1), functional.cross_entropy, batches(1, 0)[0], **given)


def test_no_batch_is_refused() -> None:
    with atom.offload(Tower(1), functional.cross_entropy, batches(1, 0)[0]) as offloaded:
        for use in (offloaded.step, offloaded.evaluate):
            with pytest.raises(ValueError, match="no batch"):
                use([])


def test_tied_parameters_have_both_names() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(WIDTH, WIDTH, bias=False)
            self.other = nn.Linear(WIDTH, WIDTH, bias=False)
            self.other.weight = self.one.weight

        def forward(self, inputs: Tensor) -> Tensor:
            return self.other(torch.relu(self.one(inputs)))

    with atom.offload(Tied(), functional.cross_entropy, batches(1, 0)[0]) as offloaded:
        offloaded.step(batches(1, 1))
        weights = offloaded.state_dict()["model"]
        assert torch.equal(weights["one.weight"], weights["other.weight"])


def test_a_budget_that_is_too_small_names_what_does_not_fit_and_leaves_no_cap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = list[CpuDevice]()
    monkeypatch.setattr(CpuDevice, "close", lambda device: closed.append(device))
    with pytest.raises(DeviceError, match="blocks"):
        atom.offload(
            Tower(blocks=2), functional.cross_entropy, batches(1, 0)[0], gpu_memory="1 KiB"
        )
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
