"""Small modules, each with a construct that tracing would silently get wrong."""

import random
import warnings
from collections.abc import Callable
from functools import partial

import numpy
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from traced_modules import WIDTH


class Two(nn.Module):
    """Model of two layers, base of the other models."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.other(self.layer(hidden)).square().mean()


class Does(Two):
    """Model whose forward is a given function of the model and the hidden states."""

    def __init__(self, does: Callable[[Two, Tensor], object]) -> None:
        super().__init__()
        self.does = does

    def forward(self, hidden: Tensor) -> Tensor:
        return self.does(self, hidden)  # type: ignore[return-value]


def does(what: Callable[[Two, Tensor], object]) -> Callable[[], nn.Module]:
    return partial(Does, what)


class Through(torch.autograd.Function):
    """Function that calls a module which it receives as an argument."""

    @staticmethod
    def forward(ctx: object, hidden: Tensor, module: nn.Module) -> Tensor:
        return module(hidden)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


def multiplying(factor: float | Tensor) -> Callable[[Tensor], Tensor]:
    class Multiplied(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, hidden: Tensor) -> Tensor:
            return hidden * factor

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient * factor

    return Multiplied.apply


class OneNameForTwo(Two):
    functions = (staticmethod(multiplying(2.0)), staticmethod(multiplying(3.0)))

    def forward(self, hidden: Tensor) -> Tensor:
        twice, thrice = self.functions
        return (twice(self.layer(hidden)) + thrice(hidden)).sum()


SHIFT = torch.full((WIDTH,), 0.5)


class Shifted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, hidden: Tensor) -> Tensor:
        return hidden + SHIFT

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class Weighted(torch.autograd.Function):
    weight: Tensor = torch.full((WIDTH,), 2.0)

    @classmethod
    def forward(cls, ctx: object, hidden: Tensor) -> Tensor:  # type: ignore[override]
        return hidden * cls.weight

    @classmethod
    def backward(cls, ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * cls.weight


class Normalised(Two):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(self.layer(hidden).transpose(1, 2)).square().mean()


class HoldsAParameterAside(Two):
    def __init__(self) -> None:
        super().__init__()
        self.held = [self.other.weight]

    def forward(self, hidden: Tensor) -> Tensor:
        return (self.layer(hidden) @ self.held[0]).sum()


class LargeTables(Two):
    """Model with two buffers of 12 MB each."""

    def __init__(self, alike: bool) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(3_000_000))
        self.register_buffer("other_table", torch.full((3_000_000,), 0.0 if alike else 1.0))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.layer(hidden).sum() + self.table.sum() + self.other_table.sum()


class SparseGradient(Two):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, WIDTH, sparse=True)

    def forward(self, hidden: Tensor) -> Tensor:
        return (self.layer(hidden) + self.table(torch.arange(1))).sum()


class SparseTable(Two):
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.eye(WIDTH).to_sparse())

    def forward(self, hidden: Tensor) -> Tensor:
        return (self.table @ self.layer(hidden).flatten(0, -2).t()).sum()


class ComplexWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixing = nn.Parameter(torch.ones(WIDTH, dtype=torch.complex64))

    def forward(self, hidden: Tensor) -> Tensor:
        return (hidden * self.mixing).abs().sum()


class Transposed(Two):
    def __init__(self) -> None:
        super().__init__()
        self.across = nn.Parameter(torch.ones(3, WIDTH).t())

    def forward(self, hidden: Tensor) -> Tensor:
        return (self.layer(hidden) @ self.across).sum()


class CountsSteps(Two):
    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.step += 1
        return self.layer(hidden).sum() / self.step


class Collects(Two):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[Tensor] = []

    def forward(self, hidden: Tensor) -> Tensor:
        self.losses.append(self.layer(hidden).square().mean())
        return torch.stack(self.losses).sum()


def parameter_hook() -> nn.Module:
    model = Two()
    model.layer.weight.register_hook(lambda gradient: gradient * 2)
    return model


def accumulation_hook() -> nn.Module:
    model = Two()
    model.layer.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return model


def module_backward_hook() -> nn.Module:
    model = Two()
    model.other.register_full_backward_hook(lambda module, inputs, outputs: None)
    return model


class LosesARegion(Two):
    """Model with a no_grad region inside an autocast region, which export drops."""

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inner = self.layer(hidden)
            with torch.no_grad():
                scale = self.other(inner).abs().mean(dim=-1, keepdim=True)
            return (inner * scale).float().square().mean()


class OtherDtype(Two):
    def forward(self, hidden: Tensor) -> Tensor:
        return self.layer(hidden.double()).sum()


def depends_on_data(model: Two, hidden: Tensor) -> Tensor:
    if hidden.sum() > 0:
        return model.layer(hidden).sum()
    return model.layer(hidden).mean()


def leaves(model: Two, hidden: Tensor) -> Tensor:
    leave = SystemExit(3)
    raise leave


def hooks(model: Two, hidden: Tensor) -> Tensor:
    inner = model.layer(hidden)
    inner.register_hook(lambda gradient: gradient * 2)
    return model.other(inner).sum()


def changes_a_weight(model: Two, hidden: Tensor) -> Tensor:
    with torch.no_grad():
        model.layer.weight.mul_(0.99)
    return model.layer(hidden).sum()


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "function that is handed a module": (
        does(lambda m, x: Through.apply(m.layer(x), m.other).sum()),
        r"modules\.Through",
    ),
    "function that holds a tensor": (
        does(lambda m, x: multiplying(m.other.weight)(m.layer(x)).sum()),
        r"multiplying\.<locals>\.Multiplied",
    ),
    "function that finds a tensor": (
        does(lambda m, x: Shifted.apply(m.layer(x)).sum()),
        r"modules\.Shifted",
    ),
    "function that keeps a tensor": (
        does(lambda m, x: Weighted.apply(m.layer(x)).sum()),
        r"modules\.Weighted",
    ),
    "functions of one name": (OneNameForTwo, "Multiplied_.* has the name of another"),
    "python randomness": (does(lambda m, x: m.layer(x).sum() * random.random()), "random"),
    "data-dependent": (does(depends_on_data), r"modules\.py:\d+"),
    "input changed": (
        does(lambda m, x: m.layer(x.mul_(2)).sum()),
        "batch's entry hidden in place.*modules",
    ),
    "running statistics": (lambda: Normalised(nn.BatchNorm1d(WIDTH)), "buffer norm"),
    "momentless statistics": (
        lambda: Normalised(nn.InstanceNorm1d(WIDTH, track_running_stats=True)),
        r"buffer norm\.(running_mean|num_batches_tracked)",
    ),
    "parameter held aside": (HoldsAParameterAside, r"parameter other\.weight from outside"),
    "large buffers": (
        partial(LargeTables, alike=False),
        "table has 12000000 bytes, and all buffers together 24000000; .* limit .* 16777216",
    ),
    "generator of its own": (
        does(lambda m, x: (m.layer(x) * torch.rand(WIDTH, generator=torch.Generator())).sum()),
        "Generator",
    ),
    "numpy randomness": (
        does(lambda m, x: m.layer(x).sum() * float(numpy.random.rand())),
        r"numpy\.random",
    ),
    "counter": (CountsSteps, r"forward changes step \(1 → 2\) at every call"),
    "growing list": (Collects, r"forward changes len\(losses\) \(\d → \d\)"),
    "hook on a tensor": (does(hooks), "register_hook"),
    "hook on a parameter": (parameter_hook, r"parameter layer\.weight has a gradient hook"),
    "hook on a sum": (accumulation_hook, r"parameter layer\.weight has a gradient hook"),
    "hook on a module's backward": (module_backward_hook, "BackwardHookFunction"),
    "parameter's data": (
        does(lambda m, x: (m.layer(x) * m.other.weight.data[0]).sum()),
        r"lifted_tensor_0 \(at \S+untraceable_modules.py:\d+\) from outside .* a parameter's data",
    ),
    "parameter's data changed": (
        does(lambda m, x: m.layer(x).sum() + 0 * m.other.weight.data.clamp_(-1, 1).sum()),
        r"changes a parameter's data \(.*\) in place, at \S+untraceable_modules.py:\d+",
    ),
    "a dictionary around the loss": (
        does(lambda m, x: {"loss": m.layer(x).sum()}),
        "returns a dict, not the loss",
    ),
    "vmap": (
        does(lambda m, x: torch.vmap(lambda row: m.layer.weight @ row)(x.flatten(0, -2)).sum()),
        r"torch\.vmap or torch\.func at \S+modules\.py:\d+",
    ),
    "a region of torch.cond": (
        does(lambda m, x: torch.cond(x.sum() > 0, m.layer, m.other, (x,)).sum()),
        r"modules\.py:\d+ .*torch\.cond",
    ),
    "sparse gradient": (SparseGradient, r"gradient of aten\.embedding\S* at .* is sparse.*dense"),
    "sparse value": (
        does(lambda m, x: (torch.eye(WIDTH).to_sparse() @ m.layer(x).flatten(0, -2).t()).sum()),
        r"to_sparse.* at \S+modules\.py:\d+ is sparse",
    ),
    "sparse buffer": (SparseTable, "the buffer table is sparse"),
    "complex weights": (ComplexWeights, r"dtypes \(mixing is torch.complex64"),
    "weights across memory": (Transposed, "parameter across is not contiguous"),
    "parameters made in forward": (
        does(lambda m, x: nn.Linear(WIDTH, WIDTH)(m.layer(x)).sum()),
        "has no gradient in the graph, and one in the",
    ),
    "forward ends the process": (does(leaves), "cannot be traced at .*leave"),
    "region lost": (LosesARegion, r"made at \S+modules\.py:\d+ has a gradient in the graph"),
    "weight changed": (
        does(changes_a_weight),
        r"parameter layer\.weight in place, at \S+modules\.py:\d+",
    ),
    "selected by data": (
        does(lambda m, x: m.layer(x)[x > 0].sum()),
        r"modules\.py:\d+.*values in tensors",
    ),
    "checkpoint with reentry": (
        does(lambda m, x: checkpoint(m.layer, x, use_reentrant=True).sum()),
        r"checkpoint\.CheckpointFunction",
    ),
    "several results": (
        does(lambda m, x: {"loss": m.layer(x).sum(), "hidden": m.layer(x)}),
        "Does returns 2 values",
    ),
    "no result": (does(lambda m, x: None), "returns no tensor"),
    "vector of one": (does(lambda m, x: m.layer(x).sum()[None]), r"a tensor \[1\] with a gradient"),
    "without gradient": (does(lambda m, x: m.layer(x).sum().detach()), r"a tensor \[\] without a"),
}

# What follows traces, though one might not think so.


class RemembersShapes(Two):
    """Model with a cache that depends on shapes only, so that it settles."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0
        self.tables: dict[int, Tensor] = {}

    def forward(self, hidden: Tensor) -> Tensor:
        self.longest = max(self.longest, hidden.shape[1])
        if self.longest not in self.tables:
            self.tables[self.longest] = torch.arange(WIDTH).cos()
        return (self.layer(hidden) * self.tables[self.longest]).sum() / self.longest


class SetsAside(Two):
    """Model that passes a part of its loss through an attribute."""

    def forward(self, hidden: Tensor) -> Tensor:
        inner = self.layer(hidden)
        self.auxiliary = inner.square().mean()
        return self.other(inner).sum() + self.auxiliary


class Regions(Two):
    """Model with nested regions: full precision in half precision, half precision in no_grad."""

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inner = self.layer(hidden)
            with torch.autocast("cpu", enabled=False):
                inner = self.other(inner.float())
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            shift = self.layer(hidden)
        return (inner + shift.float()).square().mean()


def forward_hooks() -> nn.Module:
    model = Two()
    model.layer.register_forward_hook(lambda module, inputs, output: output * 2)
    model.other.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    return model


def weight_norm() -> nn.Module:
    model = Two()
    model.layer = torch.nn.utils.parametrizations.weight_norm(model.layer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model.other = torch.nn.utils.weight_norm(model.other)
    return model


class Recurrent(Two):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, dropout=0.1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.cells(self.layer(hidden))[0].square().mean()


class Draws(Two):
    """Model that draws from the default generator in several ways."""

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + torch.empty_like(hidden).normal_(0, 0.1)
        kept = torch.bernoulli(torch.full_like(hidden, 0.9))
        return (self.other(self.layer(hidden) * kept) + torch.randn_like(hidden)).square().mean()


class WritesAround(Two):
    """Model with a layer's call inside a chain of writes; the calls after it belong to no layer."""

    def forward(self, hidden: Tensor) -> Tensor:
        inner = self.layer(hidden) * 1.0
        flat = inner.view(-1)
        inner.add_(self.other(hidden))
        return (flat * flat.sum().detach()).tanh().square().mean()


class CheckpointsBoth(Two):
    """Model with one span around both layers; the calls after it belong to no submodule."""

    def forward(self, hidden: Tensor) -> Tensor:
        inner = checkpoint(lambda value: self.other(self.layer(value)), hidden, use_reentrant=False)
        return inner.tanh().square().mean()


class ManyOperators(nn.Module):
    """Model that passes arguments of every kind to its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))
        self.convolution = nn.Conv1d(16, 16, 3, padding=1, groups=2)
        self.norm = nn.GroupNorm(4, 16)
        self.embedding = nn.Embedding(8, 16, padding_idx=0)

    def forward(self, hidden: Tensor) -> Tensor:
        f = nn.functional
        x = hidden.flip(1).roll(1, 0).cumsum(dim=1).clamp(-2.0, 2.0) @ self.weight
        x = self.norm(self.convolution(x.permute(0, 2, 1))).permute(0, 2, 1)
        ids = (x.argmax(dim=-1) % 8).to(torch.long)
        x = x + self.embedding(ids) * torch.rsqrt(x.var(-1, keepdim=True, correction=0) + 1e-5)
        x = torch.where(x > 0, x, -x) / (1 + x.abs()) ** 2 + x.pow(3).tanh()
        x = f.leaky_relu(x, 0.2) + f.elu(x) + f.softplus(x) + f.hardtanh(x) + f.mish(x)
        top, index = x.topk(4, dim=-1)
        top = top + x.gather(-1, index) + x.sort(dim=-1, descending=True).values[..., -4:]
        low, high = x.aminmax(dim=-1)
        one_hot = f.one_hot(ids, 8).to(x.dtype)
        table = torch.einsum("bsv,bsd->bvd", one_hot, x).masked_fill_(torch.eye(8, 16) > 0, 0.5)
        picked = table[:, ids[0, :3]].reshape(x.shape[0], -1)
        padded = f.pad(x, (1, 0), value=float("-inf"))[:, ::2, 1:]
        grid = f.interpolate(x.unsqueeze(1), scale_factor=2.0, mode="nearest").squeeze(1)
        total = top.sum() + (high - low).mean() + picked.norm() + padded.logsumexp(-1).mean()
        return total + grid.amax(dim=(1, 2)).sum() + f.smooth_l1_loss(x, hidden, beta=0.5)


TRACEABLE: dict[str, Callable[[], nn.Module]] = {
    "a cache that settles": RemembersShapes,
    "large buffers that are alike": partial(LargeTables, alike=True),
    "an attribute set and read": SetsAside,
    "regions": Regions,
    "forward hooks": forward_hooks,
    "weight norm": weight_norm,
    "recurrent": Recurrent,
    "random numbers": Draws,
    "a layer within a chain of writes": WritesAround,
    "two layers within a checkpoint": CheckpointsBoth,
    "operators of every kind": ManyOperators,
}
