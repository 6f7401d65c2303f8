"""Every command, option and argument has a bad value here, and each is told with what to do.

They come from the command line itself: an option without a row fails. Nobody is asked over the
network: what can be told before is told before.
"""

from pathlib import Path

import pytest
import typer

from atom.cli.app import app, main
from atom.cli.shell.failures import ExitCode
from tests.cli.good_run import GOOD_RUN

PEER_ID = "12D3KooWGRUaMpSxHC6zS3FfG3mVYmXsBdTKZvNTT7J3rc7FLMbw"
ADDRESS = f"/ip4/127.0.0.1/tcp/9/p2p/{PEER_ID}/run/tiny/owner/{PEER_ID}"
START, PLAN = ("start", "run.toml"), ("plan", "run.toml")

Row = tuple[tuple[str, ...], ExitCode, str]
USAGE, CONFIG, NO_ADDRESS = ExitCode.USAGE, ExitCode.CONFIG, ExitCode.ADDRESS
STORAGE, CONTROL = ExitCode.STORAGE, ExitCode.CONTROL


def a_flag(*command: str) -> list[Row]:
    *before, flag = command
    return [((*before, f"{flag}=yes"), USAGE, f"'{flag}' does not take a value")]


def no_address(*command: str) -> list[Row]:
    return [
        ((*command, "nonsense"), NO_ADDRESS, "'nonsense' is not a join address"),
        ((*command, ""), USAGE, "is empty"),
    ]


def no_run_meant(command: str) -> list[Row]:
    """Without an address it is the run of this machine's daemon."""
    return [((command,), CONTROL, "no daemon of yours runs")]


def no_file(*command: str) -> list[Row]:
    """A run or peer file."""
    return [
        ((*command, "absent.toml"), CONFIG, "absent.toml: no such file"),
        ((*command, "folder"), CONFIG, "folder: cannot be read: Is a directory"),
        ((*command, "binary"), CONFIG, "binary: not UTF-8"),
        ((*command, "long"), CONFIG, "long: longer than 64 KiB"),
        ((*command, "loop"), CONFIG, "loop: cannot be read: Too many levels of symbolic links"),
        ((*command, "file/x"), CONFIG, "file/x: cannot be read: Not a directory"),
        ((*command, "text"), CONFIG, "text: not valid TOML"),
        ((*command, ""), USAGE, "is empty"),
    ]


def no_state(*command: str) -> list[Row]:
    """A directory that is to be claimed."""
    return [
        ((*command, "--state", "file"), STORAGE, "/file: File exists"),
        ((*command, "--state", "file/x"), STORAGE, "/file/x: Not a directory"),
        ((*command, "--state", ""), USAGE, "--state: is empty"),
    ]


def no_daemon(*command: str) -> list[Row]:
    return [
        ((*command, "--state", "absent"), CONTROL, "no state directory"),
        ((*command, "--state", "file"), CONTROL, "no state directory"),
        ((*command, "--state", "folder"), CONTROL, "no daemon runs in"),
    ]


def no_member(*command: str) -> list[Row]:
    return [((*command, "--state", "folder"), NO_ADDRESS, "there is no peer in folder")]


def no_deadline(*command: str) -> list[Row]:
    return [
        ((*command, "--deadline", text), USAGE, f"--deadline: '{text}' is not a quantity")
        for text in ("soon", "-3 s", "nan", "3 GiB")
    ] + [((*command, "--deadline", "0"), USAGE, "above zero")]


def no_size(*command: str) -> list[Row]:
    return [
        ((*command, "--gpu-memory", "8"), USAGE, "--gpu-memory: '8' is not a quantity"),
        ((*command, "--gpu-memory", "0 B"), USAGE, "--gpu-memory: no memory at all"),
        ((*command, "--gpu-memory", f"{'9' * 400} GiB"), USAGE, "more than there is"),
    ]


def no_device(*command: str) -> list[Row]:
    return [((*command, "--assume", "abacus"), ExitCode.DEVICE, "'abacus' is no device")]


def no_entrance(*command: str) -> list[Row]:
    return [
        ((*command, "--initial-peers", text), NO_ADDRESS, f"'{text}' is not the address of a DHT")
        for text in ("nonsense", "10.0.0.5:31337", "/ip4/10.0.0.5", f"/ip4/x/tcp/1/p2p/{PEER_ID}")
    ]


def no_listen(*command: str) -> list[Row]:
    return [
        ((*command, "--listen", "here"), NO_ADDRESS, "'here'"),
        ((*command, "--listen", "0.0.0.0:99999"), NO_ADDRESS, "99999"),
        ((*command, "--listen", "no.name:0"), NO_ADDRESS, "'no.name'"),
    ]


def no_trust(*command: str) -> list[Row]:
    return [((*command, "--trust", "bob"), USAGE, "--trust: 'bob' is no peer id")]


def no_place(*command: str) -> list[Row]:
    """A file to write."""
    return [
        ((*command, "folder.png"), STORAGE, "folder.png is a folder"),
        ((*command, "absent/x.png"), STORAGE, "no folder absent"),
    ]


ROWS: dict[tuple[str, str], list[Row]] = {
    ("", "install_completion"): a_flag("--install-completion"),
    ("", "show_completion"): a_flag("--show-completion"),
    ("", "version"): a_flag("--version"),
    ("start", "run_file"): [*no_file("start"), (("start",), USAGE, "missing argument 'RUN.toml'")],
    ("start", "peer"): no_file(*START, "--peer"),
    ("start", "state"): no_state(*START),
    ("start", "listen"): no_listen(*START),
    ("start", "initial_peers"): no_entrance(*START),
    ("start", "weights"): [((*START, "--from", ""), USAGE, "--from: is empty")],
    ("join", "address"): [
        *no_address("join"),
        (("join", f"/ip4/10.0.0.5/tcp/3/p2p/{PEER_ID}"), NO_ADDRESS, "is not a join address"),
        (("join", ADDRESS.replace("tiny", "a b")), NO_ADDRESS, "'a b'"),
        (("join", ADDRESS.replace("127.0.0.1", "300.0.0.1")), NO_ADDRESS, "300.0.0.1"),
        (("join", ADDRESS.replace("tcp/9", "tcp/99999")), NO_ADDRESS, "99999"),
        (("join", ADDRESS.replace(f"owner/{PEER_ID}", "owner/bob")), NO_ADDRESS, "bob"),
    ],
    ("join", "peer"): no_file("join", ADDRESS, "--peer"),
    ("join", "state"): no_state("join", ADDRESS),
    ("join", "trust"): no_trust("join", ADDRESS),
    ("id", "run"): [
        (("id",), CONFIG, "an identity for each run"),
        (("id", "a b"), NO_ADDRESS, "'a b' cannot be a run's name"),
        (("id", "Words"), NO_ADDRESS, "'Words' cannot be a run's name"),
        (("id", "/ip4/1.2.3.4"), NO_ADDRESS, "is not a join address"),
    ],
    ("id", "peer"): no_file("id", "tiny", "--peer"),
    ("id", "state"): no_state("id"),
    ("bootstrap", "listen"): no_listen("bootstrap"),
    ("bootstrap", "peer"): no_file("bootstrap", "--peer"),
    ("bootstrap", "state"): no_state("bootstrap"),
    ("bootstrap", "initial_peers"): no_entrance("bootstrap"),
    ("plan", "run_file"): no_file("plan"),
    ("plan", "peer"): no_file(*PLAN, "--peer"),
    ("plan", "gpu_memory"): no_size(*PLAN),
    ("plan", "assume"): no_device(*PLAN),
    ("plan", "network"): [
        ((*PLAN, "--network", "fast"), USAGE, "--network: 'fast' is not a quantity"),
        ((*PLAN, "--network", "0 bit/s"), USAGE, "--network: no bandwidth at all"),
    ],
    ("plan", "peers"): [
        ((*PLAN, "--peers", "few"), USAGE, "'--peers': Input should be a valid integer"),
        ((*PLAN, "--peers", "0"), USAGE, "'--peers': Input should be greater"),
        ((*PLAN, "--peers", "1e9"), USAGE, "'--peers': Input should be a valid integer"),
        ((*PLAN, "--peers", "999999"), USAGE, "'--peers': Input should be less"),
    ],
    ("plan", "source"): no_place(*PLAN, "--source"),
    ("plan", "as_json"): a_flag(*PLAN, "--json"),
    ("demo", "rounds"): [
        (("demo", "--rounds", "2"), USAGE, "'--rounds': Input should be greater"),
        (("demo", "--rounds", "many"), USAGE, "'--rounds': Input should be a valid integer"),
    ],
    ("demo", "directory"): [
        (("demo", "--directory", "."), STORAGE, "is not empty"),
        (("demo", "--directory", "file"), STORAGE, "file for the demo: File exists"),
        (("demo", "--directory", "file/x"), STORAGE, "Not a directory"),
    ],
    ("status", "address"): [*no_address("status"), *no_run_meant("status")],
    ("status", "state"): no_daemon("status"),
    ("status", "as_json"): a_flag("status", ADDRESS, "--json"),
    ("watch", "address"): [*no_address("watch"), *no_run_meant("watch")],
    ("watch", "state"): [*no_member("watch", ADDRESS), *no_daemon("watch")],
    ("dashboard", "address"): [*no_address("dashboard"), *no_run_meant("dashboard")],
    ("dashboard", "port"): [
        (("dashboard", ADDRESS, "--port", "99999"), USAGE, "'--port': Input should be less"),
        (
            ("dashboard", ADDRESS, "--port", "http"),
            USAGE,
            "'--port': Input should be a valid integer",
        ),
    ],
    ("dashboard", "host"): [
        (("dashboard", ADDRESS, "--host", "a b"), USAGE, "--host: 'a b' is not a host"),
        (("dashboard", ADDRESS, "--host", "a..b"), USAGE, "--host: 'a..b' is not a host"),
    ],
    ("dashboard", "state"): [*no_member("dashboard", ADDRESS), *no_daemon("dashboard")],
    ("contributions", "address"): [*no_address("contributions"), *no_run_meant("contributions")],
    ("contributions", "state"): [*no_member("contributions", ADDRESS), *no_daemon("contributions")],
    ("contributions", "as_json"): a_flag("contributions", ADDRESS, "--json"),
    ("pause", "state"): no_daemon("pause"),
    ("resume", "state"): no_daemon("resume"),
    ("leave", "state"): no_daemon("leave"),
    ("leave", "deadline"): no_deadline("leave"),
    ("reload", "state"): no_daemon("reload"),
    ("info", "state"): no_daemon("info"),
    ("info", "as_json"): a_flag("info", "--json"),
    ("trace", "file"): [*no_place("trace"), (("trace",), USAGE, "missing argument 'FILE'")],
    ("trace", "state"): no_daemon("trace", "x.json"),
    ("trace", "deadline"): no_deadline("trace", "x.json"),
    ("export", "folder"): [
        (("export", "file", "--state", "folder"), STORAGE, "is already there"),
        (("export", ".", "--state", "folder"), STORAGE, "is already there"),
        (("export",), USAGE, "missing argument 'FOLDER'"),
    ],
    ("export", "state"): [
        (("export", "out", "--state", "absent"), STORAGE, "absent holds no run"),
        (("export", "out"), STORAGE, "no run is kept under"),
    ],
    ("export", "snapshot"): [
        (("export", "out", "--snapshot", "folder/snapshots/x"), STORAGE, "folder holds no run"),
    ],
    ("export", "precision"): [
        (("export", "out", "--precision", "int8"), USAGE, "--precision: 'int8' is none of float32"),
    ],
    ("export", "trust"): no_trust("export", "out"),
    ("doctor", "address"): no_address("doctor"),
    ("doctor", "peer"): no_file("doctor", "--peer"),
    ("doctor", "state"): [(("doctor", "--state", ""), USAGE, "--state: is empty")],
    ("doctor", "as_json"): a_flag("doctor", "--json"),
}


def every_option() -> set[tuple[str, str]]:
    """(command, option or argument); the command itself where it has none."""
    group = typer.main.get_command(app)
    found = {("", parameter.name) for parameter in group.params}
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        found |= {(name, parameter.name) for parameter in command.params} or {(name, "")}
    return found  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for variable in ("XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    for name in ("folder", "folder.png", "taken/plan.json", "home"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "run.toml").write_text(GOOD_RUN)
    (tmp_path / "file").write_text("")
    (tmp_path / "text").write_text("Dear reader,\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "long").touch()
    with (tmp_path / "long").open("r+b") as file:
        file.truncate(100 << 20)  # of holes: it takes no room
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


def test_every_option_of_every_command_has_a_row() -> None:
    assert set(ROWS) == every_option()


@pytest.mark.parametrize("option", ROWS, ids=lambda option: "-".join(filter(None, option)))
def test_bad_values_of_an_option(
    option: tuple[str, str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, code, what in ROWS[option]:
        before = sorted(folder.rglob("*"))

        ended = main(arguments)

        streams = capsys.readouterr()
        error, _, hint = streams.err.partition("\nhint:  ")
        assert ended == code, (arguments, streams.err)
        assert error.startswith("error: "), streams.err
        assert what in error, error
        assert len(hint) > 8, error
        assert "Traceback" not in streams.err
        assert streams.out == ""
        assert sorted(folder.rglob("*")) == before
