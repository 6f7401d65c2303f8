"""`atom reload` at the daemon's end: all or nothing, at once."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from atom.base.errors import ConfigError
from atom.config.load import NO_OPTIONS, Options, load_peer_file
from atom.config.peer_file import PeerFile
from atom.daemon.owner.settings import THREADS_UNLESS_TOLD, Settings
from atom.swarm.stream.bandwidth import Bandwidth
from tests.toml_text import with_key

TEXT = '# my box\n[network]\nupload = "400 Mbit/s" # evenings\n'


class SmallWishes:
    """Conditions of the schedule that keep what they are given."""

    def __init__(self, peer: PeerFile) -> None:
        self.on_battery = [peer.schedule.pause_on_battery]

    def change(self, peer: PeerFile) -> None:
        self.on_battery.append(peer.schedule.pause_on_battery)


class Scene:
    def __init__(self, path: Path, options: Options = NO_OPTIONS) -> None:
        self.path, self.commands = path, list[Callable[[], None]]()
        path.write_text(TEXT)
        self.bandwidth, peer = Bandwidth(4e8, None), load_peer_file(path, options)
        self.wishes = SmallWishes(peer)
        self.settings = Settings(
            path,
            peer,
            self.wishes,  # type: ignore[arg-type]
            self.bandwidth,
            self.commands.append,
            options,
        )

    def change(self, **values: str | None) -> dict[str, bool]:
        """section__key of the file, as TOML; None: the key goes. Key → in force at once?"""
        text = self.path.read_text()
        for key, value in values.items():
            text = with_key(text, key.replace("__", "."), value)
        self.path.write_text(text)
        return {each["key"]: each["live"] for each in self.settings.reload()}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "box.toml")


def test_what_has_changed_is_in_force(scene: Scene) -> None:
    assert scene.settings.reload() == []
    assert scene.change(
        network__upload='"8 Mbit/s"', device__cpu_threads="1",
        schedule__pause_on_battery="false", device__memory='"2 GiB"',
        network__data_port="9",
    ) == {
        "device.memory": False, "device.cpu_threads": True,
        "network.upload": True, "network.data_port": False,
        "schedule.pause_on_battery": True,
    }  # fmt: skip
    assert scene.bandwidth.upload.take(1_250_000, 0.0) == pytest.approx(1.0)
    assert scene.wishes.on_battery == [True, False]
    before = torch.get_num_threads()
    for command in scene.commands:
        command()
    assert torch.get_num_threads() == 1
    scene.change(device__cpu_threads=None, network__upload=None)
    scene.commands[-1]()
    assert torch.get_num_threads() == THREADS_UNLESS_TOLD
    torch.set_num_threads(before)
    assert scene.bandwidth.upload.take(1e12, 0.0) == 0.0, "without a limit"


@pytest.mark.parametrize(
    "change",
    [{"network__uploads": "1"}, {"schedule__hours": '["sometimes"]'}, {"network__upload": "["}],
)
def test_all_or_nothing(scene: Scene, change: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        scene.change(**{"network__upload": '"8 Mbit/s"'} | change)
    assert scene.bandwidth.upload.take(12_500_000, 0.0) == 0.0
    assert scene.wishes.on_battery == [True]
    scene.path.write_text(TEXT)
    assert scene.settings.reload() == []


def test_an_option_of_the_command_line_outranks_the_file_for_good(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "box.toml", {"--upload": "8 Mbit/s"})
    assert scene.change(network__upload='"4 Mbit/s"', device__cpu_threads="1") == {
        "device.cpu_threads": True
    }
    assert scene.settings.network.upload_bits_per_s == 8e6


@pytest.mark.timeout(20)
def test_a_file_that_is_gone_or_no_plain_one_is_said(scene: Scene) -> None:
    scene.path.unlink()
    with pytest.raises(ConfigError, match="not a regular file"):
        scene.settings.reload()
    os.mkfifo(scene.path)
    with pytest.raises(ConfigError, match="not a regular file"):
        scene.settings.reload()
