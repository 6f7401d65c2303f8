"""The printed Python, traced again, is the graph it was printed from."""

import pytest
import torch
from torch import Tensor, nn
from traced_modules import ZOO, TiedGPT, hidden_states, tokens_and_targets

from atom.graph.program import build_program, load
from atom.graph.segment import bind
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3, GPT3Config


class Whole(nn.Module):
    """Model that runs a program of one sub-model."""

    def __init__(self, inner: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.inner = inner
        self.names = names

    def forward(self, **batch: Tensor) -> Tensor:
        (loss,) = self.inner(*(batch[name] for name in self.names))
        return loss


def traced_again(model: nn.Module, batch: dict[str, Tensor]) -> tuple[str, str]:
    graph = trace(model, batch)
    program = build_program(graph, ends=[len(graph.calls)])
    (make,), (only,) = load(program, "cpu"), program.sub_models
    inner, dtype = make(), program.parameter_dtype
    shapes = {spec.name: spec.shape for spec in program.layout.specs}
    bind(inner, only, {n: torch.empty(shapes[n], dtype=dtype, device="meta") for n in shapes})
    whole = Whole(inner, only.inputs)
    return graph.graph_hash, trace(whole, batch).graph_hash


# In "regions", constants of equal values are one in the program.
@pytest.mark.parametrize("name", sorted(ZOO.keys() - {"regions"}))
def test_zoo(name: str) -> None:
    make, batch = ZOO[name]
    before, after = traced_again(make(), batch(0))
    assert before == after


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpts(dtype: torch.dtype) -> None:
    config = GPT3Config(2, 2, 16, sequence_tokens=16, vocabulary_size=32, dropout=0.1)
    for model in (GPT3(config, dtype=dtype), TiedGPT(dropout=0.1).to(dtype)):
        before, after = traced_again(model, tokens_and_targets())
        assert before == after


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


def test_many_operators() -> None:
    before, after = traced_again(ManyOperators(), hidden_states())
    assert before == after
