"""A game of werewolves between AgentScope agents, which are trained, and the players of the other side."""

import re
from dataclasses import replace

from agentscope.agent import Agent
from agentscope.message import UserMsg
from prompts import SYSTEM, ask_full, ask_short, tell
from rules import Answer, Game, Question, Settings
from scripted import Scripted

from astune import Task, Tuner, Workflow, WorkflowOutput
from astune.errors import ContextOverflow, TooManyTokens, TooManyTurns
from astune.workflow.agentscope import training_defaults

LIMITS = (ContextOverflow, TooManyTokens, TooManyTurns)
DEATHS = {"killed": "killed by the wolves", "poisoned": "the witch's poison", "shot": "shot by the hunter"}
POINTS = ("win", "survive", "blame", "exposed", "invalid")


class Werewolves(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        settings = Settings.of(task.metadata)
        game = Game(settings, task.metadata["seed"])
        names = name_players(game)
        learners = [seat for seat in names if settings.learners in ("both", side_of(game, seat))]
        players = {seat: make_player(game, seat, names[seat], seat in learners, tuner) for seat in names}
        winner = await game.play(lambda question: players[question.view.seat].answer(question))
        metrics = {"days": float(game.days_played)}
        for seat, player in players.items():
            points = count_points(game, seat)
            if seat in learners:
                metrics |= {f"{names[seat]}/{point}": value for point, value in points.items()}
            if isinstance(player, Player) and player.answered:  # who is killed in the first night was never asked
                tuner.reward(names[seat], sum(value * getattr(settings, point) for point, value in points.items()))
        return WorkflowOutput(
            answer=f"{winner or 'nobody'} won",
            reward=float(winner == ("village" if settings.learners == "village" else "wolves")),
            metrics=metrics,
            events=tell_game(game, names),
        )


class Player:
    """A player who is an agent of AgentScope."""

    def __init__(self, name: str, settings: Settings, tuner: Tuner, **model: str) -> None:
        self._short = settings.prompt == "short"
        self._tuner, self._is_opponent, self._out_of_turns = tuner, bool(model), False
        self._heard = 0
        self.answered = False
        self._name, self._model = name, tuner.model(name, **model)
        self._agent = self._make_agent()

    def _make_agent(self) -> Agent:
        return Agent(name=self._name, system_prompt=SYSTEM, model=self._model, **training_defaults())

    async def answer(self, question: Question) -> Answer:
        """What the agent names. Out of turns, tokens or context, a trained one says nothing any more; whatever else
        fails, and whatever fails in an opponent, spoils the game, which is then not trained."""
        if self._out_of_turns:
            return Answer(0, readable=False)
        if self._short:  # it tells all that counts, and what was asked before would only be in its way
            self._agent = self._make_agent()
        text = (ask_short if self._short else ask_full)(question, self._heard)
        self._heard = len(question.view.events)
        before = len(self._tuner.failures)
        try:
            reply = await self._agent.reply(UserMsg(name="user", content=text))
        except Exception:
            failed = self._tuner.failures[before:]
            if self._is_opponent or not failed or not all(isinstance(error, LIMITS) for error in failed):
                raise
            self._out_of_turns = True
            return Answer(0, readable=False)
        self.answered = True
        return read_answer(reply.get_text_content() or "")


def read_answer(text: str) -> Answer:
    """The number after the last "The answer is", and the words before it as what is said aloud.

    >>> read_answer("Ask 2 where it was. The answer is 2.")
    Answer(name=2, words='Ask 2 where it was.', readable=True)
    """
    words, found, number = text.rpartition("The answer is ")
    match = re.match(r"[0-9](?![0-9])", number)
    if not found or match is None:
        return Answer(0, readable=False)
    return Answer(int(match[0]), " ".join(words.split())[:200])


def make_player(game: Game, seat: int, name: str, learns: bool, tuner: Tuner) -> Player | Scripted:
    settings = game.settings
    if learns:
        return Player(name, settings, tuner)
    kind, _, model = settings.opponent.partition(":")
    if model:
        return Player(name, settings, tuner, **{"source" if kind == "model" else "policy": model})
    return Scripted(settings.opponent, seat, game.seed)


def name_players(game: Game) -> dict[int, str]:
    """Names by seat: wolf_1, wolf_2, villager_1 and so on."""
    counts: dict[str, int] = {}
    names = {}
    for seat, role in game.roles.items():
        counts[role] = counts.get(role, 0) + 1
        names[seat] = f"{role}_{counts[role]}"
    return names


def side_of(game: Game, seat: int) -> str:
    return "wolves" if game.roles[seat] == "wolf" else "village"


def tell_game(game: Game, names: dict[int, str]) -> list[dict]:
    """The game for the viewer: who did what by night and day, who knew of it, and who died of what."""
    who = {seat: f"{seat} {name}" for seat, name in names.items()}
    roles = f"{', '.join(who.values())}. Each knows its own role, and wolves know each other."
    told = [{"text": roles, "heading": "roles"}]
    for event in game.events:
        known = [who[seat] for seat in event.known_to or ()]
        line = {"text": tell(replace(event, whom=who.get(event.whom, 0))), "heading": event.when}
        if event.who:
            line |= {"who": who[event.who]}
        if event.what in DEATHS:
            line |= {"text": f"dies: {DEATHS[event.what]}."}
        if event.what == "voted out":
            votes = [each.whom for each in game.events if each.what == "vote" and each.when == event.when]
            line |= {"text": f"is voted out, by {votes.count(event.who)} of {len(votes)}."}
        if event.what == "begin":
            of_night = any(each.when == event.when and each.what in ("killed", "poisoned") for each in game.events)
            line |= {"text": "Nobody has died in the night."}
            if of_night or event.when.startswith("night"):
                continue
        told.append(line | ({"known_to": known} if known else {}))
    return [*told[:-1], told[-1] | {"heading": "end"}]


def count_points(game: Game, seat: int) -> dict[str, float]:
    """How often the player earned each of `POINTS`."""
    accused = {(e.when, e.whom) for e in game.events if e.who == seat and e.what in ("blame", "vote")}
    out = {(e.when, e.who) for e in game.events if e.what == "voted out"}
    hits = [who for when, who in accused & out if side_of(game, who) != side_of(game, seat)]
    earned = (
        game.winner == side_of(game, seat),
        seat in game.alive,
        len(hits),
        any(who == seat for _, who in out),
        game.invalid[seat],
    )
    return dict(zip(POINTS, map(float, earned), strict=True))
