"""Three daemons train adapters beside a published Llama, one of them late, one killed between."""

import re
from pathlib import Path

import pytest
import torch
import transformers
from swarm_history import check_peers
from swarm_of_processes import START_S, Peer, Swarm, endless, swarm_in

from atom.base.units import printable
from atom.cli.app import main
from atom.cli.shell.failures import ExitCode
from atom.daemon.model.kept_run import KeptRun
from atom.graph.ir import padded_elements
from atom.models.source import materialised
from atom.training.storage.run_storage import STILL, list_snapshots

pytestmark = pytest.mark.timeout(9 * START_S)

CONFIG = transformers.LlamaConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, vocab_size=256, max_position_embeddings=16, initializer_range=0.3,
)  # fmt: skip
FAMILY = 'family = "gpt3"\nlayers = 2\nheads = 2\nmodel_dim = 32\n'
TRAIN = '[train]\nrank = 2\ntargets = ["q_proj", "v_proj", "down_proj"]\n'


def run_text() -> str:
    text = endless("tuned", 4, 4)
    assert FAMILY in text
    return text.replace(FAMILY, 'huggingface = "base/config.json"\n') + TRAIN


def fetched(peer: Peer) -> list[int]:
    return [event["bytes"] for event in peer.events("fetched") if event["what"] == "frozen"]


def check_sample(swarm: Swarm, capsys: pytest.CaptureFixture[str]) -> None:
    """Text is sampled from the founder's state directory, with its base and its adapters."""
    for peer in swarm.peers:
        peer.ask("pause")
    options = ("--tokens", "1", "--temperature", "0", "--device", "cpu")
    code = main(["sample", str(swarm.founder.state), "A", *options])
    told = capsys.readouterr()
    assert code == ExitCode.OK, told.err
    found = re.search(r"round ([\d,]+) of tuned; each token", told.err)
    assert found is not None, told.err
    round_number = found[1].replace(",", "")
    source, _, weights = KeptRun.read(swarm.founder.state).opened(None, round_number)
    twin = materialised(source, torch.float32, 0).eval()
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.copy_(weights.value(name, torch.float32))
        logits = source.next_logits(twin)(torch.tensor([[65]]), torch.tensor([0]))
    written = bytes([65, int(logits.argmax())]).decode(errors="replace")
    assert told.out == printable(written, "\n\t") + "\n"
    swarm.resume()


def trains(swarm: Swarm, peer: Peer, rounds: int = 3) -> None:
    enough = len(peer.rounds) + rounds
    swarm.until(lambda: len(peer.rounds) >= enough, f"{peer.name}'s rounds", 2 * START_S)


def test_late_and_killed_peers_hold_the_same_adapters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(1)
    base = transformers.LlamaForCausalLM(CONFIG)
    base.save_pretrained(tmp_path / "base")
    with swarm_in(tmp_path, run_text(), ["ada", "bob", "cleo"], memory="auto") as swarm:
        founder, bob, late = swarm.peers
        swarm.start_options = ("--from", str(tmp_path / "base"))
        swarm.found()
        swarm.peers.remove(late)
        swarm.invite()
        trains(swarm, bob)
        assert not bob.kill()
        late.start("join", swarm.address)
        swarm.peers.append(late)
        bob.start()
        for peer in (late, bob, founder):
            trains(swarm, peer)
        swarm.until(lambda: len(list_snapshots(bob.state / "snapshots")) > 1, "states to offer")
        check_sample(swarm, capsys)
        for peer in swarm.peers:
            peer.ask("leave", None)
            assert peer.wait() == 0
        assert check_peers(swarm.peers, "tuned") == 0, "replicas agree in every round"
        size = sum(4 * padded_elements(p.numel()) for p in base.parameters())
        assert [fetched(peer) for peer in swarm.peers] == [[], [size], [size]], "once"
        files = [(peer.state / "snapshots" / STILL).read_bytes() for peer in swarm.peers]
        assert files[0] == files[1] == files[2]
        state = list_snapshots(late.state / "snapshots")[0].load()
        assert sum(arena.nbytes for arena in state.values()) < size / 4
