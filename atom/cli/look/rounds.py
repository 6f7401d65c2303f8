"""A run's rounds as a picture needs them: from a daemon's event log, or from a certified chain."""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from atom.base.errors import StorageError
from atom.base.events import older_log
from atom.swarm.chain.ledger import Ledger

MAX_LINE_BYTES = 4 << 20
"""A round of thousands of members; longer lines are not ours."""


@dataclass(frozen=True)
class PlottedRound:
    """What is known of one round; None: the source does not say."""

    number: int
    loss: float
    members: int
    branch: bool
    validation_loss: float | None = None
    tokens_per_s: float | None = None
    reduce_s: float | None = None


def rounds_of_log(path: Path) -> list[PlottedRound]:
    """Also of the log before it. In order; of a round that is told twice (after a catch-up), the
    later telling. Lines that do not read are left out: a disk that was full, or a crash, may have
    damaged some.

    Raises: StorageError if the log cannot be read, or tells of no round.
    """
    try:
        told = {each.number: each for each in _told(_lines(path))}
    except OSError as problem:
        raise StorageError(
            f"cannot read {path}: {problem.strerror}", "name a peer's directory with --state DIR"
        ) from problem
    if not told:
        raise StorageError(f"{path} tells of no round yet", "try again after the first round")
    return [told[number] for number in sorted(told)]


def rounds_of_ledger(ledger: Ledger) -> list[PlottedRound]:
    """What the chain says: no speeds, no times."""
    return [
        PlottedRound(each.number, each.loss, each.members, bool(each.branch))
        for each in ledger.rounds
    ]


def _lines(path: Path) -> Iterator[bytes]:
    """Raises: OSError."""
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb"))]  # first: it may become the older one now
        with suppress(FileNotFoundError):
            files.insert(0, stack.enter_context(older_log(path).open("rb")))
        for file in files:
            yield from iter(partial(file.readline, MAX_LINE_BYTES), b"")


def _told(lines: Iterable[bytes]) -> Iterator[PlottedRound]:
    for line in lines:
        try:
            event = json.loads(line)
            if event["event"] == "round":
                yield _of_event(event)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue


def _of_event(event: dict[str, Any]) -> PlottedRound:
    """Raises: KeyError, TypeError, ValueError."""
    validation = event.get("validation_loss")
    shares = zip(event["members"], event["contributed"], strict=True)
    return PlottedRound(
        number=int(event["round"]),
        loss=float(event["loss"]),
        members=len({member for member, sequences in shares if sequences}),
        branch=bool(event["branch"]),
        validation_loss=None if validation is None else float(validation),
        tokens_per_s=float(event["tokens_per_s"]) or None,
        reduce_s=float(event["reduce_seconds"]) or None,
    )
