"""What peers gave: as a table and as JSON, and kept for the next time."""

import asyncio
import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from atom.base.errors import AddressError, TrustError
from atom.cli.look.bookkeeper import (
    SAVE_EVERY_ROUNDS,
    Bookkeeper,
    LedgerFile,
    bookkeeping,
    identity_in,
    listed_peer,
)
from atom.cli.look.certified_ledger import _up_to_date
from atom.cli.look.contributions import (
    contributions,
    fitting,
    headline,
    show_contributions,
    table,
)
from atom.cli.look.ledger_reader import LedgerReader
from atom.cli.shell.terminal import THEME
from atom.config.load import normalised_run_text, parse_run_text
from atom.swarm.chain.commit import Head, Voter
from atom.swarm.chain.ledger import Ledger, Share
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease
from atom.swarm.records.manifest import Manifest, first_head
from tests.cli.swarm_sights import RUN, Village, lease

HEAD = Head(b"\x9f" * 32, 24, 1536, 0, (Voter("a", b"i" * 16),), ("a",))
LEDGER = Ledger(
    HEAD, shares={"peer-of-bob": Share(656, 17, 8, 24), "peer-of-ann": Share(880, 24, 1, 24)}
)


def drawn(renderable: object, width: int = 80) -> str:
    file = io.StringIO()
    Console(file=file, width=width, theme=THEME).print(renderable)
    return file.getvalue()


@pytest.mark.parametrize(
    ("width", "last"), [(80, "last"), (50, "first"), (40, "rounds"), (32, "share"), (20, "share")]
)
def test_a_narrow_terminal_gets_fewer_columns_and_whole_ones(width: int, last: str) -> None:
    head, _, first, _ = drawn(fitting(LEDGER, width), max(width, 32)).splitlines()
    assert head.split()[-1] == last
    assert "…" not in first.replace("…of-ann", "")


def test_the_table_begins_with_who_gave_most() -> None:
    rows = [line.split() for line in drawn(table(LEDGER, whole_ids=False)).splitlines()[2:]]
    assert rows == [
        ["…of-ann", "880", "57.3%", "24", "1", "24"],
        ["…of-bob", "656", "42.7%", "17", "8", "24"],
    ]
    assert "peer-of-ann" in drawn(table(LEDGER, whole_ids=True))
    assert "1,536 mini-batches in 24 rounds" in drawn(headline(Village().manifest(), LEDGER))


def test_a_pipe_gets_whole_ids_whatever_the_terminal_behind_it_has_room_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def read(address: str, state: object) -> tuple[Manifest, Ledger]:
        return Village().manifest(), LEDGER

    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr("atom.cli.look.contributions.read_ledger", read)
    show_contributions("the address", None, as_json=False)
    *_, ann, bob = capsys.readouterr().out.splitlines()
    assert ann.split() == ["peer-of-ann", "880", "57.3%", "24", "1", "24"]
    assert bob.split() == ["peer-of-bob", "656", "42.7%", "17", "8", "24"]


def test_the_json_has_the_documented_keys() -> None:
    told = contributions(Village().manifest(), LEDGER)
    assert (told["round"], told["mini_batches"], told["head"]) == (24, 1536, "9f" * 32)
    assert told["peers"][0] == {
        "peer_id": "peer-of-ann",
        "mini_batches": 880,
        "share": 0.572917,
        "rounds": 24,
        "first_round": 1,
        "last_round": 24,
    }
    assert contributions(Village().manifest(), Ledger(HEAD))["peers"] == []


class Grown(LedgerReader):
    """Finds so many rounds each time."""

    def __init__(self, genesis: Head, step: int) -> None:
        super().__init__(Ledger(genesis), genesis, lambda lease, since: b"")
        self._step = step

    def read(self, leases: object) -> Ledger:
        number = self.ledger.head.round + self._step
        self.ledger = Ledger(Head(bytes(32), number, number, 0, (), ()))
        return self.ledger


class NoFetcher:
    def know(self, leases: dict[str, Lease]) -> None: ...
    def close(self) -> None: ...


def test_what_was_checked_is_kept_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    genesis = first_head(Village().manifest())
    file = LedgerFile(tmp_path, genesis)
    keeper = Bookkeeper(Grown(genesis, SAVE_EVERY_ROUNDS - 1), NoFetcher(), file, False)  # type: ignore[arg-type]
    kept = []
    for _ in range(2):
        asyncio.run(keeper.read({}))
        kept.append(file.load().head.round)
    keeper._reader._step = 1  # type: ignore[attr-defined]
    asyncio.run(keeper.read({}))
    keeper.close()
    assert kept == [0, 2 * SAVE_EVERY_ROUNDS - 2]
    assert file.load().head.round == 2 * SAVE_EVERY_ROUNDS - 1


def test_nobody_serves_the_chain() -> None:
    manifest = Village().manifest()

    async def read() -> str:
        async with bookkeeping(manifest, None) as keeper:
            await keeper.read({"p": lease("p", addresses=())})
            return keeper.problem

    assert "cannot be reached" in asyncio.run(read())


def test_a_state_directory_without_a_peer(tmp_path: Path) -> None:
    assert identity_in(None) is None
    with pytest.raises(AddressError, match="no peer in"):
        identity_in(tmp_path)


def test_on_a_box_with_a_listed_peer_its_name_is_given_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    open_run = Village().manifest()
    key = tmp_path / "atom" / open_run.run / "identity.key"
    assert listed_peer(open_run) is None
    me, other = Identity.load_or_create(key), Identity.create()
    assert listed_peer(open_run) is None
    for member, asks in ((me, me.peer_id), (other, None)):
        run = parse_run_text(f'{RUN}\n[swarm]\nmembers = ["{member.peer_id}"]')
        listed = replace(open_run, run_file=normalised_run_text(run))
        found = listed_peer(listed)
        assert (found and found.peer_id) == asks


def test_a_chain_that_cannot_be_read_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atom.cli.look.certified_ledger.RETRY_S", 0.0)

    async def read(answers: list[str]) -> tuple[int, int]:
        village = Village()
        await village.publish()
        onlooker = await village.onlooker()
        keeper = Asked(answers)
        ledger = await _up_to_date(keeper, onlooker, await onlooker.look())  # type: ignore[arg-type]
        return ledger.head.round, len(answers)

    assert asyncio.run(read(["refused with not-found", "", "never read"])) == (24, 1)
    with pytest.raises(AddressError, match="not-found") as told:
        asyncio.run(read(["refused with not-found"] * 9))
    assert "try again" in told.value.hint
    with pytest.raises(TrustError, match="listed") as told:
        asyncio.run(read(["it answers only listed peers", "never read"]))
    assert "--state" in told.value.hint


class Asked:
    """A bookkeeper with these problems, one after the other."""

    def __init__(self, answers: list[str]) -> None:
        self._answers = answers
        self.problem = ""

    @property
    def shut_out(self) -> bool:
        return "listed" in self.problem

    async def read(self, leases: object, tell: object) -> Ledger:
        self.problem = self._answers.pop(0)
        return LEDGER


def test_who_is_shut_out_of_the_chain_hears_what_helps() -> None:
    reader: Any = SimpleNamespace(ledger=None, problem="listed peers only", shut_out=True)
    nothing: Any = None
    keeper = Bookkeeper(reader, nothing, nothing, True)
    assert keeper.note == "listed peers only; --state DIR asks as one of them"
    assert keeper.problem == "listed peers only"
    reader.shut_out = False
    assert keeper.note == keeper.problem


def test_nobody_is_shut_out_of_an_open_run_whatever_a_stranger_answers() -> None:
    reader: Any = SimpleNamespace(ledger=None, problem="listed peers only", shut_out=True)
    nothing: Any = None
    assert not Bookkeeper(reader, nothing, nothing, False).shut_out
