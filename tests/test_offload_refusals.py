"""What `atom.offload` refuses, in the words of PyTorch, and that nothing changes then."""

import copy
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import atom
from atom.base.errors import AtomError, DeviceError, ModelError
from tests.offloaded_net import RATE, Net, X, Y, offloaded_net, require_same


@pytest.fixture(scope="module")
def offloaded() -> Iterator[atom.OffloadedModel]:
    """Return a model that no test trains."""
    with offloaded_net() as offloaded:
        yield offloaded


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        ([], "no batch"),
        (X, r"the batch is \[8, 16\], unlike the example: \(\[8, 16\], \[8\]\)"),
        ((X, Y, Y), "unlike the example"),
        (
            {"inputs": X, "labels": Y},
            r"is \{'inputs': \[8, 16\], 'labels': \[8\]\}, unlike the exam",
        ),
        ((X, ["a"] * 8), r"batch\[1\]\[0\] is str, not a tensor"),
        ((X, Y.numpy()), r"batch\[1\] is ndarray, not a tensor"),
        ((X[:, :7], Y), "^Net with its loss cannot be traced at .* same reduction dim"),
    ],
)
def test_batches_that_do_not_fit_are_refused(
    offloaded: atom.OffloadedModel, batch: Any, named: str
) -> None:
    before = offloaded.state_dict()["state"]
    with pytest.raises((TypeError, ValueError, ModelError), match=named):
        offloaded.step(batch)
    assert offloaded.steps == 0
    with pytest.raises(ValueError, match="no batch"):
        offloaded.evaluate([])
    after = offloaded.state_dict()["state"]
    assert all(torch.equal(before[name], after[name]) for name in before)


MODEL = Net()


def refused_options() -> Iterator[tuple[str, Any, str]]:
    every = list(MODEL.parameters())
    yield "an instance of torch.optim", {"optimizer": torch.optim.SGD(every, lr=0.1)}, "atom.SGD"
    yield "a class of torch.optim", {"optimizer": torch.optim.AdamW}, "AdamW cannot"
    yield "a class", {"optimizer": atom.SGD}, r"use atom.AdamW\(\)"
    yield "a name", {"optimizer": "adamw"}, "use atom"
    yield "no parameter", {"params": []}, "an empty parameter list"
    yield "a missing parameter", {"params": every[1:]}, "the parameter a.weight is in no group"
    yield "another module's", {"params": Net().parameters()}, "no parameter of the module"
    yield "a name for a parameter", {"params": ["a.weight"]}, "can only optimize Tensors"
    twice = [{"params": every}, {"params": [every[0]]}]
    yield "two groups", {"params": twice}, "appear in more than one parameter group"
    yield "an unknown option", {"params": [{"params": every, "beta": 1}]}, "no option 'beta'"
    yield "a wrong rate", {"params": [{"params": every, "lr": -1}]}, "learning_rate: -1"
    yield "a word for a rate", {"learning_rate": "fast"}, "invalid learning_rate: 'fast'"
    yield "a rate below zero", {"learning_rate": -1.0}, "learning_rate"
    yield "no number for a rate", {"learning_rate": float("nan")}, "learning_rate"
    yield "a norm below zero", {"clip_norm": -1.0}, "clip_norm"
    yield "no number for a norm", {"clip_norm": float("nan")}, "clip_norm"
    yield "an unknown device", {"device": "gpu"}, "Expected one of cpu, cuda"


REFUSED = {name: (options, named) for name, options, named in refused_options()}


@pytest.mark.parametrize("name", REFUSED)
def test_options_are_refused_in_the_words_of_pytorch(name: str) -> None:
    options, named = REFUSED[name]
    with pytest.raises((TypeError, ValueError, RuntimeError), match=named):
        offloaded_net(MODEL, **options)


# ---- buffers, autocast, states


class Average(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        self.seen = self.seen * 0.9 + inputs.mean() * 0.1
        return super().forward(inputs)


CHANGING: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "BatchNorm1d": (lambda: nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 5)), "0.num_batches"),
    "spectral norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(16, 5))),
        "0.parametrizations",
    ),
    "average": (Average, "seen"),
}


@pytest.mark.parametrize("name", CHANGING)
def test_buffers_that_forward_changes_are_refused_by_name(name: str) -> None:
    make, named = CHANGING[name]
    with pytest.raises(ModelError, match=f"buffer model.{named}") as refusal:
        offloaded_net(make())
    assert "layer.eval()" in refusal.value.hint


def test_a_frozen_batch_norm_has_the_bits_of_pytorch() -> None:
    torch.manual_seed(4)
    plain = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 5)).train()
    plain[1].eval()  # the hint of the refusal
    nn.init.normal_(plain[1].running_mean)
    optimizer = torch.optim.SGD(plain.parameters(), lr=RATE)
    with offloaded_net(copy.deepcopy(plain), optimizer=atom.SGD(), learning_rate=RATE) as offloaded:
        for _ in range(3):
            optimizer.zero_grad()
            loss = functional.cross_entropy(plain(X), Y)
            loss.backward()
            optimizer.step()
            assert offloaded.step((X, Y)) == loss.item()
        require_same(offloaded, plain)
        assert torch.equal(offloaded.evaluate(X), plain.eval()(X))


def test_autocast_works_within_forward_and_is_refused_around_a_step() -> None:
    class Auto(Net):
        def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(inputs)

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(output.float(), targets)

    plain = Auto()
    with offloaded_net(copy.deepcopy(plain), loss) as offloaded:
        assert offloaded.evaluate(X).dtype == torch.bfloat16
        assert offloaded.step((X, Y)) == loss(plain(X), Y).item()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for use in (
                lambda: offloaded.step((X, Y)),
                lambda: offloaded.evaluate(X),
                offloaded_net,
            ):
                with pytest.raises(RuntimeError, match="autocast"):
                    use()


class Pair(nn.Module):
    a: nn.Module

    def __init__(self, a_first: bool = True) -> None:
        super().__init__()
        self.a, self.b, self.a_first = nn.Linear(8, 8), nn.Linear(8, 8), a_first

    def forward(self, inputs: Tensor) -> Tensor:
        first, second = (self.a, self.b) if self.a_first else (self.b, self.a)
        return second(torch.relu(first(inputs))).square().mean()


class Buffered(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(8))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs * self.scale)


def pair(**layers: nn.Module) -> Pair:
    """Return a pair with other layers."""
    made = Pair()
    for name, layer in layers.items():
        setattr(made, name, layer)
    return made


FOUR = torch.randn(4, 8)
MOMENTUM = {"optimizer": atom.SGD(momentum=0.9)}
WIDE = {"a": nn.Linear(8, 4), "b": nn.Linear(4, 8)}
DEEP, UNBIASED = nn.Sequential(nn.Linear(8, 8)), nn.Linear(8, 8, bias=False)
STATES: dict[str, tuple[nn.Module, Any, str]] = {
    "another shape": (pair(**WIDE), {}, "size mismatch for a.weight"),
    "another name": (pair(a=DEEP), {}, r'Missing key\(s\) in state_dict: "a.0.weight"'),
    "more parameters": (pair(a=UNBIASED), {}, r'Unexpected key\(s\) in state_dict: "a.bias"'),
    "another order": (Pair(a_first=False), {}, "another order"),
    "another buffer": (Buffered(), {}, "buffer scale has other values"),
    "another optimizer": (Pair(), MOMENTUM, "another optimizer"),
}


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    """Return the state of a pair."""
    with atom.offload(Pair(), None, FOUR) as saved:
        return saved.state_dict()


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_another_model_is_refused_and_changes_nothing(
    name: str, state: dict[str, Any]
) -> None:
    model, options, named = STATES[name]
    buffers = {name: buffer + 1 for name, buffer in model.named_buffers()}
    with atom.offload(model, None, FOUR, **options) as offloaded:
        before = offloaded.state_dict()
        with pytest.raises((RuntimeError, ValueError), match=named):
            offloaded.load_state_dict({**state, "model": state["model"] | buffers})
        after = offloaded.state_dict()
        for part in ("model", "state"):
            assert all(torch.equal(before[part][n], after[part][n]) for n in before[part])
        with pytest.raises(KeyError, match="plain module"):
            offloaded.load_state_dict(model.state_dict())


def test_a_loss_with_parameters_trains_them_and_they_are_not_evaluated() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, output: Tensor, targets: Tensor) -> Tensor:
            return functional.cross_entropy(output * self.scale, targets)

    plain = Net()
    with offloaded_net(copy.deepcopy(plain), Scaled()) as offloaded:
        assert torch.equal(offloaded.evaluate(X), plain(X))
        assert "loss.scale" in offloaded.param_groups[0]["params"]
        assert offloaded.step((X, Y)) > offloaded.step((X, Y))


def test_a_given_module_is_neither_changed_nor_kept() -> None:
    model = Net().eval()
    before, weight = copy.deepcopy(model.state_dict()), weakref.ref(model.a.weight)
    with offloaded_net(model, params=model.parameters()) as offloaded:
        offloaded.step((X, Y))
        assert not model.training
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        del model
        assert weight() is None
        offloaded.step((X[:3], Y[:3]))  # traced from a copy without weights


@pytest.mark.parametrize("through_module", [True, False])
def test_a_hook_that_reads_a_parameter_of_the_given_module_is_refused(through_module: bool) -> None:
    """The programs are traced from a copy of the module, which would not train that parameter."""
    model = Net()
    scale = model.scale = nn.Parameter(torch.ones(32))
    model.norm.register_forward_hook(
        lambda _, __, output: output * (model.scale if through_module else scale)
    )
    with pytest.raises(ModelError, match="from outside its modules"):
        offloaded_net(model)


# ---- Python values that tracing made constants

beta = 0.0
settings = {"beta": 0.0, "seen": 0}


class Tempered(Net):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = 1.0

    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(inputs) / self.temperature


class Penalty:
    def __init__(self) -> None:
        self.weight, self.calls = 0.0, 0

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(output, targets) + self.weight * output.square().mean()


def reads_a_global(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output, targets) + sum(beta * each.mean() for each in output)


def reads_a_setting(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output, targets) + settings["beta"] * output.square().mean()


CHANGED = "which was 0.0 when the program was traced and is 1.0 now"


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (reads_a_global, "the loss reads beta"),
        (reads_a_setting, "the loss reads settings.beta"),
    ],
)
def test_a_changed_number_that_the_loss_reads_is_refused(
    loss: Any, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with offloaded_net(loss=loss) as offloaded:
        before = offloaded.step((X, Y))
        monkeypatch.setitem(settings, "seen", 1)  # not read by any loss
        monkeypatch.setitem(settings, "beta", 1.0)
        monkeypatch.setitem(globals(), "beta", 1.0)
        for batch in ((X, Y), (X[:3], Y[:3])):  # a new shape must not bring in the new value
            with pytest.raises(ModelError, match=f"{named}, {CHANGED}") as refusal:
                offloaded.step(batch)
        assert "entry of the batch" in refusal.value.hint
        assert offloaded.evaluate(X).shape == (8, 16), "the loss is not part of an evaluation"
        monkeypatch.undo()
        assert offloaded.step((X, Y)) < before
        assert offloaded.steps == 2


def test_a_changed_closure_method_or_tensor_of_the_loss_is_refused() -> None:
    weight, factor, method = torch.ones(16), 0.0, Penalty()

    def weighted(output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(output, targets, weight=weight) + factor * output.mean()

    with offloaded_net(loss=weighted) as one, offloaded_net(loss=method.loss) as other:
        one.step((X, Y))
        method.calls += 1  # not read by the loss
        other.step((X, Y))
        factor, method.weight = 1.0, 1.0
        with pytest.raises(ModelError, match=f"the loss reads factor, {CHANGED}"):
            one.step((X, Y))
        with pytest.raises(ModelError, match=rf"the loss reads self\.weight, {CHANGED}"):
            other.step((X, Y))
        factor = 0.0
        one.step((X, Y))
        weight[0] = 100.0
        with pytest.raises(ModelError, match=r"the loss reads weight, .* after 1 changes' now"):
            one.step((X, Y))


def test_a_changed_number_of_the_module_is_refused_and_a_deleted_module_is_not_needed() -> None:
    model = Tempered()
    with offloaded_net(model) as offloaded:
        offloaded.step((X, Y))
        model.eval()
        offloaded.step((X, Y))
        model.temperature = 10.0
        for use in (offloaded.step, offloaded.evaluate):
            with pytest.raises(ModelError, match=r"the module has temperature, which was 1\.0"):
                use((X, Y))
        del model
        offloaded.step((X, Y))


# ---- names, words and the end


def test_a_misspelt_entry_is_refused_if_no_loss_function_takes_it() -> None:
    class Masked(Net):
        def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
            output = super().forward(inputs)
            return (output if mask is None else output * mask).square().mean()

    misspelt = {"inputs": X, "mask_": torch.zeros(16)}
    with pytest.raises(TypeError, match="unexpected keyword argument 'mask_'"):
        offloaded_net(Masked(), None, example=misspelt)

    def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return output * batch["mask_"].sum()

    with offloaded_net(Masked(), loss, example=misspelt) as offloaded:
        assert offloaded.step(misspelt) == 0.0


def test_a_loss_that_is_not_finite_is_told_plainly_and_changes_nothing(
    offloaded: atom.OffloadedModel,
) -> None:
    before = offloaded.state_dict()["model"]
    with pytest.raises(AtomError) as void:
        offloaded.step((X * torch.nan, Y))
    assert str(void.value) == "loss not finite: nan in batch 0; the weights are unchanged"
    after = offloaded.state_dict()["model"]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_closed_model_says_so() -> None:
    with offloaded_net() as offloaded:
        pass
    for use in (offloaded.step, offloaded.evaluate):
        with pytest.raises(RuntimeError, match="the offloaded model is closed"):
            use((X, Y))


def test_a_clip_norm_of_zero_means_no_clipping() -> None:
    model, losses = Net(), list[list[float]]()
    for norm in (0.0, None, 1e-6):
        with offloaded_net(
            copy.deepcopy(model), optimizer=atom.SGD(), learning_rate=1.0, clip_norm=norm
        ) as offloaded:
            losses.append([offloaded.step((X, Y)) for _ in range(2)])
    assert losses[0] == losses[1] != losses[2]


def test_messages_name_the_users_module_and_tracebacks_have_the_hint() -> None:
    with pytest.raises(ModelError) as refusal:
        offloaded_net(loss=lambda output, _: output.sum(1))
    assert refusal.value.message.startswith("Net with its loss returns a tensor [8]")
    assert f"hint: {refusal.value.hint}" in "".join(traceback.format_exception(refusal.value))
    with pytest.raises(DeviceError) as missing:
        offloaded_net(device="cuda:99")
    assert "device" in missing.value.hint


def test_a_module_in_float64_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"weights in torch\.float64") as refusal:
        offloaded_net(Net().double(), example=(X.double(), Y))
    assert "model.float()" in str(refusal.value)
