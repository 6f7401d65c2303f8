"""How much there is to train on, for a person who compares it with another's."""

from typing import NamedTuple


class Amount(NamedTuple):
    """Of text: sequences of tokens. Of an own dataset: its samples, which have no tokens."""

    tokens: int
    """To train on; 0: the samples are no text."""
    samples: int
    """To train on."""
    held_back: int
    """For validation: tokens, or samples where there are no tokens."""

    def __str__(self) -> str:
        noun = "sequence" if self.tokens else "sample"
        told = f"{self.samples:,} {noun}{'' if self.samples == 1 else 's'} to train on"
        if self.tokens:
            told = f"{self.tokens:,} tokens, {told}"
        if not self.held_back:
            return told
        return f"{told}, {self.held_back:,}{' tokens' if self.tokens else ''} held back"
