"""Prometheus' own checker on a whole scrape. Run by `make promtool`."""

import subprocess

from tests.extras.monitors.metrics_samples import a_whole_scrape


def test_promtool_has_nothing_to_say() -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=a_whole_scrape().encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
