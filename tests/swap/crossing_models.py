"""Small models with what makes values between sub-models hard to move: skips, an encoder that every
decoder layer reads, a learned bias that all share, tied weights, dropout, views across cuts."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

VOCABULARY, WIDTH, TOKENS, SEQUENCES = 17, 16, 6, 2


class Skipping(nn.Module):
    """The second half takes values from the first, in reverse order."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.down = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(4))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden, skips = self.embed(tokens), list[Tensor]()
        for layer in self.down:
            hidden = F.dropout(torch.tanh(layer(hidden)), 0.1)
            skips.append(hidden)
        for layer in self.up:
            hidden = hidden + layer(torch.cat([hidden, skips.pop()], dim=-1))
        return F.cross_entropy(F.linear(hidden, self.embed.weight).flatten(0, 1), targets.flatten())


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Linear(WIDTH, WIDTH)
        self.keys_values = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, hidden: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
        keys, values = self.keys_values(memory).chunk(2, dim=-1)
        scores = self.queries(hidden) @ keys.transpose(1, 2) + bias
        return hidden + F.dropout(scores.softmax(-1), 0.1) @ values


class Translating(nn.Module):
    """Like T5: the encoder's output is read by every second decoder layer, one learned bias by all
    layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.bias = nn.Parameter(torch.randn(TOKENS, TOKENS))
        self.encoder = nn.ModuleList(Attention() for _ in range(3))
        self.decoder = nn.ModuleList(Attention() for _ in range(6))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        bias = torch.tanh(self.bias) * 2
        memory = self.embed(tokens)
        for layer in self.encoder:
            memory = layer(memory, memory, bias)
        hidden = self.embed(targets)
        for number, layer in enumerate(self.decoder):
            hidden = layer(hidden, memory if number % 3 == 0 else hidden, bias)
        return F.cross_entropy(F.linear(hidden, self.embed.weight).flatten(0, 1), targets.flatten())


class Viewing(nn.Module):
    """Values that share memory cross cuts: a part of a tensor, a transposed one, an expanded one,
    and a sum whose gradient is handed on as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(5))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        mean = hidden.mean(1, keepdim=True).expand(-1, TOKENS, -1)
        aside = hidden.transpose(1, 2)
        for layer in self.layers:
            first, second, third = layer(hidden).chunk(3, dim=-1)
            hidden = hidden + torch.tanh(first) * second + third
        hidden = hidden + aside.transpose(1, 2) + mean
        return F.cross_entropy(hidden.flatten(0, 1), targets.flatten())


class Masked(nn.Module):
    """A table and a mask made from sizes alone, the same in every micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))

    def table(self) -> Tensor:
        return torch.cos(torch.outer(torch.arange(TOKENS), 1.0 + torch.arange(WIDTH)))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        turn, seen = self.table(), torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
        hidden = self.embed(tokens)
        for layer in self.layers:
            scores = (hidden * turn) @ layer(hidden).transpose(1, 2)
            hidden = hidden + scores.masked_fill(~seen, -1e9).softmax(-1) @ hidden
        return F.cross_entropy(hidden.flatten(0, 1), targets.flatten())


MODELS: dict[str, type[nn.Module]] = {
    "skipping": Skipping,
    "translating": Translating,
    "viewing": Viewing,
    "masked": Masked,
}


def batch(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (SEQUENCES, TOKENS)
    return {
        name: torch.randint(WIDTH, shape, generator=generator) for name in ("tokens", "targets")
    }
