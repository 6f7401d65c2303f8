"""[model] has one source; keys that say nothing about it are refused by name."""

import pytest

from atom.base.errors import ConfigError
from atom.config.load import normalised_run_text, parse_run_text, run_from_text
from atom.config.run_file import RunFile

RUN = """
[run]
name = "r"
[model]
{model}
[data]
{data}
[batch]
global_sequences = 4
micro_batch_sequences = 2
[optimizer]
learning_rate = 1e-3
"""
STDLIB = 'source = "python-stdlib"'
OWN = 'source = "module"'
TABLE = 'source = "datasets"\npath = "a/b"'
CONFIG = 'huggingface = "config.json"'
MODULE = 'module = "my.words:make"'
FAMILY = 'family = "gpt3"\nsize = "small"'


def parsed(model: str, data: str = STDLIB) -> RunFile:
    return parse_run_text(RUN.format(model=model, data=data), "r.toml")


@pytest.mark.parametrize(
    ("model", "data", "place", "hint"),
    [
        ("", STDLIB, "model.family: missing: a model comes from somewhere", "huggingface ="),
        (f"{CONFIG}\n{MODULE}", STDLIB, "model.module: the model comes from huggingface", "remove"),
        (f"{CONFIG}\nlayers = 2", STDLIB, "model.layers: says nothing with huggingface", "remove"),
        (f"{MODULE}\nsize = 'small'", STDLIB, "model.size: says nothing with module", "remove"),
        (f"{MODULE}\nvocabulary_size = 9", STDLIB, "model.vocabulary_size: says nothing", ""),
        (f"{FAMILY}\nmodule_sha256 = '{'0' * 64}'", STDLIB, "model.module_sha256: says not", ""),
        (f"{FAMILY}\nhuggingface_config = '1'", STDLIB, "model.huggingface_config: says", ""),
        ('module = "my words:make"', STDLIB, "model.module: cannot be", "package.module:f"),
        ('module = "os:a.b"', STDLIB, "model.module: cannot be", ""),
        (FAMILY, OWN, "data.source: the model is no module", "source ="),
        (f"{MODULE}\nsequence_tokens = 8", OWN, "model.sequence_tokens: the module brings", ""),
        (MODULE, f"{OWN}\ntokenizer = 'bytes'", "data.tokenizer: says nothing with", "'text' or"),
        (MODULE, f"{OWN}\nmax_bytes = '9 MB'", "data.max_bytes: says nothing with", "remove"),
        (FAMILY, 'source = "datasets"', "data.path: missing", "OWNER/NAME"),
        (FAMILY, f"{TABLE}\npaths = ['a']", "data.paths: says nothing with", "source = 'text'"),
        (FAMILY, f"{TABLE}\nsplit = 'train[:9]'", "data.split: cannot be", ""),
    ],
)
def test_mistakes_are_named(model: str, data: str, place: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(model, data)
    assert place in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("model", "data"),
    [(FAMILY, STDLIB), (FAMILY, TABLE), (CONFIG, STDLIB), (MODULE, STDLIB), (MODULE, OWN)],
)
def test_what_the_founder_pins_is_what_joiners_read(model: str, data: str) -> None:
    run = parsed(model, data)
    if model is CONFIG:
        run = run.with_source(config='{"model_type":"llama"}')
    if model is MODULE:
        run = run.with_source(code="a" * 64)
    if data in (STDLIB, TABLE):
        run = run.pinned(256, "b" * 64)
    text = normalised_run_text(run)
    again = run_from_text(text)
    assert again.model == run.model
    assert again.data == run.data
    assert normalised_run_text(again) == text
    assert ("dropout" in text) == (model is FAMILY)
    assert ("vocabulary_size" in text) == (model is FAMILY)
    assert ("sequence_tokens" in text) == (data is not OWN)


def test_a_pinned_source_is_compared() -> None:
    run = parsed(MODULE).with_source(code="a" * 64)
    assert run.with_source(code="a" * 64) == run
    with pytest.raises(ConfigError, match=r"model\.module_sha256: module = .my\.words:make. is"):
        run.with_source(code="b" * 64)
