"""What `atom info` shows of one daemon, for a person. Pure; `--json` has every figure.

What is as usual takes no line: nothing in the way, no pass void, nobody else on the device, every
peer a voter, a run that chose nothing special. So it is whole on a terminal of 24 rows. What an
older daemon does not say is left out.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atom.base.units import format_bytes, format_seconds
from atom.models.data.amount import Amount
from atom.swarm.identity import short_id
from atom.swarm.records.view import loss_unit, trained_on

Info = Mapping[str, Any]
Row = tuple[str, str]
COPIED = ("peer id", "digest", "join address", "directory")
"""Never folded: they are there to be copied."""
MOST_PEERS = 8
"""That are named; of more it is said how many."""
STOCK = {
    "update_rule": "every-step",
    "optimizer_state": "exact",
    "gradients": "float32",
    "codec": "float32",
}
"""What a run does that chose nothing else."""
_LEAST_COLUMNS = 20


def lines(info: Info, columns: int | None) -> Iterator[tuple[str, str]]:
    """(label, padded, or blanks; text beside it). `columns`: None where nobody folds, as in a
    pipe."""
    found = rows(info)
    width = max(len(label) for label, _ in found) + 2
    for label, value in found:
        fold = columns is not None and label not in COPIED
        room = max(_LEAST_COLUMNS, (columns or 0) - width)
        parts = textwrap.wrap(value, room, break_on_hyphens=False) if fold else [value]
        for number, part in enumerate(parts or [""]):
            yield f"{'' if number else label:<{width}}", part


def rows(info: Info) -> list[Row]:
    """In the order in which a person asks."""
    return [
        *_standing(info),
        *_work(info),
        *_device(info),
        *_box(info),
        *_others(info),
        *((label, _text(info, key)) for label, key in _PLACES if info.get(key)),
    ]


_PLACES = (
    ("peer id", "peer_id"),
    ("digest", "digest"),
    ("join address", "join_address"),
    ("directory", "state_directory"),
)


def _standing(info: Info) -> Iterator[Row]:
    yield "run", _text(info, "run")
    yield "state", _text(info, "state")
    for label in ("trouble", "paused", "setting"):
        if info.get(label):
            yield label, _text(info, label)


def _work(info: Info) -> Iterator[Row]:
    last, loss = info.get("rounds"), info.get("loss")
    round_ = f"{info['round']:,}" + ("" if last is None else f" of {last:,}")
    data = Amount(**info["data"]) if "data" in info else None
    yield (
        "round",
        round_ + ("" if loss is None else f", loss {loss:.4f} {loss_unit(data)}".rstrip()),
    )
    counted, batch = info["mini_batches"], info["global_batch"]
    yield "next round", f"{counted:,} of its {batch:,} mini-batches are counted here"
    if data is not None:
        yield "data", str(data)
    joined, given = info["rounds_joined"], info["sequences_committed"]
    rounds = "1 round" if joined == 1 else f"{joined:,} rounds"
    yield "given", f"{given:,} mini-batches to {rounds} since this daemon started"
    sequences, tokens = info["sequences_per_s"], info["tokens_per_s"]
    of_text = trained_on(data) == "tokens"  # else a sample is a mini-batch
    also = f"{tokens:,.0f} tokens/s, " if of_text else ""
    yield "speed", f"{also}{sequences:,.1f} mini-batches/s"
    void = [(cause, count) for cause, count in info.get("passes_voided", {}).items() if count]
    if void:
        yield "void passes", ", ".join(f"{count:,} {cause}" for cause, count in void)


def _device(info: Info) -> Iterator[Row]:
    turns = info.get("device_turns", {})
    said = [turns["device"]] if "device" in turns else []
    if info.get("last_pass"):
        said.append(_one_pass(info["last_pass"]))
    if said:
        yield "device", ": ".join(said)
    daemons = turns.get("runs", [])
    if len({(each["run"], each.get("owner")) for each in daemons}) > 1:
        for turn in dict.fromkeys(map(_turn, daemons)):  # daemons of one run have theirs together
            yield "its turns", turn


def _one_pass(figures: Info) -> str:
    computes = f"computes {figures['computing']:.0%} of a pass of {figures['pass_seconds']:.3f} s"
    waiting = figures["waiting"].items()
    waits = [f"{reason} {share:.0%}" for reason, share in waiting if share >= 0.005]
    return computes + (f"; waits: {', '.join(waits)}" if waits else "")


def _turn(daemon: Info) -> str:
    return f"{daemon['run']} {daemon['turn']}, since {format_seconds(round(daemon['since_s']))}"


def _box(info: Info) -> Iterator[Row]:
    wishes = info.get("wishes")
    if wishes:
        yield "works", ", ".join(_wishes(wishes))
    chosen = [key for key, stock in STOCK.items() if info.get(key, stock) != stock]
    if chosen:
        yield "run's choice", ", ".join(f"{key.replace('_', ' ')} {info[key]}" for key in chosen)
    disk = info.get("disk")
    if disk:
        yield "disk", f"{format_bytes(disk['free_bytes'])} free, {_snapshots(disk['snapshots'])}"
        if disk["paused"]:
            yield "disk paused", "; ".join(f"{what}: {why}" for what, why in disk["paused"].items())


def _snapshots(kept: Sequence[int]) -> str:
    if not kept:
        return "no snapshot yet"
    plural = "" if len(kept) == 1 else "s"
    *others, last = (f"{number:,}" for number in kept)
    named = f"{', '.join(others)} and {last}" if others else last
    return f"snapshot{plural} of round{plural} {named}"


def _wishes(wishes: Info) -> Iterator[str]:
    yield f"in the hours {_words(wishes['hours'])}" if wishes["hours"] else "at all hours"
    if wishes["idle_for_s"] is not None:
        yield f"when nobody used the machine for {format_seconds(wishes['idle_for_s'])}"
    yield f"{'not ' if wishes['pause_on_battery'] else ''}on battery"
    gpu = wishes["pause_for_gpu_programs"]
    if gpu:
        yield "not beside GPU programs" + (f" (not seen: {gpu})" if isinstance(gpu, str) else "")


def _others(info: Info) -> Iterator[Row]:
    own, peers = info["peer_id"], info.get("peers", [])
    voters = info.get("voters", [])
    if voters and {*voters} != {own, *peers}:
        yield "voters", _some(["this peer" if each == own else short_id(each) for each in voters])
    ways = info.get("links", {})
    named = [_reached(peer, ways.get(peer)) for peer in peers]
    yield "other peers", f"{len(peers):,}: {_some(named)}" if peers else "none"
    if "reachable" in info:
        tried = {"unknown": "nobody has tried yet"}.get(info["reachable"], info["reachable"])
        yield "reachable", ": ".join(filter(None, (tried, ", ".join(info["data_addresses"]))))


def _reached(peer: str, way: Info | None) -> str:
    """With what was measured of the way there."""
    if way is None:
        return short_id(peer)
    rate = way["bytes_per_s"]
    speed = "" if rate is None else f", {format_bytes(rate)}/s"
    return f"{short_id(peer)} ({way['round_trip_ms']:g} ms{speed})"


def _some(named: Sequence[str]) -> str:
    more = len(named) - MOST_PEERS
    return ", ".join(named[:MOST_PEERS]) + (f" and {more:,} more" if more > 0 else "")


def _text(info: Info, key: str) -> str:
    return str(info[key])


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {_words(each)}" for key, each in value.items())
    return ", ".join(map(_words, value)) if isinstance(value, (list, tuple)) else str(value)
