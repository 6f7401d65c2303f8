"""Plans of ready-made and hand-made runs, against the engine's own arithmetic."""

from pathlib import Path

import pytest
import torch

from atom.base.errors import ConfigError, DeviceError
from atom.daemon.load_hiding import Rates
from atom.daemon.planning import Plan, plan_run, tokens_that_hide_loads
from atom.models.gpt3 import GPT3Config, parameter_count

PEERS = Path(__file__).parents[2] / "peers"
RUN = """
[run]
name = "tiny"
[model]
family = "gpt3"
layers = 6
heads = 2
model_dim = 32
sequence_tokens = 16
precision = "{precision}"
[data]
source = "text"
paths = ["missing.txt"]
tokenizer = "{tokenizer}"
[batch]
global_sequences = 10
micro_batch_sequences = 4
[optimizer]
learning_rate = 1e-3
"""


def plan(folder: Path, peer: str, precision: str = "float32", tokenizer: str = "bytes") -> Plan:
    run_file, peer_file = folder / "run.toml", folder / "peer.toml"
    run_file.write_text(RUN.format(precision=precision, tokenizer=tokenizer))
    peer_file.write_text(peer)
    return plan_run(run_file, peer_file)


def cpu(memory: str) -> str:
    return f'[device]\nkind = "cpu"\nmemory = "{memory}"\n'


def test_a_plan_adds_up(tmp_path: Path) -> None:
    planned = plan(tmp_path, cpu("700 kB") + '[host]\nmemory = "1 MB"\n')
    config = GPT3Config(6, 2, 32, sequence_tokens=16, vocabulary_size=256)
    assert planned.model == config
    assert planned.parameters == parameter_count(config)
    assert planned.host.have_bytes == 10**6
    assert planned.host.total_bytes == pytest.approx(24 * planned.parameters, rel=0.01)
    parts = planned.sub_models
    assert len(parts) > 1
    assert [part.first_layer for part in parts[1:]] == [part.last_layer + 1 for part in parts[:-1]]
    assert (parts[0].first_name, parts[-1].last_name) == ("embedding", "head")
    assert all(part.need_bytes <= 700_000 for part in parts)
    assert planned.device.slot_bytes == 4 * max(part.load_bytes for part in parts)
    moved = planned.training_pass
    assert (moved.micro_batches, moved.tokens) == (3, 3 * 4 * 16)
    loads = [s for step in moved.steps for s in step.loads]
    assert moved.first_bytes_in == sum(parts[s].load_bytes for s in loads)
    assert moved.next_bytes_in < moved.first_bytes_in
    assert moved.bytes_out == sum(part.load_bytes for part in parts)


def test_half_precision_loads_half_and_keeps_a_working_copy(tmp_path: Path) -> None:
    whole = plan(tmp_path, cpu("1 GB"))
    half = plan(tmp_path, cpu("1 GB"), "bfloat16")
    assert 2 * half.training_pass.first_bytes_in == whole.training_pass.first_bytes_in
    assert half.training_pass.bytes_out == whole.training_pass.bytes_out
    assert dict(half.host.arenas)["working copy"] * 2 == dict(half.host.arenas)["gradients"]
    assert half.device.slot_bytes * 4 == whole.device.slot_bytes * 3


def test_without_a_budget_every_layer_stands_alone(tmp_path: Path) -> None:
    planned = plan(tmp_path, '[device]\nkind = "cpu"\n')
    assert planned.device.budget_bytes is None
    assert len(planned.sub_models) == 8
    assert planned.host.have_bytes > 0


def test_faster_links_need_fewer_tokens(tmp_path: Path) -> None:
    planned = plan(tmp_path, '[device]\nkind = "cpu"\n')
    slow = tokens_that_hide_loads(planned, Rates(1e9, 1e12))
    fast = tokens_that_hide_loads(planned, Rates(4e9, 1e12))
    assert slow.in_sum == pytest.approx(4 * fast.in_sum, rel=0.2)
    assert slow.in_sum > fast.in_sum > 0


def test_a_layer_that_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"layer (embedding|blocks\.0|head) needs"):
        plan(tmp_path, cpu("50 kB"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="here the GPU says what it has")
def test_a_gpu_that_is_not_there_needs_its_memory_in_words(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no usable CUDA GPU"):
        plan(tmp_path, '[device]\nkind = "cuda"\n')
    assert plan(tmp_path, '[device]\nkind = "cuda"\nmemory = "1 GiB"\n').device.kind == "cuda"


def test_an_unknown_vocabulary_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vocabulary is not known") as failure:
        plan(tmp_path, cpu("1 GB"), tokenizer="tokenizer.json")
    assert "vocabulary_size" in failure.value.hint


def test_a_large_model_is_planned_without_its_weights() -> None:
    planned = plan_run(PEERS / "gpt3-2.7b.toml", PEERS / "gpu-24gb.toml")
    assert planned.parameters == 2_651_673_600
    assert planned.host.total_bytes > 60e9
    assert planned.sub_models[-1].last_layer == 33
