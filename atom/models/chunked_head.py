"""Loss of a `transformers` language model, computed in chunks of tokens to save memory.

The library computes the logits of all tokens at once. If the model passes the head's output to the
usual loss unchanged, this module computes the loss from the head's input instead, chunk by chunk,
each under a checkpoint, so that only one chunk's logits are in memory. The original call of the
head then has no user, and tracing drops it.
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
"""Name of the library's cross-entropy of the next token, a mean over tokens that are targets."""


@contextmanager
def loss_in_chunks(model: Any, tokens: int, targets: Tensor | None = None) -> Iterator[None]:
    """Compute the loss of the model's forward in chunks while the context is active.

    Chunks are used only if they save memory and the model passes its head's output to the usual
    loss unchanged.

    Args:
        model: a `transformers.PreTrainedModel` with a language-model head.
        tokens: number of tokens of the forward's batch.
        targets: expected number of targets in such a batch, a scalar. If given, the loss is the sum
            over the targets divided by this number, so that each target weighs the same, however
            many its micro-batch has (possibly none).

    Raises:
        SourceError: `targets` is given and the model does not use the usual loss.
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
    hook = head.register_forward_hook(lambda _, inputs, logits: seen.append((inputs[0], logits)))
    before = vars(model).get("_loss_function")

    def loss(logits: Tensor, labels: Tensor, vocab_size: int, **options: Any) -> Tensor:
        nonlocal called
        called = True
        unchanged = chunks > 1 and len(seen) == 1 and logits is seen[0][1]
        if not unchanged or any(value is not None for value in options.values()):
            if targets is not None:
                options["num_items_in_batch"] = targets
            return usual(logits, labels, vocab_size, **options)  # type: ignore[no-any-return]
        return _chunked(head, seen[0][0], labels, chunks, usual, targets)

    model._loss_function = loss
    try:
        yield
        if targets is not None and not (called and _is_usual(usual)):
            raise SourceError(
                f"{type(model).__name__} has its own loss, which weights answers unequally",
                "train on all tokens: remove [data] train_on",
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
    """Return the loss of hidden [B, S, D] against labels [B, S], computed in `chunks` chunks.

    Labels are not shifted. The loss is the sum over the targets, divided by `divisor`, or by the
    number of targets if that is None.
    """
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
