"""A peer file changed key by key, and every bad value of every key that it may say."""

from pathlib import Path

import pytest

from atom.base.errors import ConfigError
from atom.config.load import MARK, parse_peer_text
from atom.config.peer_defaults import MEANINGS
from atom.config.peer_file import PeerFile
from atom.config.peer_text import (
    all_keys,
    changed_keys,
    default_text,
    edited,
    parse_assignment,
    written,
)

TEXT = """\
# my box

[network]          # the line is shared
upload   = "400 Mbit/s"   # evenings
listen = "0.0.0.0:31337"

[schedule]
hours = ["daily 18:00-08:00"]   # asleep
"""


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("network.upload=20 Mbit/s", "network.upload", "20 Mbit/s"),
        ('network.upload = "20 Mbit/s"', "network.upload", "20 Mbit/s"),
        ("device.cpu_threads=3", "device.cpu_threads", 3),
        ("schedule.pause_on_battery=false", "schedule.pause_on_battery", False),
        ('schedule.hours=["mon 1:00-2:00"]', "schedule.hours", ["mon 1:00-2:00"]),
        ("network.upload=", "network.upload", None),
        ("data.tokenizer=a=b.json", "data.tokenizer", "a=b.json"),
    ],
)
def test_assignments(text: str, key: str, value: object) -> None:
    assert parse_assignment(text) == (key, value)


@pytest.mark.parametrize(
    "text", ["network.upload", "upload=3", "=3", "a.b.c=3", ".b=3", "a.=3", ""]
)
def test_what_is_no_assignment(text: str) -> None:
    with pytest.raises(ConfigError, match="is not KEY=VALUE") as refused:
        parse_assignment(text)
    assert "network.upload" in refused.value.hint


def test_the_rest_of_the_file_stays_as_it_was() -> None:
    after = edited(TEXT, [("network.upload", "20 Mbit/s"), ("schedule.hours", None)])
    assert after == TEXT.replace("400 M", "20 M").replace(
        'hours = ["daily 18:00-08:00"]   # asleep\n', ""
    )
    more = edited(TEXT, [("device.cpu_threads", 3)])
    assert more.startswith(TEXT)
    assert written(more, "device.cpu_threads") == "3"
    assert edited(TEXT, [("state.snapshots", None)]) == TEXT
    assert edited("network = { upload = '1 Mbit/s' }", [("network.upload", "2 Mbit/s")]) == (
        'network = { upload = "2 Mbit/s" }'
    )


MORE = [("network.download", "1 Mbit/s"), ("device.cpu_threads", 3)]


@pytest.mark.parametrize("text", [TEXT, TEXT.rstrip(), "network.upload = '1 Mbit/s'\n", "# mine\n"])
def test_the_ends_of_lines_stay_as_they_were(text: str) -> None:
    after = edited(text.replace("\n", "\r\n"), MORE)
    assert after == edited(text, MORE).replace("\n", "\r\n")
    lines = written("[schedule]\r\nhours = [\r\n 'mon 1:00-2:00'\r\n]", "schedule.hours")
    assert lines == "[\n 'mon 1:00-2:00'\n]", "what is shown is no file"


def test_lines_that_end_in_either_way_stay_so() -> None:
    before = '# one\r\n# two\n[network]\r\nupload = "1 Mbit/s"\n'
    assert edited(before, [("network.upload", "2 Mbit/s")]) == before.replace("1 M", "2 M")


def test_the_mark_that_some_editors_begin_with_stays() -> None:
    after = edited(MARK + TEXT, MORE)
    assert after == MARK + edited(TEXT, MORE)
    assert written(after, "device.cpu_threads") == "3"
    assert parse_peer_text(after, Path("/box")).device.cpu_threads == 3


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[network", "^peer file: not valid TOML"),
        ("network = 3", "^peer file: network: expected a section"),
    ],
)
def test_a_file_that_is_broken_already(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        edited(text, [("network.upload", "1 Mbit/s")])
    with pytest.raises(ConfigError, match=what):
        written(text, "network.upload")


def test_every_key_has_a_default_and_is_told_apart() -> None:
    assert {"network.upload", "schedule.idle_for", "device.power", "data.paths"} <= set(all_keys())
    assert default_text("schedule.pause_on_battery") == "true"
    assert default_text("network.upload") == ""
    assert default_text("device.slot") == '"10 min"'
    speak_for_themselves = {key for key in all_keys() if default_text(key) not in ("", "[]")}
    assert set(all_keys()) - speak_for_themselves == set(MEANINGS)
    after = parse_peer_text(TEXT, Path("/box"))
    changed = {"network.upload", "network.listen", "schedule.hours"}
    assert changed_keys(PeerFile(), after) == changed


@pytest.mark.parametrize(
    ("assignment", "what"),
    [
        ("schedule.hours=18:00-08:00", "schedule.hours: expected a list in brackets"),
        ('schedule.hours=["18:00-08:00"]', "schedule.hours[0]: '18:00-08:00' is no time"),
        ("schedule.hours=[3]", "schedule.hours[0]: expected a text in quotes, not 3"),
        (f"schedule.hours={['mon 1:00-2:00'] * 65}", "schedule.hours: has more than 64 entries"),
        ("schedule.idle_for=600", "schedule.idle_for: 600 has no unit"),
        ("schedule.idle_for=10 parsecs", "schedule.idle_for: '10 parsecs' is not a quantity"),
        ("schedule.idle_for=0 s", "schedule.idle_for: must be above 0"),
        ("schedule.idle_for=-3 s", "schedule.idle_for: '-3 s' is not a quantity"),
        ("schedule.pause_on_battery=yes", "schedule.pause_on_battery: expected true or false"),
        ("schedule.pause_for_gpu_programs=1", "expected true or false, not 1"),
        ("schedule.until=3", "schedule.until: unknown key"),
        ("device.power=200", "device.power: 200 has no unit"),
        ("device.power=0 W", "device.power: must be above 0"),
        ("device.power=2 kWh", "device.power: '2 kWh' is not a quantity"),
        ("device.cpu_threads=0", "device.cpu_threads: must be at least 1"),
        ("device.cpu_threads=two", "device.cpu_threads: expected a whole number"),
        ("device.memory=8", "device.memory: 8 has no unit"),
        ("host.memory=0 B", "host.memory: must be above 0"),
        ("network.upload=inf", "network.upload: "),
        ("network.download=3 Mbit", "network.download: '3 Mbit' is not a quantity"),
        ("network.download=2026-11-22", "network.download: "),
        ("netwrk.upload=3 Mbit/s", "netwrk: unknown section"),
        ("run.name=x", "run: unknown section"),
        ("state.directory=", ""),
    ],
)
def test_what_the_peer_file_says_to_it(assignment: str, what: str) -> None:
    after = edited(TEXT, [parse_assignment(assignment)])
    if not what:
        assert after == TEXT
        return
    with pytest.raises(ConfigError) as refused:
        parse_peer_text(after, Path("/box"))
    assert what in refused.value.message
    assert refused.value.hint
