"""One, two and three daemons train what a plain PyTorch loop trains, on the same samples.

The swarm of two enters through a stock `hivemind-dht` node.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from dht_stock import stock_node
from plain_training import final_weights, relative_difference, train_plainly
from swarm_history import check_peers, read_chain, read_manifest
from swarm_of_processes import START_S, Swarm, ending, gather, swarm_in

pytestmark = pytest.mark.timeout(4 * START_S)

ROUNDS = 20
TOLERANCE = 1e-5
NAMES = {1: ("one",), 2: ("left", "right"), 3: ("red", "green", "blue")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Swarm]]:
    """Swarms of one, two and three, started together and trained to their ends."""
    with ExitStack() as stack:
        entrance = stack.enter_context(stock_node())
        swarms = {
            size: stack.enter_context(
                swarm_in(tmp_path_factory.mktemp(f"of{size}"), ending("same", ROUNDS), names)
            )
            for size, names in NAMES.items()
        }
        alone, *several = swarms.values()
        several[0].start_options = ("--initial-peers", entrance)
        alone.found()
        for swarm in several:
            swarm.found(standing=True)
        gather(*several)
        for swarm in several:
            swarm.resume()
        for swarm in swarms.values():
            for peer in swarm.peers:
                peer.wait()
        yield swarms


@pytest.mark.parametrize("size", NAMES)
def test_weights_and_losses_are_those_of_a_plain_loop(trained: dict[int, Swarm], size: int) -> None:
    swarm = trained[size]
    assert [peer.exit_code for peer in swarm.peers] == [0] * size, swarm.story()
    assert swarm.left_over() == []
    commits, heads = read_chain(swarm.founder.state, "same")
    assert len(commits) == ROUNDS
    together = [c for c in commits if len(c.value.contributions) == size]
    assert len(together) >= ROUNDS // 2, swarm.story()
    manifest = read_manifest(swarm.founder.state, "same")
    reference, losses = train_plainly(manifest, commits, heads, swarm.founder.state / "tokens")
    assert losses[-1] < losses[0] - 0.1
    assert [c.value.loss for c in commits] == pytest.approx(losses, rel=1e-4)
    for peer in swarm.peers:
        difference = relative_difference(final_weights(peer.state, manifest), reference)
        assert difference <= TOLERANCE, f"{peer.name}: {difference:.2e}"


@pytest.mark.parametrize("size", [2, 3])
def test_replicas_agree_in_every_round(trained: dict[int, Swarm], size: int) -> None:
    peers = trained[size].peers
    told = [{event["round"] for event in peer.rounds} for peer in peers]
    assert all(ROUNDS in rounds for rounds in told)
    assert len(set.intersection(*told)) >= ROUNDS // 2
    assert check_peers(peers, "same") == 0


def test_every_peer_has_cut_the_model_for_its_own_device(trained: dict[int, Swarm]) -> None:
    cuts = []
    for peer in trained[3].peers:
        source = (peer.state / "program" / "sub_models.py").read_text(encoding="utf-8")
        found = re.match(r'"""GPT3 as (\d+) sub-models?', source)
        assert found, source[:80]
        cuts.append(int(found[1]))
    assert cuts[0] > 4, "the smallest device: swapped, cut inside the four layers"
    assert cuts[1] != cuts[0]
