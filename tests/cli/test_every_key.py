"""Every key of both files has bad values here, and each is told by name with what to do.

The keys come from the files' own sections: a key without a row fails.
"""

from pathlib import Path

import pytest

from atom.cli.app import main
from atom.cli.shell.failures import ExitCode
from atom.config.peer_file import PeerFile
from atom.config.problems import keys_of
from atom.config.run_file import RunFile
from atom.config.section import Section
from tests.cli.good_run import GOOD_RUN
from tests.toml_text import with_key

HUGE = "9" * 400
LONG = "x" * 5000
NO_TEXT = ("3", "should be a valid string, not 3")
NO_SWITCH = ('"yes"', 'should be a valid boolean, not "yes"')
NO_WORDS = (
    ('"a\\u0000"', "cannot be"),
    ('"a\\u001b[2J"', "cannot be"),
    ('"\\u009b2J"', "cannot be"),
)
NO_PATH = (NO_TEXT, ('""', "at least 1 character"), *NO_WORDS)
NO_SIZE = (
    ("8", "8 has no unit"),
    ('"8 Gb"', "'8 Gb' is not a quantity with one of the units"),
    ('"-3 GiB"', "'-3 GiB' is not"),
    (f'"{HUGE} GiB"', "more than there is anywhere"),
)
NO_RATE = (
    ("400", "400 has no unit"),
    ('"3 MB/s"', "'3 MB/s' is not a quantity"),
    ('"inf bit/s"', "'inf bit/s' is not"),
)
NO_CAP = (*NO_RATE, ('"0 bit/s"', "should be greater than 0"))
NO_PORT = (("65536", "less than 65536, not 65536"), ("-1", "greater than or equal to 0, not -1"))
NO_DIGEST = (NO_TEXT, ('"abc"', 'cannot be "abc"'))


def no_count(most: int, least: int = 1) -> tuple[tuple[str, str], ...]:
    return (
        ('"3"', 'should be a valid integer, not "3"'),
        ("1.5", "should be a valid integer, not 1.5"),
        ("true", "should be a valid integer, not true"),
        (str(least - 1), f"greater than or equal to {least}, not {least - 1}"),
        (str(most + 1), f"should be less than or equal to {most}, not {most + 1}"),
        (HUGE, "should be less than or equal to"),
    )


def no_number(too_low: str, too_high: str) -> tuple[tuple[str, str], ...]:
    return (
        ('"3"', 'should be a valid number, not "3"'),
        ("nan", "should be a finite number, not nan"),
        ("inf", "should be a finite number, not inf"),
        (too_low, "should be "),
        (too_high, "should be "),
    )


def no_choice(first: str) -> tuple[tuple[str, str], ...]:
    return (
        ('"nonsense"', f"should be '{first}'"),
        ('""', f"should be '{first}'"),
        ("3", f"should be '{first}'"),
    )


RUN_ROWS: dict[str, tuple[tuple[str, str], ...]] = {
    "run.name": (NO_TEXT, ('"Tiny Run"', 'cannot be "Tiny Run"'), ('""', 'cannot be ""'),
                 ('"-x"', 'cannot be "-x"'), (f'"{"x" * 64}"', "cannot be")),
    "run.rounds": no_count(2**31),
    "run.seed": (("-1", "greater than or equal to 0, not -1"), (str(2**63), "less than"),
                 ("1.0", "should be a valid integer, not 1.0")),
    "model.family": no_choice("gpt3"),
    "model.huggingface": (*NO_PATH, ('"config.json"', "the model comes from family already")),
    "model.huggingface_config": (NO_TEXT, (f'"{LONG * 7}"', "at most 32768 characters"),
                                 ('"{}"', "says nothing with family")),
    "model.module": (NO_TEXT, ('"no colon"', 'cannot be "no colon"'),
                     ('"a:b"', "the model comes from family already")),
    "model.module_sha256": NO_DIGEST,
    "model.weights": no_choice("given"),
    "model.size": no_choice("small"),
    "model.layers": no_count(4096),
    "model.heads": no_count(4096),
    "model.model_dim": no_count(2**20),
    "model.sequence_tokens": no_count(2**20),
    "model.vocabulary_size": (*no_count(2**24), ("255", "255 is too few")),
    "model.dropout": no_number("-0.1", "1.0"),
    "model.precision": no_choice("float32"),
    "data.source": no_choice("text"),
    "data.paths": (('"a.txt"', 'should be a valid array, not "a.txt"'), ("[3]", "a valid string"),
                   ('["a.txt"]', "takes no paths"), ('[""]', "at least 1 character")),
    "data.path": (*NO_PATH, ('"a/b"', "has no path")),
    "data.name": (NO_TEXT, ('""', "at least 1 character"), *NO_WORDS, ('"x"', "has no name")),
    "data.split": (NO_TEXT, ('"a b"', 'cannot be "a b"'), ('"train"', "has no split")),
    "data.revision": (*NO_DIGEST, (f'"{"a" * 40}"', "has no revision")),
    "data.tokenizer": NO_PATH,
    "data.tokenizer_sha256": NO_DIGEST,
    "data.validation_fraction": (*no_number("-0.1", "1.0"), ("0", "needs text that is held back")),
    "data.max_bytes": (*NO_SIZE, ('"0 B"', "greater than or equal to 1, not")),
    "data.text_field": (NO_TEXT, ('""', "at least 1 character"), *NO_WORDS,
                        ('"text"', "has no text_field")),
    "batch.global_sequences": no_count(2**24),
    "batch.micro_batch_sequences": (*no_count(2**16), ("5", "5 is more than the whole")),
    "update.rule": (NO_TEXT, ('"nonsense"', "names no update rule")),
    "update.inner_sequences": (*no_count(2**24), ("4", 'says nothing with rule = "every-step"')),
    "update.outer_rate": (*no_number("0", "10.5"),
                          ("0.7", 'says nothing with rule = "every-step"')),
    "update.outer_momentum": (*no_number("-0.1", "1"),
                              ("0.9", 'says nothing with rule = "every-step"')),
    "optimizer.name": (NO_TEXT, ('"nonsense"', "names no optimizer"), ('""', "names no optimizer"),
                       ('"muon"', "all peers must take the same")),
    "optimizer.learning_rate": no_number("0", "1e4"),
    "optimizer.final_learning_rate": (*no_number("-1", "1e4"), ("0.1", "is above learning_rate")),
    "optimizer.betas": (("[0.9]", "is missing"), ("0.9", "should be a valid array"),
                        ("[0.9, 1.0]", "should be less than 1, not 1.0")),
    "optimizer.epsilon": no_number("0", "2"),
    "optimizer.weight_decay": no_number("-1", "1e4"),
    "optimizer.warmup_rounds": (*no_count(2**31, 0), ("4", "is longer than the run of 3 rounds")),
    "optimizer.decay": no_choice("constant"),
    "optimizer.clip_norm": no_number("-1", "1e7"),
    "optimizer.state": (*no_choice("exact"), ('"half"', "is for bfloat16")),
    "optimizer.gradients": (*no_choice("float32"), ('"bfloat16"', "is for bfloat16")),
    "validation.every_rounds": no_count(2**31),
    "validation.batches": no_count(2**20),
    "swarm.grace_seconds": no_number("0.5", "86401"),
    "swarm.codec": (NO_TEXT, ('"nonsense"', "names no codec"), ('""', "names no codec")),
    "swarm.survivors": no_choice("branch"),
    "swarm.members": (('["ann"]', "'ann' is no peer id"), ("[]", "would let nobody in"),
                      ('"ann"', "should be a valid array"), ("[3]", "a valid string, not 3")),
    "snapshot.every_rounds": no_count(2**31),
}  # fmt: skip
PEER_ROWS: dict[str, tuple[tuple[str, str], ...]] = {
    "device.kind": (NO_TEXT, ('"gpu"', 'cannot be "gpu"'), ('"cuda:x"', 'cannot be "cuda:x"')),
    "device.memory": (*NO_SIZE, ('"0 B"', "should be greater than 0"), ('"lots"', "'lots' is not")),
    "device.cpu_threads": no_count(1024),
    "device.slot": (("60", "60 has no unit"), ('"1 day"', "'1 day' is not a quantity"),
                    ('"0 s"', "should be ")),
    "device.power": (("200", "200 has no unit"), ('"2 kWh"', "'2 kWh' is not a quantity"),
                     ('"0 W"', "should be greater than 0"), ('"-5 W"', "'-5 W' is not")),
    "host.memory": (*NO_SIZE, ('"0 B"', "should be greater than 0")),
    "network.listen": (NO_TEXT, ('"here"', "'here' is not HOST:PORT"),
                       ('"0.0.0.0:99999"', "'99999'"), ('"::1:80"', "is not a host"),
                       (f'"{LONG}:80"', "is not a host")),
    "network.data_port": (*NO_PORT, ('"80"', 'should be a valid integer, not "80"')),
    "network.announce": (('["a b"]', "'a b' is not a host"), (str(["a"] * 9), "at most 8 items"),
                         ('"a"', "should be a valid array"),
                         ('["a..b"]', "'a..b' is not a host"), ('["a:0x1"]', "'0x1'")),
    "network.upload": NO_CAP,
    "network.download": NO_CAP,
    "network.reachable": (NO_TEXT, ('"maybe"', 'cannot be "maybe"'), ("true", "a valid string")),
    "schedule.hours": (('["noon"]', "'noon' is no time"), ("[3]", "valid string, not 3"),
                       ('"mon 1:00-2:00"', "should be a valid array"),
                       ('["mon 25:00-26:00"]', "there is no 25:00"),
                       ('["xyz 1:00-2:00"]', "xyz is none of the days")),
    "schedule.idle_for": (("10", "10 has no unit"), ('"10 parsecs"', "'10 parsecs' is not"),
                          ('"-3 s"', "'-3 s' is not"), ('"0 s"', "should be greater than 0")),
    "schedule.pause_on_battery": (NO_SWITCH,),
    "schedule.pause_for_gpu_programs": (NO_SWITCH,),
    "state.directory": NO_PATH,
    "state.snapshots": no_count(64),
    "state.own_minutes": no_count(10**6),
    "data.paths": (('"a.txt"', "should be a valid array"), ('[""]', "at least 1 character")),
    "data.path": NO_PATH,
    "data.tokenizer": NO_PATH,
    "metrics.port": (*NO_PORT, ('"80"', 'should be a valid integer, not "80"')),
    "metrics.host": (NO_TEXT, ('"a b"', "'a b' is not a host"), ('""', "is not a host"),
                     ('"a..b"', "'a..b' is not a host")),
    "log.tensorboard": NO_PATH,
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "run.toml").write_text(GOOD_RUN)
    return tmp_path


def dotted(model: type[Section]) -> set[str]:
    return {f"{section}.{key}" for section, keys in keys_of(model).items() for key in keys}


def test_every_key_has_a_row() -> None:
    assert set(RUN_ROWS) == dotted(RunFile)
    assert set(PEER_ROWS) == dotted(PeerFile)


@pytest.mark.parametrize(
    ("file", "key"), [("run", key) for key in RUN_ROWS] + [("peer", key) for key in PEER_ROWS]
)
def test_bad_values_of_a_key(
    file: str, key: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, rows = (GOOD_RUN, RUN_ROWS) if file == "run" else ("", PEER_ROWS)
    named = ["start", "bad.toml"] if file == "run" else ["start", "run.toml", "--peer", "bad.toml"]
    for value, what in (*rows[key], ("{ a = 1 }", "")):
        (folder / "bad.toml").write_text(with_key(good, key, value))
        before = sorted(folder.rglob("*"))

        code = main(named)

        streams = capsys.readouterr()
        error, _, hint = streams.err.partition("hint:  ")
        assert code == ExitCode.CONFIG, (value[:99], streams.err)
        assert error.startswith(f"error: bad.toml: {key}"), error
        assert what in error, error
        assert len(hint) > 8, error
        assert streams.out == ""
        assert max(map(len, streams.err.splitlines())) < 600, "a long value is cut"
        assert "\x1b" not in streams.err
        assert sorted(folder.rglob("*")) == before
