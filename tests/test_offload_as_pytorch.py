"""`atom.offload` in loops as PyTorch's users write them: same bits, batches of any form, groups."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import atom
from tests.offloaded_net import RATE, Net, X, Y, offloaded_net, require_same

BETAS, DECAY = (0.9, 0.99), 0.1


class PlainLion(torch.optim.Optimizer):
    """Lion as its authors write it, with products and sums apart."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                gradient, (beta1, beta2) = parameter.grad, group["betas"]
                direction = (mean * beta1 + gradient * (1 - beta1)).sign()
                mean.mul_(beta2).add_(gradient * (1 - beta2))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(direction * group["lr"])


class MuonAndAdamW:
    """Muon for the hidden matrix, AdamW for all other parameters."""

    def __init__(self, model: Net) -> None:
        head, vectors = apart(model, DECAY)
        head["params"] = [model.b.weight]
        self.muon = torch.optim.Muon(
            [model.a.weight], lr=RATE, weight_decay=DECAY, momentum=0.95, eps=1e-7,
            adjust_lr_fn="match_rms_adamw",
        )  # fmt: skip
        self.adamw = torch.optim.AdamW([head, vectors], lr=RATE, betas=BETAS, fused=True)

    def step(self) -> None:
        self.muon.step()
        self.adamw.step()


def apart(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return groups of matrices, which decay, and of vectors, which do not."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


OPTIMIZERS: dict[str, tuple[Any, Callable[[Net], Any]]] = {
    "AdamW": (
        atom.AdamW(betas=BETAS, weight_decay=DECAY),
        lambda model: torch.optim.AdamW(apart(model, DECAY), lr=RATE, betas=BETAS, fused=True),
    ),
    "SGD": (atom.SGD(), lambda model: torch.optim.SGD(model.parameters(), lr=RATE)),
    "SGD with momentum": (
        atom.SGD(momentum=0.9, weight_decay=DECAY),
        lambda model: torch.optim.SGD(apart(model, DECAY), lr=RATE, momentum=0.9),
    ),
    "SGD with Nesterov's momentum": (
        atom.SGD(momentum=0.9, weight_decay=DECAY, nesterov=True),
        lambda model: torch.optim.SGD(apart(model, DECAY), lr=RATE, momentum=0.9, nesterov=True),
    ),
    "Lion": (
        atom.Lion(betas=BETAS, weight_decay=DECAY),
        lambda model: PlainLion(apart(model, DECAY), {"lr": RATE, "betas": BETAS}),
    ),
    "Muon": (atom.Muon(betas=BETAS, weight_decay=DECAY), MuonAndAdamW),
}


@pytest.mark.parametrize(
    ("name", "accumulate"), [("AdamW", 1), *((name, 2) for name in OPTIMIZERS)]
)
def test_a_loop_over_a_loader_has_the_bits_of_pytorch(name: str, accumulate: int) -> None:
    """The last batch of an epoch has three samples."""
    torch.manual_seed(1)
    ours, make = OPTIMIZERS[name]
    plain = Net()
    optimizer = make(plain)
    data = TensorDataset(torch.randn(27, 16), torch.randint(5, (27,)))
    loader = DataLoader(data, batch_size=8)
    with atom.offload(
        copy.deepcopy(plain),
        functional.cross_entropy,
        next(iter(loader)),
        optimizer=ours,
        learning_rate=RATE,
        accumulate=accumulate,
    ) as offloaded:
        for _ in range(2):
            for number, batch in enumerate(loader, start=1):
                inputs, targets = batch
                loss = functional.cross_entropy(plain(inputs), targets)
                (loss / accumulate).backward()
                if number % accumulate == 0:
                    optimizer.step()
                    plain.zero_grad()
                assert offloaded.step(batch) == loss.item()
        require_same(offloaded, plain)


def test_eight_bit_moments_learn() -> None:
    with offloaded_net(optimizer=atom.AdamW8Bit(), learning_rate=RATE) as offloaded:
        losses = [offloaded.step((X, Y)) for _ in range(20)]
    assert losses[-1] < losses[0] / 2


# ---- forms of batches


def by_name(output: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    return functional.cross_entropy(output, batch["labels"])


def of_pair(output: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    each = functional.cross_entropy(output, targets[0], reduction="none")
    return (each * targets[1]).mean()


class OwnLoss(Net):
    def forward(self, inputs: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        logits = super().forward(inputs)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


SCALE, MASK = torch.rand(8, 16), torch.randint(2, (8,)).float()
FORMS: dict[str, tuple[type[Net], Any, Any, Callable[[Net], Tensor]]] = {
    "list": (Net, functional.cross_entropy, [X, Y], lambda net: net(X)),
    "three entries": (Net, functional.cross_entropy, (X, SCALE, Y), lambda net: net(X, SCALE)),
    "nested": (Net, of_pair, ((X, SCALE), (Y, MASK)), lambda net: net(X, SCALE)),
    "arguments by name": (
        Net,
        functional.cross_entropy,
        ({"inputs": X, "scale": SCALE}, Y),
        lambda net: net(X, SCALE),
    ),
    "dictionary": (Net, by_name, {"inputs": X, "labels": Y, "scale": None}, lambda net: net(X)),
    "tensor": (
        Net,
        lambda output, given: (output - given).square().mean(),
        X,
        lambda net: net(X),
    ),
    "own loss": (OwnLoss, None, {"inputs": X, "labels": Y}, lambda net: net(X, Y)),
    "own loss of a tuple": (OwnLoss, None, (X, Y), lambda net: net(X, Y)),
}


@pytest.mark.parametrize("name", FORMS)
def test_batches_of_any_form_train_and_evaluate(name: str) -> None:
    torch.manual_seed(2)
    kind, loss, batch, called = FORMS[name]
    plain = kind()
    optimizer = torch.optim.SGD(plain.parameters(), lr=RATE)
    with atom.offload(
        copy.deepcopy(plain), loss, batch, optimizer=atom.SGD(), learning_rate=RATE
    ) as offloaded:
        for _ in range(2):
            optimizer.zero_grad()
            output: Any = called(plain)
            targets = batch[-1] if isinstance(batch, tuple | list) else batch
            expected = output["loss"] if loss is None else loss(output, targets)
            expected.backward()
            optimizer.step()
            assert offloaded.step(batch) == expected.item()
        require_same(offloaded, plain)
        found, expected = offloaded.evaluate(batch), called(plain)
        if loss is None:
            assert found.keys() == expected.keys()
            found, expected = found["logits"], expected["logits"]
        assert torch.equal(found, expected)


def test_evaluate_returns_every_tensor_of_any_batch_under_no_grad() -> None:
    class Several(Net):
        def forward(self, inputs: Tensor) -> Any:  # type: ignore[override]
            logits = super().forward(inputs)
            return {"logits": logits, "best": (logits.argmax(1), logits > 0), "kind": "net"}

    def loss(output: Any, targets: Tensor) -> Tensor:
        return functional.cross_entropy(output["logits"], targets)

    plain = Several()
    with offloaded_net(copy.deepcopy(plain), loss) as offloaded:
        for context in (torch.no_grad(), torch.inference_mode()):
            with context:
                found, expected = (
                    offloaded.evaluate(torch.cat([X, X, X])),
                    plain(torch.cat([X] * 3)),
                )
            assert torch.equal(found["logits"], expected["logits"])
            assert all(map(torch.equal, found["best"], expected["best"]))
            assert found["kind"] == "net"
        assert len(offloaded.evaluate([(X, Y), (X[:2], Y[:2])])) == 2
        offloaded.step((X, Y))


# ---- parameter groups and learning rates


def both(model: Net, one: float) -> list[dict[str, Any]]:
    others = [*model.norm.parameters(), *model.b.parameters()]
    return [
        {"params": model.a.parameters(), "lr": one},
        {"params": others, "weight_decay": 0.3, "eps": 1e-6},
    ]


def test_groups_and_changed_rates_have_the_bits_of_pytorch() -> None:
    torch.manual_seed(3)
    plain = Net()
    model = copy.deepcopy(plain)
    options = {"betas": BETAS, "weight_decay": DECAY}
    optimizer = torch.optim.AdamW(both(plain, 1e-3), lr=RATE, fused=True, **options)
    with offloaded_net(
        model, optimizer=atom.AdamW(**options), params=both(model, 1e-3), learning_rate=RATE
    ) as offloaded:
        assert offloaded.param_groups[0]["params"] == ["a.weight", "a.bias"]
        for number in range(6):
            if number == 2:
                for group in (*optimizer.param_groups, *offloaded.param_groups):
                    group["lr"] *= 0.5
            if number == 4:
                offloaded.learning_rate = 0.03
                for group in optimizer.param_groups:
                    group["lr"] = 0.03
            optimizer.zero_grad()
            loss = functional.cross_entropy(plain(X), Y)
            loss.backward()
            optimizer.step()
            assert offloaded.step((X, Y)) == loss.item()
        require_same(offloaded, plain)


def test_a_schedule_sets_the_rates_until_one_is_set() -> None:
    model, schedule = Net(), atom.Schedule(1e-2, warmup_rounds=3)
    groups = [{"params": [model.a.weight], "lr": 1.0}, {"params": list(model.parameters())[1:]}]
    with offloaded_net(model, params=groups, learning_rate=schedule) as offloaded:
        seen = []
        for _ in range(4):
            seen.append([group["lr"] for group in offloaded.param_groups])
            offloaded.step((X, Y))
        assert seen == [[0.25, 0.0025], [0.5, 0.005], [0.75, 0.0075], [1.0, 0.01]]
        offloaded.learning_rate = 0.5
        offloaded.step((X, Y))
        assert [group["lr"] for group in offloaded.param_groups] == [0.5, 0.5]
        for rate in (-1.0, float("nan")):
            with pytest.raises(ValueError, match="learning_rate"):
                offloaded.learning_rate = rate


def test_named_parameters_are_groups_too() -> None:
    model = Net()
    names = [name for name, _ in model.named_parameters()]
    for params in (model.named_parameters(), [{"params": model.named_parameters()}]):
        with offloaded_net(model, params=params) as offloaded:
            assert offloaded.param_groups[0]["params"] == names
