"""Account of a text: what was read, what was written, and each part that was omitted or lost.

A run lasts for weeks, so text that is missing must be seen at the start. `atom start` prints the
account, and `atom info` shows it.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from atom.base.errors import ConfigError
from atom.models.data.documents import Omission
from atom.models.data.tokenizer import tokens_of

LOST_TEXT = 0.001
"""Share of the characters that the tokenizer may lose, unless the run file allows more."""

_SLICES, _SLICE_TOKENS = 128, 128
"""Number and length of the slices that `doubt_about` compares."""
_BUCKETS = 256
_UNLIKE, _LEAST_DISTANCE = 2.5, 0.1


@dataclass
class Account:
    """Counts of one pass through a text."""

    files: int = 0
    documents: int = 0
    characters: int = 0
    tokens: int = 0
    omitted: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Reason → number of omitted parts, and the name of the first one."""
    lost: int = 0
    """Number of characters for which the tokenizer has no token."""
    first_lost: str = ""
    """The first of these characters, and its place."""
    doubt: str = ""
    """What is doubtful about the validation text; empty: nothing."""

    def omit(self, part: Omission) -> None:
        """Count a part that is omitted."""
        count, first = self.omitted.get(part.reason, (0, part.where))
        self.omitted[part.reason] = count + 1, first

    def lines(self) -> Iterator[str]:
        """Yield the account as lines for people."""
        counts = {
            "file": self.files,
            "document": self.documents,
            "character": self.characters,
            "token": self.tokens,
        }
        yield ", ".join(f"{n:,} {noun}{'' if n == 1 else 's'}" for noun, n in counts.items())
        yield from self.omissions()
        if self.lost:
            yield f"lost characters: {self.lost:,}, the first is {self.first_lost}"
        if self.doubt:
            yield f"warning: {self.doubt}"

    def omissions(self) -> Iterator[str]:
        """Yield a line for each reason to omit a part."""
        for reason, (count, first) in self.omitted.items():
            yield f"{count:,} omitted ({reason}), the first is {first}"


class LostText:
    """Counter of the characters that a tokenizer loses.

    A character is lost if its tokens are the unknown token, or if the tokens of the character alone
    give no text. Blanks do not count, because many tokenizers do not store them one by one.
    """

    def __init__(self, tokenizer: Any, account: Account) -> None:
        """Begin to count.

        Args:
            tokenizer: the `Tokenizer`.
            account: account of the whole text, in which the lost characters are counted.
        """
        self._tokenizer, self._account = tokenizer, account
        self._known, self._dropped = set[str](), set[str]()
        self._unknown, self._unknown_text = _unknown_token(tokenizer.content)

    def count(self, text: str, tokens: Sequence[int], where: str, position: int) -> None:
        """Count the lost characters of one piece.

        Args:
            text: the piece.
            tokens: its tokens, or their complements.
            where: name of the document.
            position: place of the piece in the document, in characters from 0.
        """
        new = set(text) - self._known
        self._known |= new
        self._dropped |= set(filter(self._is_dropped, new))
        dropped = self._dropped and self._dropped.intersection(text)
        places = [at for at, sign in enumerate(text) if sign in dropped] if dropped else []
        unknown = self._unknown
        if unknown is not None and (unknown in tokens or ~unknown in tokens):
            (encoding,) = self._tokenizer.encodings([text])
            for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if token == unknown and text[start:end] != self._unknown_text:
                    places += range(start, end)
        if places:
            first, account = min(places), self._account
            place = f"{text[first]!r}, character {position + first + 1:,} of {where}"
            account.first_lost = account.first_lost or place
            account.lost += len(places)

    def _is_dropped(self, character: str) -> bool:
        if character.isspace():
            return False
        tokens = [max(token, ~token) for token in tokens_of(self._tokenizer, character)]
        if self._unknown in tokens:
            return False  # this is counted where it occurs, because it may depend on the word
        shown = self._tokenizer.decode(tokens).strip()
        return not shown or ("\ufffd" in shown and character != "\ufffd")


def check_lost(account: Account, allowed: float) -> None:
    """Raise if the tokenizer loses more of the text than is allowed.

    Args:
        account: account of the text.
        allowed: share of the characters that may be lost.

    Raises:
        ConfigError: the message names the share and the first lost character.
    """
    if account.lost > allowed * account.characters:
        share = account.lost / account.characters
        enough = math.ceil(1000 * share) / 10
        raise ConfigError(
            f"the tokenizer has no token for {account.lost:,} of {account.characters:,} characters "
            f"({share:.2%}): the first is {account.first_lost}",
            "use a tokenizer that has tokens for them, or allow the loss: "
            f'[data] lost_text = "{enough:g} %"',
        )


def _unknown_token(tokenizer_json: bytes) -> tuple[int | None, str]:
    """Return the number and the text of a tokenizer's unknown token; None if it has none.

    Args:
        tokenizer_json: content of the tokenizer.json.
    """
    model = json.loads(tokenizer_json)["model"]
    if (number := model.get("unk_id")) is not None:  # a Unigram model lists pairs of text and score
        return number, model["vocab"][number][0]
    text = model.get("unk_token") or ""
    return model["vocab"].get(text) if text else None, text


def doubt_about(train: Tensor, held_back: Tensor) -> str:
    """Return what is doubtful if the validation text is unlike the training text; else nothing.

    Compared are histograms of tokens in random slices: validation with training text, and training
    text with itself. The distance is the total variation, between 0 and 1. On texts in random order
    the first distance is at most 1.4 times the second, on the tails of sorted texts usually more
    than 3 times.

    Args:
        train: tokens to train on [count].
        held_back: tokens for validation [count].
    """
    slices = min(_SLICES, len(held_back) // _SLICE_TOKENS, len(train) // _SLICE_TOKENS)
    if slices < 4:
        return ""
    random = torch.Generator().manual_seed(0)

    def histogram(tokens: Tensor) -> Tensor:
        last = len(tokens) - _SLICE_TOKENS
        starts = torch.randint(0, last + 1, (slices, 1), generator=random)
        drawn = tokens[starts + torch.arange(_SLICE_TOKENS)].to(torch.int64).flatten()
        buckets = torch.where(drawn < 0, ~drawn, drawn) % _BUCKETS
        return torch.bincount(buckets, minlength=_BUCKETS) / len(drawn)

    one, other, held = histogram(train), histogram(train), histogram(held_back)
    usual = float((one - other).abs().sum()) / 2
    found = float((held - one).abs().sum() + (held - other).abs().sum()) / 4
    if found <= max(_UNLIKE * usual, _LEAST_DISTANCE):
        return ""
    return (
        "the validation text, the end of the text, is unlike the training text: the distance of "
        f"their tokens is {found:.2f}, within the training text {usual:.2f}. Shuffle the documents "
        "if they are sorted"
    )
