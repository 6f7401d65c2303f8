"""Page of `atom info` about one daemon. Pure. `--json` has every figure.

The page leaves out normal values: it has a line for void passes, for example, only if there are
any.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atom.base.units import format_bytes
from atom.daemon.owner.traffic import used_text
from atom.models.data.account import Account
from atom.models.data.corpus import Amount
from atom.swarm.identity import short_id
from atom.swarm.records.view import (
    loss_unit,
    remaining,
    trained_on,
    validation_by_text,
    validation_text,
)

Info = Mapping[str, Any]
Row = tuple[str, str]
MOST_PEERS = 8
"""Most peers that a line names; further ones are counted."""


def rows(info: Info) -> Iterator[Row]:
    """Yield each line of the page as (label, text), in the order in which a person asks for them.

    Args:
        info: Figures of a daemon, from its command "info".
    """
    if "step" in info:  # the daemon is starting
        yield from ((label, info[label]) for label in ("run", "state", "step"))
        yield "directory", info["state_directory"]
        return
    for label in ("run", "name", "state", "trouble", "clock", "versions", "paused"):
        if info.get(label):
            yield label, str(info[label])
    yield "traffic", used_text(**info["traffic"])
    yield from _work(info)
    yield "device", _device(info)
    disk = info["disk"]
    snapshots = ", ".join(f"{number:,}" for number in disk["snapshots"]) or "none yet"
    yield "disk", f"{format_bytes(disk['free_bytes'])} free, snapshots of rounds: {snapshots}"
    if disk["checkpoints"]:
        yield "checkpoints", ", ".join(map(_checkpoint, disk["checkpoints"]))
    if disk["paused"]:
        yield "writes paused", "; ".join(f"{what}: {why}" for what, why in disk["paused"].items())
    if {*info["voters"]} - {info["peer_id"], *info["peers"]}:
        yield "voters", ", ".join(map(short_id, info["voters"][:MOST_PEERS]))
    yield "other peers", _others(info["peers"], info["links"], info["peer_names"])
    yield "reachable", ": ".join((info["reachable"], ", ".join(info["data_addresses"])))
    yield "digest", info["digest"]
    yield "peer id", info["peer_id"]
    yield "join address", info["join_address"]
    yield "pinned address", info["pinned_address"]
    yield "directory", info["state_directory"]


def _work(info: Info) -> Iterator[Row]:
    data, loss = Amount(**info["data"]), info["loss"]
    of_rounds = "" if info["rounds"] is None else f" of {info['rounds']:,}"
    now = "" if loss is None else f", loss {loss:.4f} {loss_unit(data)}".rstrip()
    to_go = remaining(info["rounds"], info["round"], info["round_s"])
    held_back = validation_text(info["validation"])
    yield "round", ", ".join(filter(None, (f"{info['round']:,}{of_rounds}{now}", held_back, to_go)))
    if by_text := validation_by_text(info["validation"]):
        yield "validation", by_text
    if sample := info["sample"]:
        yield "sample", f"round {sample['round']:,}: {sample['text']}"
    if use := info["last_round"]:
        took = f"{use['seconds']:.1f} s, {use['utilisation']:.0%} of it in passes"
        sent, received = (format_bytes(use[f"{kind}_bytes"]) for kind in ("sent", "received"))
        yield "last round", f"{took}, {sent} sent, {received} received"
    counted, batch = info["sequences"], info["global_batch"]
    yield "next round", f"{counted:,} of {batch:,} sequences counted by this peer"
    seen = (f"{name} {times:,.2f}".lstrip() for name, times in info["epochs"].items())
    yield "data", f"{data}; epochs: {', '.join(seen)}"
    for name, account in info["accounts"].items():
        yield f"text {name}".rstrip(), "; ".join(Account(**account).lines())
    if text := info["text"]:
        here, total = (format_bytes(text[f"{which}_bytes"]) for which in ("kept", "total"))
        yield "text", f"{here} of {total} fetched"
    joined, given = info["rounds_joined"], info["sequences_committed"]
    rounds = f"{joined:,} round{'' if joined == 1 else 's'}"
    yield "contributed", f"{given:,} sequences to {rounds} since this start"
    # In runs without text each sample is one sequence, and there are no tokens to count.
    tokens = f"{info['tokens_per_s']:,.0f} tokens/s, " if trained_on(data) == "tokens" else ""
    yield "speed", f"{tokens}{info['sequences_per_s']:,.1f} sequences/s"
    void = [f"{count:,} {cause}" for cause, count in info["passes_voided"].items() if count]
    if void:
        yield "void passes", ", ".join(void)


def _checkpoint(kept: Info) -> str:
    """Return the round of a checkpoint, with its validation loss if that is known."""
    loss = kept["validation_loss"]
    return f"{kept['round']:,}" + ("" if loss is None else f" ({loss:.4f})")


def _device(info: Info) -> str:
    """Describe the devices, and how they spent the time of the last pass."""
    figures, devices = info["last_pass"], info["devices"]
    parts = [
        ", ".join(name + (f" (excluded: {why})" if why else "") for name, why in devices.items())
    ]
    if figures:
        waits = [f"{reason} {share:.0%}" for reason, share in figures["waiting"].items() if share]
        parts += [
            f"computes {figures['computing']:.0%} of a pass of {figures['pass_seconds']:.3f} s",
            *([f"waits for {', '.join(waits)}"] if waits else []),
        ]
    return "; ".join(parts)


def _others(peers: Sequence[str], links: Mapping[str, Info], names: Mapping[str, str]) -> str:
    """Describe the other peers: their number, and names and round-trip times of the first ones."""
    if not peers:
        return "none seen"
    named = [
        f"{names.get(peer, '')} {short_id(peer)}".lstrip()
        + (f" ({links[peer]['round_trip_ms']:g} ms)" if peer in links else "")
        for peer in peers[:MOST_PEERS]
    ]
    more = len(peers) - len(named)
    return f"{len(peers):,}: {', '.join(named)}{f' and {more:,} more' if more else ''}"
