"""Whatever a user gets wrong: an exit code, `error:`, `hint:`, and never a traceback."""

import dataclasses
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from atom.base.errors import ConfigError
from atom.cli.app import main
from atom.cli.shell.failures import ExitCode
from tests.cli.good_run import GOOD_RUN

PEER_ID = "12D3KooWGRUaMpSxHC6zS3FfG3mVYmXsBdTKZvNTT7J3rc7FLMbw"


@dataclasses.dataclass(frozen=True)
class Case:
    """Arguments (relative to a folder with run.toml and bad.toml), and what is to be said."""

    name: str
    arguments: tuple[str, ...]
    code: ExitCode
    error: str
    hint: str
    bad: str = ""


STATE = ("--state", "state")
FAMILY = """\
family = "gpt3"
layers = 1
heads = 1
model_dim = 8
"""


def no_model(name: str, value: str, error: str, hint: str) -> Case:
    """A model that is named and cannot be had."""
    key = "module" if ":" in value else "huggingface"
    bad = GOOD_RUN.replace(FAMILY, f'{key} = "{value}"\n')
    return Case(name, ("plan", "bad.toml"), ExitCode.CONFIG, error, hint, bad)


def no_tokenizer(name: str, value: str, error: str) -> Case:
    bad = GOOD_RUN.replace("max_bytes", f'tokenizer = "{value}"\nmax_bytes')
    return Case(name, ("plan", "bad.toml"), ExitCode.CONFIG, error, "tokenizer", bad)


CASES = [
    Case("unknown key", ("start", "bad.toml"), ExitCode.CONFIG, "optimizer.learning_rat",
         "learning_rate", GOOD_RUN.replace("learning_rate", "learning_rat")),
    Case("a table", ("start", "bad.toml", *STATE), ExitCode.CONFIG, "bad.jsonl is packed or a",
         ".txt", GOOD_RUN.replace('"python-stdlib"', '"text"\npaths = ["bad.jsonl"]')),
    no_model("no config", "absent.json", "absent.json cannot be read: No such", "run file"),
    no_model("a folder as config", ".", "cannot be read: Is a directory", "config.json"),
    no_model("no JSON as config", "bad.jsonl", "the config is not JSON", "commas"),
    no_model("nobody's home", "~nobody-here/config.json", "~nobody-here/config.json", "run file"),
    no_model("no module", "absent:make", "module absent cannot be imported", "looked for in"),
    no_tokenizer("no tokenizer", "absent.json", "absent.json cannot be read: No such"),
    no_tokenizer("a folder as tokenizer", ".", "cannot be read: Is a directory"),
    no_tokenizer("no JSON as tokenizer", "bad.jsonl", "bad.jsonl is not a tokenizer.json"),
    Case("no such GPU", ("plan", "run.toml", "--peer", "bad.toml"), ExitCode.DEVICE, "GPU",
         "", '[device]\nkind = "cuda:100"'),
    Case("unknown command", ("stat",), ExitCode.USAGE, "stat", "start"),
    Case("unknown option", ("status", "--jsn", "x"), ExitCode.USAGE,
         "--jsn (Possible options: --json)", "status --help"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "crashes"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "run.toml").write_text(GOOD_RUN)
    (tmp_path / "bad.jsonl").write_text("no object\n")
    return tmp_path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input(case: Case, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.toml").write_bytes(case.bad.encode(errors="surrogateescape"))

    code = main(case.arguments)

    streams = capsys.readouterr()
    error, _, hint = streams.err.partition("hint:")
    assert code == case.code, streams.err
    assert error.startswith("error: ")
    assert case.error in error
    assert case.hint in hint
    assert "Traceback" not in streams.err
    assert streams.out == ""


def test_a_port_in_use(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"

        code = main(["bootstrap", "--listen", listen, "--state", str(folder / "state")])

    assert code == ExitCode.PORT
    assert listen.rpartition(":")[2] in capsys.readouterr().err


def test_nobody_listens_at_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, not listening: nobody else gets this port meanwhile
        port = free.getsockname()[1]

        code = main(["status", f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER_ID}/run/tiny/owner/{PEER_ID}"])

    assert code == ExitCode.ADDRESS
    shown = capsys.readouterr().err
    assert "connection refused" in shown
    assert "hint:" in shown


def _failing(fault: BaseException) -> Callable[..., None]:
    def command(*_given: object) -> None:
        raise fault

    return command


def test_an_unexpected_fault_is_told_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("atom.cli.look.status.show_status", _failing(RuntimeError("no \udcff")))

    assert main(["status", "x"]) == ExitCode.FAULT

    before, _, said = capsys.readouterr().err.partition("error: ")
    assert before.startswith("Traceback"), "above, as what is said last is read first"
    assert said.startswith("unexpected fault: RuntimeError: no �\nhint:  this is a bug")


def test_what_a_terminal_would_obey_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = ConfigError("m holds what the model does not have: w\x1b[2J\x9b", "a\tb \udcff\nsecond")
    monkeypatch.setattr("atom.cli.look.status.show_status", _failing(odd))

    assert main(["status", "x"]) == ExitCode.CONFIG

    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "error: m holds what the model does not have: w�[2J�"
    assert [line.split() for line in shown[1:]] == [["hint:", "a", "b", "�"], ["second"]]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (OSError(28, "No space left on device", "/data/x"), ExitCode.STORAGE),
        (MemoryError("the host cannot give 4096 bytes"), ExitCode.SHORTAGE),
        (PermissionError(13, "Permission denied", "/srv/x"), ExitCode.STORAGE),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
def test_faults_that_are_the_worlds(
    fault: BaseException,
    code: ExitCode,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("atom.cli.look.status.show_status", _failing(fault))

    assert main(["status", "x"]) == code

    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert "unexpected" not in shown
