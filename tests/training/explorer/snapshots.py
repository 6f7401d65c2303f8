"""Copies of a machine, and the key under which two machines count as the same.

Frozen values are shared between copies. The key compares all memory by value, so no collision of
hashes can merge two machines; it leaves out times (see `TIMELESS`).
"""

import functools
import random
from collections import deque
from collections.abc import Callable, Iterator, Set
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


@functools.cache
def _is_shared(kind: type) -> bool:
    """Return True if no copy of such a thing is made: it never changes, or is a lock or the
    function that signs."""
    if is_frozen(kind) or issubclass(kind, (*_ATOMS, tuple, frozenset)):
        return True
    changing = dict, set, list, deque, MethodType
    return kind not in changing and not kind.__module__.startswith(("atom.", __package__))


def copy_of(thing: Any, memo: dict[int, Any]) -> Any:
    """Return a copy that shares nothing that can change. `memo`: empty at first."""
    kind = type(thing)
    if _is_shared(kind):
        return thing
    if id(thing) in memo:
        return memo[id(thing)]
    if kind is dict:
        return _copies_of(thing, memo)
    if kind in (set, list, deque):
        return kind(thing)
    if kind is MethodType:
        return MethodType(thing.__func__, copy_of(thing.__self__, memo))
    made = memo[id(thing)] = kind.__new__(kind)
    made.__dict__.update(_copies_of(vars(thing), memo))
    return made


def _copies_of(values: dict[Any, Any], memo: dict[int, Any]) -> dict[Any, Any]:
    """Return copies by name. Most values are shared, and a call for each would be slow."""
    return {
        name: value if _is_shared(type(value)) else copy_of(value, memo)
        for name, value in values.items()
    }


def key_of(thing: Any) -> Key:
    """Return the key of a machine or of one of its parts."""
    make = _key_maker(type(thing))
    return make(thing) if make else thing


@functools.cache
def _key_maker(kind: type) -> Callable[[Any], Key] | None:
    """Return the function that makes the key of a thing of this type; None: it is its own key."""
    if kind is Voter:
        return lambda voter: (voter.peer_id, voter.incarnation, voter.absences)
    if kind is Head:
        return lambda head: head.digest
    if issubclass(kind, View):
        return id  # the explorer makes each view once
    if issubclass(kind, float):
        return lambda number: 0.0  # until when a penalty lasts: longer than the search
    if is_frozen(kind) or issubclass(kind, _ATOMS):
        return None
    if issubclass(kind, (tuple, list, deque)):
        return lambda things: tuple(map(key_of, things))
    if issubclass(kind, (set, frozenset)):
        return frozenset
    if issubclass(kind, dict):
        return lambda values: frozenset(_keys_of(values))
    left_out = TIMELESS | (_SHARED - {"_context"} if kind is RoundMachine else _SHARED)
    return lambda thing: tuple(_keys_of(vars(thing), left_out))


def _keys_of(values: dict[Any, Any], left_out: Set[str] = frozenset()) -> Iterator[Key]:
    """Yield name and key of each value."""
    for name, value in values.items():
        if name not in left_out:
            make = _key_maker(type(value))
            yield name, make(value) if make else value
