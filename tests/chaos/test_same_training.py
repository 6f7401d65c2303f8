"""One, two and three daemons train what a plain PyTorch loop trains, on the same samples.

The swarm of two enters through a stock `hivemind-dht` node, and is looked at from outside.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import transformers
from dht_stock import stock_node
from plain_training import relative_difference, train_plainly
from swarm_history import check_peers, read_chain, read_manifest
from swarm_of_processes import START_S, Peer, Swarm, atom_command, ending, gather, swarm_in

from atom.config.load import run_from_text
from atom.daemon.console import Silence
from atom.daemon.model.exporting import ExportRequest, export_run
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3, GPT3Config
from atom.swarm.records.manifest import Manifest
from atom.training.storage.run_storage import list_snapshots

pytestmark = pytest.mark.timeout(4 * START_S)

ROUNDS = 20
TOLERANCE = 1e-5
NAMES = {1: ("one",), 2: ("left", "right"), 3: ("red", "green", "blue")}
STATUS_KEYS = {"run", "round", "global_batch", "accumulated", "loss", "peers"}
PEER_KEYS = {"peer_id", "state", "round", "mini_batches", "rate", "digest", "lease_age_s"}


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
        for size, swarm in swarms.items():
            swarm.found([entrance] if size == 2 else [])
        several = (swarms[2], swarms[3])
        gather(several)
        seen = atom_command(swarms[2].root, "status", swarms[2].address, "--json")
        (swarms[2].root / "status.json").write_text(seen.stdout, encoding="utf-8")
        for swarm in several:
            swarm.resume()
        for swarm in swarms.values():
            for peer in swarm.peers:
                peer.wait()
        yield swarms


@pytest.mark.parametrize("size", [1, 2, 3])
def test_weights_are_those_of_a_plain_loop(trained: dict[int, Swarm], size: int) -> None:
    swarm = trained[size]
    assert [peer.exit_code for peer in swarm.peers] == [0] * size, swarm.story()
    commits, heads = read_chain(swarm.founder.state, "same")
    assert len(commits) == ROUNDS
    together = [c for c in commits if len(c.value.contributions) == size]
    assert len(together) >= ROUNDS // 2, swarm.story()
    manifest = read_manifest(swarm.founder.state, "same")
    reference, losses = train_plainly(manifest, commits, heads, swarm.founder.state / "tokens")
    assert losses[-1] < losses[0] - 0.1
    assert [c.value.loss for c in commits] == pytest.approx(losses, rel=1e-4)
    for peer in swarm.peers:
        difference = relative_difference(final_weights(peer, manifest), reference)
        assert difference <= TOLERANCE, f"{peer.name}: {difference:.2e}"


def test_every_peer_has_cut_the_model_for_its_own_device(trained: dict[int, Swarm]) -> None:
    cuts = []
    for peer in trained[3].peers:
        source = (peer.state / "program" / "sub_models.py").read_text(encoding="utf-8")
        found = re.match(r'"""GPT3 as (\d+) sub-models?', source)
        assert found, source[:80]
        cuts.append(int(found[1]))
    assert cuts[0] > 4, "the smallest device: swapped, cut inside the four layers"
    assert cuts[1] != cuts[0]


@pytest.mark.parametrize("size", [2, 3])
def test_replicas_agree_in_every_round(trained: dict[int, Swarm], size: int) -> None:
    peers = trained[size].peers
    told = [{event["round"]: event["digest"] for event in peer.rounds} for peer in peers]
    assert all(ROUNDS in digests for digests in told)
    for digests in told[1:]:
        common = digests.keys() & told[0].keys()
        assert len(common) >= ROUNDS // 2
        assert all(digests[number] == told[0][number] for number in common)
    assert check_peers(peers, "same") == 0


def test_transformers_computes_what_the_swarm_trained(
    trained: dict[int, Swarm], tmp_path: Path
) -> None:
    peer = trained[2].peers[1]
    manifest = read_manifest(peer.state, "same")
    done = export_run(ExportRequest(tmp_path / "out", peer.state), Silence())
    run = run_from_text(manifest.run_file)
    assert run.model.vocabulary_size is not None
    config = GPT3Config.build(vocabulary_size=run.model.vocabulary_size, **run.model.shape())
    ours = GPT3(config)
    ours.load_state_dict(final_weights(peer, manifest))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(done.folder)
    shape = (2, config.sequence_tokens)
    tokens = torch.randint(256, shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = theirs.eval()(input_ids=tokens).logits
        assert torch.equal(logits, ours.eval().logits(tokens))
        assert theirs.generate(tokens[:, :4], max_new_tokens=4, do_sample=False).shape == (2, 8)


def test_nothing_is_left_behind(trained: dict[int, Swarm]) -> None:
    assert [swarm.left_over() for swarm in trained.values()] == [[], [], []]


def test_status_from_outside_through_a_stock_bootstrap_node(trained: dict[int, Swarm]) -> None:
    swarm = trained[2]
    seen = json.loads((swarm.root / "status.json").read_text(encoding="utf-8"))
    assert seen.keys() >= STATUS_KEYS
    assert (seen["run"], seen["global_batch"]) == ("same", 96)
    assert type(seen["round"]) is int
    assert type(seen["accumulated"]) is int
    assert 0 <= seen["accumulated"] <= 96
    assert {peer["peer_id"] for peer in seen["peers"]} == {peer.peer_id for peer in swarm.peers}
    for peer in seen["peers"]:
        assert peer.keys() >= PEER_KEYS
        assert peer["state"] == "paused"
        assert 0 <= peer["lease_age_s"] < 60
        assert len(bytes.fromhex(peer["digest"])) == 32
        assert type(peer["mini_batches"]) is int


def final_weights(peer: Peer, manifest: Manifest) -> dict[str, torch.Tensor]:
    """Master weights by name, from the snapshot of the last round."""
    snapshot = list_snapshots(peer.state / "snapshots")[0]
    assert snapshot.round == ROUNDS
    run = run_from_text(manifest.run_file)
    assert run.model.vocabulary_size is not None
    shape = run.model.shape()
    config = GPT3Config.build(vocabulary_size=run.model.vocabulary_size, **shape)
    batch = {
        name: torch.zeros((2, config.sequence_tokens), dtype=torch.int64, device="meta")
        for name in ("tokens", "targets")
    }
    layout = build_program(trace(GPT3(config, device="meta"), batch)).layout
    master = snapshot.load()["master"]
    return {spec.name: layout.view(master, spec.name) for spec in layout.specs}
