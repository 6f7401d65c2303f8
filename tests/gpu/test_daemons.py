"""A daemon on the GPU and one on the CPU train together; where there is no GPU, both on the CPU."""

from pathlib import Path

import pytest
import torch
from swarm_history import check_peers, read_chain
from swarm_of_processes import EXCHANGE, LOCAL_STEPS, Peer, endless, gather, swarm_in
from torch import Tensor

from atom.training.storage.run_storage import list_snapshots

NAME = "mixed"
ROUNDS = 3
ON_A_GPU = torch.cuda.is_available()
SEQUENCES, MODEL_DIM = (2000, 128) if ON_A_GPU else (400, 32)
"""A round takes longer than a lease travels: a fast peer has not done it before it hears of the
other. Two equal peers on the CPU need less for that."""
GRACE_S = 10.0
"""Neither ever has to go on without the other."""
RUNS = {
    rule: endless(
        NAME,
        GRACE_S,
        snapshot_rounds=ROUNDS,
        rounds=f"rounds = {ROUNDS}",
        rule=rule,
        model_dim=MODEL_DIM,
        sequences=SEQUENCES,
    )
    for rule in (EXCHANGE if ON_A_GPU else (LOCAL_STEPS,))
}
"""Run files by update rule; 400,000 parameters on a GPU. Without a GPU, tests/chaos shows the same
of the rule `every-step`."""


def last_state(peer: Peer) -> dict[str, Tensor]:
    """The shared arenas by name, from the snapshot of the last round."""
    snapshot = list_snapshots(peer.state / "snapshots")[0]
    assert snapshot.round == ROUNDS, peer.story()
    return snapshot.load()


@pytest.mark.parametrize("rule", RUNS)
def test_a_gpu_and_a_cpu_hold_the_same_bits(rule: str, tmp_path: Path) -> None:
    with swarm_in(tmp_path, RUNS[rule], ("gpu", "cpu"), memory="auto") as swarm:
        if ON_A_GPU:
            swarm.founder.give_gpu()
        swarm.found(standing=True)
        gather(swarm)
        swarm.resume()
        for peer in swarm.peers:
            assert peer.wait() == 0, swarm.story()
        assert check_peers(swarm.peers, NAME) == 0
        commits, _ = read_chain(swarm.founder.state, NAME)
        parts = [part for commit in commits for part in commit.value.contributions]
        assert {part.peer_id for part in parts if part.sequences} == {
            peer.peer_id for peer in swarm.peers
        }
        gpu, cpu = map(last_state, swarm.peers)
        assert gpu.keys() == cpu.keys()
        assert all(torch.equal(gpu[name], cpu[name]) for name in gpu)
