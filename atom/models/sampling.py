"""Generation of text, token by token: the model's input for each token, and the choice of tokens.

A key-value cache is not used: each token takes a pass over the last tokens of the text, in a window
of fixed length. The model does not look beyond the last token of the text, so the rest of the
window is padded with an arbitrary token.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atom.models.source import Batch, ModelSource, meta_tokens, replace_forward

Ask = Callable[[list[Batch]], list[Tensor]]
"""Function that runs one pass: micro-batches of `question` → logits [1, vocabulary], float32."""

MOST_TOKENS = 32
"""Largest number of tokens in a text that a peer writes during training, without its prompt."""


@dataclass(frozen=True)
class Sampling:
    """Settings for choosing tokens; `temperature` 0 always takes the most likely token."""

    temperature: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Prompts:
    """Prompts of the texts that a peer writes during training, in turn, and the vocabulary."""

    every_rounds: int
    tokens: Sequence[Sequence[int]]
    window: int
    """Number of tokens in one input of the model."""
    vocabulary: int
    ends: frozenset[int]
    """Tokens that end a text."""
    decode: Callable[[Sequence[int]], str]


def next_token_model(source: ModelSource, dtype: torch.dtype) -> nn.Module:
    """Build the source's model with an `Answer` as its forward: (tokens, last) → logits.

    Raises:
        ConfigError: the model cannot be built, or gives no logits.
    """
    model = source.build(dtype)
    answer = source.next_logits(model)

    def forward(self: nn.Module, tokens: Tensor, last: Tensor) -> Tensor:
        return answer(tokens, last)

    return replace_forward(model, forward)


def example_question(window: int) -> Batch:
    """Return names, shapes and dtypes of a `question`, on `meta`."""
    return {"tokens": meta_tokens(1, window), "last": torch.zeros(1, dtype=torch.int64).to("meta")}


def question(text: Sequence[int], window: int) -> Batch:
    """Return the model's input that asks for the token after a text.

    Returns:
        `tokens`, the last `window` tokens of the text, padded with 0, int64 [1, window]; and
            `last`, the place of the text's last token, int64 [1].
    """
    seen = [*text[-window:]]
    padding = [0] * (window - len(seen))
    return {"tokens": torch.tensor([seen + padding]), "last": torch.tensor([len(seen) - 1])}


def choose_token(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Draw a token from logits [vocabulary], float32."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits.double() / sampling.temperature, 0)
    return int(torch.multinomial(probabilities, 1, generator=generator))


def continuations(
    prompts: Sequence[Sequence[int]],
    most_tokens: int,
    window: int,
    vocabulary: int,
    ends: frozenset[int],
    sampling: Sampling,
    ask: Ask,
) -> Iterator[Mapping[int, int]]:
    """Continue the prompts; yield after each pass the new tokens as index of the prompt → token.

    The continuation of a prompt does not depend on the other prompts, except for rounding.

    Args:
        prompts: the beginnings of the texts, as tokens.
        most_tokens: maximum number of new tokens per text.
        window: number of tokens that the model sees.
        vocabulary: number of tokens of the tokenizer; the model's higher ones are never chosen.
        ends: tokens that end a text; they are not part of the result.
        sampling: settings for choosing tokens.
        ask: function that runs the model.
    """
    texts = {number: list(prompt) for number, prompt in enumerate(prompts)}
    draws = {number: torch.Generator().manual_seed(sampling.seed + number) for number in texts}
    for _ in range(most_tokens):
        chosen = dict[int, int]()
        logits = ask([question(text, window) for text in texts.values()])
        for number, each in zip(list(texts), logits, strict=True):
            token = choose_token(each[0, :vocabulary], sampling, draws[number])
            if token in ends:
                del texts[number]
            else:
                texts[number].append(token)
                chosen[number] = token
        yield chosen
        if not texts:
            return
