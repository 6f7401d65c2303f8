"""What a machine gives to a swarm and what that costs, as a joiner and the doctor read it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom.plan import devices
from atom.plan.devices import card_figures, others_share
from atom.plan.offer import Offer
from atom.swarm.records.lease import PeerState, RoundUse
from tests.cli.swarm_sights import sight
from tests.swarm.swarm_samples import a_lease


def offer(
    *peers: Any,
    alone: float = 1000.0,
    doubtful: bool = False,
    source: str = "measured",
    **changes: Any,
) -> Offer:
    plan: Any = SimpleNamespace(
        gain=SimpleNamespace(alone=alone),
        profile=SimpleNamespace(doubtful=doubtful, source=source),
        prediction=SimpleNamespace(round_s=20.0),
        footprint=SimpleNamespace(wire_bytes=1e9),
        device="cpu",
    )
    view = replace(sight().view, peers=peers, me="me", **changes)
    return Offer(plan, view, 0)


def working(peer: str, speed: float, used: float = 0.5, **changes: Any) -> Any:
    return a_lease(peer, tokens_per_s=speed, last_round=RoundUse(9.0, used, 0, 0), **changes)


@pytest.mark.parametrize(
    ("peers", "alone", "said"),
    [
        ((), 1000.0, "about 1,000 tokens/s here: useful"),
        ((working("me", 9.0),), 1000.0, "about 1,000 tokens/s here: useful"),
        ((working("a", 250.0),), 1000.0,
         "about 500 tokens/s here, 2 times another peer (250): useful"),
        ((working("a", 100.0, 0.2), working("b", 400.0, 0.8), working("c", 900.0, 0.4)), 1000.0,
         "about 400 tokens/s here, 1 times the median of 3 other peers (400): useful"),
        ((working("a", 900.0), working("b", 9.0, state=PeerState.LEFT),
          working("c", 9.0, state=PeerState.PAUSED), a_lease("new", tokens_per_s=9.0)), 100.0,
         "about 50 tokens/s here, 0.056 times another peer (900): hardly useful: try a smaller run"),  # noqa: E501
    ],
    ids=["alone", "only its own old lease", "one", "the median", "only those at work"],
)  # fmt: skip
def test_the_use_is_the_speed_beside_the_median_peer(
    peers: tuple[Any, ...], alone: float, said: str
) -> None:
    assert offer(*peers, alone=alone).speed == said


def test_a_guess_is_called_a_guess() -> None:
    assert "only a guess" in offer(source="assumed").speed


def test_a_doubtful_speed_gets_no_verdict() -> None:
    said = offer(working("a", 900.0), alone=100.0, doubtful=True).speed
    assert "doubtful: other programs are at work" in said
    assert "useful" not in said


def test_the_line_carries_what_live_rounds_need() -> None:
    assert offer(round_s=36.0).line_bytes_per_h == 100e9, "of the swarm's rounds"
    assert offer(round_s=None).line_bytes_per_h == 180e9, "of predicted rounds"


CARD, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.mark.parametrize(
    ("said", "figures"),
    [
        (b"170.00, 35\n", (170.0, 0.35)),
        (b"[N/A], 0\n", None),
        (b"", None),
        (b"170.00, 35\n170.00, 35\n", None),
        (FileNotFoundError("nvidia-smi"), None),
    ],
    ids=["a card", "no limit", "nothing", "two lines", "no driver"],
)
def test_a_card_says_its_limit_or_nothing(
    said: bytes | OSError, figures: tuple[float, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: object, **options: object) -> Any:
        if isinstance(said, OSError):
            raise said
        return SimpleNamespace(stdout=said)

    named = SimpleNamespace(uuid="1234")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: named)
    monkeypatch.setattr(devices.subprocess, "run", run)
    assert card_figures(CARD) == figures
    assert others_share(CARD) == (figures or (0.0, 0.0))[1]
    assert card_figures(CPU) is None


def test_only_cores_of_this_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {1, 3})
    used = [100.0, 10.0, 100.0, 50.0]
    monkeypatch.setattr(devices.psutil, "cpu_percent", lambda wait_s, percpu: used)
    assert others_share(CPU) == pytest.approx(0.3)
