"""Tokens cut into windows: non-overlapping sequences, with the next token of each as target."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Windows:
    """A run of tokens [count] as windows of `sequence_tokens`.

    Window w holds tokens [w·S, w·S + S); its targets are the same shifted by one, so consecutive
    windows share one token and every token but the first is a target once.
    """

    tokens: Tensor
    sequence_tokens: int

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - 1) // self.sequence_tokens)

    def batch(self, windows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(tokens, targets), each a new int64 [len(windows), S].

        Raises: ValueError for an empty list, IndexError for a window that is not there.
        """
        if not windows:
            raise ValueError("a batch needs at least one window")
        rows = torch.stack([self._row(window) for window in windows])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def _row(self, window: int) -> Tensor:
        if not 0 <= window < len(self):
            raise IndexError(f"window {window} is outside of [0, {len(self)})")
        start = window * self.sequence_tokens
        return self.tokens[start : start + self.sequence_tokens + 1].to(torch.int64)


def split_tokens(tokens: Tensor, validation_fraction: float) -> tuple[Tensor, Tensor]:
    """(training, validation): the last part of the tokens is never trained on. Views, no copies.

    Raises: ValueError unless 0 ≤ validation_fraction < 1.
    """
    if not 0.0 <= validation_fraction < 1.0:
        raise ValueError(f"validation_fraction {validation_fraction} is not in [0, 1)")
    held_out = int(len(tokens) * validation_fraction)
    return tokens[: len(tokens) - held_out], tokens[len(tokens) - held_out :]
