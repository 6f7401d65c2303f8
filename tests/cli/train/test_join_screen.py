"""Screen and question before a machine joins."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from atom.base.errors import DeviceError
from atom.cli.shell.console import TerminalConsole
from atom.cli.shell.terminal import print_plainly
from atom.cli.train import join_screen
from atom.config.load import parse_peer_text
from atom.config.peer_file import PeerFile
from atom.plan.offer import Offer

OFFER: Any = SimpleNamespace(
    speed="about 500 tokens/s here, 2 times another peer (250): useful",
    line_bytes_per_h=2e9,
    fetched_bytes=30e9,
    average_bytes=2e9,
    watts=150.0,
    plan=SimpleNamespace(
        device="cuda:0",
        run=SimpleNamespace(snapshot=SimpleNamespace(every_rounds=25)),
        footprint=SimpleNamespace(
            host=SimpleNamespace(total_bytes=64e9, have_bytes=128e9),
            disk=SimpleNamespace(total_bytes=90e9, have_bytes=80e9),
            device=SimpleNamespace(total_bytes=10e9),
        ),
    ),
)
Ask = Callable[..., str]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return a function that asks, with an answer on a terminal, and returns what was shown."""
    monkeypatch.setenv("COLUMNS", "200")
    box: Any = SimpleNamespace(
        peer=PeerFile(),
        state=SimpleNamespace(room_bytes=0),
        identity=SimpleNamespace(peer_id="me"),
    )

    def ask(answer: bool | None = None, agreed: bool = False, offer: Any = OFFER) -> str:
        def of(*arguments: object) -> Offer:
            if isinstance(offer, Exception):
                raise offer
            return offer  # type: ignore[no-any-return]

        def confirm(*arguments: object, **options: object) -> bool:
            assert answer is not None, "nobody could answer"
            return answer

        monkeypatch.setattr(Offer, "of", of)
        monkeypatch.setattr(typer, "confirm", confirm)
        for stream in ("stdin", "stderr"):
            monkeypatch.setattr(f"sys.{stream}.isatty", lambda: answer is not None, raising=False)
        recipe: Any = SimpleNamespace(run=None, graph=None)
        manifest: Any = SimpleNamespace(text=None)
        join_screen.ask(TerminalConsole(asks=not agreed), recipe, manifest, {}, box)
        return capsys.readouterr().err

    return ask


def test_a_terminal_sees_use_price_and_commands_and_is_asked(asked: Ask) -> None:
    shown = asked(answer=True)
    for words in ("2 times another peer", "2.0 GB per hour up", "1.5 TB a month", "once 30.0 GB",
                  "64.0 GB of 128.0 GB", "10.0 GB on cuda:0", "90.0 GB of ", "short by 10.0 GB",
                  "fits, 64.0 GB to spare", "at most 25 of 2.0 GB", "150 W",
                  "110 kWh a month", "no files", "--upload", "--hours", "atom pause"):  # fmt: skip
        assert words in shown, words
    with pytest.raises(typer.Exit) as declined:
        asked(answer=False)
    assert declined.value.exit_code == 0


@pytest.mark.parametrize(("answer", "agreed"), [(None, False), (None, True), (False, True)])
def test_a_service_and_yes_are_shown_the_price_and_not_asked(
    asked: Ask, answer: bool | None, agreed: bool
) -> None:
    assert "2.0 GB per hour up" in asked(answer, agreed)


def test_of_a_model_that_does_not_fit_nothing_is_asked(asked: Ask) -> None:
    assert asked(answer=False, offer=DeviceError("it needs more")) == ""


def test_limits_of_the_peer_file_are_on_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[network]\nupload = "10 Mbit/s"\ndownload = "1.5 Gbit/s"\n'
    monkeypatch.setenv("COLUMNS", "200")
    print_plainly(join_screen.screen(OFFER, parse_peer_text(text, tmp_path)))
    said = capsys.readouterr().out
    assert "at most 10 Mbit/s up; at most 1,500 Mbit/s down" in said
