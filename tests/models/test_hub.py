"""Models of the hub, which is played on loopback: files at one commit, bounded and whole."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom.base.errors import AddressError, ConfigError
from atom.models import hub
from tests.hub_stand_in import REVISION, Hub, played_hub

NAME = "owner/model"


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with played_hub(tmp_path / "cache", monkeypatch) as found:
        found.models[NAME] = tmp_path / "model"
        (tmp_path / "model").mkdir()
        yield found


def put(played: Hub, **files: bytes) -> None:
    for name, content in files.items():
        (played.models[NAME] / name.replace("__", ".").replace("_of_", "-of-")).write_bytes(content)


def fetched(most_bytes: int = 10_000) -> tuple[Path, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []
    folder = hub.fetch_weights(NAME, REVISION, most_bytes, lambda *given: told.append(given))
    return folder, told


def test_one_file_is_fetched_once_and_told(played: Hub) -> None:
    put(played, model__safetensors=b"w" * 5000, config__json=b"{}", other__bin=b"x")
    assert hub.newest_revision(NAME, "model") == REVISION
    assert hub.fetch_config(NAME, REVISION).read_bytes() == b"{}"
    folder, told = fetched()
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == b"w" * 5000
    assert told[-1] == (5000, 5000)
    assert told == sorted(told)
    before = len(played.asked)
    assert fetched()[0] == folder
    assert not [path for path in played.asked[before:] if "resolve" in path]


@pytest.mark.parametrize(
    "files",
    [
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ["model.safetensors-00001-of-00002.safetensors", "model.safetensors-00002.safetensors"],
        ["pytorch_model-00001-of-00002.safetensors", "pytorch_model-00002-of-00002.safetensors"],
        ["shard_1.safetensors", "shard_2.safetensors"],
        ["layers_0-15.safetensors", "head.safetensors"],
    ],
)
def test_several_files_are_those_of_the_index(played: Hub, files: list[str]) -> None:
    index = json.dumps({"weight_map": dict(zip("ab", files, strict=True))})
    put(played, model__safetensors__index__json=index.encode(), consolidated__safetensors=b"x")
    for number, name in enumerate(files):
        (played.models[NAME] / name).write_bytes(b"w" * (10 + number))
    folder, told = fetched()
    assert [(folder / name).stat().st_size for name in files] == [10, 11]
    assert told[-1] == (len(index) + 21,) * 2


def test_a_file_of_the_index_that_the_hub_lacks_is_named_before_any_is_fetched(
    played: Hub,
) -> None:
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    index = json.dumps({"weight_map": {"a": first, "b": second}})
    put(played, model__safetensors__index__json=index.encode())
    (played.models[NAME] / first).write_bytes(b"w" * 10)
    with pytest.raises(ConfigError, match=f"lacks {second}, which its index names") as caught:
        fetched()
    assert caught.value.hint
    assert not [path for path in played.asked if path.endswith(first)]


def test_what_no_run_could_use_is_refused_before_it_is_fetched(played: Hub) -> None:
    put(played, pytorch_model__bin=b"x")
    with pytest.raises(ConfigError, match="no weights as safetensors") as caught:
        fetched()
    assert f'from_pretrained("{NAME}"' in caught.value.hint
    put(played, model__safetensors=b"w" * 5000)
    with pytest.raises(ConfigError, match="5,000 bytes of weights, more than 4,999"):
        fetched(4999)
    assert not [path for path in played.asked if path.endswith("model.safetensors")]


def test_a_hub_that_does_not_answer_may_be_asked_again(played: Hub) -> None:
    played.down = True
    for ask in (lambda: hub.newest_revision(NAME, "model"), fetched):
        with pytest.raises(AddressError, match="cannot query") as caught:
            ask()
        assert "folder" in caught.value.hint
