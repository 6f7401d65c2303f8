"""Facts → findings: each fault is named, has its level, and says a command or a key."""

import dataclasses
import re

import pytest

from atom.daemon.doctor.facts import (
    Capacity,
    Clock,
    Disk,
    Facts,
    Fit,
    Gpu,
    Machine,
    Memory,
    Package,
    Port,
    Software,
    Swarm,
)
from atom.daemon.doctor.finding import Finding, Level
from atom.daemon.doctor.findings import findings_of

GIB = 2**30
GPU = Gpu("A card", "570.1", 22 * GIB, 24 * GIB, True, 25e9, 24e9)
FIT = Fit("gpt3 xl in bfloat16", 30 * GIB, 64 * GIB, 80 * GIB, 500 * GIB)
SWARM = Swarm(
    run="words", peers=3, versions=(("torch", "2.13.0", "2.13.0"),), data="9 tokens", reached="yes"
)
SOUND = Facts(
    Software((3, 11), (Package("torch", ">=2.9", "2.13.0", True),), None),
    Machine("Linux 6.8", "A processor", 16, GPU, "", False),
    Memory(64 * GIB, 60 * GIB, None, 2e9),
    Disk("/data", 500 * GIB, 900e6),
    (Port("listen", "0.0.0.0", 31337), Port("data_port", "0.0.0.0", 31338)),
    Clock(True, (-4.9, 0.1)),
    Capacity(FIT, None, dataclasses.replace(FIT, title="words")),
    SWARM,
)
FIX = re.compile(
    r"pip install|make |docker run| -m atom\.base|nvidia-smi|top lists|timedatectl|atom |--state"
    r"|\[network\]|\[host\]|\[device\]|\[state\]|\[metrics\] port|precision =|ask for"
)


def changed(**parts: object) -> Facts:
    """SOUND, where `parts` name a field and either its value or a part of it by a dict."""
    made = {}
    for name, value in parts.items():
        old = getattr(SOUND, name)
        made[name] = dataclasses.replace(old, **value) if isinstance(value, dict) else value
    return dataclasses.replace(SOUND, **made)


def machine(**gpu: object) -> Facts:
    return changed(machine={"gpu": dataclasses.replace(GPU, **gpu)})


def run_that(trains_it: bool = False, **fit: object) -> Facts:
    run = dataclasses.replace(FIT, **fit)  # type: ignore[arg-type]
    return changed(capacity={"run": run, "trains_it": trains_it})


def beside(**parts: object) -> Facts:
    """As `changed`, while a daemon of ours runs."""
    return dataclasses.replace(changed(**parts), daemon_runs=True)


def test_a_sound_box_has_nothing_to_mend() -> None:
    findings = findings_of(SOUND)
    assert {finding.level for finding in findings} == {Level.OK}
    topics = [finding.topic for finding in findings]
    assert topics == [
        "Python", "Libraries", "Host kernels", "Processor", "GPU", "PCIe", "Host memory",
        "Locked memory", "Optimizer", "Disk", "Port of listen", "Port of data_port", "Clock",
        "Swarm", "Versions", "Its data", "From outside", "Largest model",
        "This run",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "topic", "level", "said"),
    [
        (changed(software={"python": (3, 13)}), "Python", Level.FAILURE, "3.13; 3.11 or 3.12"),
        (
            changed(software={"packages": (Package("rich", ">=13", None, False),)}),
            "Libraries", Level.FAILURE, "rich is missing; wanted: >=13",
        ),
        (
            changed(software={"packages": (Package("rich", ">=13", "12.1", False),)}),
            "Libraries", Level.FAILURE, "rich 12.1; wanted: >=13",
        ),
        (changed(software={"kernels": "no C"}), "Host kernels", Level.FAILURE, "no C"),
        (
            changed(machine={"gpu": None, "gpu_problem": "no driver"}),
            "GPU", Level.OK, "none found; trains on the CPU, many times slower",
        ),
        (
            changed(machine={"gpu": None, "gpu_problem": "no driver", "card_seen": True}),
            "GPU", Level.WARNING, "none that can be used, no driver; trains on the CPU",
        ),
        (
            changed(machine={"gpu": None, "gpu_problem": "no driver", "wants_gpu": True}),
            "GPU", Level.FAILURE, "no driver, and the peer file wants one",
        ),
        (changed(machine={"gpu": None}), "GPU", Level.OK, "the peer file says cpu"),
        (machine(free_bytes=2 * GIB), "GPU", Level.WARNING, "other programs use the rest"),
        (machine(computes_bfloat16=False), "bfloat16", Level.WARNING, "does not compute in it"),
        (machine(load_bytes_per_s=None), "PCIe", Level.UNCHECKED, "too little memory was free"),
        (machine(unload_bytes_per_s=1e9), "PCIe", Level.WARNING, "1.0 GB/s back: slow"),
        (changed(memory={"cap_bytes": 64 * GIB}), "Host memory", Level.OK, "of 64.0 GiB free"),
        (
            changed(memory={"cap_bytes": 65 * GIB}),
            "Host memory", Level.WARNING, "[host] memory allows 65.0 GiB, this box has 64.0 GiB",
        ),
        (
            changed(memory={"is_limited": True}),
            "Host memory", Level.OK, "of 64.0 GiB free: this container or service may have no more",
        ),
        (changed(memory={"lockable_bytes": 8 * 2**20}), "Locked memory", Level.OK, "8.0 MiB"),
        (changed(memory={"adamw_per_s": None}), "Optimizer", Level.UNCHECKED, "cannot be used"),
        (changed(memory={"adamw_per_s": 1e7}), "Optimizer", Level.WARNING, "10 M parameters"),
        (changed(disk={"problem": "read-only"}), "Disk", Level.FAILURE, "/data: read-only"),
        (changed(disk={"free_bytes": GIB}), "Disk", Level.FAILURE, "1.0 GiB free in /data"),
        (changed(disk={"write_bytes_per_s": 1e7}), "Disk", Level.WARNING, "10 MB/s: slow"),
        (changed(disk={"write_bytes_per_s": None}), "Disk", Level.OK, "speed not measured"),
        (
            changed(ports=(Port("listen", "::", 80, "another program listens there"),)),
            "Port of listen", Level.FAILURE, ":::80: another program listens there",
        ),
        (changed(ports=(Port("listen", "::", 0),)), "Port of listen", Level.OK, "any free one"),
        (
            changed(ports=(Port("listen", "::", 80, is_ours=True),)),
            "Port of listen", Level.OK, "your daemon listens",
        ),
        (
            changed(ports=(Port("metrics", "::1", 80, "another program listens there"),)),
            "Port of metrics", Level.FAILURE, "::1:80: another program",
        ),
        (changed(clock=Clock(False)), "Clock", Level.WARNING, "nothing keeps it right"),
        (changed(clock=Clock(None)), "Clock", Level.UNCHECKED, "does not tell"),
        (changed(clock=Clock(True)), "Clock", Level.OK, "synchronised"),
        (
            changed(clock=Clock(True, (4.0, 9.0))),
            "Clock", Level.FAILURE, "at least 4.0 s ahead of the swarm's; 3 s are allowed",
        ),
        (
            changed(clock=Clock(True, (-12.0, -7.0))),
            "Clock", Level.FAILURE, "at least 7.0 s behind the swarm's",
        ),
        (
            changed(clock=Clock(True, (-7.0, -2.0))),
            "Clock", Level.OK, "at least 2.0 s behind the swarm's; 3 s are allowed",
        ),
        (SOUND, "Clock", Level.OK, "was seen; one below 5 s may not show"),
        (changed(swarm={"peers": 1, "only_own": True}), "Swarm", Level.OK, "the one on this box"),
        (changed(swarm=None), "Swarm", Level.UNCHECKED, "atom doctor ADDRESS"),
        (
            changed(swarm=Swarm(problem="cannot reach it")),
            "Swarm", Level.FAILURE, "cannot reach it",
        ),
        (changed(swarm={"peers": 0}), "Swarm", Level.WARNING, "words is known, nobody is alive"),
        (changed(swarm={"peers": 1}), "Swarm", Level.OK, "1 peer is alive"),
        (
            changed(swarm={"versions": (("torch", "2.9.0", "2.13.0"),)}),
            "Versions", Level.WARNING, "founded with torch 2.9.0, here is 2.13.0",
        ),
        (
            changed(swarm={"versions": (("transformers", "5.1", None),)}),
            "Versions", Level.WARNING, "transformers 5.1, here is none",
        ),
        (changed(swarm={"reached": "no"}), "From outside", Level.WARNING, "no peer of the run"),
        (changed(swarm={"reached": "join"}), "From outside", Level.UNCHECKED, "join"),
        (
            changed(capacity={"next_larger": dataclasses.replace(FIT, host_bytes=99 * GIB)}),
            "Largest model", Level.OK, "takes 99.0 GiB of host memory, 64.0 GiB may be used",
        ),
        (
            changed(capacity={"largest": None, "next_larger": dataclasses.replace(
                FIT, device_problem="needs 2 GiB")}),
            "Largest model", Level.WARNING, "none of the GPT-3 paper: gpt3 xl in bfloat16: needs",
        ),
        (run_that(host_bytes=99 * GIB), "This run", Level.FAILURE, "takes 99.0 GiB of host"),
        (run_that(device_problem="too small"), "This run", Level.FAILURE, "too small"),
        (run_that(disk_bytes=900 * GIB), "This run", Level.FAILURE, "900.0 GiB of disk, 500.0"),
        (
            changed(capacity={"run": None, "run_problem": "own code"}),
            "This run", Level.UNCHECKED, "own code",
        ),
        (
            changed(capacity={"run": None, "run_problem": "own code", "trains_it": True}),
            "This run", Level.OK, "your daemon runs with it",
        ),
        (
            run_that(host_bytes=99 * GIB, trains_it=True),
            "This run", Level.OK, "your daemon runs with it: 99.0 GiB of host memory",
        ),
        (
            run_that(device_problem="too small", trains_it=True),
            "This run", Level.OK, "your daemon runs with it",
        ),
        (
            run_that(disk_bytes=900 * GIB, trains_it=True),
            "This run", Level.FAILURE, "500.0 GiB are free or its own",
        ),
        (
            changed(disk={"free_bytes": GIB, "kept_bytes": 2 * GIB}),
            "Disk", Level.OK, "1.0 GiB free in /data",
        ),
        (
            beside(machine={"gpu": dataclasses.replace(GPU, free_bytes=2 * GIB)}),
            "GPU", Level.OK, "2.0 GiB of 24.0 GiB free: your daemon is at work",
        ),
        (
            beside(machine={"gpu": None, "gpu_problem": "no driver", "card_seen": True}),
            "GPU", Level.WARNING, "none that can be used",
        ),
        (
            beside(memory={"adamw_per_s": 1e7}),
            "Optimizer", Level.UNCHECKED, "slow; your daemon is at work, ask again without it",
        ),
        (
            beside(capacity={"largest": None, "next_larger": FIT}),
            "Largest model", Level.UNCHECKED, "your daemon is at work",
        ),
    ],
)  # fmt: skip
def test_each_fault_has_its_line(facts: Facts, topic: str, level: Level, said: str) -> None:
    findings = findings_of(facts)
    found = [finding for finding in findings if finding.topic == topic]
    assert [finding.level for finding in found] == [level]
    assert said in found[0].said
    for finding in findings:
        assert bool(finding.fix) == (finding.level in (Level.WARNING, Level.FAILURE))
        assert not finding.fix or FIX.search(finding.fix), finding


def test_in_a_container_a_card_s_driver_is_the_host_s() -> None:
    missed = {"gpu": None, "gpu_problem": "no driver", "card_seen": True, "in_container": True}
    windows = {"system": "Linux 5.15.153.1-microsoft-standard-WSL2"}
    for more, fix in (
        ({}, "docker run --gpus all, with NVIDIA's container toolkit on the host"),
        ({"wants_gpu": True}, 'with CUDA; or [device] kind = "cpu"'),
        (windows, "driver in Windows, none in here; docker run --gpus all"),
    ):
        (found,) = (f for f in findings_of(changed(machine=missed | more)) if f.topic == "GPU")
        assert fix in found.fix
        assert "make" not in found.fix


def test_in_a_container_the_clock_is_the_host_s() -> None:
    for clock in (Clock(False), Clock(True, (4.0, 9.0))):
        for in_container in (False, True):
            facts = changed(clock=clock, machine={"in_container": in_container})
            (found,) = (finding for finding in findings_of(facts) if finding.topic == "Clock")
            assert ("on the host" in found.fix) == in_container


def test_without_a_swarm_its_run_is_not_spoken_of() -> None:
    for swarm in (None, Swarm(problem="cannot reach it", hint="ask for it")):
        topics = {finding.topic for finding in findings_of(changed(swarm=swarm))}
        assert not topics & {"This run", "Versions", "From outside"}


def test_under_windows_it_has_a_line_more() -> None:
    under = findings_of(changed(machine={"system": "Linux 5.15.153.1-microsoft-standard-WSL2"}))
    assert [finding for finding in under if finding.topic != "WSL"] == findings_of(SOUND)
    assert len(under) == len(findings_of(SOUND)) + 1


def test_what_is_wrong_has_a_fix() -> None:
    with pytest.raises(AssertionError, match="Clock"):
        Finding("Clock", Level.FAILURE, "wrong")
