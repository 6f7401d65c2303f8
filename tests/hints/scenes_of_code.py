"""Hints about code of an owner, and about configs of models."""

from pathlib import Path
from typing import Any

import torch

from atom.models.data.samples import own_samples
from atom.models.huggingface_config import MAX_CONFIG_BYTES, config_text, read_config
from atom.models.module_source import MAX_CODE_BYTES, ModuleSource, find_code, read_code
from tests.hints.scene import Act, Scene, scene, written

GOOD_CODE = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 4)
    def forward(self, tokens, targets):
        return self.table(tokens).mean()
def example(tokens=8, sequences=2):
    return torch.zeros(sequences, tokens, dtype=torch.int64)
def make():
    return Model(), {"tokens": example(), "targets": example()}
"""


def code(before: str = "", after: str = "", tokens: int | None = 8) -> Act:
    def act(folder: Path) -> None:
        path = folder / "own.py"
        path.write_text(GOOD_CODE.replace(before, after))
        ModuleSource(read_code("own:make", path), 0, tokens)

    return act


def spoilt(before: str, after: str) -> Scene:
    return scene(code(before, after), code())


def rows(*given: Any, fraction: float = 0.0) -> Act:
    return lambda folder: own_samples(list(given), {"x": torch.zeros(1, 2)}, fraction, 0)


class Broken(list[Any]):
    def __getitem__(self, index: Any) -> Any:
        raise OSError("no such file")


EXAMPLE = '{"tokens": example(), "targets": example()}'
ROW = {"x": torch.zeros(2)}
WITH_ROWS = code(EXAMPLE, f'{EXAMPLE}, [{{"tokens": example()[0], "targets": example()[0]}}]', None)
OF_CODE = {
    "add def {…}(): … to it, without arguments": spoilt("def make", "make = 3\ndef made"),
    "the factory is called without arguments": spoilt("make()", "make(size)"),
    "import only installed packages: other peers receive this file alone":
        spoilt("import torch\n", "import torch\nimport my_own_layers\n"),
    "return module, example_batch — or module, example_batch, dataset":
        spoilt(f", {EXAMPLE}", ""),
    'return, for example, {"tokens": torch.zeros(2, 128, dtype=torch.int64), …}':
        spoilt(EXAMPLE, "example()"),
    "the first dimension of every entry must be the same number of sequences, at least 1":
        spoilt('"targets": example()', '"targets": example(8, 3)'),
    'name its entries like that, or return a dataset and set [data] source = "module"':
        scene(code('"targets"', '"labels"'), code(), WITH_ROWS),
    "make it int64 [sequences, {…}], or set [model] sequence_tokens":
        scene(code(tokens=4), code("tokens=8", "tokens=4", 4), code(tokens=8)),
    'return a dataset if the run has [data] source = "module", and only then':
        scene(code(tokens=None), WITH_ROWS, code(tokens=8)),
    "a dataset needs __len__(), and __getitem__(index), which returns a dict of tensors":
        scene(code(EXAMPLE, f"{EXAMPLE}, iter([])", None), WITH_ROWS),
    "__len__() must return 1 to {…}; the latter suits an endless stream":
        scene(code(EXAMPLE, f"{EXAMPLE}, []", None), WITH_ROWS),
    "return the entries of the example batch, without the first dimension":
        scene(rows({"y": torch.zeros(2)}), rows(ROW)),
    "return entries shaped as in the example batch, without the first dimension":
        scene(rows({"x": torch.zeros(1, 2)}), rows(ROW)),
    "the dataset's __getitem__ raised it": scene(
        lambda folder: own_samples(Broken([1]), {"x": torch.zeros(1, 2)}, 0.0, 0), rows(ROW)
    ),
    "raise data.validation_fraction, or remove [validation]":
        scene(rows(ROW, ROW, fraction=0.1), rows(ROW, ROW, fraction=0.5), rows(ROW, ROW)),
    "joining peers receive only this file: move general code into an installed package": scene(
        code("\nimport", "#" * MAX_CODE_BYTES + "\nimport"), code()
    ),
    "Atom searches {…} and the installed packages": scene(
        lambda folder: find_code("absent_module:make", folder),
        written("found_module.py", "", lambda path: find_code("found_module:make", path.parent)),
    ),
}  # fmt: skip


def config(text: str) -> Act:
    return lambda folder: read_config(text)


GOOD_CONFIG = config('{"model_type": "llama", "hidden_size": 8}')
OF_CONFIGS = {
    "check its commas and quotes": scene(config('{"model_type": "llama",}'), GOOD_CONFIG),
    "it must begin with { and name the model_type": scene(config('["llama"]'), GOOD_CONFIG),
    'add it, such as "model_type": "llama"': scene(config('{"hidden_size": 8}'), GOOD_CONFIG),
    "remove them from its texts": scene(config('{"model_type": "a", "b": "\\u0007"}'), GOOD_CONFIG),
    "a model has at most {…} layers":
        scene(config('{"model_type": "a", "num_hidden_layers": 99999999}'), GOOD_CONFIG),
    "whole numbers are at most {…}":
        scene(config('{"model_type": "a", "b": 99999999999999999999}'), GOOD_CONFIG),
    "name the config.json of one model":
        scene(config(" " * MAX_CONFIG_BYTES + "{} "), GOOD_CONFIG),
    "save it as UTF-8": scene(
        written("config.json", b"\xff{}", config_text), written("config.json", "{}", config_text)
    ),
}  # fmt: skip
