"""What a peer says of itself."""

from types import SimpleNamespace
from typing import Any

import torch

from atom.config.load import parse_run_text
from atom.daemon.peer.lifecycle import Facts
from atom.daemon.peer.portrait import info_of, lease_of
from atom.models.data.samples import OwnSamples
from atom.swarm.chain.commit import Voter, genesis
from atom.swarm.exchange.speeds import SpeedBook
from atom.swarm.records.lease import Reached
from atom.training.round.events import Phase
from atom.training.round_stats import RoundStats
from tests.daemon.tiny_run import run_text

ME = Voter("us", b"m" * 16)
RATE = 12.5


def parts_of(run_file: str, samples: OwnSamples) -> Any:
    """Of a peer that computes `RATE` samples a second, beside nobody."""

    def none(*_: object) -> tuple[()]:
        return ()

    room = SimpleNamespace(free_bytes=lambda: 0, paused={})
    member = SimpleNamespace(
        run=parse_run_text(run_file),
        samples=samples,
        manifest=SimpleNamespace(run="own"),
        replica=SimpleNamespace(watch=SimpleNamespace(figures=dict)),
    )
    return SimpleNamespace(
        me=ME,
        member=member,
        worker=SimpleNamespace(
            own_sequences=lambda head: 3,
            rate=lambda: RATE,
            pass_seconds=0.5,
            gate=SimpleNamespace(why_not=""),
        ),
        executor=SimpleNamespace(
            stats=RoundStats(ME), exchange=SimpleNamespace(speeds=SpeedBook())
        ),
        outreach=SimpleNamespace(reached=Reached.UNKNOWN),
        data_addresses=none,
        ended_attempts=SimpleNamespace(last=()),
        settings=SimpleNamespace(doing=""),
        wishes=SimpleNamespace(figures=dict),
        turns=SimpleNamespace(figures=dict),
        storage=SimpleNamespace(snapshots=list, room=room),
    )


def test_rates_of_an_own_dataset_count_its_samples() -> None:
    """The run file then still has a number of tokens per sequence, which nobody set."""
    dataset = [{"x": torch.zeros(3)} for _ in range(8)]
    samples = OwnSamples(dataset, {"x": torch.zeros(1, 3)}, 0.0, 1)
    parts = parts_of(run_text("own", 'module = "own:make"', 'source = "module"'), samples)
    facts = Facts(Phase.SYNCING, 0.0)
    head = genesis(b"m" * 32, bytes(32), ME)
    machine: Any = SimpleNamespace(head=head, phase=Phase.SYNCING, state_digest=bytes(32))
    assert parts.member.run.model.sequence_tokens > 1
    assert lease_of(parts, machine, facts, 1, gone=False).tokens_per_s == RATE
    view: Any = SimpleNamespace(fresh=frozenset())
    told = info_of(parts, None, facts, view)
    assert (told["tokens_per_s"], told["data"]["tokens"]) == (RATE, 0)
