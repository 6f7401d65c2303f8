"""A peer starts even if it cannot write the generated source for people."""

from pathlib import Path

from tests.daemon.model.kept_runs import folder_in, round_zero
from tests.daemon.tiny_run import GPT3


def test_a_peer_starts_though_its_source_cannot_be_left(tmp_path: Path) -> None:
    with folder_in(tmp_path) as folder:
        program = folder.root / "a" / "program"
        program.parent.mkdir()
        program.write_text("in the way")
        assert round_zero(folder.found(GPT3)).initialise()
        assert program.read_text() == "in the way"
