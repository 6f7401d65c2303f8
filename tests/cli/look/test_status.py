import asyncio
import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.text import Text

from atom.base.errors import AddressError
from atom.cli.look.onlooker import onlooking
from atom.cli.look.status import show_status, swarm
from atom.cli.shell.terminal import THEME
from atom.swarm.addresses import JoinAddress
from atom.swarm.dht.directory import Directory
from atom.swarm.identity import short_id
from atom.swarm.records.lease import PeerState, RoundUse, Validation
from tests.cli.swarm_sights import DIGEST, Sight, Village, sight
from tests.swarm.directory_memory import MemoryDht


def drawn(seen: Sight, width: int = 100, **options: object) -> str:
    file = io.StringIO()
    page = swarm(seen.view, seen.rounds, width)
    Console(file=file, width=width, theme=THEME, **options).print(page)  # type: ignore[arg-type]
    return file.getvalue()


def test_the_table_shows_the_swarm_and_which_peer_is_ours() -> None:
    shown = sight(validation=Validation(5, 2.75), last_round=RoundUse(300.0, 0.5, 0, 0))
    mine = shown.view.peers[1].peer_id
    text = drawn(replace(shown, view=replace(shown.view, me=mine)), 180)
    for expected in (
        "tiny", "round 7 of 30", "2 peers", "200 tokens/s", "loss 2.5", "21 of 64", "12.5",
        DIGEST.hex()[:8], *(short_id(peer.peer_id) for peer in shown.view.peers),
        "validation 2.7500 (3.967 bits per byte) after round 5", "115 min to go",
        f"{short_id(mine)} (you)",
    ):  # fmt: skip
        assert expected in text
    assert text.count("(you)") == 1
    assert "0 peers" in drawn(sight(state=PeerState.LEFT))


def test_plain_text_where_nobody_asked_for_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in drawn(sight())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in drawn(sight(), force_terminal=True)


def test_on_a_terminal_only_what_is_copied_goes_beyond_its_edge(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, amount = sight(), (9_599_052, 149_985, 1_066_561)
    seen = replace(seen, view=replace(seen.view, owner="o" * 60, data_amount=amount))

    async def look(address: str, state: Path | None) -> SimpleNamespace:
        return SimpleNamespace(latest=seen.view, rounds=seen.rounds)

    monkeypatch.setattr("atom.cli.look.status.looked_at", look)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    show_status("the address", None, as_json=False)
    lines = [str(Text.from_ansi(line)) for line in capsys.readouterr().out.splitlines()]
    assert [line[:6] for line in lines if len(line) > 40] == ["owner "]
    words = " ".join(lines).split()
    assert words[-4:] == ["1,066,561", "tokens", "held", "back"], "none is broken"


def test_a_peer_that_computes_for_nothing_does_not_look_idle() -> None:
    diverged = sight(void_passes=1234, void_cause="loss-not-finite")
    assert "void passes: 1,234, loss-not-finite, accumulating" in drawn(diverged, width=180)
    narrow = drawn(diverged, width=40)
    for peer in diverged.view.peers:
        assert short_id(peer.peer_id) in narrow, "only the cause is cut"
    assert "void passes: 1,2" in narrow
    assert max(map(len, narrow.splitlines())) <= 40
    assert "void" not in drawn(sight(void_passes=1)), "float16 has one now and then"


def test_a_silent_dht_is_an_address_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atom.cli.look.onlooker.RETRY_S", 0.0)

    async def look() -> None:
        village = Village()
        await village.publish()
        onlooker = await village.onlooker()
        village.dht.is_reachable = False
        await onlooker.first_view()

    with pytest.raises(AddressError, match="the DHT cannot be asked"):
        asyncio.run(look())


def test_a_dht_that_falls_silent_before_the_manifest_is_one_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dht = MemoryDht()
    dht.is_reachable = False

    async def opened(*_: object) -> Directory:
        return dht.directory("tiny", "nobody")

    async def look() -> None:
        async with onlooking("the address"):
            raise AssertionError("there is nothing to look at")

    monkeypatch.setattr("atom.cli.look.onlooker.open_directory", opened)
    where = JoinAddress((), "tiny", "nobody")
    monkeypatch.setattr("atom.cli.look.onlooker.parse_join_address", lambda address: where)
    with pytest.raises(AddressError, match="the DHT cannot be asked"):
        asyncio.run(look())
