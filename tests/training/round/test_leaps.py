"""Numbers of attempts: nobody leads the others to where there is no next one."""

import pytest
from simulation import Setting, Swarm
from test_offences import Scene, strangers
from test_silent_peers import HEAD, STATE

from atom.swarm.chain.commit import Ballot
from atom.swarm.chain.message_codec import MAX_ATTEMPT
from atom.swarm.chain.messages import Prepare
from atom.training.round.desk import MAX_LEAP, HeadState
from atom.training.round.vocabulary import Received


@pytest.mark.parametrize("number", [2**40, MAX_ATTEMPT], ids=["far", "last"])
def test_a_voter_that_calls_with_the_last_number_ends_nothing(number: int) -> None:
    swarm = Swarm(8, Setting(peers=4, pass_seconds=(0.3,), through_bytes=True))
    swarm.run_until_agreed(60.0, 1)
    liar, *honest = swarm.living
    before = honest[0].chain.head.round
    for process in honest:
        ballot = Ballot(number, liar.peer_id, liar.me.incarnation)
        swarm.deliver(liar.me, process.peer_id, Prepare(process.chain.head.digest, ballot))
    swarm.network.drop = lambda source, target, message: source == liar.peer_id
    swarm.run(60.0)
    assert min(process.chain.head.round for process in honest) >= before + 3, swarm.story(60)


def test_one_that_went_along_elsewhere_is_followed_after_some_calls() -> None:
    state = HeadState(HEAD, STATE, 0.0)
    assert [state.see(4 * MAX_LEAP) for _ in range(5)] == [False, False, False, True, True]
    assert state.see(4 * MAX_LEAP + 1), "and is not left behind again"
    assert MAX_ATTEMPT // MAX_LEAP > 10**9


def test_a_stranger_that_names_itself_a_survivor_moves_no_number() -> None:
    scene = Scene()
    scene.tick()
    (stranger,) = strangers(1).values()
    for number in range(1, 300):
        ballot = Ballot(number * MAX_LEAP, stranger.peer_id, stranger.incarnation)
        call = Prepare(HEAD.digest, ballot, (stranger,))
        scene.tell(Received(stranger.peer_id, stranger.incarnation, call))
    assert scene.until_sent(Prepare).attempt == 1
