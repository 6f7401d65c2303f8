"""Every command, option and argument has bad values here, and each is refused with what to do.

The options come from the command line itself: one without bad values fails. Nobody is asked over
the network: what can be told before is told before.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from atom.cli.app import app
from atom.cli.shell.failures import ExitCode

PEER_ID = "12D3KooWGRUaMpSxHC6zS3FfG3mVYmXsBdTKZvNTT7J3rc7FLMbw"
ADDRESS = f"/ip4/127.0.0.1/tcp/9/p2p/{PEER_ID}/run/tiny/owner/{PEER_ID}"

GOOD: dict[str, tuple[str, ...]] = {
    "start": ("run.toml",), "plan": ("run.toml",), "join": (ADDRESS,), "id": ("tiny",),
    "watch": (ADDRESS,), "dashboard": (ADDRESS,),
    "contributions": (ADDRESS,), "export": ("out",),
    "sample": (".", "A word"),
}  # fmt: skip
"""Arguments of a command before the option under test."""

Bad = tuple[tuple[ExitCode, tuple[str, ...]], ...]
USAGE, CONFIG, NO_ADDRESS = ExitCode.USAGE, ExitCode.CONFIG, ExitCode.ADDRESS
STORAGE, CONTROL = ExitCode.STORAGE, ExitCode.CONTROL
NO_FILE: Bad = (
    (CONFIG, ("absent.toml", "folder", "binary", "long", "loop", "file/x", "text")),
    (USAGE, ("",)),
)
NO_RUN: Bad = (
    (NO_ADDRESS, ("nonsense",)),
    (USAGE, ("",)),
)
NO_NODE = ("nonsense", "10.0.0.5:31337", "/ip4/10.0.0.5", f"/ip4/x/tcp/1/p2p/{PEER_ID}")
NOT_CLAIMED: Bad = ((STORAGE, ("file", "file/x")), (USAGE, ("",)))
NO_DAEMON: Bad = ((CONTROL, ("absent", "file", "folder")),)

OF_ANY_COMMAND: dict[str, Bad] = {
    "peer": NO_FILE,
    "listen": ((NO_ADDRESS, ("here", "0.0.0.0:99999", "no.name:0")),),
    "upload": ((CONFIG, ("fast", "10", "0 bit/s", "10 MB")),),
    "download": ((CONFIG, ("-1 Mbit/s", "1e99 bit/s")),),
    "gpu_memory": ((CONFIG, ("much", "8", "0 GiB")),),
    "cpu_threads": ((CONFIG, ("0", "-2", "5000")), (USAGE, ("few", "1.5"))),
    "hours": ((CONFIG, ("always", "mon 25:00-26:00", "fri 18:00-18:00")),),
    "initial_peers": ((NO_ADDRESS, NO_NODE),),
    "trust": ((USAGE, ("bob", f"{PEER_ID}:", f"{PEER_ID}:{'0' * 63}", f"{PEER_ID}:{'G' * 64}")),),
    "assume": ((ExitCode.DEVICE, ("abacus", "=", "tflops=1")),),
    "network": ((USAGE, ("fast", "0 bit/s")),),
    "peers": ((USAGE, ("few", "0", "1e9", "999999")),),
    "dialable": ((USAGE, ("few", "0", "1e9", "999999")),),
    "directory": ((STORAGE, ("folder", "file", "file/x")),),
    "port": ((USAGE, ("99999", "http")),),
    "host": ((USAGE, ("a b", "a..b")),),
    "deadline": ((USAGE, ("soon", "-3 s", "nan", "3 GiB", "30", "0 s")),),
    "wanted": ((USAGE, ("soon", "-1", "1.5", "9" * 40, "")),),
    "precision": ((USAGE, ("int8",)),),
    "state": NO_DAEMON,
    "address": NO_RUN,
    "run_file": (*NO_FILE, (USAGE, ())),
}
"""Bad values by name of an option or argument; () omits the argument."""
OF_ONE_COMMAND: dict[tuple[str, str], Bad] = {
    ("start", "state"): NOT_CLAIMED,
    ("start", "weights"): ((USAGE, ("",)),),
    ("join", "base"): ((USAGE, ("",)),),
    ("join", "address"): (*NO_RUN, (USAGE, ())),
    ("join", "state"): NOT_CLAIMED,
    ("id", "run"): ((CONFIG, ()), (NO_ADDRESS, ("a b", "Words", "/ip4/1.2.3.4"))),
    ("id", "state"): NOT_CLAIMED,
    ("plan", "run"): (*NO_FILE, (USAGE, ()), (NO_ADDRESS, NO_NODE[-1:])),
    ("bootstrap", "state"): NOT_CLAIMED,
    ("watch", "state"): ((NO_ADDRESS, ("folder",)),),
    ("dashboard", "state"): ((NO_ADDRESS, ("folder",)),),
    ("contributions", "state"): ((NO_ADDRESS, ("folder",)),),
    ("export", "folder"): ((USAGE, ("",)), (USAGE, ())),
    ("export", "state"): ((STORAGE, ("absent",)),),
    ("doctor", "state"): ((USAGE, ("",)),),
    ("sample", "folder"): ((USAGE, ("",)), (USAGE, ())),
    ("sample", "prompts"): ((USAGE, ("", "\udcff")), (USAGE, ())),
    ("sample", "tokens"): ((USAGE, ("0", "many")),),
    ("sample", "temperature"): ((USAGE, ("-1", "nan", "hot")),),
    ("sample", "seed"): ((USAGE, ("-1", "x")),),
    ("sample", "device"): ((USAGE, ("gpu", "cuda:x")),),
}


def parameters() -> Iterator[tuple[str, typer.core.TyperOption | typer.core.TyperArgument]]:
    """Command and parameter, each there is."""
    group = typer.main.get_command(app)
    for name, command in (("", group), *group.commands.items()):  # type: ignore[attr-defined]
        for parameter in command.params:
            yield name, parameter


def spoilt(command: str, parameter: typer.core.TyperOption) -> Iterator[tuple[list[str], ExitCode]]:
    """Command lines, and how each ends."""
    flag, name = max(parameter.opts, key=len), str(parameter.name)
    before = [command] if command else []
    if getattr(parameter, "is_flag", False):
        yield [*before, *GOOD.get(command, ()), f"{flag}=yes"], USAGE
        return
    is_option = flag.startswith("--")
    earlier = GOOD[command][:1] if (command, name) == ("sample", "prompts") else ()
    for code, values in OF_ONE_COMMAND.get((command, name)) or OF_ANY_COMMAND[name]:
        if not values:
            yield [*before, *earlier], code
        for value in values:
            given = [*GOOD.get(command, ()), flag, value] if is_option else [*earlier, value]
            yield [*before, *given], code


@pytest.fixture(autouse=True)
def traps(folder: Path) -> None:
    """Create unusable files and folders."""
    (folder / "folder/mine").mkdir(parents=True)
    (folder / "file").write_text("")
    (folder / "text").write_text("Dear reader,\n")
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "long").touch()
    with (folder / "long").open("r+b") as file:
        file.truncate(100 << 20)  # of holes: it takes no room
    (folder / "loop").symlink_to("loop")


@pytest.mark.parametrize(
    ("command", "parameter"),
    [pytest.param(*each, id=f"{each[0]}-{each[1].name}") for each in parameters()],
)
def test_bad_values_of_an_option(
    command: str, parameter: typer.core.TyperOption, refused: Callable[..., str]
) -> None:
    for arguments, code in spoilt(command, parameter):
        error = refused(arguments, code)
        value = arguments[-1].strip("/").partition("/")[0] or "an argument"
        named = (max(parameter.opts, key=len), str(parameter.metavar), value)
        assert any(each in error for each in named), error
