"""Whether the demo showed what it claims. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from atom.cli.demo.record import Event, mini_batches, rounds_of


@dataclass(frozen=True)
class PeerResult:
    """What one peer did."""

    name: str
    peer_id: str
    fate: str
    """ "finished", or what happened instead."""
    survived: bool
    rounds: int
    """Committed rounds it had a part in."""
    mini_batches: int
    """Sequences it contributed to them."""
    tokens_per_s: float
    """Contributed tokens over the time from its first to its last round."""
    last_round: int
    head: str
    digest: str


@dataclass(frozen=True)
class Check:
    """One claim, whether it held, and the figures it rests on."""

    claim: str
    passed: bool
    figures: str


def sum_up(
    name: str, peer_id: str, fate: str, events: Sequence[Event], founder: Sequence[Event],
    sequence_tokens: int,
) -> PeerResult:  # fmt: skip
    """One peer's line. Its share is read from the founder's rounds, its replica from its own."""
    told = [event for event in rounds_of(founder) if mini_batches(event, peer_id) is not None]
    count = sum(mini_batches(event, peer_id) or 0 for event in told)
    seconds = told[-1]["time"] - told[0]["time"] if len(told) > 1 else 0.0
    last = _last_state(events)
    return PeerResult(
        name=name,
        peer_id=peer_id,
        fate=fate,
        survived=fate == FINISHED,
        rounds=len(told),
        mini_batches=count,
        tokens_per_s=count * sequence_tokens / seconds if seconds else 0.0,
        last_round=int(last.get("round", 0)),
        head=str(last.get("head", "")),
        digest=str(last.get("digest", "")),
    )


FINISHED = "finished"


def judge(results: Sequence[PeerResult], losses: Sequence[float], rounds: int) -> list[Check]:
    """All claims of the demo; it succeeded if every one held."""
    survivors = [result for result in results if result.survived]
    return [_all_rounds(survivors, rounds), _loss_fell(losses), _identical(survivors)]


def _last_state(events: Sequence[Event]) -> Event:
    """Where a replica stands: at its last round, or where it was fetched to; {} if unknown."""
    telling = ("started", "round", "caught-up", "left")
    states = [event for event in events if event["event"] in telling and event.get("digest")]
    return states[-1] if states else {}


def _all_rounds(survivors: Sequence[PeerResult], rounds: int) -> Check:
    reached = [result.last_round for result in survivors]
    passed = len(reached) > 1 and all(number == rounds for number in reached)
    figures = f"{len(reached)} survivors, at round {_list(reached)} of {rounds}"
    return Check("every surviving peer reached the last round", passed, figures)


def _loss_fell(losses: Sequence[float]) -> Check:
    claim = "the loss fell below half of its first value"
    if not losses:
        return Check(claim, False, "no round was committed")
    first, last = losses[0], losses[-1]
    passed = math.isfinite(last) and last < first / 2
    return Check(claim, passed, f"{first:.4f} → {last:.4f}, half is {first / 2:.4f}")


def _identical(survivors: Sequence[PeerResult]) -> Check:
    states = {(result.last_round, result.head, result.digest) for result in survivors}
    passed = len(survivors) > 1 and len(states) == 1 and all(digest for _, _, digest in states)
    digests = _list(sorted({result.digest[:16] or "none" for result in survivors}))
    return Check("all surviving replicas are bit-identical", passed, f"digest {digests}")


def _list(values: Sequence[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values))) or "none"
