"""What `atom info` shows of one daemon, for a person. Pure; `--json` has every figure.

What is as usual takes no line: nothing in the way, no pass void, nobody else on the device. What an
older daemon does not say is left out.
"""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from atom.base.units import format_bytes, format_seconds
from atom.models.data.amount import Amount
from atom.swarm.identity import short_id

Info = Mapping[str, Any]
Row = tuple[str, str]
COPIED = ("peer id", "digest", "join address", "state directory")
"""Never folded: they are there to be copied."""
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
    ("state directory", "state_directory"),
)


def _standing(info: Info) -> Iterator[Row]:
    yield "run", _text(info, "run")
    yield "state", _text(info, "state")
    for label in ("trouble", "paused", "setting"):
        if info.get(label):
            yield label, _text(info, label)


def _work(info: Info) -> Iterator[Row]:
    last = info.get("rounds")
    yield "round", f"{info['round']:,}" + ("" if last is None else f" of {last:,}")
    counted, batch = info["mini_batches"], info["global_batch"]
    yield "next round", f"{counted:,} of its {batch:,} mini-batches are counted here"
    if "data" in info:
        yield "data", str(Amount(**info["data"]))
    joined, given = info["rounds_joined"], info["sequences_committed"]
    yield "given", f"{given:,} mini-batches to {joined:,} rounds since this daemon started"
    sequences, tokens = info["sequences_per_s"], info["tokens_per_s"]
    yield "speed", f"{tokens:,.0f} tokens/s, {sequences:,.1f} mini-batches/s"
    if info.get("loss") is not None:
        yield "loss", f"{info['loss']:.4f} nats per token"
    void = [(cause, count) for cause, count in info.get("passes_voided", {}).items() if count]
    if void:
        yield "void passes", ", ".join(f"{count:,} {cause}" for cause, count in void)


def _device(info: Info) -> Iterator[Row]:
    turns = info.get("device_turns", {})
    if "device" in turns:
        yield "device", turns["device"]
    pass_ = info.get("utilisation")
    if pass_:
        waits = ", ".join(
            f"{reason} {share:.0%}" for reason, share in pass_["waiting"].items() if share >= 0.005
        )
        computes = f"computes {pass_['computing']:.0%} of {pass_['pass_seconds']:.3f} s"
        yield "one pass", computes + (f"; waits: {waits}" if waits else "")
    daemons = turns.get("runs", [])
    if len({(each["run"], each.get("owner")) for each in daemons}) > 1:
        for said in dict.fromkeys(map(_turn, daemons)):  # daemons of one run have theirs together
            yield "its turns", said


def _turn(daemon: Info) -> str:
    hour = format_seconds(round(daemon["last_hour_s"]))
    return f"{daemon['run']} {daemon['turn']}, share {daemon['share']:g}, {hour} of the hour"


def _box(info: Info) -> Iterator[Row]:
    wishes = info.get("wishes")
    if wishes:
        yield "works", ", ".join(_wishes(wishes))
    chosen = ("optimizer_state", "gradients", "codec", "ring_protection")
    said = [f"{key.replace('_', ' ')} {info[key]}" for key in chosen if key in info]
    if said:
        yield "the run's choice", ", ".join(said)
    disk = info.get("disk")
    if disk:
        rounds = [f"{number:,}" for number in disk["snapshots"]]
        yield "snapshots", f"{len(rounds)}, of round {' and '.join(rounds)}" if rounds else "none"
        yield "disk", f"{format_bytes(disk['free_bytes'])} free"
        if disk["paused"]:
            yield "disk paused", _words(disk["paused"])


def _wishes(wishes: Info) -> Iterator[str]:
    yield f"in the hours {_words(wishes['hours'])}" if wishes["hours"] else "at all hours"
    if wishes["idle_for_s"] is not None:
        yield f"when nobody used the machine for {format_seconds(wishes['idle_for_s'])}"
    yield f"{'not ' if wishes['pause_on_battery'] else ''}on battery"
    gpu = wishes["pause_for_gpu_programs"]
    if gpu:
        yield "not beside GPU programs" + (f" (not seen: {gpu})" if isinstance(gpu, str) else "")


def _others(info: Info) -> Iterator[Row]:
    own = info["peer_id"]
    voters = ["this peer" if voter == own else short_id(voter) for voter in info.get("voters", [])]
    if voters:
        yield "voters", ", ".join(voters)
    peers = info.get("peers", [])
    yield "other peers", f"{len(peers)}: {', '.join(map(short_id, peers))}" if peers else "none"
    for peer, link in info.get("links", {}).items():
        rate = link["bytes_per_s"]
        speed = "" if rate is None else f", {format_bytes(rate)}/s"
        yield f"way to {short_id(peer)}", f"{link['round_trip_ms']:g} ms{speed}"
    reachable = info.get("reachable")
    if reachable:
        tried = "not known: nobody tried yet"
        yield "reachable", tried if reachable == "unknown" else reachable
    if info.get("data_addresses"):
        yield "data address", ", ".join(info["data_addresses"])


def _text(info: Info, key: str) -> str:
    return str(info[key])


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {_words(each)}" for key, each in value.items())
    return ", ".join(map(_words, value)) if isinstance(value, (list, tuple)) else str(value)
