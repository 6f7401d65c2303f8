"""`atom sample`: its output, and refused arguments."""

from pathlib import Path

import pytest

from atom.cli.app import main
from atom.cli.look import sample
from atom.cli.shell.failures import ExitCode
from atom.models.data.tokenizer import ByteTokenizer
from tests.daemon.model.kept_runs import folder_in
from tests.daemon.tiny_run import GPT3

ADDRESS = f"/ip4/127.0.0.1/tcp/9/p2p/{'1' * 52}/run/tiny/owner/{'1' * 52}"


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
        ("absent", ["x"], ExitCode.STORAGE, "absent is not a folder"),
        (ADDRESS, ["x"], ExitCode.STORAGE, "is not a folder on this machine"),
        (".", list("123456789"), ExitCode.USAGE, "9 prompts, but at most 8"),
    ],
)
def test_what_cannot_be_sampled_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], where: str, prompts: list[str],
    code: ExitCode, words: str,
) -> None:  # fmt: skip
    assert main(["sample", where, *prompts]) == code
    said = capsys.readouterr().err
    assert words in " ".join(said.split())
    assert "hint:" in said
