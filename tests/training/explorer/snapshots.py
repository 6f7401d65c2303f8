"""Copies of a machine, and the key under which two machines count as the same.

Frozen values are shared between copies. The key compares all memory by value, so no collision of
hashes can merge two machines; it leaves out times (see `TIMELESS`).
"""

import functools
import random
from collections import deque
from enum import Enum
from types import MethodType
from typing import Any

from atom.swarm.chain.commit import Head, Voter
from atom.training.round.events import View
from atom.training.round.machine import RoundMachine

from .actors import _NoJitter

Key = Any
"""A hashable value."""

_ATOMS = (str, bytes, int, float, type(None), Enum, random.Random, _NoJitter)
_PLAIN = {str, bytes, int, bool, type(None)}
"""The most frequent types, looked up first."""
_SHARED = {"terms", "patience", "sign", "_context", "_participant", "_at_our_head"}
"""Attributes that never change, or that are part of the key elsewhere."""
TIMELESS = {
    "now", "entered", "since", "led_at", "led_by", "deadline", "overdue", "jitter", "out", "_lock",
    "_last_tick", "_seek_at", "_retry_at", "_cause_since", "_stalled_s", "_claimed_since",
    "averages_since", "call", "callers", "_answers",
}  # fmt: skip
"""Attributes left out of a key. Clocks move only right before a tick, by more than any patience
and by less than any penalty: so every timer has expired at every tick, whenever it began. Failed
calls only make pauses longer, which are zero here; peers that answered are counted, as all voters
are."""


@functools.cache
def is_frozen(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def copy_of(thing: Any, memo: dict[int, Any]) -> Any:
    """Return a copy that shares nothing that can change. `memo`: empty at first."""
    kind = type(thing)
    if (
        kind in _PLAIN
        or isinstance(thing, _ATOMS)
        or is_frozen(kind)
        or isinstance(thing, tuple | frozenset)
    ):
        return thing
    if id(thing) in memo:
        return memo[id(thing)]
    if kind is dict:
        return {key: copy_of(value, memo) for key, value in thing.items()}
    if kind in (set, list):
        return kind(thing)
    if kind is deque:
        return deque(thing)
    if kind is MethodType:
        return MethodType(thing.__func__, copy_of(thing.__self__, memo))
    if not kind.__module__.startswith(("atom.", __package__)):
        return thing  # a lock, or the function that signs
    made = memo[id(thing)] = kind.__new__(kind)
    for name, value in vars(thing).items():
        made.__dict__[name] = copy_of(value, memo)
    return made


def key_of(thing: Any) -> Key:
    """Return the key of a machine or of one of its parts."""
    kind = type(thing)
    if kind in _PLAIN:
        return thing
    if kind is Voter:
        return thing.peer_id, thing.incarnation, thing.absences
    if kind is Head:
        return thing.digest
    if isinstance(thing, View):
        return id(thing)  # the explorer makes each view once
    if isinstance(thing, float):
        return 0.0  # until when a penalty lasts: longer than the search
    if isinstance(thing, _ATOMS) or is_frozen(kind):
        return thing
    if isinstance(thing, tuple | list | deque):
        return tuple(map(key_of, thing))
    if isinstance(thing, set | frozenset):
        return frozenset(thing)
    if isinstance(thing, dict):
        return frozenset((name, key_of(value)) for name, value in thing.items())
    skipped = _SHARED - {"_context"} if kind is RoundMachine else _SHARED
    items = [item for item in vars(thing).items() if item[0] not in skipped | TIMELESS]
    return tuple((name, key_of(value)) for name, value in items)
