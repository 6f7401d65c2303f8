"""Folders of weights: written tensors are read back, and incomplete folders are refused."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from atom.base.errors import ConfigError
from atom.daemon.model.weight_files import ADAPTER, WeightFiles, write_weights
from atom.models.hub import INDEX, WHOLE

ARENA = torch.arange(24.0)
VALUES = {
    "first": ARENA[:6].view(2, 3),
    "second": ARENA[6:10],
    "turned": ARENA[10:16].view(2, 3).t(),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
}


@pytest.mark.parametrize(
    ("shard_bytes", "files"),
    [
        (1000, [WHOLE]),
        (40, ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", INDEX]),
        (1, [*(f"model-0000{n}-of-00004.safetensors" for n in range(1, 5)), INDEX]),
    ],
)
def test_what_is_written_is_read(tmp_path: Path, shard_bytes: int, files: list[str]) -> None:
    told: list[tuple[int, int]] = []
    total = sum(value.nbytes for value in VALUES.values())
    write_weights(tmp_path, VALUES.items(), total, lambda *at: told.append(at), shard_bytes)
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    read = WeightFiles.open(tmp_path)
    assert read.shapes == {name: tuple(value.shape) for name, value in VALUES.items()}
    for name, value in VALUES.items():
        assert torch.equal(read.value(name), value)
        assert read.value(name).dtype == value.dtype
    assert told[0] == (0, total)
    assert told[-1] == (total, total)


def test_of_one_file_and_an_index_the_same_counts_as_for_transformers(tmp_path: Path) -> None:
    """A folder has both if a model was saved twice into it, in different numbers of files."""
    settings = {"n_embd": 4, "n_layer": 1, "n_head": 1, "vocab_size": 3, "n_positions": 2}
    model = GPT2LMHeadModel(GPT2Config(**settings))
    model.save_pretrained(tmp_path, max_shard_size=200)
    with torch.no_grad():
        model.transformer.ln_f.bias += 1
    weights = {name: value.detach() for name, value in model.named_parameters()}
    save_file(weights, tmp_path / WHOLE, {"format": "pt"})
    assert (tmp_path / INDEX).exists()
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path).transformer.ln_f.bias
    assert torch.equal(WeightFiles.open(tmp_path).value("transformer.ln_f.bias"), loaded)


def index(places: object) -> dict[str, bytes]:
    return {INDEX: json.dumps({"weight_map": places}).encode()}


NO_INDEX, OUTSIDE = "is not an index of weights", "not a safetensors file in its folder"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "holds no model.safetensors"),
        ({"model-00001-of-00002.safetensors": b""}, "holds model-00001-of-00002.safetensors, but"),
        ({ADAPTER: b""}, "holds adapter_model.safetensors, but no"),
        ({"pytorch_model.bin": b"x"}, "can execute code"),
        ({WHOLE: b"\x08"}, "cannot be read"),
        ({INDEX: b"{"}, NO_INDEX),
        ({INDEX: b"[" * 99_999}, NO_INDEX),
        (index(["a"]), NO_INDEX),
        (index({"a": "../b.safetensors"}), OUTSIDE),
        (index({"a": "a.bin"}), OUTSIDE),
        (index({"a": "\ud800.safetensors"}), OUTSIDE),
        (index({"a": "a.safetensors"}), "cannot be read"),
        (index({"a": "a.safetensors"}) | {"a.safetensors": save({"b": ARENA})}, "cannot be read"),
    ],
)
def test_a_folder_that_is_not_whole(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        WeightFiles.open(tmp_path)
    assert caught.value.hint
    with pytest.raises(ConfigError, match="is not a folder"):
        WeightFiles.open(tmp_path / "absent")


def test_the_hint_for_pickled_weights_converts_them(tmp_path: Path) -> None:
    settings = {"n_embd": 4, "n_layer": 1, "n_head": 1, "vocab_size": 3, "n_positions": 2}
    model = GPT2LMHeadModel(GPT2Config(**settings))
    model.config.save_pretrained(tmp_path / "of old")
    torch.save(model.state_dict(), tmp_path / "of old" / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="can execute code") as caught:
        WeightFiles.open(tmp_path / "of old")
    subprocess.run(shlex.split(caught.value.hint.split("`")[1]), cwd=tmp_path, check=True)
    name = "transformer.h.0.mlp.c_fc.weight"
    assert torch.equal(WeightFiles.open(tmp_path / "FOLDER").value(name), model.get_parameter(name))
