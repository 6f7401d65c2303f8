import pytest

from atom.cli.demo.script import Cue, Scene, cues


def scene(
    round_number: int, together: bool = True, killed: bool = False, joined: bool = False
) -> Scene:
    return Scene(round_number, 100, together, killed, joined)


@pytest.mark.parametrize(
    ("now", "due"),
    [
        (scene(0), ()),
        (scene(24), ()),
        (scene(25), (Cue.KILL,)),
        (scene(30, killed=True), ()),
        (scene(49, killed=True), ()),
        (scene(50, killed=True), (Cue.JOIN,)),
        (scene(60, killed=True, joined=True), ()),
        (scene(60, together=False), (Cue.JOIN,)),
        (scene(60), (Cue.KILL, Cue.JOIN)),
    ],
)
def test_what_is_due(now: Scene, due: tuple[Cue, ...]) -> None:
    assert cues(now) == due


def test_a_whole_play_has_one_kill_and_one_joiner() -> None:
    killed = joined = False
    happened = []
    for number in range(101):
        for cue in cues(Scene(number, 100, number > 3, killed, joined)):
            happened.append((number, cue))
            killed, joined = killed or cue is Cue.KILL, joined or cue is Cue.JOIN
    assert happened == [(25, Cue.KILL), (50, Cue.JOIN)]
