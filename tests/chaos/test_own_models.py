"""Daemons train a model of transformers from its config alone."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from swarm_history import check_peers
from swarm_of_processes import START_S, ending, gather, swarm_in

from atom.cli.shell.failures import ExitCode
from atom.daemon.console import Silence
from atom.daemon.model.exporting import export_run
from atom.daemon.model.kept_run import KeptRun

ROUNDS = 4
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
RUN = re.sub(
    r"(?<=\[model\]\n).*?(?=\[data\])",
    'huggingface = "config.json"\nsequence_tokens = 16\n\n',
    ending("llama", ROUNDS).replace("warmup_rounds = 4", "warmup_rounds = 1"),
    flags=re.DOTALL,
)


@pytest.mark.timeout(4 * START_S)
def test_a_llama_goes_on_training_and_back_to_transformers(tmp_path: Path) -> None:
    """Joiners have the address alone: config and first weights come from the founder."""
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    model.save_pretrained(tmp_path / "llama")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    with swarm_in(tmp_path, RUN, ["left", "right"], "auto") as swarm:
        swarm.start_options = ("--from", str(tmp_path / "llama"))
        swarm.found(standing=True)
        swarm.until(lambda: swarm.founder.lives, "founded", START_S)
        config.unlink()
        (tmp_path / "llama" / "model.safetensors").unlink()
        gather(swarm)
        (joiner,) = swarm.joiners
        swarm.until(lambda: joiner.events("caught-up"), "the first weights fetched", START_S)
        assert joiner.events("started")[0]["digest"] == "", "it had nothing of its own"
        swarm.resume()
        for peer in swarm.peers:
            assert peer.wait() == ExitCode.OK, swarm.story()
        assert check_peers(swarm.peers, "llama") == 0, "one head, one state, in whatever was told"
        done = export_run(tmp_path / "out", joiner.state, Silence())
        assert KeptRun.read(joiner.state).snapshots()[0].round == ROUNDS
    after = transformers.AutoModelForCausalLM.from_pretrained(done)
    trained = dict(after.named_parameters())
    for name, first in model.named_parameters():
        assert 0 < (trained[name] - first).norm() < 0.5 * first.norm(), "it went on from there"
