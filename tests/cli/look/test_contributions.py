"""Contributions as a table and as JSON; the peers that are asked, and the identity that asks."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.text import Text

from atom.base.errors import AddressError, TrustError
from atom.cli.look.onlooker import Onlooker, listed_peer, read_chain
from atom.cli.look.status import contributions, show_contributions
from atom.config.load import normalised_run_text, parse_run_text
from atom.swarm.chain.commit import Head, Voter
from atom.swarm.chain.commit_chain import Ledger, Share
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import Manifest
from tests.cli.swarm_sights import RUN, Village

HEAD = Head(b"\x9f" * 32, 24, 1536, 0, (Voter("a", b"i" * 16),), ("a",))
LEDGER = Ledger(
    HEAD, shares={"peer-of-bob": Share(656, 17, 8, 24), "peer-of-ann": Share(880, 24, 1, 24)}
)


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    async def look(address: str, state: object, chain: bool) -> SimpleNamespace:
        return SimpleNamespace(manifest=Village().manifest(), ledger=LEDGER)

    monkeypatch.setattr("atom.cli.look.status.looked_at", look)
    show_contributions("the address", None, as_json=False)
    return [str(Text.from_ansi(line)) for line in capsys.readouterr().out.splitlines()]


def test_a_pipe_gets_whole_ids_whatever_the_terminal_behind_it_has_room_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    headline, *_, ann, bob = shown(monkeypatch, capsys)
    assert "1,536 sequences in 24 rounds, certified up to head 9f9f" in headline
    assert ann.split() == ["peer-of-ann", "880", "57.3%", "24", "1", "24"]
    assert bob.split() == ["peer-of-bob", "656", "42.7%", "17", "8", "24"]


def test_the_json_has_the_documented_keys() -> None:
    told = contributions(Village().manifest(), LEDGER)
    assert (told["round"], told["sequences"], told["head"]) == (24, 1536, "9f" * 32)
    assert told["peers"][0] == {
        "peer_id": "peer-of-ann",
        "sequences": 880,
        "share": 0.572917,
        "rounds": 24,
        "first_round": 1,
        "last_round": 24,
    }
    assert contributions(Village().manifest(), Ledger(HEAD))["peers"] == []


def manifest_for(member: Identity) -> Manifest:
    """Return the manifest of a run that lists this member."""
    run = parse_run_text(f'{RUN}\n[swarm]\nmembers = ["{member.peer_id}"]')
    return replace(Village().manifest(), run_file=normalised_run_text(run))


def test_on_a_box_with_a_listed_peer_its_name_is_given_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    open_run = Village().manifest()
    key = tmp_path / "atom" / open_run.run / "identity.key"
    assert listed_peer(open_run) is None
    me, other = Identity.load_or_create(key), Identity.create()
    assert listed_peer(open_run) is None
    found = listed_peer(manifest_for(me))
    assert found is not None
    assert found.peer_id == me.peer_id
    assert listed_peer(manifest_for(other)) is None


class Asked:
    """An onlooker that reads with these problems, one after the other."""

    ledger = LEDGER

    def __init__(self, answers: list[str]) -> None:
        self._answers = answers
        self.problem = ""

    @property
    def shut_out(self) -> bool:
        return "listed" in self.problem

    async def first_view(self) -> None:
        self.leases = {"p": None}

    async def read(self, tell: object) -> None:
        self.problem = self._answers.pop(0)


def test_a_chain_that_cannot_be_read_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atom.cli.look.onlooker.RETRY_S", 0.0)

    def read(answers: list[str]) -> int:
        asyncio.run(read_chain(Asked(answers)))  # type: ignore[arg-type]
        return len(answers)

    assert read(["refused with not-found", "", "never read"]) == 1
    with pytest.raises(AddressError, match="not-found") as told:
        read(["refused with not-found"] * 9)
    assert "try again" in told.value.hint
    with pytest.raises(TrustError, match="listed") as told:
        read(["it answers only listed peers", "never read"])
    assert "--state" in told.value.hint


@pytest.mark.parametrize("listed", [True, False])
def test_who_is_shut_out_of_the_chain_hears_what_helps(listed: bool) -> None:
    """An open run shuts out no peer, whatever a stranger answers."""
    nobody: Any = None
    onlooker = Onlooker(nobody, manifest_for(Identity.create()) if listed else Village().manifest())
    onlooker._reader.problem, onlooker._reader.shut_out = "listed peers only", True
    helps = "; --state DIR identifies as one of them" if listed else ""
    assert onlooker.note == f"listed peers only{helps}"
    assert onlooker.shut_out == listed
