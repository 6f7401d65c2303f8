"""Whatever a user gets wrong: an exit code, `error:`, `hint:`, and never a traceback."""

import dataclasses
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from atom.cli.app import main
from atom.cli.exit_codes import ExitCode

PEER_ID = "12D3KooWGRUaMpSxHC6zS3FfG3mVYmXsBdTKZvNTT7J3rc7FLMbw"
GOOD_RUN = """\
[run]
name = "tiny"
rounds = 3
[model]
family = "gpt3"
layers = 1
heads = 1
model_dim = 8
sequence_tokens = 8
[data]
source = "python-stdlib"
max_bytes = "20 kB"
[batch]
global_sequences = 4
micro_batch_sequences = 2
[optimizer]
learning_rate = 1e-3
"""


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
CASES = [
    Case("no such file", ("start", "absent.toml"), ExitCode.CONFIG, "absent.toml: no such file",
         "run.toml"),
    Case("a folder", ("start", "."), ExitCode.CONFIG, "is a folder", "run.toml"),
    Case("malformed", ("start", "bad.toml"), ExitCode.CONFIG, "not valid TOML", "quotes",
         "[run\nname = 3"),
    Case("not text", ("start", "bad.toml"), ExitCode.CONFIG, "not UTF-8", "UTF-8", "\udcff"),
    Case("unknown key", ("start", "bad.toml"), ExitCode.CONFIG, "optimizer.learning_rat",
         "learning_rate", GOOD_RUN.replace("learning_rate", "learning_rat")),
    Case("wrong type", ("start", "bad.toml"), ExitCode.CONFIG, "run.rounds", "",
         GOOD_RUN.replace("rounds = 3", 'rounds = "3"')),
    Case("wrong unit", ("start", "run.toml", "--peer", "bad.toml", *STATE), ExitCode.CONFIG,
         "device.memory", "GiB", '[device]\nmemory = "8 GiBi"'),
    Case("unit forgotten", ("start", "run.toml", "--peer", "bad.toml", *STATE), ExitCode.CONFIG,
         "network.upload", "Mbit/s", "[network]\nupload = 400"),
    Case("no table", ("start", "bad.toml", *STATE), ExitCode.CONFIG, "no such folder",
         "OWNER/NAME", GOOD_RUN.replace('"python-stdlib"', '"datasets"\npath = "nowhere"')),
    Case("no JSON line", ("start", "bad.toml", *STATE), ExitCode.CONFIG, "bad.jsonl, line 1",
         ".txt", GOOD_RUN.replace('"python-stdlib"', '"text"\npaths = ["bad.jsonl"]')),
    Case("no peer file", ("start", "run.toml", "--peer", "none.toml", *STATE), ExitCode.CONFIG,
         "none.toml: no such file", "run.toml"),
    Case("bad listen", ("start", "run.toml", "--listen", "here", *STATE), ExitCode.ADDRESS,
         "HOST:PORT", "0.0.0.0:31337"),
    Case("bad initial peer", ("start", "run.toml", *STATE, "--initial-peers", "10.0.0.5:31337"),
         ExitCode.ADDRESS, "10.0.0.5:31337", "/ip4/10.0.0.5"),
    Case("state is a file", ("start", "run.toml", "--state", "run.toml"), ExitCode.STORAGE,
         "run.toml", "--state"),
    Case("join nonsense", ("join", "nonsense"), ExitCode.ADDRESS, "not a join address",
         "atom start"),
    Case("join without a run", ("join", f"/ip4/10.0.0.5/tcp/3/p2p/{PEER_ID}"), ExitCode.ADDRESS,
         "names no run", "atom start"),
    Case("status nonsense", ("status", "x/run/y"), ExitCode.ADDRESS, "multiaddr", "/ip4/"),
    Case("contributions nonsense", ("contributions", "x"), ExitCode.ADDRESS, "not a join address",
         "atom start"),
    Case("watch nonsense", ("watch", "x"), ExitCode.ADDRESS, "not a join address", "atom start"),
    Case("no daemon there", ("pause", "--state", "none"), ExitCode.CONTROL, "no state directory",
         "--state"),
    Case("no daemon at all", ("info",), ExitCode.CONTROL, "no daemon", "atom start"),
    Case("set nowhere", ("set", "network.upload=1 Mbit/s"), ExitCode.CONTROL, "no daemon",
         "atom start"),
    Case("bad hours", ("start", "run.toml", "--peer", "bad.toml", *STATE), ExitCode.CONFIG,
         "schedule.hours[0]", "hours", '[schedule]\nhours = ["noon"]'),
    Case("bad idle time", ("start", "run.toml", "--peer", "bad.toml", *STATE), ExitCode.CONFIG,
         "schedule.idle_for", "10 min", "[schedule]\nidle_for = 10"),
    Case("bad power", ("start", "run.toml", "--peer", "bad.toml", *STATE), ExitCode.CONFIG,
         "device.power", "200 W", '[device]\npower = "much"'),
    Case("export nothing", ("export", "out", "--state", "none"), ExitCode.STORAGE, "holds no run",
         "--state DIR"),
    Case("export from nowhere", ("export", "out"), ExitCode.STORAGE, "no run is kept under",
         "--state DIR"),
    Case("export in another format", ("export", "out", "--precision", "int8"), ExitCode.USAGE,
         "'int8' is none of float32, bfloat16, float16", "atom export --help"),
    Case("from a run's seed", ("start", "bad.toml", *STATE), ExitCode.CONFIG,
         "none are given", "--from FOLDER",
         GOOD_RUN.replace("layers = 1", 'layers = 1\nweights = "given"')),
    Case("deadline", ("leave", "--deadline", "soon"), ExitCode.USAGE, "soon", "atom leave --help"),
    Case("foreign folder", ("demo", "--directory", "."), ExitCode.STORAGE, "is not empty",
         "--directory"),
    Case("too few rounds", ("demo", "--rounds", "2"), ExitCode.USAGE, "--rounds", "atom demo"),
    Case("unknown command", ("stat",), ExitCode.USAGE, "stat", "start"),
    Case("unknown option", ("status", "--jsn", "x"), ExitCode.USAGE, "--jsn", "--json"),
    Case("argument forgotten", ("join",), ExitCode.USAGE, "ADDRESS", "atom join --help"),
    Case("bootstrap listen", ("bootstrap", "--listen", "0.0.0.0:99999"), ExitCode.ADDRESS,
         "99999", "HOST:PORT"),
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

        code = main(["status", f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER_ID}/run/tiny"])

    assert code == ExitCode.ADDRESS
    shown = capsys.readouterr().err
    assert "connection refused" in shown
    assert "hint:" in shown


def _failing(fault: BaseException) -> Callable[[str, bool], None]:
    def command(_address: str, _as_json: bool) -> None:
        raise fault

    return command


def test_an_unexpected_fault_is_one_line_and_a_report(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("atom.cli.status.show_status", _failing(RuntimeError("the bug")))

    assert main(["status", "x"]) == ExitCode.FAULT

    shown = capsys.readouterr().err
    assert shown.startswith("error: unexpected fault: RuntimeError: the bug\n")
    assert "Traceback" not in shown
    (report,) = (folder / "crashes" / "atom").glob("crash-*.log")
    assert str(report) in shown
    assert "Traceback" in report.read_text()


def test_debug_shows_the_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("atom.cli.status.show_status", _failing(RuntimeError("the bug")))

    assert main(["--debug", "status", "x"]) == ExitCode.FAULT

    assert "Traceback" in capsys.readouterr().err
    assert not (folder / "crashes").exists()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (OSError(28, "No space left on device", "/data/x"), ExitCode.STORAGE),
        (MemoryError("the host cannot give 4096 bytes"), ExitCode.DEVICE),
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
    monkeypatch.setattr("atom.cli.status.show_status", _failing(fault))

    assert main(["status", "x"]) == code

    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert "unexpected" not in shown
