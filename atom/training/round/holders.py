"""Who shall hold which part of the optimizer's state. Pure.

Whoever leads a round says so in its value, so nobody has to agree on who is there. What is said
stays as long as the members do: a part that somebody fetches is not given to another one meanwhile.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from itertools import product

Parts = AbstractSet[int]


def holders_next(
    given: Mapping[str, Parts], room: Mapping[str, int], count: int, holders: int
) -> dict[str, frozenset[int]]:
    """What each shall hold that has `room`, by peer id.

    Few parts change hands, so that each has so many `holders`, or as many as have room, and nobody
    two parts more than another that has room for more. None has a second holder before all that
    anybody has room for have one.

    Args:
        given: what each was to hold before; at first, what it holds.
        room: how many parts each may hold.
        count: of parts.
    """
    told = {peer: set(sorted(given.get(peer, ()))[: room[peer]]) for peer in sorted(room)}
    for wanted, part in product(range(1, holders + 1), range(count)):
        _deal(part, told, room, wanted)
    for part in range(count):
        _withdraw(part, told, holders)
    while _level(told, room):
        pass
    return {peer: frozenset(parts) for peer, parts in told.items()}


def still_held(peer: str, told: Mapping[str, Parts], holds: Mapping[str, Parts]) -> frozenset[int]:
    """What of its parts the peer keeps after a round. Nobody gives one up before all that shall
    hold it do. `told`: what each shall hold. `holds`: what each held in the round."""
    return frozenset(
        part
        for part in holds[peer]
        if part in told.get(peer, ())
        or not _all_have(part, [other for other in told if part in told[other]], holds)
    )


def _all_have(part: int, peers: Collection[str], holds: Mapping[str, Parts]) -> bool:
    return bool(peers) and all(part in holds.get(peer, ()) for peer in peers)


def _deal(part: int, told: dict[str, set[int]], room: Mapping[str, int], wanted: int) -> None:
    """Gives the part to who has least, if fewer than `wanted` have it."""
    having = sum(part in parts for parts in told.values())
    lacking = [peer for peer in _with_room(told, room) if part not in told[peer]]
    if not lacking and not having:
        lacking = _with_less(told)
    if lacking and having < wanted:
        told[min(lacking, key=lambda peer: len(told[peer]))].add(part)


def _with_less(told: dict[str, set[int]]) -> list[str]:
    """One gives up a part that another has, too; who."""
    counted = Counter(part for parts in told.values() for part in parts)
    for peer in sorted(told, key=lambda peer: -len(told[peer])):
        for part in sorted(told[peer]):
            if counted[part] > 1:
                told[peer].remove(part)
                return [peer]
    return []


def _withdraw(part: int, told: dict[str, set[int]], wanted: int) -> None:
    """Takes the part from who has most."""
    having = [peer for peer, parts in told.items() if part in parts]
    having.sort(key=lambda peer: -len(told[peer]))
    for peer in having[: max(len(having) - wanted, 0)]:
        told[peer].remove(part)


def _level(told: dict[str, set[int]], room: Mapping[str, int]) -> bool:
    """One part goes from who has most to who has least; False: they are alike."""
    least = min(_with_room(told, room), key=lambda p: len(told[p]), default="")
    most = max(told, key=lambda p: len(told[p]), default="")
    if not least or len(told[most]) - len(told[least]) < 2:
        return False
    part = min(told[most] - told[least])
    told[most].remove(part)
    told[least].add(part)
    return True


def _with_room(told: Mapping[str, set[int]], room: Mapping[str, int]) -> list[str]:
    return [peer for peer, parts in told.items() if len(parts) < room[peer]]


def mask_of(parts: Parts) -> int:
    """As a message tells them."""
    return sum(1 << part for part in parts)


def parts_in(mask: int) -> frozenset[int]:
    return frozenset(part for part in range(mask.bit_length()) if mask >> part & 1)
