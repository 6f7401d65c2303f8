"""May this box work now: wishes against what is seen."""

import json
import math
from datetime import datetime

import pytest

from atom.config.peer_file import Schedule
from atom.extras.owner.wishes import GPU_QUIET_S, Observations, why_not

NOON = datetime(2026, 11, 16, 12)  # a Monday


def wishes(**keys: object) -> Schedule:
    return Schedule.model_validate_json(json.dumps(keys))


BUSY = Observations(on_battery=True, idle_s=0.0, gpu_idle_s=0.0, gpu_user="game")
QUIET = Observations()


@pytest.mark.parametrize(
    ("given", "seen", "said"),
    [
        ({}, QUIET, None),
        ({}, BUSY, "on battery"),
        ({"pause_on_battery": False}, BUSY, None),
        ({"hours": ["daily 18:00-08:00"]}, QUIET, "outside its hours, until 18:00"),
        ({"hours": ["tue 18:00-19:00"]}, QUIET, "outside its hours, until Tue 18:00"),
        ({"hours": ["daily 00:00-01:00"]}, QUIET, "outside its hours, until Tue 00:00"),
        ({"hours": ["mon 08:00-18:00"]}, QUIET, None),
        ({"hours": ["mon 18:00-19:00"]}, BUSY, "outside its hours, until 18:00"),
        ({"pause_on_battery": False, "pause_for_gpu_programs": True}, BUSY, "GPU: game"),
        (
            {"pause_for_gpu_programs": True},
            Observations(gpu_idle_s=GPU_QUIET_S - 1, gpu_user="game"),
            "another program uses the GPU: game",
        ),
        ({"pause_for_gpu_programs": True}, Observations(gpu_idle_s=GPU_QUIET_S), None),
        ({"pause_for_gpu_programs": True}, Observations(gpu_idle_s=math.inf), None),
        ({"idle_for": "10 min"}, Observations(idle_s=599.0), "not yet idle for 10 min"),
        ({"idle_for": "90 s"}, Observations(idle_s=0.0), "not yet idle for 90 s"),
        ({"idle_for": "10 min"}, Observations(idle_s=600.0), None),
        ({"idle_for": "10 min"}, BUSY, "on battery"),
    ],
)
def test_what_is_said(given: dict[str, object], seen: Observations, said: str | None) -> None:
    refusal = why_not(NOON, wishes(**given), seen)
    assert refusal.endswith(said or "")
    assert bool(refusal) == (said is not None)
