"""A peer file asks for compiled sub-models; what becomes of it is told."""

from pathlib import Path

import pytest
import torch
from torch._dynamo.exc import InternalTorchDynamoError

from atom.config.load import load_run_file
from atom.daemon.console import Silence
from atom.daemon.peer.box import StartOptions, open_box
from atom.daemon.peer.founding import found_run
from tests.daemon.tiny_run import TINY_PEER, TINY_RUN, TINY_TEXT
from tests.event_file import read_events

RUN = TINY_RUN.replace('"tiny"', '"compiling"')


class Notes(Silence):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def one_pass(root: Path, compile_line: str) -> tuple[float, list[str], list[dict[str, object]]]:
    """Mean loss of a first pass, what the console was told, and the events."""
    (root / "text.txt").write_text(TINY_TEXT)
    (root / "run.toml").write_text(RUN)
    (root / "peer.toml").write_text(TINY_PEER.format(device=compile_line))
    notes = Notes()
    box = open_box("compiling", root / "peer.toml", root / "state", notes)
    try:
        run_file = root / "run.toml"
        member = found_run(StartOptions(run_file), box, load_run_file(run_file))
        member.initialise()
        loss = member.replica.run_pass([member.samples.batch(range(4))]).loss_sum / 4
        return loss, notes.lines, list(read_events(box.state.events))
    finally:
        box.state.unlock()


def test_what_cannot_be_compiled_is_told_and_run_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise InternalTorchDynamoError("no compiler here\nsee the manual")

    monkeypatch.setattr(torch, "compile", fails)
    (tmp_path / "plain").mkdir()
    (tmp_path / "compiled").mkdir()
    plain = one_pass(tmp_path / "plain", "")
    compiled = one_pass(tmp_path / "compiled", "compile = true")
    assert compiled[0] == plain[0]
    assert not any("compile" in line for line in plain[1])
    assert not plain[2]
    assert any("the first pass takes minutes" in line for line in compiled[1])
    for kind in ("Embedding", "Block", "Head"):
        why = "no compiler here see the manual"
        assert f"{kind} runs uncompiled: {why}" in compiled[1]
        (event,) = (each for each in compiled[2] if each["sub_model"] == kind)
        assert (event["event"], event["reason"]) == ("uncompiled", why)
