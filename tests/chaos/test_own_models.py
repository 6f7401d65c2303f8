"""Daemons train a model of transformers from its config alone, and their owner's own module.

Whose code runs is the volunteer's word: without it a run's module is a file to read.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from swarm_history import check_peers, read_manifest
from swarm_of_processes import START_S, Swarm, ending, gather, swarm_in

from atom.config.load import run_from_text
from atom.swarm.identity import Identity

pytestmark = pytest.mark.timeout(4 * START_S)

ROUNDS = 4
TRUST = 13
MODEL = re.compile(r"\[model\].*?(?=\[data\])", re.DOTALL)
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 32,
}
OWN = """\
import torch
from torch import nn
from torch.nn import functional


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 24)
        self.mix = nn.Linear(24, 24)

    def forward(self, tokens, targets):
        hidden = self.table(tokens)
        hidden = hidden + torch.tanh(self.mix(hidden))
        logits = functional.linear(hidden, self.table.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make():
    example = torch.zeros(2, 16, dtype=torch.int64)
    return Words(), {"tokens": example, "targets": example.clone()}
"""


def run_text(name: str, model: str) -> str:
    changed = MODEL.sub(f"[model]\n{model}\nsequence_tokens = 16\n\n", ending(name, ROUNDS))
    return changed.replace("warmup_rounds = 4", "warmup_rounds = 1")


@pytest.fixture
def llamas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    root = tmp_path_factory.mktemp("hf")
    (root / "config.json").write_text(json.dumps(LLAMA))
    text = run_text("llamas", 'huggingface = "config.json"')
    with swarm_in(root, text, ["left", "right"]) as swarm:
        yield swarm


@pytest.fixture
def owned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    root = tmp_path_factory.mktemp("own")
    (root / "words.py").write_text(OWN)
    text = run_text("owned", 'module = "words:make"')
    with swarm_in(root, text, ["owner", "friend", "stranger"]) as swarm:
        yield swarm


def trains_to_the_end(swarm: Swarm, name: str) -> None:
    swarm.resume()
    for peer in swarm.peers:
        assert peer.wait() == 0, swarm.story()
    assert [peer.last_round for peer in swarm.peers] == [ROUNDS] * len(swarm.peers)
    assert check_peers(swarm.peers, name) == 0
    told = [{event["round"]: event["digest"] for event in peer.rounds} for peer in swarm.peers]
    assert all(digests == told[0] for digests in told)
    assert len(told[0]) == ROUNDS


def test_a_config_is_all_that_joiners_need(llamas: Swarm) -> None:
    llamas.found()
    llamas.until(lambda: llamas.is_gathered() or llamas.address, "founded", START_S)
    (llamas.root / "config.json").unlink()
    gather([llamas])
    trains_to_the_end(llamas, "llamas")
    manifest = read_manifest(llamas.founder.state, "llamas")
    assert {package for package, _ in manifest.versions} == {"atom-swarm", "torch", "transformers"}
    pinned = run_from_text(manifest.run_file).model.huggingface_config
    assert pinned is not None
    assert json.loads(pinned) == LLAMA
    source = (llamas.founder.state / "program" / "sub_models.py").read_text(encoding="utf-8")
    assert source.startswith('"""LlamaForCausalLM as ')


def test_own_code_runs_for_those_who_trust_its_owner(owned: Swarm) -> None:
    stranger = owned.peers.pop()
    owner = Identity.load_or_create(_made(owned.founder.state) / "identity.key").peer_id
    owned.join_options = ("--trust", owner)
    owned.found()
    gather([owned])

    stranger.start("join", owned.address)
    assert stranger.wait(START_S) == TRUST, stranger.story()
    saved = stranger.state / "own_code.py"
    assert saved.read_text() == OWN
    said = stranger.errors()
    assert str(saved) in said
    assert f"atom join {owned.address} --trust {owner}" in said
    assert not (stranger.state / "program").exists()

    friend_id = owned.joiners[0].peer_id
    stranger.start("join", owned.address, "--trust", friend_id)
    assert stranger.wait(START_S) == TRUST, stranger.story()
    assert f"you trust {friend_id}, but this run is {owner}'s" in stranger.errors()

    trains_to_the_end(owned, "owned")
    digest = hashlib.sha256(OWN.encode()).hexdigest()
    manifest = read_manifest(owned.founder.state, "owned")
    assert run_from_text(manifest.run_file).model.module_sha256 == digest
    assert (owned.joiners[0].state / "own_code.py").read_text() == OWN


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
