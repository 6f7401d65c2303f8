"""A run as a picture: what is read of a log, and that every form of picture is one."""

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atom.cli.app import main
from atom.cli.look.plot import PlottedRound, draw_run, rounds_of_ledger, rounds_of_log
from atom.cli.shell.exit_codes import ExitCode
from atom.swarm.chain.commit import Head
from atom.swarm.chain.ledger import Ledger, Round
from atom.swarm.records.codec import encode_manifest
from atom.swarm.records.manifest import DataAmount
from tests.cli.swarm_sights import Village


def told(number: int, **changes: Any) -> dict[str, Any]:
    event = {
        "time": 1.0,
        "event": "round",
        "round": number,
        "loss": 5.0 / number,
        "tokens_per_s": 100.0,
        "members": ["peer-of-ann", "peer-of-bob", "idle", "peer-of-ann"],
        "contributed": [5, 2, 0, 1],
        "branch": False,
        "reduce_seconds": 0.25,
    }
    return event | changes


def log(folder: Path, *lines: object) -> Path:
    path = folder / "events.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def test_a_log_with_a_catch_up_damage_and_other_events(tmp_path: Path) -> None:
    path = log(
        tmp_path,
        {"event": "started"},
        told(2, loss=9.0, tokens_per_s=0.0, reduce_seconds=0.0),
        told(1, validation_loss=4.5),
        '{"event": "round", "round": 3, "lo',
        "[" * 9000,
        {"event": "round"},
        told(4, loss=None),
        told(2, branch=True),
    )
    first, second = rounds_of_log(path)
    assert first == PlottedRound(1, 5.0, 2, False, 4.5, 100.0, 0.25)
    assert (second.number, second.loss, second.branch) == (2, 2.5, True)
    path = log(tmp_path, told(2, tokens_per_s=0.0, reduce_seconds=0.0))
    assert (rounds_of_log(path)[0].tokens_per_s, rounds_of_log(path)[0].reduce_s) == (None, None)


def test_the_log_before_is_read_as_well(tmp_path: Path) -> None:
    log(tmp_path, told(1), told(2, loss=9.0)).rename(tmp_path / "events.1.jsonl")
    rounds = rounds_of_log(log(tmp_path, told(2), told(3)))
    assert [(each.number, each.loss) for each in rounds] == [(1, 5.0), (2, 2.5), (3, 5.0 / 3)]


def test_a_chain_says_nothing_of_speeds() -> None:
    ledger = Ledger(Head(b"h" * 32, 1, 8, 0, (), ()), (Round(1, 2.5, 8, 3, 0, 2),))
    assert rounds_of_ledger(ledger) == [PlottedRound(1, 2.5, 3, True)]


@pytest.mark.parametrize("number", [1, 123_456])
def test_one_round_is_seen_and_its_number_is_whole(number: int, tmp_path: Path) -> None:
    """matplotlib would write 0.45 and 1.05 below it, or 0 and +1.23456e5."""
    file = tmp_path / "one.svg"
    draw_run(file, [PlottedRound(number, 2.5, 3, False)], "one", None)
    text = file.read_text(encoding="utf-8")
    below = text.partition('id="matplotlib.axis_3"')[2].partition('id="matplotlib.axis_4"')[0]
    ticks = re.findall(r"<!-- ([\d.,+e-]+) -->", below)
    assert ticks == [f"{number:,}"]
    assert text.count("<g clip-path=") == 2, "a dot in each panel"


def test_a_drawing_has_what_is_known(tmp_path: Path) -> None:
    rounds = [
        PlottedRound(n, 5.0 / n, 4, n == 2, 3.0 if n == 2 else None, 10.0, 0.5) for n in (1, 2, 3)
    ]
    draw_run(tmp_path / "whole.svg", rounds, "a $run", (1880, 235, 0))
    draw_run(tmp_path / "bare.svg", [PlottedRound(1, 2.5, 1, False)], "bare", None)
    panels = []
    for name in ("whole", "bare"):
        root = ElementTree.parse(tmp_path / f"{name}.svg").getroot()
        groups = [each.get("id", "") for each in root.iter("{http://www.w3.org/2000/svg}g")]
        panels.append(sum(group.startswith("axes_") for group in groups))
    assert panels == [4, 2]


def test_the_command_writes_a_png_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(tmp_path, told(1), told(2))
    picture = tmp_path / "run.png"
    assert main(["plot", str(picture), "--state", str(tmp_path)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"{tmp_path.name}, rounds 1 to 2" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"events.jsonl", "run.png"}


def test_it_bears_the_name_of_the_run_and_not_that_of_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(tmp_path, told(1))
    sights = Village(peers=1)
    (tmp_path / "manifest.bin").write_bytes(encode_manifest(sights.manifest(), sights.owner))
    assert main(["plot", str(tmp_path / "run.svg"), "--state", str(tmp_path)]) == 0
    assert "tiny, round 1\n" in capsys.readouterr().out


@pytest.mark.parametrize("tokens", [1880, 0])
def test_loss_and_speed_have_the_unit_of_what_there_is(tokens: int, tmp_path: Path) -> None:
    log(tmp_path, told(1))
    sights = Village(peers=1)
    manifest = replace(sights.manifest(), data_amount=DataAmount(tokens, 20, 0))
    (tmp_path / "manifest.bin").write_bytes(encode_manifest(manifest, sights.owner))
    assert main(["plot", str(tmp_path / "run.svg"), "--state", str(tmp_path)]) == 0
    drawn = (tmp_path / "run.svg").read_text(encoding="utf-8")
    assert ("nats per token" in drawn) == bool(tokens)
    assert ("tokens/s" in drawn, "samples/s" in drawn) == (bool(tokens), not tokens)


@pytest.mark.parametrize(
    ("file", "code", "said"),
    [
        ("run.gif", ExitCode.USAGE, ".png"),
        ("absent/run.png", ExitCode.STORAGE, "no folder"),
        ("run.png", ExitCode.STORAGE, "events.jsonl"),
    ],
)
def test_what_cannot_be_drawn(
    file: str, code: ExitCode, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(tmp_path / file), "--state", str(tmp_path)]) == code
    assert said in capsys.readouterr().err


def test_a_log_without_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(tmp_path, {"event": "started"})
    assert main(["plot", str(tmp_path / "run.png"), "--state", str(tmp_path)]) == ExitCode.STORAGE
    assert "no committed round yet" in capsys.readouterr().err
