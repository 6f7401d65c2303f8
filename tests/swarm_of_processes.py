"""Real daemons on this machine: started, frozen, killed and watched from outside."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
import torch

import atom
from atom.base.errors import ControlError
from atom.config.load import parse_run_text
from atom.daemon import control
from atom.daemon.state_directory import StateDirectory
from atom.graph.chain import Machine
from atom.graph.costs.seconds import typical_graph
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3Config, GPT3Source
from atom.plan.choosing import Question, enough_bytes
from atom.plan.memory import Limits
from atom.swarm.dht.p2pd import die_with_parent
from atom.swarm.identity import Identity

START_S = 150.0
"""Time to import PyTorch, to trace and to tokenise on a busy machine."""
GONE_S = 15.0
POLL_S = 0.05

Event = dict[str, Any]

RUN = """\
[run]
name = "{name}"
{rounds}
seed = 5

[model]
family = "gpt3"
layers = 2
heads = 2
model_dim = {model_dim}
sequence_tokens = 16

[data]
source = "python-stdlib"
max_bytes = "200 kB"

[batch]
global_sequences = {sequences}
micro_batch_sequences = 4

[optimizer]
learning_rate = 1e-3
final_learning_rate = {final_rate}
betas = [0.9, 0.95]
weight_decay = 0.1
{schedule}
clip_norm = 1.0

[swarm]
grace_seconds = {grace_s}
{exchange}

[snapshot]
every_rounds = {snapshot_rounds}
"""
LOCAL_STEPS = "local-steps"
RULE = os.environ.get("ATOM_CHAOS_RULE", "every-step")
EXCHANGE = {
    "every-step": "",
    LOCAL_STEPS: """codec = "int4"

[update]
rule = "local-steps"
inner_sequences = 8
""",
}
"""Lines of the run file for each update rule, after [swarm]."""
PEER = """\
[device]
use = "cpu"
memory = "{memory}"
cpu_threads = 1

[network]
listen = "127.0.0.1:0"
"""


def endless(
    name: str,
    grace_s: float,
    snapshot_rounds: int,
    final_rate: float = 1e-3,
    rounds: str = "",
    schedule: str = "",
    rule: str = RULE,
    model_dim: int = 32,
    sequences: int = 96,
) -> str:
    """A run file without a last round. `sequences`: of a round."""
    exchange = EXCHANGE[rule]
    return RUN.format(**locals())


def ending(name: str, rounds: int) -> str:
    """A run file with a last round, warmup and decay; the last round is a snapshot's."""
    schedule = 'warmup_rounds = 4\ndecay = "cosine"'
    return endless(name, 2, rounds, 1e-4, f"rounds = {rounds}", schedule)


class Peer:
    """One peer over all its lives: its state directory, its process if it has one."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.root = root
        self.state = root / name
        self.log = root / f"{name}.log"
        self.output = root / f"{name}.out"
        self.arguments: tuple[str, ...] = ()
        self.program: tuple[str, ...] = ("-m", "atom")
        """Arguments of Python."""
        self.namespace: str | None = None
        """Network namespace of its processes; None: the namespace of the test."""
        self._sees_gpu = False
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen: list[psutil.Process] = []
        self._events: list[Event] = []
        self._read_bytes = 0

    def configure(self, more: str = "", listen: str = "127.0.0.1") -> None:
        """Before it starts: its peer file gets these keys of the network, and that host."""
        path = self.root / f"{self.name}.toml"
        text = path.read_text(encoding="utf-8").replace("127.0.0.1", listen)
        path.write_text(f"{text}{more}\n", encoding="utf-8")

    def give_gpu(self) -> None:
        """Before it starts: it trains on the first GPU, not on the CPU."""
        self.use('"cuda"')
        self._sees_gpu = True

    def use(self, devices: str) -> None:
        """Before it starts: it trains on these, not on the CPU."""
        path = self.root / f"{self.name}.toml"
        text = path.read_text(encoding="utf-8")
        assert '"cpu"' in text
        path.write_text(text.replace('"cpu"', devices), encoding="utf-8")

    def create_key(self) -> str:
        """Before it starts: give it its key. Return its peer id."""
        return Identity.load_or_create(StateDirectory(self.state).identity).peer_id

    # ---- its lives

    def start(self, *arguments: str) -> None:
        """Run `atom ARGUMENTS… --state … --peer …`; without arguments, as in the last life."""
        assert self._process is None or self._process.poll() is not None
        self.arguments = arguments or self.arguments
        common = ("--state", str(self.state), "--peer", str(self.root / f"{self.name}.toml"))
        inside = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        with self.log.open("ab") as log, self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [*inside, sys.executable, "-P", *self.program, *self.arguments, *common],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env=environment(self.root, self._sees_gpu),
                preexec_fn=die_with_parent,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def limit_files(self, most_bytes: int | None) -> None:
        """Limit the size of each of its files; None: no limit any more."""
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        soft = hard if most_bytes is None else most_bytes
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (soft, hard))

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def family(self) -> list[psutil.Process]:
        """The daemon and everything it started."""
        daemon = psutil.Process(self.pid)
        return [daemon, *daemon.children(recursive=True)]

    def kill(self) -> list[psutil.Process]:
        """SIGKILL to the daemon alone. Returns who of its family outlived it too long."""
        family = self.family()
        os.kill(self.pid, signal.SIGKILL)
        self.wait()
        _, alive = psutil.wait_procs(family[1:], timeout=GONE_S)
        return list(alive)

    def freeze(self, whole_family: bool) -> None:
        """SIGSTOP: as a suspended machine (the whole family), or a daemon that hangs."""
        self._frozen = self.family() if whole_family else self.family()[:1]
        for process in self._frozen:
            process.suspend()

    def thaw(self) -> None:
        for process in self._frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        self._frozen = []

    def wait(self, timeout_s: float = 60.0) -> int:
        """The exit code. Raises: AssertionError if it does not end."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end\n{self.story()}") from None

    def remove(self) -> None:
        """Kill all of its processes, in any state."""
        if self._process is None or self._process.poll() is not None:
            return
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    # ---- what it says

    def ask(self, command: str, *arguments: object) -> Any:
        """Send a command of the owner; return the answer. Raises: ControlError."""
        return control.ask(StateDirectory(self.state).control_socket, command, *arguments)

    def info(self) -> dict[str, Any]:
        """Return its answer to `atom info`; empty while it starts."""
        assert self.exit_code is None, self.story()
        with contextlib.suppress(ControlError):
            told: dict[str, Any] = self.ask("info")
            return {} if "step" in told else told
        return {}

    def events(self, kind: str | None = None) -> list[Event]:
        """All so far, over all lives; only what is new is read."""
        path = self.state / "events.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read_bytes)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read_bytes += len(whole + newline)
            self._events += [json.loads(line) for line in whole.splitlines()]
        return [event for event in self._events if kind in (None, event["event"])]

    @property
    def lives(self) -> int:
        return len(self.events("started"))

    @property
    def peer_id(self) -> str:
        return str(self.events("started")[0]["peer"])

    @property
    def rounds(self) -> list[Event]:
        return self.events("round")

    @property
    def last_round(self) -> int:
        told = [e for e in self.events() if e["event"] in ("round", "started", "caught-up")]
        return int(told[-1]["round"]) if told else 0

    def errors(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def story(self, lines: int = 12) -> str:
        """Return the end of its log and of its events, which a failed test shows."""
        events = [str({k: _short(v) for k, v in e.items()}) for e in self.events()[-lines:]]
        tail = self.errors().splitlines()[-lines:]
        return "\n".join([f"--- {self.name} (exit code {self.exit_code})", *tail, *events])


class Swarm:
    """A founder and its joiners in one folder. Ends with everything ended.

    One peer has the least device memory that will do and cuts the model inside its layers, the
    next has all of it on its device, the third something between.
    """

    def __init__(
        self,
        root: Path,
        run_text: str,
        names: Sequence[str],
        memory: str | None = None,
        trusts: bool = True,
    ) -> None:
        """Write the files of a swarm.

        Args:
            root: Folder for all of its files.
            run_text: Run file.
            names: Names of the peers, the founder's first.
            memory: Device memory of every peer; None: different amounts.
            trusts: Whether all peers may vote from their first round on.
        """
        self.root = root
        self.run_file = root / "run.toml"
        if memory is None:
            tight = tightest_memory(run_text)
            sizes = f"{tight} B", "auto", f"{2 * tight} B"
        else:
            sizes = (memory,)
        for name, size in zip(names, cycle(sizes), strict=False):
            (root / f"{name}.toml").write_text(PEER.format(memory=size), encoding="utf-8")
        (root / "t").mkdir()
        self.peers = [Peer(name, root) for name in names]
        if trusts:
            assert "[swarm]\n" in run_text
            peer_ids = json.dumps([peer.create_key() for peer in self.peers])
            run_text = run_text.replace("[swarm]\n", f"[swarm]\ntrusted = {peer_ids}\n")
        self.run_file.write_text(run_text, encoding="utf-8")
        self.address = ""
        self.host = "127.0.0.1"
        """The founder's, for the DHT."""
        self.start_options: tuple[str, ...] = ()

    def slow_lines(self) -> None:
        """Before the peers start: make their lines so slow that processors are idle in a round.

        Not for a swarm in which a peer comes back: one that is alone meanwhile has rounds without
        an exchange, faster than the other can fetch their results.
        """
        for peer in self.peers:
            peer.configure('upload = "4 Mbit/s"')

    @property
    def founder(self) -> Peer:
        return self.peers[0]

    @property
    def joiners(self) -> list[Peer]:
        return self.peers[1:]

    def found(self, standing: bool = False) -> None:
        """Start the founder, on a port that it keeps in every life. `standing`: each peer is paused
        until `resume`, so that all of them are in the first round."""
        for peer in self.peers if standing else []:
            peer.state.mkdir(exist_ok=True)
            (peer.state / "paused").touch()
        listen = f"{self.host}:{free_port()}"
        self.founder.start("start", str(self.run_file), "--listen", listen, *self.start_options)

    def invite(self) -> None:
        """Starts the joiners once the founder has an address."""
        self.until(self._printed_address, "an address", START_S)
        self.address = self._printed_address()
        for joiner in self.joiners:
            joiner.start("join", self.address)

    def all_see_all(self) -> bool:
        everybody = {peer.peer_id for peer in self.peers if peer.lives}
        seen = [{*peer.info().get("peers", []), peer.peer_id} for peer in self.peers if peer.lives]
        return len(everybody) == len(self.peers) and all(each >= everybody for each in seen)

    def resume(self) -> None:
        for peer in self.peers:
            peer.ask("resume")

    def until(
        self,
        condition: Callable[[], object],
        what: str,
        timeout_s: float = 30.0,
        poll_s: float = POLL_S,
    ) -> float:
        """Waits for `condition`; how long it took. Raises: AssertionError with everyone's story."""
        started = time.monotonic()
        while not condition():
            if time.monotonic() - started > timeout_s:
                raise AssertionError(f"not within {timeout_s:.0f} s: {what}\n{self.story()}")
            time.sleep(poll_s)  # they tell of themselves in files and answers: nothing to wait on
        return time.monotonic() - started

    def story(self) -> str:
        return "\n".join(peer.story() for peer in self.peers)

    def left_over(self) -> list[str]:
        """Files of ended daemons outside of their state directories (PyTorch's caches apart)."""
        names = [path.name for path in (self.root / "t").iterdir()]
        return [name for name in names if not name.startswith("torchinductor")]

    def close(self) -> None:
        for peer in self.peers:
            peer.remove()

    def _printed_address(self) -> str:
        assert self.founder.exit_code is None, self.founder.story()
        first, newline, _ = self.founder.output.read_text(encoding="utf-8").partition("\n")
        return first.removeprefix("join: ") if newline else ""


@contextlib.contextmanager
def swarm_in(
    root: Path,
    run_text: str,
    names: Sequence[str],
    memory: str | None = None,
    trusts: bool = True,
) -> Iterator[Swarm]:
    """Yield a swarm that is not started yet; end all its processes. Arguments: as of `Swarm`."""
    swarm = Swarm(root, run_text, names, memory, trusts)
    try:
        yield swarm
    finally:
        swarm.close()


def gather(*swarms: Swarm) -> None:
    """Start the joiners of these swarms side by side, and wait until all peers see each other."""
    for swarm in swarms:
        swarm.invite()
    for swarm in swarms:
        swarm.until(swarm.all_see_all, "everybody in", START_S * len(swarms))


@cache
def tightest_memory(run_text: str) -> int:
    """Device memory in bytes that is just enough: cut finely, always swapped."""
    run = parse_run_text(run_text)
    vocabulary = run.model.vocabulary_size or 256
    source = GPT3Source(GPT3Config.build(vocabulary_size=vocabulary, **run.model.shape()))
    batch = source.example_batch(run.batch.micro_batch_sequences)
    graph = trace(source.build(torch.float32), batch)
    profile = typical_graph(graph, torch.device("cpu"), Machine(1e10, 1e10))
    limits = Limits(1, 4, micro_batches=1)
    return enough_bytes(Question(profile.chain, Machine(1e9, 1e9), limits))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(root: Path, sees_gpu: bool = False) -> dict[str, str]:
    """Atom and its libraries importable as here, no GPU unless `sees_gpu`, one arithmetic thread,
    temporary files in sight."""
    paths = [str(Path(atom.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    own = {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(root / "t"),
    }
    if not sees_gpu:
        own["CUDA_VISIBLE_DEVICES"] = ""
    return os.environ | own


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > 40:
        return value[-6:]
    return [_short(item) for item in value] if isinstance(value, list) else value
