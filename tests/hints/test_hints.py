"""Hints are true: after each has been followed, the error is gone."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom.base.errors import AtomError
from tests.hints.collected import hints
from tests.hints.edits import RUN_HINTS, Edits, parse
from tests.hints.not_followed import NOT_FOLLOWED
from tests.hints.scenes import SCENES


def says(hint: str, said: str) -> bool:
    parts = map(re.escape, hint.split("{…}"))
    return re.fullmatch(".*".join(parts), said, re.DOTALL) is not None


def keys_of(edit: Edits) -> Iterator[str]:
    """Yield each key that an edit changes, and the sections of those keys."""
    for key, value in edit.items():
        yield key
        if isinstance(value, dict):
            yield from (f"{key}.{inner}" for inner in value)


def test_every_hint_is_followed_or_has_a_reason_not_to_be() -> None:
    """A new hint needs a row in `edits.py` or `scenes.py`; if other people or machines are needed
    to follow it, in `not_followed.py`."""
    listed = {hint for each in NOT_FOLLOWED.values() for hint in each}
    known = {*RUN_HINTS, *SCENES, *listed}
    found = hints()
    assert {hint: place for hint, place in found.items() if hint not in known} == {}
    assert listed - set(found) == set(), "hints that the product no longer has"
    assert listed & {*RUN_HINTS, *SCENES} == set()


@pytest.mark.parametrize("hint", RUN_HINTS)
def test_a_run_file_is_accepted_once_the_hint_is_followed(hint: str) -> None:
    mistake, remedies = RUN_HINTS[hint]
    with pytest.raises(AtomError) as caught:
        parse([mistake])
    assert says(hint, caught.value.hint)
    named = re.match(r"the run's manifest: ([\w.]+): ", caught.value.message)
    assert named is not None
    assert named[1] in {key for edit in (mistake, *remedies) for key in keys_of(edit)}
    for remedy in remedies:
        parse([mistake, remedy])


@pytest.mark.parametrize("hint", SCENES)
def test_the_error_is_gone_once_the_hint_is_followed(hint: str, tmp_path: Path) -> None:
    scene = SCENES[hint]
    with pytest.raises(AtomError) as caught:
        scene.mistake(tmp_path)
    assert says(hint, caught.value.hint), caught.value.hint
    for number, remedy in enumerate(scene.remedies):
        folder = tmp_path / f"remedy{number}"
        folder.mkdir()
        remedy(folder)
