"""Daemons train a model of transformers from its config alone, and their owner's own module.

Whose code runs is the volunteer's word: without it a run's module is a file to read.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from swarm_history import check_peers, digests_by_head, read_chain, read_manifest
from swarm_of_processes import START_S, Swarm, ending, gather, swarm_in

from atom.config.load import run_from_text
from atom.config.run_file import RunFile
from atom.daemon.console import Silence
from atom.daemon.model.exporting import ExportRequest, export_run
from atom.daemon.model.model_source import open_source
from atom.daemon.model.recipe import trace_run
from atom.swarm.identity import Identity
from atom.training.storage.run_storage import list_snapshots

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
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    model.save_pretrained(root / "llama")
    (root / "config.json").write_text(json.dumps(LLAMA))
    text = run_text("llamas", 'huggingface = "config.json"')
    with swarm_in(root, text, ["left", "right"]) as swarm:
        swarm.start_options = ("--from", str(root / "llama"))
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
    assert check_peers(swarm.peers, name) == 0, "one head, one state, in whatever was told"
    commits, heads = read_chain(swarm.founder.state, name)
    assert len(commits) == ROUNDS
    told = digests_by_head([peer.events() for peer in swarm.peers])
    assert heads[-1].digest.hex() in told


def test_a_llama_goes_on_training_and_back_to_transformers(llamas: Swarm) -> None:
    """Joiners have the address alone: config and first weights come from the founder."""
    before = transformers.AutoModelForCausalLM.from_pretrained(llamas.root / "llama")
    llamas.found()
    llamas.until(lambda: llamas.is_gathered() or llamas.address, "founded", START_S)
    (llamas.root / "config.json").unlink()
    (llamas.root / "llama" / "model.safetensors").unlink()
    gather([llamas])
    (joiner,) = llamas.joiners
    llamas.until(lambda: joiner.events("caught-up"), "the first weights fetched", START_S)
    assert joiner.events("started")[0]["digest"] == "", "it had nothing of its own"
    trains_to_the_end(llamas, "llamas")
    manifest = read_manifest(llamas.founder.state, "llamas")
    assert {package for package, _ in manifest.versions} == {"atom-swarm", "torch", "transformers"}
    run = run_from_text(manifest.run_file)
    assert run.model.weights == "given"
    assert run.model.huggingface_config is not None
    assert json.loads(run.model.huggingface_config) == LLAMA
    source = (llamas.founder.state / "program" / "sub_models.py").read_text(encoding="utf-8")
    assert source.startswith('"""LlamaForCausalLM as ')

    done = export_run(ExportRequest(llamas.root / "out", joiner.state), Silence())
    assert done.round == ROUNDS
    after = transformers.AutoModelForCausalLM.from_pretrained(done.folder).eval()
    assert 0 < relative_change(before, after) < 0.5
    weights = weights_of(joiner.state, run)
    assert all(torch.equal(value, weights[name]) for name, value in after.named_parameters())
    tokenizer = transformers.AutoTokenizer.from_pretrained(done.folder)
    prompt = tokenizer("def ", return_tensors="pt").input_ids
    answer = after.generate(prompt, max_new_tokens=8, do_sample=False)
    assert answer.shape == (1, 12)


@torch.no_grad()
def relative_change(before: torch.nn.Module, after: torch.nn.Module) -> float:
    names = dict(after.named_parameters())
    changes = [
        (names[name] - value).norm() / value.norm() for name, value in before.named_parameters()
    ]
    return float(max(changes))


def weights_of(state: Path, run: RunFile) -> dict[str, torch.Tensor]:
    """By name, from the newest snapshot's arena and the layout of a trace of our own."""
    layout = trace_run(run, open_source(run, None)).layout
    master = list_snapshots(state / "snapshots")[0].load()["master"]
    return {spec.name: layout.view(master, spec.name) for spec in layout.specs}


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
