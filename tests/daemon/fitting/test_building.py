"""What is only for people to read is no reason to end."""

from pathlib import Path

import pytest

from atom.daemon.fitting import building
from atom.graph.chain import Machine
from atom.graph.profile.seconds import typical_graph
from tests.daemon.model.kept_runs import folder_in
from tests.daemon.tiny_run import GPT3


def test_a_peer_starts_though_its_source_cannot_be_left(tmp_path: Path) -> None:
    with folder_in(tmp_path) as folder:
        program = folder.root / "a" / "program"
        program.parent.mkdir()
        program.write_text("in the way")
        assert folder.found(GPT3).initialise()
        assert program.read_text() == "in the way"


def test_only_what_was_measured_is_told_of_the_boxs_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, guessed = tmp_path / "measured", tmp_path / "guessed"
    measured.mkdir()
    guessed.mkdir()
    with folder_in(measured) as folder:
        seconds = folder.found(GPT3).built.micro_batch_s
        assert seconds is not None
        assert seconds > 0
    monkeypatch.setattr(
        building, "profile_or_guess", lambda *given: typical_graph(*given[:2], Machine(1e10, 1e10))
    )
    with folder_in(guessed) as folder:
        assert folder.found(GPT3).built.micro_batch_s is None
