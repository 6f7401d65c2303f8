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

_USUAL_LOSS = "ForCausalLMLoss"
"""Cross-entropy of the next token, the mean over those that count."""


@contextmanager
def loss_in_chunks(model: Any, tokens: int) -> Iterator[None]:
    """While the model's forward runs on `tokens` tokens with labels: its loss comes in chunks, if
    that saves memory and its logits are its head's as they are.

    `model`: a `transformers.PreTrainedModel` with a language model's head.
    """
    head, usual = model.get_output_embeddings(), model.loss_function
    chunks = 1
    if isinstance(head, nn.Linear) and getattr(usual, "__name__", "") == _USUAL_LOSS:
        chunks = loss_chunks(head.in_features, head.out_features, tokens)
    if chunks == 1:
        yield
        return
    seen: list[tuple[Tensor, Tensor]] = []
    hook = head.register_forward_hook(lambda _, given, logits: seen.append((given[0], logits)))
    before = vars(model).get("_loss_function")

    def loss(logits: Tensor, labels: Tensor, vocab_size: int, **more: Any) -> Tensor:
        as_they_are = len(seen) == 1 and logits is seen[0][1]
        if not as_they_are or any(value is not None for value in more.values()):
            return usual(logits, labels, vocab_size, **more)  # type: ignore[no-any-return]
        return _chunked(head, seen[0][0], labels, chunks, usual)

    model._loss_function = loss
    try:
        yield
    finally:
        hook.remove()
        del model._loss_function
        if before is not None:
            model._loss_function = before


def _chunked(
    head: nn.Linear, hidden: Tensor, labels: Tensor, chunks: int, usual: Callable[..., Tensor]
) -> Tensor:
    """hidden [B, S, D], labels [B, S], not shifted → the mean over the tokens that count."""
    targets = functional.pad(labels, (0, 1), value=IGNORED)[:, 1:].flatten()
    counted = (targets != IGNORED).sum()

    def share(hidden: Tensor, targets: Tensor) -> Tensor:
        logits = functional.linear(hidden, head.weight, head.bias)
        return usual(
            logits, None, head.out_features, num_items_in_batch=counted, shift_labels=targets
        )

    pairs = zip(hidden.flatten(0, 1).chunk(chunks), targets.chunk(chunks), strict=True)
    shares = [checkpoint(share, *pair, use_reentrant=False) for pair in pairs]
    return torch.stack(shares).sum()
