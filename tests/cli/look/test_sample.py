"""`atom sample`: what is printed, and what is refused at the door."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from atom.base.errors import AddressError, StorageError
from atom.cli.app import main
from atom.cli.look import sample
from atom.cli.shell.failures import ExitCode
from atom.config.run_file import RunFile
from atom.models.data.tokenizer import ByteTokenizer, byte_level_tokenizer
from atom.swarm.records.manifest import Manifest
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import BlobServer
from atom.swarm.state.piece_store import text_blob
from tests.daemon.model.kept_runs import folder_in
from tests.daemon.tiny_run import GPT3, TEXT, TINY_TEXT
from tests.swarm.local_transport import LocalNetwork

ADDRESS_OF_NOBODY = "/ip4/127.0.0.1/tcp/9/p2p/nobody/run/tiny/owner/nobody"


@pytest.fixture
def kept(tmp_path: Path) -> str:
    (tmp_path / "kept").mkdir()
    with folder_in(tmp_path / "kept") as folder:
        folder.snapshot(folder.found(GPT3))
    return str(tmp_path / "kept" / "a")


def test_texts_of_a_kept_run(folder: Path, kept: str, capsys: pytest.CaptureFixture[str]) -> None:
    def texts(*options: str) -> list[str]:
        arguments = ["sample", kept, "A peer", "gi", "--device", "cpu", "--tokens", "5", *options]
        assert main(arguments) == ExitCode.OK
        printed = capsys.readouterr()
        assert "round 0 of kept; each token is a pass over 8 tokens" in printed.err
        return printed.out.split("\n\n")

    likeliest = texts("--temperature", "0")
    assert likeliest == texts("--temperature", "1e-9")
    assert [text[:2] for text in likeliest] == ["A ", "gi"]
    assert texts("--seed", "3") == texts("--seed", "3") != texts("--seed", "4")


def test_what_a_terminal_would_obey_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    after = [*b"\x1b[2J\a\t\xe2\x80", 0xAE, *"é\n".encode(), 0xC3]
    told = iter([{0: token, 1: token} for token in after])
    sample._print(ByteTokenizer(), [[65], [66]], told)
    text = "�[2J�\t�é\n�\n"
    assert capsys.readouterr().out == f"A{text}\nB{text}"


def test_a_sign_is_printed_when_its_last_byte_has_come(capsys: pytest.CaptureFixture[str]) -> None:
    seen = list[str]()

    def tokens() -> object:
        for token in "é!".encode():
            yield {0: token}
            seen.append(capsys.readouterr().out)

    sample._print(ByteTokenizer(), [[65]], tokens())  # type: ignore[arg-type]
    assert seen == ["A", "é", "!"]


@pytest.mark.parametrize(
    ("where", "prompts", "code", "words"),
    [
        ("absent", ["x"], ExitCode.STORAGE, "absent is no folder, and no address"),
        (".", ["x"], ExitCode.STORAGE, "holds neither a run nor a model"),
        (ADDRESS_OF_NOBODY, ["x"], ExitCode.ADDRESS, "nobody"),
        (".", list("123456789"), ExitCode.USAGE, "9 prompts, and at most 8"),
    ],
)
def test_what_cannot_be_sampled_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], where: str, prompts: list[str],
    code: ExitCode, words: str,
) -> None:  # fmt: skip
    assert main(["sample", where, *prompts]) == code
    said = capsys.readouterr().err
    assert words in said
    assert "hint:" in said


@pytest.fixture
def network() -> Iterator[LocalNetwork]:
    network = LocalNetwork()
    yield network
    network.close()


def founded_with_a_tokenizer(tmp_path: Path, share: str) -> tuple[RunFile, Manifest]:
    (tmp_path / "tokenizer.json").write_text(byte_level_tokenizer())
    with folder_in(tmp_path) as folder:
        data = f'{TEXT}\ntokenizer = "tokenizer.json"\nshare = "{share}"'
        member = folder.found(GPT3, data=data)
    return member.run, member.manifest


def test_the_runs_tokenizer_is_asked_for_once_where_none_is_here(
    folder: Path, tmp_path: Path, network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, manifest = founded_with_a_tokenizer(tmp_path, "swarm")
    assert manifest.text is not None
    raw = byte_level_tokenizer().encode()
    content = {
        "tokenizer": torch.frombuffer(bytearray(raw), dtype=torch.uint8),
        "tokens-00": torch.frombuffer(bytearray(TINY_TEXT.encode()), dtype=torch.uint8),
    }
    me, donor = (
        network.add(),
        network.add(BlobServer({text_blob(state_digest(content)): content}.get).serve),
    )
    assert manifest.text.digest == state_digest(content)
    for peers in ([donor.peer_id], []):
        assert sample.tokenizer_of(manifest, run, me, peers).content == raw
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    with pytest.raises(AddressError):
        sample.tokenizer_of(manifest, run, me, [])


def test_a_tokenizer_that_does_not_travel_has_to_be_put_there(
    folder: Path, tmp_path: Path, network: LocalNetwork
) -> None:
    run, manifest = founded_with_a_tokenizer(tmp_path, "own-copy")
    with pytest.raises(StorageError, match="tokenizer of its own") as refused:
        sample.tokenizer_of(manifest, run, network.add(), [])
    assert "tokenizer.json at" in refused.value.hint


def test_prompts_are_counted_in_the_models_tokens(
    folder: Path, kept: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sample", kept, "longer than it"]) == ExitCode.CONFIG
    assert "prompt 1 has 14 tokens, and the model's sequences 8" in capsys.readouterr().err
