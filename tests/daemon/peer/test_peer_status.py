"""What a peer says of itself."""

from types import SimpleNamespace
from typing import Any

import torch

from atom.base.events import EventFan
from atom.base.reasons import Reason
from atom.config.load import parse_run_text
from atom.daemon.peer.lifecycle import Facts
from atom.daemon.peer.status import EndedAttempts, Status
from atom.models.data.samples import Samples, own_samples
from atom.swarm.chain.commit import Voter, genesis
from atom.swarm.exchange.speeds import SpeedBook
from atom.swarm.records.lease import Reached
from atom.training.round.events import Phase, View
from atom.training.round_stats import RoundStats
from tests.daemon.tiny_run import run_text
from tests.event_list import EventList

ME = Voter("us", b"m" * 16)
RATE = 12.5


def status_of(run_file: str, samples: Samples) -> Status:
    """Of a peer that computes `RATE` samples a second, beside nobody."""
    room = SimpleNamespace(free_bytes=lambda: 0, paused={})
    worker = SimpleNamespace(
        own_sequences=lambda head: 3, rate=lambda: RATE, pass_seconds=0.5,
        gate=SimpleNamespace(why_not=""),
    )  # fmt: skip
    parts: dict[str, Any] = {
        "box": SimpleNamespace(peer=SimpleNamespace(network=SimpleNamespace(announce=()))),
        "member": SimpleNamespace(
            run=parse_run_text(run_file), samples=samples, manifest=SimpleNamespace(run="own")
        ),
        "context": SimpleNamespace(
            me=ME,
            worker=worker,
            replica=SimpleNamespace(watch=SimpleNamespace(figures=dict)),
            storage=SimpleNamespace(snapshots=list, room=room),
            transport=SimpleNamespace(listens=False),
        ),
        "executor": SimpleNamespace(
            stats=RoundStats(ME), exchange=SimpleNamespace(speeds=SpeedBook())
        ),
        "machine": SimpleNamespace(
            head=genesis(b"m" * 32, bytes(32), ME), phase=Phase.SYNCING, state_digest=bytes(32)
        ),
        "outreach": SimpleNamespace(reached=Reached.UNKNOWN),
    }
    return Status(**parts, attempts=EndedAttempts())


def test_rates_of_an_own_dataset_count_its_samples() -> None:
    """The run file then still has a number of tokens per sequence, which nobody set."""
    dataset = [{"x": torch.zeros(3)} for _ in range(8)]
    samples = own_samples(dataset, {"x": torch.zeros(1, 3)}, 0.0, 1)
    status = status_of(run_text("own", 'module = "own:make"', 'source = "module"'), samples)
    facts = Facts(Phase.SYNCING, 0.0)
    assert status.member.run.model.sequence_tokens > 1
    assert status.lease(facts, 1, gone=False).tokens_per_s == RATE
    told = status.info(facts, View())
    assert (told["tokens_per_s"], told["data"]["tokens"]) == (RATE, 0)


def test_the_last_four_attempts_in_vain_are_kept_beside_the_log() -> None:
    log, ended = EventList(), EndedAttempts()
    events = EventFan(log, ended)
    for number in range(1, 7):
        events.emit("attempt-ended", round=number, reason="ring-broken", stage="ring")
    events.emit("attempt-ended", round=7, reason="superseded", stage="ring")
    events.emit("round", round=7)
    assert ended.last == tuple((number, Reason.RING_BROKEN) for number in (3, 4, 5, 6))
    assert len(log.events) == 8
