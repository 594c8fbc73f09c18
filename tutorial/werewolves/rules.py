"""Werewolves of Millers Hollow as rules: who is what, who may do what, who dies, who has won.

    game = Game(Settings(), seed=7)
    await game.play(ask)        # ask(question) -> Answer

Wolves kill by night, all vote by day. The wolves have won once they are as many as the others, the village once no wolf
is left; after `days` days nobody has. Whoever dies, the role is shown. Every draw is made from the seed.

    night   each wolf names a victim, the later one hears the earlier; the most named dies, a draw among equals
            the seer names one and is told whether it is a wolf
            the witch hears who is to die: naming that one saves it, naming another poisons it, once each in a game
    day     in turn from a drawn seat, each blames one or says nothing
            all vote at once; who has most votes dies, a draw among equals; without votes nobody
    death   the hunter shoots one, unless it was poison

An answer that names nobody who may be named counts as nobody: no kill, no word, no vote.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite

from astune.errors import ConfigError, nearest

SKILLS = ("simple", "middle", "strong")
TABLES = {
    6: {"wolves": 2, "villagers": 4},
    7: {"wolves": 2, "villagers": 3, "seer": True, "witch": True},
    9: {"wolves": 3, "villagers": 3, "seer": True, "witch": True, "hunter": True},
}
"""The usual games by their number of players."""


@dataclass(frozen=True)
class Settings:
    """One kind of game. Raises ConfigError for one that cannot be played."""

    wolves: int = 2
    villagers: int = 4
    seer: bool = False
    witch: bool = False
    hunter: bool = False
    days: int = 8
    """After so many days without a winner the game is over."""
    learners: str = "wolves"
    """The side that is trained: wolves, village or both."""
    opponent: str = "middle"
    """The other side, if one is trained: scripted at one of three skills, model:NAME for a model of
    rollout.auxiliary_models, or policy:NAME for one of astune.models."""
    prompt: str = "short"
    """short for the shipped tiny model; full for any other: with the rules and all that was said."""
    win: float = 1.0
    """Points of a trained player whose side has won."""
    survive: float = 0.0
    """For being alive at the end."""
    blame: float = 0.0
    """For each player of the other side who was voted out on a day on which it blamed or voted for that one."""
    exposed: float = 0.0
    """For being voted out."""
    invalid: float = -0.1
    """For each answer that names nobody who may be named, each one that came too late for its turns among them."""

    def __post_init__(self) -> None:
        for each in fields(self):
            given, kinds = getattr(self, each.name), {type(each.default)}
            if kinds == {float}:
                kinds.add(int)
            if type(given) not in kinds or (type(given) is float and not isfinite(given)):
                raise ConfigError(f"werewolves: {each.name} is {given!r}; expected one like {each.default!r}")
        for name, allowed in (("learners", ("wolves", "village", "both")), ("prompt", ("short", "full"))):
            if (given := getattr(self, name)) not in allowed:
                raise ConfigError(f"werewolves: {name} is {given!r}; expected one of {', '.join(allowed)}")
        kind, _, model = self.opponent.partition(":")
        if self.opponent not in SKILLS and not (kind in ("model", "policy") and model):
            known = f"{', '.join(SKILLS)}, model:NAME or policy:NAME"
            raise ConfigError(
                f"werewolves: opponent is {self.opponent!r}; expected {known}.{nearest(self.opponent, SKILLS)}"
            )
        others = len(self.roles) - self.wolves
        if self.wolves < 1:
            raise ConfigError(f"werewolves: wolves is {self.wolves}; without a wolf the village has won already")
        if self.wolves >= others:
            raise ConfigError(
                f"werewolves: {self.wolves} wolves and {others} others are no game: the wolves have won as soon as "
                f"they are as many; expected at most {(len(self.roles) - 1) // 2} wolves of {len(self.roles)} players"
            )
        if len(self.roles) > 9:
            raise ConfigError(f"werewolves: {len(self.roles)} players; expected at most 9, as a seat is one digit")
        if self.days < 1:
            raise ConfigError(f"werewolves: days is {self.days}; expected at least 1")

    @classmethod
    def of(cls, row: dict) -> "Settings":
        """The settings in a row of a data set; what is not there has its default."""
        return cls(**{each.name: row[each.name] for each in fields(cls) if each.name in row})

    @property
    def roles(self) -> list[str]:
        named = [role for role in ("seer", "witch", "hunter") if getattr(self, role)]
        return ["wolf"] * self.wolves + ["villager"] * self.villagers + named


@dataclass(frozen=True)
class Event:
    """Something that happened: `when` it did, `who` (0: nobody) did `what` to `whom` (0: nobody), and the seats that
    know of it, None for all."""

    when: str
    who: int
    what: str
    whom: int = 0
    words: str = ""
    known_to: tuple[int, ...] | None = None


@dataclass(frozen=True)
class View:
    """All that one seat knows."""

    seat: int
    role: str
    alive: tuple[int, ...]
    events: tuple[Event, ...]
    known: dict[int, str]
    """Roles by seat: its own, those of the dead, those of other wolves for a wolf, and what a seer saw ("good" is no
    wolf)."""

    def today(self, what: str) -> list[Event]:
        """What was done so far in the newest phase."""
        return [event for event in self.events if event.what == what and event.when == self.events[-1].when]


@dataclass(frozen=True)
class Question:
    """What a seat is asked to do, the seats that it may name, and what it knows."""

    act: str
    """kill, see, potion, blame, vote or shoot."""
    legal: tuple[int, ...]
    view: View
    victim: int = 0
    """For the witch: who is to die tonight."""


@dataclass(frozen=True)
class Answer:
    """The seat that is named, 0 for nobody; what is said with it; and whether the answer could be read."""

    name: int
    words: str = ""
    readable: bool = True


Ask = Callable[[Question], Awaitable[Answer]]


@dataclass
class Game:
    settings: Settings
    seed: int
    roles: dict[int, str] = field(init=False)
    alive: list[int] = field(init=False)
    events: list[Event] = field(default_factory=list)
    invalid: Counter = field(default_factory=Counter)
    """Answers by seat that named nobody who may be named."""
    winner: str | None = None
    days_played: int = 0

    def __post_init__(self) -> None:
        self._draw = random.Random(f"werewolves {self.seed}")
        roles = self.settings.roles
        self._draw.shuffle(roles)
        self.roles = dict(enumerate(roles, start=1))
        self.alive = list(self.roles)
        self._when = "before"
        self._seen: dict[int, str] = {}
        self._potions = {"save", "poison"}

    async def play(self, ask: Ask) -> str | None:
        """Play to the end; the side that has won, wolves or village, or None."""
        while self.winner is None and self.days_played < self.settings.days:
            self.days_played += 1
            self._when = f"night {self.days_played}"
            await self._night(ask)
            if self.winner is None:
                await self._daytime(ask)
        self._note(0, f"{self.winner or 'nobody'} won")
        return self.winner

    def view(self, seat: int) -> View:
        """What the seat knows, and nothing else."""
        role = self.roles[seat]
        known = {each: self.roles[each] for each in self.roles if each not in self.alive or each == seat}
        if role == "wolf":
            known |= dict.fromkeys(self.seats("wolf"), "wolf")
        if role == "seer":
            known = self._seen | known
        events = tuple(event for event in self.events if event.known_to is None or seat in event.known_to)
        return View(seat, role, tuple(self.alive), events, known)

    def seats(self, *roles: str) -> list[int]:
        """The living who have one of these roles."""
        return [seat for seat in self.alive if self.roles[seat] in roles]

    async def _night(self, ask: Ask) -> None:
        self._note(0, "begin")
        wolves = self.seats("wolf")
        prey = tuple(seat for seat in self.alive if seat not in wolves)
        named = []
        for wolf in wolves:
            answer = await self._ask(ask, wolf, "kill", prey)
            self._note(wolf, "kill", answer.name, answer.words, tuple(wolves))
            named.append(answer.name)
        victim = self._most(named)
        for seer in self.seats("seer"):
            answer = await self._ask(ask, seer, "see", self._others(seer))
            if answer.name:
                self._seen[answer.name] = "wolf" if self.roles[answer.name] == "wolf" else "good"
            self._note(seer, "see", answer.name, self._seen.get(answer.name, ""), (seer,))
        dead = {victim: "killed"} if victim else {}
        for witch in self.seats("witch"):
            legal = ((victim,) if victim and "save" in self._potions else ()) + (
                tuple(seat for seat in self._others(witch) if seat != victim) if "poison" in self._potions else ()
            )
            if not legal:
                continue
            answer = await self._ask(ask, witch, "potion", legal, victim)
            if answer.name:
                potion = "save" if answer.name == victim else "poison"
                self._potions.discard(potion)
                dead = {} if potion == "save" else dead | {answer.name: "poisoned"}
                self._note(witch, potion, answer.name, "", (witch,))
        self._when = f"day {self.days_played}"
        self._note(0, "begin")
        await self._bury(ask, dead)

    async def _daytime(self, ask: Ask) -> None:
        first = self._draw.randrange(len(self.alive))
        for seat in [*self.alive[first:], *self.alive[:first]]:
            answer = await self._ask(ask, seat, "blame", self._others(seat))
            self._note(seat, "blame", answer.name, answer.words)
        votes = [(seat, await self._ask(ask, seat, "vote", self._others(seat))) for seat in self.alive]
        for seat, answer in votes:
            self._note(seat, "vote", answer.name)
        if out := self._most([answer.name for _, answer in votes]):
            await self._bury(ask, {out: "voted out"})

    async def _bury(self, ask: Ask, dead: dict[int, str]) -> None:
        """Let these die, then those whom a hunter takes along, and see who has won."""
        while dead:
            seat, how = dead.popitem()
            self.alive.remove(seat)
            self._note(seat, how, words=self.roles[seat])
            if self.roles[seat] == "hunter" and how != "poisoned":
                answer = await self._ask(ask, seat, "shoot", tuple(each for each in self.alive if each not in dead))
                if answer.name:
                    dead[answer.name] = "shot"
        wolves = len(self.seats("wolf"))
        if wolves == 0 or 2 * wolves >= len(self.alive):
            self.winner = "wolves" if wolves else "village"

    async def _ask(self, ask: Ask, seat: int, act: str, legal: tuple[int, ...], victim: int = 0) -> Answer:
        """The answer of a seat, that of nobody if it names one who may not be named."""
        answer = await ask(Question(act, legal, self.view(seat), victim))
        if answer.readable and answer.name in (0, *legal):
            return answer
        self.invalid[seat] += 1
        return Answer(0)

    def _others(self, seat: int) -> tuple[int, ...]:
        return tuple(each for each in self.alive if each != seat)

    def _most(self, named: Sequence[int]) -> int:
        """The seat that is named most, drawn among equals; 0 if nobody is named."""
        counts = Counter(name for name in named if name)
        most = sorted(seat for seat in counts if counts[seat] == max(counts.values()))
        return self._draw.choice(most) if most else 0

    def _note(
        self, who: int, what: str, whom: int = 0, words: str = "", known_to: tuple[int, ...] | None = None
    ) -> None:
        self.events.append(Event(self._when, who, what, whom, words, known_to))
