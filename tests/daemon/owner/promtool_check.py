"""Prometheus' own checker on a whole scrape, and on the alerting rules. Run by `make promtool`."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.daemon.owner.metrics_samples import a_whole_scrape

ALERTS = Path(__file__).parents[3] / "docker" / "alerts.yml"
LATER = "3h"
"""After the first sample; there is one a minute, as long as nothing else is said."""
WORKS = {
    'atom_state{state="accumulating"}': "1x180",
    'atom_state{state="paused"}': "0x180",
    "atom_round": "0+1x180",
    'atom_passes_voided_total{reason="out-of-memory"}': "0x180",
    "atom_peers": "2x180",
    "atom_disk_free_bytes": "6e9x180",
    'atom_traffic_bytes{span="month"}': "80x180",
    'atom_traffic_bytes{span="today"}': "99x180",
    "atom_traffic_allowed_bytes": "100x180",
}
PAUSED = {
    'atom_state{state="accumulating"}': "0x180", 'atom_state{state="paused"}': "1x180",
    "atom_round": "7x180", "atom_peers": "0x180",
}  # fmt: skip
RESUMED = {
    'atom_state{state="accumulating"}': "0x150 1x30", 'atom_state{state="paused"}': "1x150 0x30",
    "atom_round": "7x180",
}  # fmt: skip
STARTED = {"atom_round": "_x150 0x30"}


def promtool(*words: str, given: bytes = b"") -> tuple[int, bytes, bytes]:
    done = subprocess.run(
        ["promtool", *words], input=given, capture_output=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_promtool_has_nothing_to_say() -> None:
    assert promtool("check", "metrics", given=a_whole_scrape().encode()) == (0, b"", b"")


def test_every_metric_of_the_alerts_is_there() -> None:
    names = {line.split("{")[0].split(" ")[0] for line in a_whole_scrape().splitlines()}
    assert names >= {series.split("{")[0] for series in WORKS}


@pytest.mark.parametrize(
    ("seen", "alert"),
    [
        ({}, None),
        ({"atom_round": "7x180"}, "AtomNoRound"),
        ({'atom_passes_voided_total{reason="out-of-memory"}': "0+1x180"}, "AtomVoidPasses"),
        ({"atom_peers": "0x180"}, "AtomAlone"),
        ({"atom_disk_free_bytes": "4e9x180"}, "AtomDiskLow"),
        ({'atom_traffic_bytes{span="month"}': "91x180"}, "AtomAllowanceLow"),
        (PAUSED, None),
        (RESUMED, None),
        (STARTED, None),
    ],
)
def test_an_alert_fires_for_what_it_is_about_alone(
    tmp_path: Path, seen: dict[str, str], alert: str | None
) -> None:
    given = [
        {"series": _of_one_peer(name), "values": values} for name, values in (WORKS | seen).items()
    ]
    firing = [] if alert is None else [{"labels": f'{{alertname="{alert}"}}', "value": 1}]
    asked = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": LATER,
        "exp_samples": firing,
    }
    test = {"interval": "1m", "input_series": given, "promql_expr_test": [asked]}
    path = tmp_path / "test.yml"
    path.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": [test]}))  # JSON is YAML
    code, said, failed = promtool("test", "rules", str(path))
    assert code == 0, said + failed


def _of_one_peer(series: str) -> str:
    name, _, labels = series.rstrip("}").partition("{")
    every = ['instance="a"', 'job="atom"', *filter(None, [labels])]
    return f"{name}{{{','.join(every)}}}"
