import json
from pathlib import Path
from typing import get_args

import pytest

from atom.base.errors import ConfigError
from atom.config.load import (
    keys_of,
    load_run_file,
    normalised_run_text,
    parse_peer_text,
    parse_run_text,
    pinned_run,
    run_from_text,
)
from atom.config.model_and_data import SizeName
from atom.config.peer_file import PeerFile
from atom.config.run_file import MAX_MEMBERS, RunFile
from atom.config.sources import text_sources
from atom.models.data.corpus import text_corpus
from atom.models.gpt3 import SIZES
from atom.swarm.identity import Identity, is_peer_id
from atom.swarm.records.manifest import (
    MAX_RECORD_BYTES,
    PackageVersion,
    chain_rules,
    decode_manifest,
    encode_manifest,
)
from tests.swarm.swarm_samples import a_manifest
from tests.toml_text import with_key

READY = Path(__file__).parents[2] / "peers"
HERE = Path("/runs")
EXAMPLE = (READY / "shakespeare.toml").read_text()


@pytest.fixture
def shakespeare() -> RunFile:
    return load_run_file(READY / "shakespeare.toml")


@pytest.fixture
def small() -> RunFile:
    return load_run_file(READY / "gpt3-small.toml")


def test_sizes_are_those_of_the_models_room() -> None:
    assert list(get_args(SizeName)) == list(SIZES)


def test_a_folder_whose_name_looks_like_a_glob_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "my [run]"
    (folder / "texts").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "texts/c[1].txt"):
        (folder / name).write_text(name)
    written = '["*.txt", "texts", "texts/c[1].txt", "texts/c?1?.txt"]'
    peer = parse_peer_text(f"[data]\npaths = {written}\n", folder)
    run = load_run_file(READY / "demo.toml")
    data = run.data.model_copy(update={"source": "text", "paths": tuple(json.loads(written))})
    of_text = run.model_copy(update={"data": data})
    for sources in (text_sources(of_text, PeerFile(), folder), text_sources(of_text, peer, None)):
        corpora = [text_corpus([path]) for path in sources.texts[""].paths]
        found = [[Path(each.where).name for each in corpus.read()] for corpus in corpora]
        assert found == [["a.txt", "b.txt"], *[["c[1].txt"]] * 3]


@pytest.mark.parametrize("file", [RunFile, PeerFile])
def test_every_key_says_what_it_means(file: type) -> None:
    for section, keys in keys_of(file).items():
        for key, meaning in keys.items():
            assert meaning, f"{section}.{key}"


def with_keys(**keys: str) -> RunFile:
    """Shakespeare's run with other keys: `section__key`."""
    text = EXAMPLE
    for name, value in keys.items():
        section, _, key = name.partition("__")
        text = with_key(text, f"{section}.{key}", value)
    return parse_run_text(text)


BFLOAT16_SUMS = {"optimizer__gradients": '"bfloat16"', "model__precision": '"bfloat16"'}


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"optimizer__state": '"half"'}, "optimizer.state"),
        ({"optimizer__state": '"split"', "model__precision": '"float16"'}, "optimizer.state"),
        (BFLOAT16_SUMS | {"swarm__codec": '"int4"'}, "optimizer.gradients"),
        (BFLOAT16_SUMS | {"swarm__codec": '"sparse"'}, "optimizer.gradients"),
    ],
)
def test_numbers_and_rules_go_together(keys: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_keys(**keys)
    assert f"{key}: " in caught.value.message
    assert caught.value.hint


def filled_in(run: RunFile, **sections: dict[str, object]) -> RunFile:
    """A copy of the run with other values in these sections."""
    changed = {
        name: getattr(run, name).model_copy(update=values) for name, values in sections.items()
    }
    return run.model_copy(update=changed)


def test_paths_of_the_run_file_are_relative_to_its_folder(small: RunFile) -> None:
    sources = text_sources(small, PeerFile(), HERE)
    assert (sources.texts[""].paths, sources.tokenizer) == (("/runs/text",), "/runs/tokenizer.json")


def test_a_strangers_paths_are_never_opened(shakespeare: RunFile, small: RunFile) -> None:
    for run in (shakespeare, small):
        with pytest.raises(ConfigError) as caught:
            text_sources(run, PeerFile(), None)
        assert "founder's machine" in caught.value.message
        assert "--peer" in caught.value.hint
    peer = parse_peer_text('[data]\npaths = ["mine.txt"]\n', Path("/box"))
    assert text_sources(shakespeare, peer, None).texts[""].paths == ("/box/mine.txt",)


@pytest.mark.parametrize(
    "said", ["", '[data]\npaths = ["m"]\n', '[data]\ntokenizer = "a \\"b.json"\n']
)
def test_all_that_a_joiner_lacks_is_asked_for_at_once(small: RunFile, said: str) -> None:
    """The section in the hint is valid and sufficient for any content of the peer file."""
    peer = parse_peer_text(said, Path("/box"))
    with pytest.raises(ConfigError) as caught:
        text_sources(small, peer, None)
    for key, path in (("paths", "text"), ("tokenizer", "tokenizer.json")):
        assert (f"data.{key}" in caught.value.message) == (key not in said)
        assert (f"'{path}'" in caught.value.message) == (key not in said)
    section = caught.value.hint[caught.value.hint.index("[data]\n") :]
    found = text_sources(small, parse_peer_text(section, Path("/box")), None)
    mine = peer.data
    assert found.texts[""].paths == (mine.paths or ("/box/text",))
    assert found.tokenizer == (mine.tokenizer or "/box/tokenizer.json")


@pytest.mark.parametrize(
    ("path", "revision", "shown"),
    [("owner/name", "a" * 40, "owner/name"), ("/x/../secret", None, "secret")],
)
def test_of_a_strangers_path_the_hint_shows_the_last_part(
    path: str, revision: str | None, shown: str
) -> None:
    text = (READY / "demo.toml").read_text()
    pinned = f'\nrevision = "{revision}"' if revision else ""
    run = parse_run_text(text.replace('"python-stdlib"', f'"datasets"\npath = "{path}"{pinned}'))
    with pytest.raises(ConfigError) as caught:
        text_sources(run, PeerFile(), None)
    assert caught.value.hint.endswith(f'[data]\npath = "{shown}"')


def test_a_table_is_a_folder_here_or_a_name_of_the_hub(tmp_path: Path) -> None:
    text = (READY / "demo.toml").read_text()
    text = text.replace('"python-stdlib"', '"datasets"\npath = "owner/name"')
    run = parse_run_text(text)
    assert text_sources(run, PeerFile(), tmp_path).texts[""].path == "owner/name"
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert text_sources(run, PeerFile(), tmp_path).texts[""].path == str(
        tmp_path / "owner" / "name"
    )
    for mine, place in (("x/y", "x/y"), ("./x/y", "/box/x/y"), ("x", "/box/x"), ("/x", "/x")):
        peer = parse_peer_text(f'[data]\npath = "{mine}"\n', Path("/box"))
        assert text_sources(run, peer, None).texts[""].path == place


def test_a_stranger_cannot_make_python_stdlib_read_files() -> None:
    run = load_run_file(READY / "demo.toml")
    peer = parse_peer_text('[data]\npaths = ["m"]\n', Path("/box"))
    assert text_sources(run, peer, None).texts[""].paths == ()


def test_a_run_of_several_texts_has_each_in_its_place() -> None:
    run = parsed(FAMILY, MIX)
    assert list(run.data.texts) == ["books", "python", "web", "own-words"], "held back ones last"
    assert run.data.weights == {"books": 1, "python": 1, "web": 3, "own-words": 0}
    assert run.data.held_back == ["own-words"]
    found = text_sources(run, PeerFile(), HERE)
    assert {name: place.paths or place.path for name, place in found.texts.items()} == {
        "books": ("/runs/b.txt",), "python": None, "web": "owner/web", "own-words": ("/runs/words",)
    }  # fmt: skip
    again = run_from_text(normalised_run_text(run))
    assert (again, list(again.data.texts)) == (run, list(run.data.texts))


@pytest.mark.parametrize("said", ["", '[data.sources.books]\npaths = ["m"]\n'])
def test_a_joiner_names_copies_of_several_texts_by_name(said: str) -> None:
    run, peer = parsed(FAMILY, MIX), parse_peer_text(said, Path("/box"))
    with pytest.raises(ConfigError) as caught:
        text_sources(run, peer, None)
    assert ("data.sources.books.paths" in caught.value.message) == (not said)
    section = caught.value.hint[caught.value.hint.index("[data.sources") :]
    found = text_sources(run, parse_peer_text(section, Path("/box")), None)
    assert found.texts["books"].paths == ("/box/m" if said else "/box/b.txt",)
    assert found.texts["own-words"].paths == ("/box/words",)
    assert found.texts["web"].path == "/box/web"


# ---- peers that may take part

ANN = "12D3KooWBwaS4KPHPLeWagK24PzzeKpe9kHWYbP8TsAHWWMyti3G"
BOB = "12D3KooWSn9UNA9g6Ygp9o1pCoJAxHtpT3v457ZbZ9jpcAXPqjoa"
SLIP = ANN[:-1]
OF_ANOTHER_KIND = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
TOO_MANY = [Identity.create().peer_id for _ in range(MAX_MEMBERS + 1)]


def listing(members: object) -> RunFile:
    return with_keys(swarm__members=json.dumps(members))


def test_an_open_run_may_trust_peers_from_the_start() -> None:
    run = with_keys(swarm__trusted=json.dumps([ANN, BOB]))
    assert run.swarm.members is None
    manifest = a_manifest(Identity.create(), run_file=normalised_run_text(run))
    assert chain_rules(manifest).trusted == {ANN, BOB}
    assert run_from_text(normalised_run_text(run)) == run
    with pytest.raises(ConfigError, match=f"swarm.trusted: {ANN} is listed more than once"):
        with_keys(swarm__trusted=json.dumps([ANN, ANN]))


@pytest.mark.parametrize(
    "members", [[ANN, BOB, ANN], [ANN, "ann"], [ANN + " "], ["0" * 52], TOO_MANY]
)
def test_a_wrong_list_of_members_is_named(members: object) -> None:
    with pytest.raises(ConfigError, match=r"swarm\.members") as caught:
        listing(members)
    assert caught.value.hint


@pytest.mark.parametrize("text", [ANN, SLIP, ANN + "x", ANN + "\n", OF_ANOTHER_KIND, "1" * 52, ""])
def test_the_run_file_and_the_swarm_agree_on_what_a_peer_id_is(text: str) -> None:
    try:
        listing([text])
    except ConfigError:
        assert not is_peer_id(text)
    else:
        assert is_peer_id(text)


def test_the_longest_list_fits_into_a_signed_record() -> None:
    owner = Identity.create()
    filled = {"model": {"vocabulary_size": 256}, "data": {"tokenizer_sha256": "a" * 64}}
    text = normalised_run_text(filled_in(listing(TOO_MANY[:MAX_MEMBERS]), **filled))
    versions = tuple(
        PackageVersion(name, "2.13.0") for name in ("torch", "atom-swarm", "transformers")
    )
    digest = "ef" * 32
    manifest = a_manifest(
        owner, run="shakespeare", run_file=text, graph_hash=digest, versions=versions,
        data_digest=digest,
    )  # fmt: skip
    record = encode_manifest(manifest, owner)
    assert len(record) <= MAX_RECORD_BYTES
    assert decode_manifest(record, "shakespeare") == manifest


# ---- where the model and its data come from

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


BOOKS = "[data.sources.books]\npaths = ['b.txt']"
MANY = "\n".join(BOOKS.replace("books", f"books{number}") for number in range(17))
MIX = f"""\
[data.sources.web]
source = "datasets"
path = "owner/web"
weight = 3
{BOOKS}
[data.sources.own-words]
paths = ["words"]
weight = 0
[data.sources.python]
source = "python-stdlib"
"""


def parsed(model: str, data: str = STDLIB) -> RunFile:
    return parse_run_text(RUN.format(model=model, data=data), "r.toml")


@pytest.mark.parametrize(
    ("model", "data", "key"),
    [
        (f"{MODULE}\nsize = 'small'", STDLIB, "model.size"),
        (f"{MODULE}\nvocabulary_size = 9", STDLIB, "model.vocabulary_size"),
        (f"{FAMILY}\nmodule_sha256 = '{'0' * 64}'", STDLIB, "model.module_sha256"),
        (f"{FAMILY}\nhuggingface_config = '1'", STDLIB, "model.huggingface_config"),
        (f"{MODULE}\nsequence_tokens = 8", OWN, "model.sequence_tokens"),
        (MODULE, f"{OWN}\ntokenizer = 't.json'", "data.tokenizer"),
        (MODULE, f"{OWN}\nmax_bytes = '9 MB'", "data.max_bytes"),
        (FAMILY, f"{TABLE}\npaths = ['a']", "data.paths"),
        (FAMILY, f"{STDLIB}\n{BOOKS}", "data.source"),
        (FAMILY, f"{BOOKS}\nweights = 2", "data.sources.books.weights"),
        (FAMILY, f"{BOOKS}\ntokenizer = 'x'", "data.sources.books.tokenizer"),
        (FAMILY, "[data.sources.books]", "data.sources.books.paths"),
        (FAMILY, f"{BOOKS}\nsplit = 'a'", "data.sources.books.split"),
        (FAMILY, BOOKS.replace("books", '"my books"'), "data.sources.my books"),
        (MODULE, f"{BOOKS}\nsource = 'module'", "data.sources.books.source"),
        (FAMILY, MANY, "data.sources"),
    ],
)
def test_a_wrong_key_is_named_with_a_hint(model: str, data: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(model, data)
    assert caught.value.message.startswith(f"r.toml: {key}: ")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("model", "data"),
    [(FAMILY, STDLIB), (FAMILY, TABLE), (CONFIG, STDLIB), (MODULE, STDLIB), (MODULE, OWN)],
)
def test_what_the_founder_pins_is_what_joiners_read(model: str, data: str) -> None:
    run = parsed(model, data)
    if model is CONFIG:
        run = filled_in(run, model={"huggingface_config": '{"model_type":"llama"}'})
    if model is MODULE:
        run = filled_in(run, model={"module_sha256": "a" * 64})
    if data in (STDLIB, TABLE):
        run = filled_in(run, data={"tokenizer_sha256": "b" * 64})
    if model is FAMILY:
        with pytest.raises(ConfigError, match=r"manifest: model\.vocabulary_size: is missing"):
            pinned_run(normalised_run_text(run))
        run = filled_in(run, model={"vocabulary_size": 256})
    text = normalised_run_text(run)
    again = pinned_run(text)
    assert again.model == run.model
    assert again.data == run.data
    assert normalised_run_text(again) == text


def test_a_pinned_source_is_compared() -> None:
    code, other = ({"module_sha256": digit * 64} for digit in "ab")
    model = parsed(MODULE).model.pinned(code, False)
    assert model.pinned(code, False) == model
    with pytest.raises(ConfigError, match=r"model\.module_sha256: module = .my\.words:make. is"):
        model.pinned(other, False)
