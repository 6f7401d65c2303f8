"""Text from a model, token by token: which token is taken, and what the model is asked each time.

A model here has no memory of what it has read: each token takes a pass over the whole text so far,
through a window of a fixed length. What stands behind the last token of a text is not looked at,
so a window is filled up with whatever is at hand.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from atom.models.source import Batch, ModelSource, meta_tokens

Ask = Callable[[list[Batch]], list[Tensor]]
"""A pass: of each micro-batch of `question`, logits [1, vocabulary], float32."""


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. `temperature` 0: always the likeliest one."""

    temperature: float = 1.0
    seed: int = 0


def next_token_model(source: ModelSource, dtype: torch.dtype) -> nn.Module:
    """The source's model with another forward: (tokens, last) → logits, an `Answer`. Its
    modules stay, so parameters keep their names. Raises: SourceError."""
    model = source.build(dtype)
    parent: Any = type(model)
    answer = source.next_logits(model)

    def forward(self: nn.Module, tokens: Tensor, last: Tensor) -> Tensor:
        return answer(tokens, last)

    names = {"forward": forward, "__module__": parent.__module__}
    model.__class__ = type(parent.__name__, (parent,), names)
    return model


def example_question(window: int) -> Batch:
    """What a text of `window` tokens at most is asked with, on `meta`."""
    return {"tokens": meta_tokens(1, window), "last": torch.zeros(1, dtype=torch.int64).to("meta")}


def question(text: Sequence[int], window: int) -> Batch:
    """Of the last `window` tokens of a text: what comes next?"""
    seen = [*text[-window:]]
    rest = [0] * (window - len(seen))
    return {"tokens": torch.tensor([seen + rest]), "last": torch.tensor([len(seen) - 1])}


def choose_token(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """`logits`: [vocabulary] float32."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    odds = torch.softmax(logits.double() / sampling.temperature, 0)
    return int(torch.multinomial(odds, 1, generator=generator))


def continuations(
    prompts: Sequence[Sequence[int]],
    most_tokens: int,
    window: int,
    vocabulary: int,
    ends: frozenset[int],
    sampling: Sampling,
    ask: Ask,
) -> Iterator[Mapping[int, int]]:
    """The prompts' next tokens, pass by pass: number of the prompt → token. A text ends with one of
    `ends`, which is not told, or after `most_tokens`; tokens from `vocabulary` on are not taken.
    What follows a prompt does not depend on the others, but for rounding.
    """
    texts = {number: list(prompt) for number, prompt in enumerate(prompts)}
    draws = {number: torch.Generator().manual_seed(sampling.seed + number) for number in texts}
    for _ in range(most_tokens):
        told = dict[int, int]()
        logits = ask([question(text, window) for text in texts.values()])
        for number, each in zip(list(texts), logits, strict=True):
            token = choose_token(each[0, :vocabulary], sampling, draws[number])
            if token in ends:
                del texts[number]
            else:
                texts[number].append(token)
                told[number] = token
        yield told
        if not texts:
            return
