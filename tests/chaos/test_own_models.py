"""Daemons train a model of transformers from its config alone, and their owner's own module, whose
code runs only where a volunteer named the owner."""

import json
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
import transformers
from swarm_history import check_peers, read_chain
from swarm_of_processes import START_S, Swarm, ending, gather, swarm_in

from atom.cli.shell.exit_codes import ExitCode
from atom.daemon.console import Silence
from atom.daemon.model.exporting import ExportRequest, export_run
from atom.swarm.identity import Identity

pytestmark = pytest.mark.timeout(4 * START_S)

ROUNDS = 4
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


def swarm_of(root: Path, model: str, names: Sequence[str]) -> AbstractContextManager[Swarm]:
    text = MODEL.sub(f"[model]\n{model}\nsequence_tokens = 16\n\n", ending("others", ROUNDS))
    return swarm_in(root, text.replace("warmup_rounds = 4", "warmup_rounds = 1"), names)


def trains_to_the_end(swarm: Swarm) -> None:
    swarm.resume()
    for peer in swarm.peers:
        assert peer.wait() == ExitCode.OK, swarm.story()
    assert check_peers(swarm.peers, "others") == 0, "one head, one state, in whatever was told"
    assert {len(read_chain(peer.state, "others")[0]) for peer in swarm.peers} == {ROUNDS}


def test_a_llama_goes_on_training_and_back_to_transformers(tmp_path: Path) -> None:
    """Joiners have the address alone: config and first weights come from the founder."""
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    model.save_pretrained(tmp_path / "llama")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    with swarm_of(tmp_path, 'huggingface = "config.json"', ["left", "right"]) as swarm:
        swarm.start_options = ("--from", str(tmp_path / "llama"))
        swarm.found(standing=True)
        swarm.until(lambda: swarm.founder.lives, "founded", START_S)
        config.unlink()
        (tmp_path / "llama" / "model.safetensors").unlink()
        gather(swarm)
        (joiner,) = swarm.joiners
        swarm.until(lambda: joiner.events("caught-up"), "the first weights fetched", START_S)
        assert joiner.events("started")[0]["digest"] == "", "it had nothing of its own"
        trains_to_the_end(swarm)
        done = export_run(ExportRequest(tmp_path / "out", joiner.state), Silence())
    assert done.round == ROUNDS
    after = transformers.AutoModelForCausalLM.from_pretrained(done.folder)
    trained = dict(after.named_parameters())
    for name, first in model.named_parameters():
        assert 0 < (trained[name] - first).norm() < 0.5 * first.norm(), "it went on from there"


def test_own_code_runs_for_those_who_trust_its_owner(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(OWN)
    names = ["owner", "friend", "stranger"]
    with swarm_of(tmp_path, 'module = "words:make"', names) as swarm:
        stranger = swarm.peers.pop()
        swarm.founder.state.mkdir()
        owner = Identity.load_or_create(swarm.founder.state / "identity.key").peer_id
        swarm.join_options = ("--trust", owner)
        swarm.found(standing=True)
        gather(swarm)
        for trust in ((), ("--trust", swarm.joiners[0].peer_id)):
            stranger.start("join", swarm.address, *trust)
            assert stranger.wait(START_S) == ExitCode.TRUST, stranger.story()
        assert (stranger.state / "own_code.py").read_text() == OWN, "to be read"
        assert not (stranger.state / "program").exists()
        trains_to_the_end(swarm)
        assert (swarm.joiners[0].state / "own_code.py").read_text() == OWN
