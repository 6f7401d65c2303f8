"""The play itself: starts the peers, watches, kills one, brings another, waits for the end."""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from atom.base.errors import AtomError
from atom.cli.demo.actor import Actor, ActorFailed
from atom.cli.demo.display import Display, Moment
from atom.cli.demo.loss_plot import Mark
from atom.cli.demo.player import Player
from atom.cli.demo.record import Event, rounds_of
from atom.cli.demo.script import Cue, Scene, cues
from atom.cli.demo.stage import Stage
from atom.cli.demo.verdict import STOPPED
from atom.cli.look.onlooker import Sight, onlooking
from atom.cli.shell.signals import undisturbed
from atom.swarm.addresses import parse_join_address
from atom.swarm.records.lease import PeerState

FIRST_PEERS = 3
VICTIM = 2
STEP_S = 0.2
LOOK_EVERY_S = 0.5
ENTER_S = 90.0
COMMAND_TRIES = 20
CURTAIN_S = 40.0
"""After the founder's last round, for the others to finish and say goodbye."""
_ENTERED = frozenset({PeerState.ACCUMULATING, PeerState.REDUCING, PeerState.STEPPING})


@dataclass(frozen=True)
class Plan:
    """What is to be played."""

    rounds: int
    limit_s: float
    """When the play is broken off."""


class Performance:
    """One run of the demo. `play` returns when all surviving peers ended; it leaves no process."""

    def __init__(self, stage: Stage, plan: Plan, display: Display) -> None:
        self._stage = stage
        self._plan = plan
        self._display = display
        self._address = ""
        self._sight: Sight | None = None
        self._looking: asyncio.Task[None] | None = None
        self._began = time.monotonic()
        self._last_round_at: float | None = None
        self.players: dict[int, Player] = {}
        self.marks: list[Mark] = []
        self.events: list[Event] = []
        """What the demo itself did."""

    @property
    def founder(self) -> Player:
        return self.players[1]

    async def play(self) -> None:
        """Raises: ActorFailed if a daemon fails, or nothing was trained when the time was up;
        AtomError if the DHT cannot be seen."""
        self._began = time.monotonic()
        try:
            async with asyncio.timeout(self._plan.limit_s):
                await self._open()
                self._looking = asyncio.create_task(self._look_on())
                await self._gather()
                await self._run_to_the_end()
        except TimeoutError:
            self._stop()
        finally:
            with undisturbed():
                await self._clear_up()

    # ---- acts

    async def _open(self) -> None:
        """The founder alone, until others can join."""
        founder = self._cast(1)
        self._say("founder starts: tokenises the standard library, traces the model")
        await founder.actor.start(
            *("start", str(self._stage.run_file)),
            *("--peer", str(self._stage.peer_file), "--state", str(founder.state)),
        )
        address = asyncio.create_task(founder.actor.join_address())
        try:
            while not address.done():
                await self._step()
            self._address = await address
        finally:
            address.cancel()
        self._stage.address.write_text(self._address + "\n", encoding="utf-8")
        self._say(f"founder listens: its address is in {_brief(self._stage.address)}")

    async def _gather(self) -> None:
        """The others join by the founder's address. It waits for them: nobody misses the start."""
        for number in range(2, FIRST_PEERS + 1):
            await self._enter(number)
        waits = await self._command("pause")
        deadline = time.monotonic() + ENTER_S
        while not all(player.entered for player in self.players.values()):
            if time.monotonic() > deadline:
                late = next(p for p in self.players.values() if not p.entered)
                raise late.actor.failure(f"did not join within {ENTER_S:.0f} s")
            await self._step()
        if waits:
            await self._command("resume")
        self._say(f"{FIRST_PEERS} peers found each other: training begins")

    async def _run_to_the_end(self) -> None:
        while any(player.is_alive for player in self.players.values()):
            await self._step()
            scene = Scene(
                self._round,
                self._plan.rounds,
                self._together(),
                killed=not self.players[VICTIM].is_alive,
                joined=FIRST_PEERS + 1 in self.players,
            )
            for cue in cues(scene):
                await self._follow(cue)
            self._check_curtain()

    async def _follow(self, cue: Cue) -> None:
        if cue is Cue.JOIN:
            self._say(f"peer {FIRST_PEERS + 1} starts and joins by DHT address")
            self._note("peer-started", peer=f"peer {FIRST_PEERS + 1}", round=self._round)
            await self._enter(FIRST_PEERS + 1)
            return
        victim = self.players[VICTIM]
        victim.actor.kill()
        victim.fate = "killed"
        self._say(f"{victim.name} killed with SIGKILL after round {self._round}: the others go on")
        self._note("peer-killed", peer=victim.name, peer_id=victim.peer_id, round=self._round)
        self.marks.append(Mark(self._round, f"{victim.name} killed", is_loss=True))

    def _stop(self) -> None:
        """Time is up on a slow machine: what was trained until now is judged."""
        if self._round == 0:
            raise self.founder.actor.failure(f"trained nothing in {self._plan.limit_s:.0f} s")
        self._say(f"time is up at round {self._round} of {self._plan.rounds}: the demo ends here")
        for player in self.players.values():
            if player.is_alive:
                player.fate = STOPPED if player.entered else "still joining"

    # ---- scenery

    async def _step(self) -> None:
        """A moment passes: news are read, ends noticed, the display is drawn."""
        await asyncio.sleep(STEP_S)
        self._read()
        for player in self.players.values():
            self._greet(player)
            player.check()
        if self._looking is not None and self._looking.done():
            await self._looking  # raises why the DHT cannot be seen
        names = {player.peer_id: player.title for player in self.players.values()}
        losses = [(e["round"], e["loss"]) for e in rounds_of(self.founder.tail.events)]
        self._display.show(Moment(self._elapsed_s(), self._sight, names, losses))

    def _read(self) -> None:
        for player in self.players.values():
            player.tail.read()

    def _greet(self, player: Player) -> None:
        """Notes when the swarm first sees a peer ready to train."""
        lease = None if self._sight is None else self._sight.leases.get(player.peer_id)
        if player.entered or lease is None or lease.state not in _ENTERED | {PeerState.PAUSED}:
            return
        player.entered = True
        if player is self.founder:
            return
        self._say(f"{player.name} joined at round {lease.round}")
        self._note("peer-joined", peer=player.name, peer_id=player.peer_id, round=lease.round)
        if len(self.players) > FIRST_PEERS:
            self.marks.append(Mark(lease.round, f"{player.name} joined", is_loss=False))

    async def _look_on(self) -> None:
        """Sees the swarm as anybody could: through the DHT, without being part of it."""
        async with onlooking(parse_join_address(self._address)) as onlooker:
            while True:
                # Silence of the DHT blinds the display for a moment, no more.
                with contextlib.suppress(AtomError):
                    self._sight = await onlooker.look()
                await asyncio.sleep(LOOK_EVERY_S)

    async def _clear_up(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await asyncio.gather(*(player.actor.remove() for player in self.players.values()))
        self._read()

    async def _enter(self, number: int) -> None:
        player = self._cast(number)
        await player.actor.start(
            *("join", self._address),
            *("--peer", str(self._stage.peer_file), "--state", str(player.state)),
        )
        player.actor.drain()

    def _cast(self, number: int) -> Player:
        self._stage.prepare_peer(number)
        player = self.players[number] = Player(self._stage, number)
        return player

    async def _command(self, name: str) -> bool:
        """`atom pause` or `atom resume` to the founder; whether it obeyed."""
        for _ in range(COMMAND_TRIES):  # its control socket opens a moment after its address
            command = Actor(f"atom {name}", self._stage.control_log)
            await command.start(name, "--state", str(self.founder.state))
            command.drain()
            while command.exit_code is None:
                await self._step()
            if command.exit_code == 0:
                return True
        return False

    def _together(self) -> bool:
        """Whether all the first peers had a part in one round."""
        first = {self.players[n].peer_id for n in range(1, FIRST_PEERS + 1)}
        return any(first <= set(e["members"]) for e in rounds_of(self.founder.tail.events)[-8:])

    def _check_curtain(self) -> None:
        if self._round < self._plan.rounds:
            return
        now = time.monotonic()
        if self._last_round_at is None:
            self._last_round_at = now
            self._say("the last round is committed: the peers finish")
        if now - self._last_round_at > CURTAIN_S:
            late = next(player for player in self.players.values() if player.is_alive)
            raise ActorFailed(
                f"{late.name} has not ended {CURTAIN_S:.0f} s after the last round",
                f"its log is {late.actor.log}",
            )

    @property
    def _round(self) -> int:
        rounds = rounds_of(self.founder.tail.events)
        return int(rounds[-1]["round"]) if rounds else 0

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _say(self, text: str) -> None:
        self._display.say(self._elapsed_s(), text)

    def _note(self, kind: str, **fields: object) -> None:
        self.events.append({"time": round(time.time(), 3), "event": kind, **fields})


def _brief(path: Path) -> str:
    """Seen from the working directory, if it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
