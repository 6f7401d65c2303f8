"""The source: readable, shared between identical layers, the same bytes everywhere."""

import dataclasses
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch
from traced_modules import BATCH, LENGTH, WIDTH, ZOO, TiedGPT, hidden_states, tokens_and_targets

from atom.base.errors import DeviceError, MismatchError, ModelError
from atom.graph.profile import profile
from atom.graph.program import (
    CANONICAL_HASH,
    build_program,
    canonical_program_hash,
    compile_program,
    load,
)
from atom.graph.trace import trace
from atom.graph.verify import verify_against_eager
from atom.models.gpt3 import GPT3, SIZES, GPT3Config

PRINT_HASHES = """
import torch
from traced_modules import ZOO
from atom.graph.program import compile_program
for name in ("gpt", "skips", "regions", "buffers"):
    make, batch = ZOO[name]
    torch.manual_seed(0)
    program = compile_program(make(), batch(0))
    print(program.source_hash, program.graph_hash)
"""


def test_identical_blocks_share_one_class() -> None:
    program = compile_program(TiedGPT(layers=12), tokens_and_targets())
    classes = [sub_model.class_name for sub_model in program.sub_models]
    assert classes == ["Embedding", *["Block"] * 12, "Head"]
    assert len(program.source.splitlines()) < 150


def test_real_names_clean_calls_and_shapes() -> None:
    source = compile_program(TiedGPT(dropout=0.1), tokens_and_targets()).source
    for line in (
        "        self.attention_qkv_weight = weight(48, 16)",
        "        norm1 = F.layer_norm(x, [16], self.norm1_weight, self.norm1_bias)  # [2, 16, 16]",
        "        tokens_1 = F.embedding(tokens, self.tokens_weight)  # [2, 16, 16]",
        "        drop = F.dropout(down, 0.1)  # [2, 16, 16]",
        "    def forward(self, x, targets):",
    ):
        assert line in source.splitlines(), line
    assert "torch.ops" not in source
    assert max(map(len, source.splitlines())) <= 100


@pytest.mark.parametrize("name", ZOO)
def test_every_generated_line_fits(name: str) -> None:
    make, batch = ZOO[name]
    source = compile_program(make(), batch(0)).source
    assert max(map(len, source.splitlines())) <= 100
    assert not any(line != line.rstrip() for line in source.splitlines())


def test_same_bytes_under_any_hash_seed() -> None:
    printed = set()
    for seed in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        environment["PYTHONPATH"] = str(Path(__file__).parent)
        command = [sys.executable, "-c", PRINT_HASHES]
        printed.add(subprocess.check_output(command, env=environment, timeout=100, text=True))
    assert len(printed) == 1
    assert len(printed.pop().split()) == 8


def test_canonical_hash_does_not_depend_on_the_cut() -> None:
    model, batch = TiedGPT(), tokens_and_targets()
    finest, coarse = compile_program(model, batch), compile_program(model, batch, [(0, 4)])
    assert finest.source_hash != coarse.source_hash
    canonical = canonical_program_hash(model, tokens_and_targets(1))
    assert canonical == finest.source_hash
    assert canonical == coarse.metadata[CANONICAL_HASH]


def test_a_tied_weight_is_held_once_per_sub_model() -> None:
    program = compile_program(TiedGPT(), tokens_and_targets(), [(0, 4)])
    (only,) = program.sub_models
    names = [name for _, name in only.parameters]
    assert len(names) == len(set(names)) == len(program.layout.specs)
    assert ("layer_0.tokens_weight", "tokens.weight") in only.parameters


def test_loaded_modules_have_the_parameters_on_meta(tmp_path: Path) -> None:
    program = compile_program(TiedGPT(), tokens_and_targets(), [(0, 1), (2, 4)])
    for sub_model, make in zip(program.sub_models, load(program, "cpu", tmp_path), strict=True):
        module = make()
        assert module is not make()
        for path, name in sub_model.parameters:
            parameter = module.get_parameter(path)
            assert parameter.is_meta
            assert tuple(parameter.shape) == program.layout.by_name[name].shape
        assert [p for p, _ in sub_model.parameters] == [n for n, _ in module.named_parameters()]
    (written,) = tmp_path.iterdir()
    assert written.read_text() == program.source


def test_tracebacks_show_the_generated_line() -> None:
    program = compile_program(TiedGPT(), tokens_and_targets())
    block = load(program, "cpu")[1]()
    with pytest.raises(RuntimeError) as caught:
        block(torch.zeros(BATCH, LENGTH, WIDTH + 1))
    text = "".join(traceback.format_exception(caught.value))
    assert "norm1 = F.layer_norm(x, [16], self.norm1_weight" in text


def test_a_changed_source_is_not_run() -> None:
    program = compile_program(TiedGPT(), tokens_and_targets())
    changed = dataclasses.replace(program, source=program.source + "raise SystemExit\n")
    with pytest.raises(MismatchError):
        load(changed, "cpu")


@pytest.mark.parametrize("cut", [[(0, 3)], [(0, 1), (3, 4)], [(0, 2), (2, 4)], [(0, 5)], []])
def test_a_cut_must_cover_all_layers_in_order(cut: list[tuple[int, int]]) -> None:
    with pytest.raises(ModelError, match="cut"):
        compile_program(TiedGPT(), tokens_and_targets(), cut)


def test_a_budget_gives_fewer_sub_models_that_still_compute_the_same() -> None:
    model, batch = TiedGPT(), tokens_and_targets()
    whole = compile_program(model, batch, device_budget_bytes=2**30)
    assert [(s.first_layer, s.last_layer) for s in whole.sub_models] == [(0, 4)]
    tight = compile_program(model, batch, device_budget_bytes=200_000)
    assert 1 < len(tight.sub_models) < 5
    verify_against_eager(model, tight, batch)
    with pytest.raises(DeviceError, match=r"layer blocks\.0"):
        compile_program(model, batch, device_budget_bytes=60_000)


def test_gpt3_175b_compiles_without_its_weights() -> None:
    config = dataclasses.replace(SIZES["175b"], layers=2)
    batch = {name: torch.zeros(1, 2048, dtype=torch.int64) for name in ("tokens", "targets")}
    program = compile_program(GPT3(config, device="meta", dtype=torch.bfloat16), batch)
    assert [s.class_name for s in program.sub_models] == ["Embedding", "Block", "Block", "Head"]
    assert program.parameter_dtype is torch.bfloat16
    numel = sum(spec.numel for spec in program.layout.specs)
    assert numel == (50257 + 2048) * 12288 + 2 * 1_812_099_072 + 2 * 12288


def test_gpt3_175b_in_full() -> None:
    batch = {name: torch.zeros(1, 2048, dtype=torch.int64) for name in ("tokens", "targets")}
    model = GPT3(SIZES["175b"], device="meta", dtype=torch.bfloat16)
    program = compile_program(model, batch, device_budget_bytes=48 * 2**30)
    assert 174e9 < program.layout.total_elements < 176e9
    assert len(program.sub_models) < 98
    assert len(program.source.splitlines()) < 400


def test_a_gpt_of_twelve_layers_stays_short_at_any_cut() -> None:
    model = GPT3(GPT3Config(12, 2, 16, sequence_tokens=16, vocabulary_size=32), device="meta")
    graph = trace(model, tokens_and_targets())
    for cut in (None, [(0, 13)], [(0, 3), (4, 6), (7, 13)]):
        source = build_program(graph, cut).source
        assert len(source.splitlines()) < 200


def test_profile_measures_each_class_once() -> None:
    program = compile_program(TiedGPT(), tokens_and_targets())
    seconds = profile(program, "cpu", repeats=3)
    assert len(seconds) == len(program.sub_models)
    assert seconds[1] is seconds[2] is seconds[3]
    assert all(entry.forward_s > 0 and entry.backward_s >= 0 for entry in seconds)


def test_names_that_are_no_identifiers() -> None:
    class Awkward(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("1st class", torch.nn.Linear(WIDTH, WIDTH))
            self.add_module("lambda", torch.nn.Linear(WIDTH, WIDTH))

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            first, second = self.children()
            return second(first(hidden)).square().mean()

    model = Awkward()
    program = compile_program(model, hidden_states())
    verify_against_eager(model, program, hidden_states(1))
