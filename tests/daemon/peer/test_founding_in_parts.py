"""A run whose optimizer's state is in parts begins with one peer, which has all of it."""

from pathlib import Path

import pytest

from atom.base.errors import ShortageError
from atom.daemon.fitting import building
from tests.daemon.model.kept_runs import folder_in
from tests.daemon.tiny_run import GPT3

IN_PARTS = '\n[update]\noptimizer_state = "parts"\n'


def test_a_founder_needs_room_for_all_and_a_joiner_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with folder_in(tmp_path) as folder:
        member = folder.found(GPT3, more=IN_PARTS)
        held = member.replica.parts.held
        assert held.room == held.parts.count
        monkeypatch.setattr(building, "room_for", lambda *given: 0)
        joined = folder.enter(member)
        assert joined.replica.parts.held.room == 0
        assert joined.initialise()
        with pytest.raises(ShortageError, match="the founder is alone at first") as refused:
            folder.found(GPT3, name="c", more=IN_PARTS)
        assert "larger machine" in refused.value.hint
