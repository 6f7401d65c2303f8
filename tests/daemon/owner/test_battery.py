"""Power source of a machine, by folders as the kernel shows them."""

from pathlib import Path

import pytest

from atom.daemon.owner.machine import on_battery

Supplies = dict[str, dict[str, str]]
BATTERY = {"type": "Battery", "status": "Discharging"}
FULL = {"type": "Battery", "status": "Full"}
PLUG, NO_PLUG = {"type": "Mains", "online": "1"}, {"type": "Mains", "online": "0"}
MOUSE = {**BATTERY, "scope": "Device", "online": "1"}


@pytest.mark.parametrize(
    ("supplies", "on"),
    [
        ({}, False),
        ({"BAT0": BATTERY, "ADP1": NO_PLUG}, True),
        ({"BAT0": BATTERY, "ADP1": PLUG}, False),
        ({"BAT0": BATTERY, "ucsi": {"type": "USB", "online": "1"}}, False),
        ({"BAT0": FULL, "ADP1": NO_PLUG}, False),
        ({"BAT0": FULL, "BAT1": {**BATTERY, "online": "1"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Not charging"}}, False),
        ({"ups": {"type": "UPS", "status": "Discharging"}}, True),
        ({"hidpp_battery_0": MOUSE}, False),
        ({"hidpp_battery_0": MOUSE, "BAT0": BATTERY}, True),
        ({"odd": {}}, False),
    ],
)
def test_only_its_own_battery_counts(supplies: Supplies, on: bool, tmp_path: Path) -> None:
    for name, said in supplies.items():
        (tmp_path / name).mkdir()
        for key, value in said.items():
            (tmp_path / name / key).write_text(f"{value}\n")
    assert on_battery(tmp_path) is on


def test_where_the_kernel_says_nothing_nobody_stands_still(tmp_path: Path) -> None:
    assert not on_battery(tmp_path / "absent")
    (tmp_path / "BAT0" / "status").mkdir(parents=True)  # any file that cannot be read
    assert not on_battery(tmp_path)
