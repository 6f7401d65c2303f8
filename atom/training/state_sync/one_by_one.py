"""Steps in order, as far as they go, and a word about how far that is."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Told = Callable[[int, int], None]
"""(how many are done, how many there are); as many: that is the end; 0 there are: it broke off."""


def one_by_one(items: Sequence[Item], step: Callable[[Item], bool], told: Told) -> bool:
    """Calls `step` with each until one is False; whether none was. Nothing is told of no items.

    Raises: what `step` does, and tells that it broke off.
    """
    done, total = 0, len(items)
    try:
        for item in items:
            told(done, total)
            if not step(item):
                break
            done += 1
    finally:
        if items:
            told(done, total if done == total else 0)
    return done == total
