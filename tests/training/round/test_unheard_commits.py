"""One commits, is heard by nobody, and dies. The other voted, and asked in vain for what it had
averaged itself: that is still in its memory, and nowhere else.
"""

import pytest
from simulated_peer import Process
from simulation import Setting, Swarm

from atom.swarm.chain.messages import CommitNotice, Message


@pytest.mark.parametrize("seed", range(3))
def test_what_was_averaged_here_survives_a_catch_up_in_vain(seed: int) -> None:
    swarm = Swarm(seed, Setting(peers=2, pass_seconds=(0.2,)))
    swarm.run_until_agreed(60.0, 1)
    gone: list[Process] = []

    def unheard(source: str, target: str, message: Message) -> bool:
        process = swarm.process_of(source)
        if isinstance(message, CommitNotice) and process is not None and not gone:
            gone.append(process)
            swarm.cut_one_way(process.seat.name, "A" if process.seat.name == "B" else "B")
        return False

    swarm.network.drop = unheard
    before = swarm["A"].chain.head.round
    swarm.run(10.0)
    gone[0].die()
    swarm.run(40.0)
    (lone,) = swarm.living
    assert lone.chain.head.round >= before + 3, swarm.story(60)
