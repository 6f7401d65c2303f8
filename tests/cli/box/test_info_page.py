"""`atom info` of one daemon, as a person reads it."""

from typing import Any

import pytest

from atom.cli.box import control
from atom.cli.box.info_page import rows

ME, OTHER = f"12D3KooW{'x' * 38}Jubsmb", f"12D3KooW{'y' * 38}Kwxyzq"
FOLDER = f"/home/you/{'long/' * 30}tiny"


def info(**more: Any) -> dict[str, Any]:
    return {
        "run": "tiny", "peer_id": ME, "state": "accumulating", "trouble": None, "paused": None,
        "traffic": {"today_bytes": 1 << 30, "month_bytes": 3 << 30, "per_month_bytes": 9 << 30},
        "name": None, "peer_names": {OTHER: "ann"},
        "text": None, "validation": None, "sample": None, "last_round": None,
        "round_s": None,
        "devices": {"cpu": None},
        "round": 1076, "rounds": 10_000, "global_batch": 8,
        "data": {"tokens": 1880, "samples": 234, "held_back": 0}, "epochs": {"": 1.5},
        "accounts": {},
        "optimizer_state": "exact", "gradients": "float32", "codec": "float32",
        "sequences": 4, "rounds_joined": 76,
        "sequences_committed": 608, "sequences_per_s": 82.179, "tokens_per_s": 657.4,
        "loss": 3.7321, "passes_voided": {"loss-not-finite": 0, "out-of-memory": 0},
        "last_pass": {"pass_seconds": 0.006, "computing": 0.64,
                        "waiting": {"link": 0.0, "host": 0.208, "end": 0.031}},
        "disk": {"snapshots": [1050, 1000], "checkpoints": [], "free_bytes": 67114246144,
                 "paused": {}},
        "digest": "b4" * 32, "voters": [ME, OTHER], "peers": [OTHER],
        "data_addresses": ["127.0.0.1:39669"], "reachable": "unknown",
        "links": {OTHER: {"round_trip_ms": 12.3, "bytes_per_s": None}},
        "join_address": f"/ip4/127.0.0.1/tcp/3/p2p/{ME}/run/tiny/owner/{ME}",
        "pinned_address": f"/ip4/127.0.0.1/tcp/3/p2p/{ME}/run/tiny/owner/{ME}/head/3-{'ab' * 32}",
        "state_directory": FOLDER,
        **more,
    }  # fmt: skip


def test_figures_have_units_and_what_is_as_usual_takes_no_line() -> None:
    shown = dict(rows(info()))
    assert shown["round"] == "1,076 of 10,000, loss 3.7321 nats per token"
    assert shown["traffic"] == "1.1 GB today, 3.2 GB this month of 9.7 GB"
    waits = "waits for host 21%, end 3%"
    assert shown["device"] == f"cpu; computes 64% of a pass of 0.006 s; {waits}"
    assert shown["other peers"] == "1: ann …Kwxyzq (12.3 ms)"
    unusual = {"sample", "last round", "trouble", "paused", "void passes", "writes paused"}
    assert not unusual & set(shown)


def test_the_last_round_and_what_is_held_back_have_lines() -> None:
    use = {"seconds": 30.0, "utilisation": 0.75, "sent_bytes": 3 << 20, "received_bytes": 5 << 20}
    validation = {"round": 1070, "loss": 3.5, "texts": {"a": {"loss": 3.0, "perplexity": 20.1}}}
    sample = {"round": 1070, "text": "def [x]"}
    shown = dict(rows(info(last_round=use, validation=validation, round_s=30.0, sample=sample)))
    assert shown["round"].endswith("validation 3.5000 after round 1,070, 3.1 days to go")
    assert shown["sample"] == "round 1,070: def [x]"
    assert shown["validation"] == "a 3.0000 (perplexity 20.1)"
    assert shown["last round"] == "30.0 s, 75% of it in passes, 3.1 MB sent, 5.2 MB received"


def test_of_others_only_peers_are_shown_and_of_many_how_many() -> None:
    """Clients that only ask, such as a doctor on another machine, have a connection here too."""
    way = {"round_trip_ms": 1.0, "bytes_per_s": None}
    asking = info(links={OTHER: way, "12D3KooWdoctor": way})
    assert "doctor" not in str(dict(rows(asking)))
    peers = [f"peer-{number:06}" for number in range(1, 1003)]
    many = dict(rows(info(peers=peers, voters=[ME, *peers], links={})))
    assert many["other peers"].startswith("1,002: …000001, …000002, ")
    assert many["other peers"].endswith(", …000008 and 994 more")
    alone = dict(rows(info(peers=[])))
    assert alone["other peers"] == "none seen"
    assert "…Kwxyzq" in alone["voters"], "not in sight"
    assert "voters" not in dict(rows(info()))


def test_what_is_not_as_usual_is_said() -> None:
    odd = info(
        rounds=None, loss=None, last_pass=None, rounds_joined=1,
        paused="outside its hours", passes_voided={"loss-not-finite": 12},
        disk={"snapshots": [], "free_bytes": 0, "paused": {"snapshots": "no room", "tokens": "x"},
              "checkpoints": [{"round": 1200, "validation_loss": None},
                              {"round": 1000, "validation_loss": 2.5},
                              {"round": 900, "validation_loss": 2.25}]},
        devices={"cuda:0": None, "cuda:1": "out of memory"},
    )  # fmt: skip
    shown = dict(rows(odd))
    assert shown["round"] == "1,076"
    assert shown["contributed"] == "608 sequences to 1 round since this start"
    assert shown["paused"] == "outside its hours"
    assert shown["void passes"] == "12 loss-not-finite"
    assert shown["device"] == "cuda:0, cuda:1 (excluded: out of memory)"
    assert shown["disk"] == "0 B free, snapshots of rounds: none yet"
    assert shown["checkpoints"] == "1,200, 1,000 (2.5000), 900 (2.2500)"
    assert shown["writes paused"] == "snapshots: no room; tokens: x"


def test_it_is_printed_with_its_folder_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control, "ask_daemon", lambda state, command: info())
    control.show_info(None, as_json=False)
    assert f"directory       {FOLDER}\n" in (shown := capsys.readouterr().out)
    assert "pinned address  /ip4/" in shown
