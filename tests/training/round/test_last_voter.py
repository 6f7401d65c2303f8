"""The only peer that may decide leaves, and others have just arrived: it stays for one round, and
until one of them has that round's result."""

from simulation import Setting, Swarm

from atom.swarm.chain.messages import CommitNotice, Message, Promise


def arrived(seed: int) -> Swarm:
    """A founder that would have gone, and a second peer with its state, that has been in no round:
    what it promises is lost."""
    swarm = Swarm(seed, Setting(peers=1, pass_seconds=(0.3,)))
    swarm.run_until_agreed(30.0, 2)
    founder, joiner = swarm["A"], swarm.join()
    swarm.network.drop = lambda source, target, message: (
        source == joiner.peer_id and isinstance(message, Promise)
    )
    founder.leave()
    swarm.run(12.0)
    assert founder.alive
    assert joiner.chain.head.digest == founder.chain.head.digest
    return swarm


def test_who_arrives_as_the_last_one_goes_can_go_on() -> None:
    swarm = arrived(3)
    joiner = swarm["B"]
    before = joiner.chain.head.round
    swarm.heal()
    swarm.run(15.0)
    assert [process.peer_id for process in swarm.living] == [joiner.peer_id]
    assert joiner.chain.head.round > before + 2, swarm.story(60)
    assert joiner.me in joiner.chain.head.voters
    assert swarm.witness.branches == 0


def test_what_only_the_leaver_has_is_handed_on_first() -> None:
    """It ends the ring well and decides the round; the other's part of the ring breaks off."""
    swarm = arrived(4)
    founder, joiner = swarm["A"], swarm["B"]
    before, decided = founder.chain.head.round, list[int]()

    def breaks(source: str, _target: str, message: Message) -> bool:
        if source == founder.peer_id and isinstance(message, CommitNotice) and not decided:
            decided.append(message.commit.value.round)
            swarm.narrow("A")
        return False

    swarm.network.drop = breaks
    swarm.run(8.0)
    assert decided == [before + 1]
    assert (founder.chain.head.round, joiner.chain.head.round) == (before + 1, before)
    assert founder.alive, swarm.story(60)
    swarm.heal()
    swarm.run(15.0)
    assert swarm.living == [joiner]
    assert joiner.chain.head.round > before + 1
    assert swarm.witness.branches == 0
