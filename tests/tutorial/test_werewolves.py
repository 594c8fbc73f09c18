"""The village of tutorial/werewolves: its rules, who may know what, and what is learned from a game."""

import copy
import dataclasses
import random
import re
from fractions import Fraction
from importlib import metadata
from pathlib import Path

import pytest

from astune.cli import main
from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ConfigError
from astune.judging.agreement import wilson
from astune.monitor import read_episodes
from astune.plugins import load_plugin
from astune.rollout.episode import run_episode
from astune.support.resources import tiny_model_dir, tutorial_dir
from astune.testing import ScriptedChatServer, ScriptedPolicy
from astune.training.rollout_setup import rollout_setup
from astune.types import Sampling, StopReason, Task
from astune.viewer import write_view
from tests.rows import each_row

FOLDER = tutorial_dir() / "werewolves"
GOLDEN = Path(__file__).parent / "golden" / "werewolves.txt"
needs_agents = pytest.mark.skipif(metadata.version("agentscope").startswith("1."), reason="agents of AgentScope 2.x")
load_plugin(f"{FOLDER / 'win_rates.py'}:chance", kind="script")  # from here on the files beside it are importable

from prompts import ask_full, ask_short, tell  # noqa: E402
from rules import SKILLS, TABLES, Answer, Game, Settings  # noqa: E402
from scripted import Scripted  # noqa: E402
from win_rates import GAMES, chance, count_wins, learn, play  # noqa: E402


@each_row(
    ("settings", "said"),
    [
        ({"wolves": 3, "villagers": 2}, "3 wolves and 2 others are no game"),
        ({"wolves": 2, "villagers": 2}, "2 wolves and 2 others are no game.*at most 1 wolves of 4 players"),
        ({"wolves": 0}, "without a wolf the village has won already"),
        ({"villagers": 8}, "10 players; expected at most 9"),
        ({"days": 0}, "days is 0; expected at least 1"),
        ({"opponent": "midle"}, "opponent is 'midle'; expected simple, middle, .* or policy:NAME.*'middle'"),
        ({"opponent": "policy:"}, "opponent is 'policy:'; expected simple"),
        ({"wolves": "2"}, "wolves is '2'; expected one like 2"),
        ({"days": 1.5}, "days is 1.5; expected one like 8"),
        ({"seer": "yes"}, "seer is 'yes'; expected one like False"),
        ({"win": float("nan")}, "win is nan; expected one like 1.0"),
        ({"learners": "wolf"}, "learners is 'wolf'; expected one of wolves, village, both"),
    ],
)
def test_settings_that_make_no_game_are_errors(settings, said) -> None:
    with pytest.raises(ConfigError, match=said):
        Settings(**settings)


def test_no_prompt_tells_what_its_reader_may_not_know() -> None:
    """Whoever is asked reads the same, however the roles and deeds that are hidden from that seat are dealt anew."""
    draw, asked = random.Random(0), set()
    for seed in range(40):
        for players, table in TABLES.items():
            game = Game(Settings(**table), seed)
            minds = {seat: Scripted(draw.choice(SKILLS), seat, seed) for seat in game.roles}

            async def ask(question, game=game, minds=minds):
                other = dataclasses.replace(
                    question, view=deal_anew(game, question.view, draw).view(question.view.seat)
                )
                assert [ask_short(question, 0), ask_full(question, 0)] == [ask_short(other, 0), ask_full(other, 0)]
                named = sorted(map(int, re.findall(r"\d", ask_short(question, 0).split(": ")[-1])))
                assert named == list(question.legal) or question.victim
                assert "You may name " + ", ".join(map(str, question.legal)) in ask_full(question, 0)
                asked.add((question.view.role, question.act))
                return await minds[question.view.seat].answer(question)

            finish(game.play(ask))
            assert game.winner in ("wolves", "village") and players == len(game.roles)
    assert {("seer", "see"), ("witch", "potion"), ("hunter", "shoot"), ("wolf", "kill")} <= asked


def deal_anew(game: Game, view, draw: random.Random) -> Game:
    """A copy of the game in which all that this seat does not know is otherwise."""
    other = copy.deepcopy(game)
    unknown = [seat for seat in game.alive if seat not in view.known]
    roles = [game.roles[seat] for seat in unknown]
    draw.shuffle(roles)
    other.roles |= dict(zip(unknown, roles, strict=True))
    other.events = [
        event
        if event.known_to is None or view.seat in event.known_to
        else dataclasses.replace(event, whom=draw.randint(1, 6), words="a secret")
        for event in game.events
    ]
    return other


def finish(game) -> None:
    """Run a coroutine that waits for nothing."""
    with pytest.raises(StopIteration):
        game.send(None)


def test_the_same_seed_is_the_same_game_everywhere() -> None:
    lines = []
    for players, table in TABLES.items():
        game = play(Settings(**table), 5, "strong", "middle")
        lines += [f"{players} players: {game.roles}"]
        lines += [
            f"{e.when}: {e.who} {tell(e)} known to {e.known_to or 'all'}" for e in game.events if e.what != "begin"
        ]
    assert "\n".join(lines) + "\n" == GOLDEN.read_text(encoding="utf-8")


def test_chance_wins_as_often_as_it_must_and_skill_more_often() -> None:
    assert chance(2, 4) == Fraction(13, 15)
    low, high = wilson(count_wins(Settings(), "simple", "simple"), GAMES)
    assert low < chance(2, 4) < high
    simple, middle, strong = (count_wins(Settings(), wolves, "middle") / GAMES for wolves in SKILLS)
    assert 0.5 < simple < 0.6 and simple + 0.25 < strong and simple < middle < strong
    row = f"| a village that is middle | {simple:.0%} | {middle:.0%} | {strong:.0%} |"
    assert row.replace("%", " %") in (FOLDER / "README.md").read_text(encoding="utf-8")


@each_row(("name", "readable"), [(9, True), (0, False), (3, True)], ids=["nobody there", "nonsense", "itself or dead"])
def test_answers_that_name_nobody_are_counted_and_the_game_goes_on_to_its_last_day(name, readable) -> None:
    game = Game(Settings(days=3), 1)

    async def ask(question):
        assert len(game.alive) >= 5
        if question.view.role == "wolf" or name != 3:
            return Answer(name, readable=readable)
        return Answer(0)

    finish(game.play(ask))
    assert game.winner is None or name == 3
    assert sum(game.invalid.values()) > 0


# A game between agents


def setup_of(answers, **rollout):
    chat_format = ChatFormat.load(tiny_model_dir())
    rollout |= {"agentscope_learn_protocol": f"{FOLDER / 'workflow.py'}:Werewolves"}
    policy = ScriptedPolicy(answers, chat_format, context_length=8192)
    return rollout_setup(AstuneConfig.model_validate({"rollout": rollout}), policy, chat_format)


async def played(setup, **settings):
    task = Task("t", "q", metadata={"seed": 1, **settings})
    return await run_episode(task, setup, episode_id="e", seed=1, sampling=Sampling(max_tokens=64))


@needs_agents
@each_row(
    ("answer", "turns", "ended"),
    [
        ("A banana.", 60, StopReason.COMPLETED),
        ("The answer is 12.", 60, StopReason.COMPLETED),
        ("The answer is 0.", 3, StopReason.MAX_TURNS),
    ],
)
async def test_nonsense_and_too_many_turns_cost_points_and_stop_nothing(answer, turns, ended) -> None:
    episode = await played(setup_of(lambda prompt: answer, max_turns=turns))
    assert episode.stop_reason is ended and episode.reward in (0.0, 1.0)
    for name, reward in episode.agent_rewards.items():
        told = episode.output.metrics
        assert told[f"{name}/invalid"] > 0 and set(episode.agent_rewards) == {"wolf_1", "wolf_2"}
        assert reward == pytest.approx(told[f"{name}/win"] - 0.1 * told[f"{name}/invalid"])


@needs_agents
async def test_an_opponent_that_fails_spoils_the_game_and_punishes_nobody() -> None:
    with ScriptedChatServer([401]) as server:
        model = {"base_url": server.base_url, "model": "m", "max_retries": 0}
        setup = setup_of(lambda prompt: "The answer is 1.", auxiliary_models={"api": model}, max_turns=200)
        episode = await played(setup, opponent="model:api", prompt="full")
    assert (episode.stop_reason, episode.verdict, episode.agent_rewards) == (StopReason.ERROR, None, {})
    with ScriptedChatServer(lambda body: "I trust nobody. The answer is 9.") as server:
        model |= {"base_url": server.base_url}
        setup = setup_of(lambda prompt: "The answer is 1.", auxiliary_models={"api": model}, max_turns=200)
        episode = await played(setup, opponent="model:api", prompt="full")
    assert episode.stop_reason is StopReason.COMPLETED, "nonsense of an opponent is its own loss"


@needs_agents
@each_row("game", [{}, {"learners": "village", **TABLES[9]}], ids=["wolves", "a village of nine"])
async def test_points_are_those_of_the_source_where_they_are_asked_for(game) -> None:
    points = {"win": 10.0, "survive": 5.0, "blame": 2.0, "exposed": -5.0, "invalid": 0.0}

    def name_the_last(prompt: str) -> str:
        return "So be it. The answer is " + re.findall(r"[a-z](\d)", prompt)[-1]

    episode = await played(setup_of(name_the_last, max_turns=99), **points, **game)
    assert episode.stop_reason is StopReason.COMPLETED
    assert set(episode.agent_rewards) == {turn.agent for turn in episode.turns}
    for name, reward in episode.agent_rewards.items():
        assert reward == sum(value * episode.output.metrics[f"{name}/{point}"] for point, value in points.items())
    assert any("So be it." in event["text"] for event in episode.output.events)


@needs_agents
def test_a_game_is_told_with_who_died_of_what_and_who_knew() -> None:
    from workflow import name_players, tell_game

    told = []
    for seed in range(40):
        game = play(Settings(**TABLES[9]), seed, "strong", "strong")
        told += tell_game(game, name_players(game))
        assert told[-1]["heading"] == "end" and told[-1]["text"] == f"{game.winner} won."
    said = {line["text"] for line in told}
    assert {f"dies: {of}." for of in ("killed by the wolves", "the witch's poison", "shot by the hunter")} <= said
    assert "Nobody has died in the night." in said
    assert any(re.fullmatch(r"is voted out, by \d of \d\.", text) for text in said)
    assert any(re.fullmatch(r"blames \d wolf_\d\. .*", text) for text in said)
    secret = {line["text"].split()[0] for line in told if "known_to" in line}
    assert secret == {"wants", "sees", "saves", "poisons"}


@needs_agents
def test_settings_that_make_no_game_stop_the_run_before_its_first(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    text = "from games import Games\nfrom rules import Settings\nclass Bad(Games):\n    settings = Settings(wolves=4)\n"
    Path("bad.py").write_text(text, encoding="utf-8")
    assert main(["--conf", str(FOLDER / "wolves.yaml"), "astune.task_reader.type=bad.py:Bad"]) == 2
    assert "bad.py:Bad" in (said := capsys.readouterr().err) and "4 wolves and 4 others are no game" in said
    assert not Path("runs").exists()


@needs_agents
def test_two_steps_of_wolves_and_the_page_that_shows_their_games(tmp_path, monkeypatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    small = (
        "trainer.total_steps=1",
        "trainer.tasks_per_step=1",
        "rollout.num_repeat=3",
        "task_reader.max_validation_tasks=1",
        "model.path=tiny",
    )
    small += ("evaluation.before=false", "evaluation.sets.never_met.max_tasks=1", "monitor.check_invariants=true")
    assert main(["--conf", str(FOLDER / "wolves.yaml"), *(f"astune.{key}" for key in small)]) in (0, 3)
    run = tmp_path / "runs" / "werewolves" / "wolves"
    for record in read_episodes(run / "episodes" / "train.jsonl"):
        episode = record.episode
        assert episode.stop_reason is StopReason.COMPLETED
        told = {(timeline.agent, len(timeline.spans)) for timeline in episode.timelines}
        assert told == {("wolf_1", 1), ("wolf_2", 1)}  # each question is a conversation of its own
        assert episode.output.events[-1]["text"] in ("wolves won.", "village won.")
    assert (run / "episodes" / "eval_never_met_sampled.jsonl").is_file()
    assert "wolves" in write_view(run, tmp_path / "view.html").read_text("utf-8")


@needs_agents
def test_both_sides_learn_each_a_model_of_its_own(tmp_path, monkeypatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    small = ("trainer.total_steps=2", "trainer.tasks_per_step=3", "rollout.num_repeat=2", "evaluation.before=false")
    small += (
        "model.path=tiny",
        "evaluation.after=false",
        "models.earlier_wolves.every=1",
        "models.earlier_village.every=1",
    )
    assert main(["--conf", str(FOLDER / "both.yaml"), *(f"astune.{key}" for key in small)]) in (0, 3)
    run = tmp_path / "runs" / "werewolves" / "both"
    met = {
        (turn.agent[:4], turn.model)
        for record in read_episodes(run / "episodes" / "train.jsonl")
        for turn in record.episode.turns
    }
    assert met <= {
        ("wolf", "wolves"),
        ("vill", "village"),
        ("wolf", "earlier_wolves"),
        ("vill", "earlier_village"),
    }
    assert {("wolf", "wolves"), ("vill", "village")} < met
    folders = {path.name for path in (run / "checkpoints" / "step_000002").iterdir() if path.is_dir()}
    assert {"wolves", "village"} <= folders


@needs_agents
@pytest.mark.release
def test_the_table_of_0_100_500_and_1000_games_is_one_command(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    small = (
        "trainer.tasks_per_step=1",
        "rollout.num_repeat=2",
        "task_reader.max_validation_tasks=2",
        "model.path=tiny",
    )
    assert learn(*(f"astune.{key}" for key in small)) in (0, 3)
    said = capsys.readouterr().out
    assert all(f"table/step_0000{step} against base" in said for step in ("05", "25", "50")), said
