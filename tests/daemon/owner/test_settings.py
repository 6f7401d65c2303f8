"""`atom set` at the daemon's end: all or nothing, at once, and written down."""

import codecs
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from atom.base.errors import ConfigError, ControlError, DeviceError, StorageError, UserError
from atom.config.load import load_peer_file
from atom.config.peer_file import Device, PeerFile
from atom.daemon.owner import settings as settings_module
from atom.daemon.owner.settings import THREADS_UNLESS_TOLD, Givers, PeerPlace, Settings
from atom.swarm.stream.bandwidth import Bandwidth

TEXT = '# my box\n[network]\nupload = "400 Mbit/s" # evenings\n'


class SmallWishes:
    """Takes up to 300 W."""

    def __init__(self, peer: PeerFile) -> None:
        self.watts = [peer.device.power_watts]
        self.on_battery = [peer.schedule.pause_on_battery]

    def change(self, peer: PeerFile) -> None:
        watts, on_battery = peer.device.power_watts, peer.schedule.pause_on_battery
        if watts is not None and watts > 300:
            raise DeviceError("too much", "take less")
        self.watts += [watts] if watts != self.watts[-1] else []
        self.on_battery += [on_battery] if on_battery != self.on_battery[-1] else []


class Memory:
    """A model that takes 1 GiB, and is rearranged at once."""

    def __init__(self) -> None:
        self.caps: list[tuple[int | None, int | None]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.doing = ""

    def change(self, peer: PeerFile) -> None:
        self.meanwhile()
        if (peer.host.memory_bytes or 2**30) < 2**30:
            raise DeviceError("it takes 1 GiB", "give more")
        self.caps.append((peer.device.memory_bytes, peer.host.memory_bytes))

    def close(self) -> None:
        self.caps.clear()


class SmallTurns:
    def __init__(self) -> None:
        self.terms = list[float]()

    def retune(self, terms: Device) -> None:
        self.terms.append(terms.slot_s)


class Scene:
    def __init__(self, path: Path, text: str = TEXT) -> None:
        self.path, self.commands = path, list[Callable[[], None]]()
        if text:
            path.write_text(text)
        self.bandwidth = Bandwidth(4e8, None)
        peer = load_peer_file(path if text else None)
        place = PeerPlace(path, kept=not text)
        self.wishes, self.memory, self.turns = SmallWishes(peer), Memory(), SmallTurns()
        givers = Givers(
            self.wishes, self.turns, self.bandwidth, self.memory,  # type: ignore[arg-type]
            self.commands.append,
        )  # fmt: skip
        self.settings = Settings(place, peer, givers)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "box.toml")


def test_what_is_set_is_in_force_and_in_the_file(scene: Scene) -> None:
    scene.path.chmod(0o640)
    said = scene.settings.set(
        ["network.upload=8 Mbit/s", "device.cpu_threads=1", "device.power=200 W",
         "schedule.pause_on_battery=true", "device.memory=2 GiB", "device.slot=3 min",
         "network.data_port=9"]
    )  # fmt: skip
    assert [each["live"] for each in said] == [True] * 6 + [False]
    assert scene.memory.caps == [(2 << 30, None)]
    assert scene.turns.terms == [180.0]
    assert said[0] == {
        "key": "network.upload", "value": '"8 Mbit/s"', "default": False, "live": True,
    }  # fmt: skip
    assert scene.bandwidth.upload.take(1_250_000, 0.0) == pytest.approx(1.0)
    assert scene.wishes.watts == [None, 200.0]
    before = torch.get_num_threads()
    for command in scene.commands:
        command()
    assert torch.get_num_threads() == 1
    scene.settings.set(["device.cpu_threads=", "device.power="])
    scene.commands[-1]()
    assert torch.get_num_threads() == THREADS_UNLESS_TOLD
    torch.set_num_threads(before)
    assert scene.wishes.watts == [None, 200.0, None]
    text = scene.path.read_text()
    assert text.startswith(TEXT.replace("400", "8"))
    assert scene.path.stat().st_mode & 0o777 == 0o640
    assert load_peer_file(scene.path).device.memory_bytes == 2 << 30


def test_a_file_of_another_system_stays_one(scene: Scene) -> None:
    """Whoever edits it there would see one line, or every line changed."""
    theirs = codecs.BOM_UTF8 + TEXT.replace("\n", "\r\n").encode()
    scene.path.write_bytes(theirs)
    scene.settings.set(["network.upload=8 Mbit/s"])
    assert scene.path.read_bytes() == theirs.replace(b"400", b"8")
    scene.settings.set(["device.cpu_threads=1"])
    lines = scene.path.read_bytes().splitlines(keepends=True)
    assert lines[-2:] == [b"[device]\r\n", b"cpu_threads = 1\r\n"]
    assert load_peer_file(scene.path).device.cpu_threads == 1


def test_a_wish_is_heard_at_once(scene: Scene) -> None:
    scene.settings.set(["schedule.pause_on_battery=false"])
    scene.settings.set(["network.upload="])
    scene.settings.set(["schedule.pause_on_battery="])
    assert scene.wishes.on_battery == [True, False, True]
    assert scene.bandwidth.upload.unlimited


REFUSED = [
    (["network.upload=8 Mbit/s", "network.uploads=1"], ConfigError, "did you mean upload"),
    (["network.upload=8 Mbit/s", "nonsense"], ConfigError, "network.upload="),
    (["network.upload=8 Mbit/s", "device.power=301 W"], DeviceError, "take less"),
    (["network.upload=8 Mbit/s", "host.memory=1 MiB"], DeviceError, "give more"),
    (["network.upload=8 Mbit/s", "data.tokenizer=" + "x" * 70_000], ConfigError, "peer file"),
]


@pytest.mark.parametrize(("assignments", "error", "hint"), REFUSED)
def test_all_or_nothing(
    scene: Scene, assignments: list[str], error: type[UserError], hint: str
) -> None:
    with pytest.raises(error) as refused:
        scene.settings.set(assignments)
    assert hint in refused.value.hint
    assert scene.path.read_text() == TEXT
    assert scene.bandwidth.upload.take(12_500_000, 0.0) == 0.0
    assert scene.wishes.watts == [None]
    assert list(scene.path.parent.iterdir()) == [scene.path]


def test_a_file_that_cannot_be_written_changes_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, raw: bytes) -> None:
        raise StorageError("the disk is full", "free some")

    monkeypatch.setattr(settings_module, "write_atomically", full)
    with pytest.raises(StorageError):
        scene.settings.set(["device.power=200 W", "host.memory=2 GiB", "network.upload="])
    assert scene.wishes.watts == [None, 200.0, None]
    assert scene.memory.caps == [(None, 2 << 30), (None, None)]
    assert not scene.bandwidth.upload.unlimited


def test_without_a_peer_file_one_is_kept_in_the_state_directory(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "peer.toml", "")
    everything = {each["key"]: each for each in scene.settings.set([])}
    assert everything["schedule.pause_on_battery"]["value"] == "true"
    assert everything["schedule.pause_on_battery"]["default"]
    assert not scene.path.exists()
    scene.settings.set(["network.download=1 Mbit/s"])
    assert scene.path.read_text() == '[network]\ndownload = "1 Mbit/s"\n'
    with pytest.raises(ConfigError, match="lies in the state directory"):
        scene.settings.set(["state.directory=elsewhere"])


def test_a_file_behind_a_link_stays_there(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text(TEXT)
    (tmp_path / "box.toml").symlink_to(tmp_path / "real.toml")
    scene = Scene(tmp_path / "box.toml", "")
    scene.settings.set(["network.upload=1 Mbit/s"])
    assert scene.path.is_symlink()
    assert "1 Mbit/s" in (tmp_path / "real.toml").read_text()


def test_what_others_wrote_meanwhile_is_kept_and_in_force(scene: Scene) -> None:
    scene.path.write_text(TEXT + 'download = "8 Mbit/s"\n')
    scene.settings.set(["device.cpu_threads=2"])
    assert not scene.bandwidth.download.unlimited
    scene.path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        scene.settings.set(["device.cpu_threads=3"])
    scene.path.write_text("[network")
    with pytest.raises(ConfigError, match=r"box\.toml: not valid TOML"):
        scene.settings.set([])
    scene.path.unlink()
    with pytest.raises(ConfigError, match="no such file any more"):
        scene.settings.set([])
    assert not scene.path.exists()


@pytest.mark.timeout(20)
def test_a_pipe_that_the_peer_file_came_through_is_not_waited_for(scene: Scene) -> None:
    scene.path.unlink()
    os.mkfifo(scene.path)
    for assignments in ([], ["device.cpu_threads=3"]):
        with pytest.raises(ConfigError, match="no plain file"):
            scene.settings.set(assignments)


def test_a_second_change_does_not_wait_for_the_first(scene: Scene) -> None:
    seen = list[object]()

    def meanwhile() -> None:
        scene.memory.doing = "planning how the model is cut"
        with pytest.raises(ControlError, match="under way: planning how") as refused:
            scene.settings.set(["network.upload=8 Mbit/s"])
        seen.extend([refused.value.hint, *scene.settings.set([])])

    with ThreadPoolExecutor(1) as other:
        scene.memory.meanwhile = lambda: other.submit(meanwhile).result(20.0)
        scene.settings.set(["device.memory=2 GiB"])
    assert len(seen) > 10, "who only asks what there is hears it"
    scene.memory.meanwhile = lambda: None
    scene.settings.set(["network.upload=8 Mbit/s"])
    assert 'upload = "8 Mbit/s"' in scene.path.read_text()


@pytest.mark.parametrize("meanwhile", [TEXT + "# my own words\n", None])
def test_an_edit_during_a_change_that_takes_long_is_not_written_over(
    scene: Scene, meanwhile: str | None
) -> None:
    def edit() -> None:
        scene.memory.meanwhile = lambda: None
        scene.path.unlink()
        if meanwhile is not None:
            scene.path.write_text(meanwhile)

    scene.memory.meanwhile = edit
    with pytest.raises(ConfigError, match=r"box\.toml: .* (meanwhile|any more)"):
        scene.settings.set(["device.memory=2 GiB", "device.power=200 W"])
    assert (scene.path.read_text() if scene.path.exists() else None) == meanwhile
    assert scene.memory.caps == [(2 << 30, None), (None, None)]
    assert scene.wishes.watts == [None, 200.0, None]
    scene.path.write_text(TEXT)
    scene.settings.set(["device.memory=2 GiB"])
    assert scene.memory.caps[-1] == (2 << 30, None)
