"""The loss of a `transformers` language model, in chunks of tokens.

The library computes all tokens' logits at once. Where nothing is done to them between the head and
the usual loss, the loss is computed from the head's input instead, a chunk at a time, each under a
checkpoint: then the logits of one chunk are in memory, not all. The call that made all of them has
no user left, and tracing drops it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from atom.models.gpt3 import IGNORED, loss_chunks
from atom.models.source import SourceError

_USUAL_LOSS = "ForCausalLMLoss"
"""Cross-entropy of the next token, the mean over those that count."""


@contextmanager
def loss_in_chunks(model: Any, tokens: int, targets: Tensor | None = None) -> Iterator[None]:
    """While the model's forward runs on `tokens` tokens with labels: its loss comes in chunks, if
    that saves memory and its logits are its head's as they are.

    `model`: a `transformers.PreTrainedModel` with a language model's head. `targets`: so many a
    micro-batch has in the mean. Then the loss is the sum over those that count here, divided by
    that: each counts the same, whatever others its micro-batch has; none may count.

    Raises: SourceError for a model with a loss of its own, if `targets` is given.
    """
    head, usual = model.get_output_embeddings(), model.loss_function
    chunks = 1
    if isinstance(head, nn.Linear) and _is_usual(usual):
        chunks = loss_chunks(head.in_features, head.out_features, tokens)
    if chunks == 1 and targets is None:
        yield
        return
    seen: list[tuple[Tensor, Tensor]] = []
    called = False
    hook = head.register_forward_hook(lambda _, given, logits: seen.append((given[0], logits)))
    before = vars(model).get("_loss_function")

    def loss(logits: Tensor, labels: Tensor, vocab_size: int, **more: Any) -> Tensor:
        nonlocal called
        called = True
        as_they_are = chunks > 1 and len(seen) == 1 and logits is seen[0][1]
        if not as_they_are or any(value is not None for value in more.values()):
            if targets is not None:
                more["num_items_in_batch"] = targets
            return usual(logits, labels, vocab_size, **more)  # type: ignore[no-any-return]
        return _chunked(head, seen[0][0], labels, chunks, usual, targets)

    model._loss_function = loss
    try:
        yield
        if targets is not None and not (called and _is_usual(usual)):
            raise SourceError(
                f"{type(model).__name__} has a loss of its own, which weighs answers otherwise",
                "train on all tokens: leave out [data] train_on",
            )
    finally:
        hook.remove()
        del model._loss_function
        if before is not None:
            model._loss_function = before


def _is_usual(loss: Any) -> bool:
    return getattr(loss, "__name__", "") == _USUAL_LOSS


def _chunked(
    head: nn.Linear,
    hidden: Tensor,
    labels: Tensor,
    chunks: int,
    usual: Callable[..., Tensor],
    divisor: Tensor | None,
) -> Tensor:
    """hidden [B, S, D], labels [B, S], not shifted → the sum over the tokens that count, divided by
    how many they are, if not by `divisor`."""
    targets = functional.pad(labels, (0, 1), value=IGNORED)[:, 1:].flatten()
    counted = (targets != IGNORED).sum() if divisor is None else divisor

    def share(hidden: Tensor, targets: Tensor) -> Tensor:
        logits = functional.linear(hidden, head.weight, head.bias)
        return usual(
            logits, None, head.out_features, num_items_in_batch=counted, shift_labels=targets
        )

    pairs = zip(hidden.flatten(0, 1).chunk(chunks), targets.chunk(chunks), strict=True)
    shares = [checkpoint(share, *pair, use_reentrant=False) for pair in pairs]
    return torch.stack(shares).sum()
