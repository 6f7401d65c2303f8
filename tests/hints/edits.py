"""Hints about keys of run files: a file that earns the hint, and files changed as the hint says."""

import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from atom.config.load import run_from_text

Edits = Mapping[str, Any]
"""Key ("section.key" or "section") → value; None removes the key."""

RUN: dict[str, dict[str, Any]] = {
    "run": {"name": "tiny", "rounds": 10},
    "model": {"family": "gpt3", "layers": 1, "heads": 1, "model_dim": 8, "sequence_tokens": 8},
    "data": {"source": "text", "paths": ["a.txt"]},
    "batch": {"global_sequences": 4, "micro_batch_sequences": 2},
    "optimizer": {"learning_rate": 1e-3},
}
GPT: Edits = {"model": {"family": "gpt3", "size": "small"}}
HUB: Edits = {"model": {"huggingface": "a/b"}}
OWN: Edits = {"model": {"module": "a.b:make"}}
HELD_BACK: Edits = {"data.validation_fraction": 0.1}
CHATS: Edits = {"data": {"source": "datasets", "path": "a/b", "train_on": "answers"}}
LOCAL: Edits = {"update.rule": "local-steps", "update.inner_sequences": 2}
MIXED = {"sources": {"a": {"paths": ["a.txt"]}}}
PEER = "12D3KooWGRUaMpSxHC6zS3FfG3mVYmXsBdTKZvNTT7J3rc7FLMbw"

RUN_HINTS: dict[str, tuple[Edits, tuple[Edits, ...]]] = {
    'or write huggingface = "config.json", or module = "package.module:factory"':
        ({"model": {}}, (GPT, {"model": {"huggingface": "config.json"}}, OWN)),
    "remove it: {…} determines this": ({**HUB, "model.layers": 1}, ({"model.layers": None},)),
    "remove one of the two":
        ({**HUB, "model.module": "a:b"}, ({"model.module": None}, {"model.huggingface": None})),
    'set huggingface = "OWNER/NAME"; for weights in a folder, use --from FOLDER':
        ({**GPT, "model.weights": "hub"},
         ({"model": {"huggingface": "a/b", "weights": "hub"}}, {"model.weights": None})),
    'write size = "small", for example, or these three keys':
        ({"model": {"family": "gpt3"}}, (GPT, {"model": RUN["model"]})),
    'paths = ["input.txt"]': ({"data.paths": None}, ({"data.paths": ["input.txt"]},)),
    'path = "OWNER/NAME"': ({"data": {"source": "datasets"}}, ({"data.path": "OWNER/NAME"},)),
    "remove it": ({"data.answer_share": 0.5}, ({"data.answer_share": None},)),
    "remove it, or use source = {…}":
        ({"data.split": "train"},
         ({"data.split": None}, {"data": {"source": "datasets", "path": "a", "split": "train"}})),
    'source = "text", or several: [data.sources.NAME]':
        ({"data": {}}, ({"data": RUN["data"]}, {"data": MIXED})),
    "write it under each of them":
        ({"data": {**MIXED, "max_bytes": "8 MB"}},
         ({"data": {"sources": {"a": {"paths": ["a.txt"], "max_bytes": "8 MB"}}}},)),
    "give one a weight of 1":
        ({"data": {"sources": {"a": {"paths": ["a.txt"], "weight": 0}}}},
         ({"data": {"sources": {"a": {"paths": ["a.txt"], "weight": 1}}}},)),
    "name a tokenizer.json that has an end-of-text token":
        ({**HUB, "data.attention": "documents"}, ({"data.tokenizer": "tokenizer.json"},)),
    'tokenizer = "FOLDER/tokenizer.json"':
        ({**HUB, **CHATS}, ({"data.tokenizer": "FOLDER/tokenizer.json"},)),
    'remove it, or set decay = "cosine"':
        ({"optimizer.decay_rounds": 5},
         ({"optimizer.decay_rounds": None}, {"optimizer.decay": "cosine"})),
    "set it to the number of sequences per local optimizer step of one peer":
        ({"update.rule": "local-steps"}, ({"update.inner_sequences": 2},)),
    'set rounds under [run], or decay = "constant"':
        ({"run.rounds": None, "optimizer.decay": "cosine"},
         ({"run.rounds": 5}, {"optimizer.decay": "constant"})),
    "set it, 0.1 for example, or remove [validation]":
        ({"validation.every_rounds": 1}, (HELD_BACK, {"validation": None})),
    'remove it, or set rule = "{…}"':
        ({"update.outer_rate": 0.5}, ({"update.outer_rate": None}, LOCAL)),
    'leave it at "{…}", or set model.precision = "bfloat16"':
        ({"optimizer.gradients": "bfloat16"},
         ({"optimizer.gradients": "float32"}, {"model.precision": "bfloat16"})),
    'use source = "text", or [model] module = "package.module:factory"':
        ({"data": {"source": "module"}}, ({"data": RUN["data"]}, OWN)),
    "leave it out for an open run": ({"swarm.members": []}, ({"swarm.members": None},)),
    "list each peer once": ({"swarm.members": [PEER, PEER]}, ({"swarm.members": [PEER]},)),
    "lower it, or raise batch.global_sequences":
        ({**LOCAL, "update.inner_sequences": 8},
         ({"update.inner_sequences": 4}, {"batch.global_sequences": 8})),
    "shorten it, or leave it out":
        ({"optimizer.decay": "cosine", "optimizer.decay_rounds": 10},
         ({"optimizer.decay_rounds": 9}, {"optimizer.decay_rounds": None})),
    'set swarm.codec = "bfloat16"':
        ({"model.precision": "bfloat16", "optimizer.gradients": "bfloat16", "swarm.codec": "int8"},
         ({"swarm.codec": "bfloat16"},)),
    'use [model] huggingface = "…", or remove it':
        ({"data.attention": "documents", "data.tokenizer": "t.json"},
         (HUB, {"data.attention": None})),
    'use huggingface = "…", or remove [data] train_on':
        ({**CHATS, "data.tokenizer": "t.json"}, (HUB, {"data.train_on": None})),
    "raise it, or leave it out":
        ({"model.vocabulary_size": 255},
         ({"model.vocabulary_size": 256}, {"model.vocabulary_size": None})),
    "{…}: {…}": ({"optimizer.learning_rate": "fast"}, ({"optimizer.learning_rate": 1e-3},)),
    "start a line with [{…}] and write its keys below":
        ({"batch": None}, ({"batch": RUN["batch"]},)),
}  # fmt: skip
"""Hint → (mistake, each of the hint's remedies)."""


def edited(*edits: Edits) -> dict[str, Any]:
    tree = deepcopy(RUN)
    for dotted, value in (pair for each in edits for pair in each.items()):
        section, _, key = dotted.partition(".")
        inner, name = (tree.setdefault(section, {}), key) if key else (tree, section)
        inner[name] = deepcopy(value)
        if value is None:
            del inner[name]
    return tree


def parse(edits: Iterable[Edits]) -> None:
    """Raises: ConfigError."""
    run_from_text(json.dumps(edited(*edits)))
