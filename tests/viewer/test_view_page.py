"""The page of `astune view` in Debian's chromium: what a person sees and does."""

import json
import re
from dataclasses import replace

import pytest

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.monitor import EpisodeLog, read_episodes
from astune.types import EpisodeError, StopReason, Task, Timeline, WorkflowOutput
from astune.viewer import write_view
from astune.viewer.run_index import index_run, read_episode
from tests.viewer.chromium import PROGRAM, Chromium
from tests.viewer.conftest import play_run
from tests.viewer.test_view import HOSTILE, empty_run, golden_run, small_episode

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs the program chromium (Debian: apt install chromium)")
COUNT = "document.querySelector('#count').innerText"
OPENED = "!document.querySelector('#episode').hidden && document.querySelector('#episode h1')"
ROWS = "[...document.querySelectorAll('.rows .row')].sort((a, b) => a.dataset.item - b.dataset.item)"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return play_run(tmp_path_factory.mktemp("run"), steps=6, held_out=12)


@pytest.fixture(scope="module")
def address(run):
    return write_view(run.path, run.path / "view.html").as_uri()


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    run = golden_run(folder)
    return run, write_view(run.path, folder / "view.html").as_uri()


@pytest.fixture(scope="module")
def chromium():
    with Chromium() as page:
        yield page


@pytest.fixture
def page(chromium):
    """A page that must not complain, nor ask for anything but itself."""
    chromium.errors.clear()
    chromium.requests.clear()
    yield chromium
    assert chromium.errors == [] and chromium.requests == []


def column(page, name):
    return page.eval(f"{ROWS}.map(row => row.querySelector('.cell.{name}').innerText)")


def test_the_figures_of_held_out_tasks_stand_before_and_after(page, address):
    page.open(address)
    cells = page.eval(
        "[...document.querySelectorAll('#held-out tbody tr')].map(row => [...row.cells].map(c => c.textContent))"
    )
    assert ["greedy", "turns", "12"] in [row[:3] for row in cells]
    assert all("to" in row[3] and "to" in row[4] for row in cells if row[1] == "success")
    assert not page.eval("document.querySelector('#held-out').hidden")


def test_the_table_counts_all_episodes_and_makes_only_the_rows_in_view(page, address):
    page.open(address)
    assert page.eval(COUNT) == "144 episodes"  # 6 steps of 16, 4 evaluations of 12
    assert 10 < page.eval("document.querySelectorAll('.rows .row').length") < 80
    page.eval("document.querySelector('.view').scrollTop = 1e6")
    page.wait("document.querySelector('#row-143') && !document.querySelector('#row-0')")


def test_a_click_on_a_heading_sorts_and_a_second_one_turns_the_order(page, address):
    page.open(address)
    page.point('[data-column="sampled"]', click=True)
    tokens = [int(text) for text in column(page, "sampled")]
    most = tokens[0]
    assert tokens == sorted(tokens, reverse=True)
    page.point('[data-column="sampled"]', click=True)
    tokens = [int(text) for text in column(page, "sampled")]
    assert tokens == sorted(tokens) and tokens[0] < most
    assert page.eval("document.querySelector('.head .sampled').getAttribute('aria-sort')") == "ascending"


def test_filters_narrow_the_table_and_count_what_the_others_leave(page, address, run):
    episodes = [record for record in read_episodes(run.episodes_dir / "train.jsonl") if record.step == 3]
    passed = sum(record.episode.reward == 1.0 for record in episodes)
    page.open(f"{address}#step=3&outcome=passed")
    assert page.eval(COUNT) == f"{passed} of 144 episodes"
    assert set(column(page, "step")) == {"3"} and all("passed" in text for text in column(page, "outcome"))
    facet = page.eval("[...document.querySelectorAll('.facet label')].map(label => label.innerText.split('\\n'))")
    assert ["train", str(passed)] in facet
    page.point(".chip.clear", click=True)
    assert page.eval(COUNT) == "144 episodes"


@pytest.mark.parametrize(
    ("query", "field"),
    [("sampled=30..40", "sampled"), ("turns=2", "turns"), ("reward=1", "reward"), ("step=..0", "step")],
)
def test_ranges_keep_what_lies_in_them(page, address, query, field):
    page.open(f"{address}#{query}")
    low, _, high = query.partition("=")[2].partition("..")
    high = high or low if ".." not in query else high
    shown = [float(text) for text in column(page, field)]
    assert shown and all((not low or value >= float(low)) and (not high or value <= float(high)) for value in shown)


def test_the_search_looks_through_questions_and_answers(page, address):
    page.open(address)
    page.press("/")
    page.write("price? answer")
    page.wait(f"{COUNT}.includes(' of ')")
    assert all("Price?" in text for text in column(page, "query"))
    page.press("Escape")
    assert page.eval("document.activeElement.id") != "search"
    assert "q=price" in page.eval("location.hash")


def test_attempts_at_a_task_are_shown_together(page, address):
    page.open(f"{address}#phase=train")
    page.press("g")
    groups = page.eval("[...document.querySelectorAll('.row.group')].map(row => row.innerText)")
    assert all("4 attempts at train-" in text for text in groups[:-1]) and len(groups) > 4
    kinds = page.eval(f"{ROWS}.map(row => row.classList.contains('group'))")
    assert kinds[:11] == [True, False, False, False, False] * 2 + [True]


def test_a_point_of_the_curve_filters_to_its_step(page, address):
    page.open(address)
    page.eval("document.querySelector('.large .chart').focus()")
    page.press("ArrowRight", "ArrowRight")
    assert "step 2" in page.text("#tip") and "of metrics.jsonl" in page.text("#tip")
    page.press("Enter")
    assert set(column(page, "step")) == {"2"} and page.eval(COUNT) == "16 of 144 episodes"


def test_a_small_chart_becomes_the_large_one(page, address):
    page.open(address)
    page.eval("[...document.querySelectorAll('.tile')].find(tile => tile.title.includes('grad_norm')).click()")
    assert page.eval("document.querySelector('.large select').value") == "grad_norm"


def test_an_episode_is_opened_left_and_passed_by_keyboard(page, address):
    page.open(f"{address}#phase=train&sort=sampled")
    tasks = column(page, "task")
    places = page.eval(f"{ROWS}.map(row => row.title)")
    page.press("j", "ArrowDown", "k", "Enter")
    page.wait(OPENED)
    assert page.text("#episode h1") == tasks[1]
    assert places[1].replace("of ", "of episodes/") in page.text(".where").replace("\n", ", ")
    page.press("n", "n", "n")
    line = re.search(r"line \d+", places[4])[0]
    page.wait(f"document.querySelector('.where').innerText.includes('{line} of')")
    page.press("p", "Escape")
    page.wait("document.querySelector('#episode').hidden")
    assert page.eval("document.querySelector('.row.selected').dataset.item") == "3"


def test_an_episode_tells_task_verdict_advantage_and_its_place_in_the_metrics(page, address, run):
    record = list(read_episodes(run.episodes_dir / "train.jsonl"))[20]
    page.open(f"{address}#episode=train:21")
    page.wait(OPENED)
    text = page.text("#episode")
    assert record.episode.task.query in text and f"expected {record.episode.task.answer}" in text
    assert "EqualAnswer" in text and "advantage" in text and "line 21 of episodes/train.jsonl" in text
    lines = [json.loads(line) for line in run.metrics_path.read_text("utf-8").splitlines()]
    place = next(number for number, row in enumerate(lines, start=1) if row["step"] == 2 and "success/mean" in row)
    assert f"line {place} of metrics.jsonl" in page.text(".where")
    assert page.eval("document.querySelectorAll('.attempt').length") == 4
    page.eval("[...document.querySelectorAll('.where .link')].at(-1).click()")
    assert page.eval(COUNT) == "28 of 144 episodes" if record.step in (0, 6) else "16 of 144 episodes"


def test_the_conversation_has_every_turn_with_calls_and_results(page, golden):
    run, address = golden
    entry = next(entry for entry in index_run(run).entries if len(entry.agents) == 3)
    episode = read_episode(entry).episode
    page.open(f"{address}#episode=train:{entry.line}")
    page.wait(OPENED)
    assert page.eval("document.querySelectorAll('.turnbox').length") == len(episode.turns)
    speakers = page.eval("[...document.querySelectorAll('.turnbox .who')].map(who => who.textContent)")
    assert speakers == [turn.agent for turn in episode.turns]
    colours = "[...document.querySelectorAll('.who .dot')].map(dot => getComputedStyle(dot).backgroundColor)"
    assert len(set(page.eval(colours))) == 3
    calls = sum(len(turn.response.get("tool_calls") or ()) for turn in episode.turns)
    assert calls and page.eval("document.querySelectorAll('.call').length") == calls


def test_the_forest_draws_every_row_turn_and_fork_and_a_click_shows_the_turn(page, golden):
    run, address = golden
    for entry in index_run(run).entries:
        episode = read_episode(entry).episode
        page.open(f"{address}#episode=train:{entry.line}")
        page.wait(OPENED)
        assert page.eval("document.querySelectorAll('.forest .label').length") == len(episode.timelines)
        turns = page.eval("[...document.querySelectorAll('.forest .turn')].map(turn => Number(turn.dataset.turn))")
        assert sorted(turns) == list(range(len(episode.turns)))
        causes = page.eval("[...document.querySelectorAll('.forest .cause')].map(cause => cause.textContent)")
        lines = page.eval("document.querySelectorAll('.forest .context').length")
        assert lines == sum(
            len(contexts(line, kept)) for line, kept in zip(episode.timelines, starts(page), strict=True)
        )
        assert sorted(causes) == sorted(line.fork.replace("_", " ") for line in episode.timelines if line.fork)
    last = len(episode.turns) - 1
    page.point(f'.forest [data-turn="{last}"] rect', click=True)
    page.wait(f"document.querySelector('#turn-{last}').classList.contains('chosen')")
    page.wait(f"document.querySelector('.stream .tag[data-turn=\"{last}\"]')")
    assert f"turn={last + 1}" in page.eval("location.hash")


def starts(page):
    """Of each training row the tokens that it shares with the one it leaves, as its bend tells."""
    told = page.eval("[...document.querySelectorAll('.forest [data-told]')].map(node => node.dataset.told)")
    shared = [int(text.rpartition("\n")[2].split()[0].replace(",", "")) for text in told if "shared with row" in text]
    rows = page.eval("document.querySelectorAll('.forest .label').length")
    return [0] * (rows - len(shared)) + shared


def contexts(line, kept):
    """Stretches of a training row after its first `kept` tokens that were not sampled."""
    edges = [0, *(edge for span in line.spans for edge in (span.start, span.stop)), len(line.token_ids)]
    return [stop for start, stop in zip(edges[::2], edges[1::2], strict=True) if stop > max(start, kept)]


def test_the_tokens_of_every_recorded_episode_read_as_they_are_decoded(page, golden):
    run, address = golden
    chat_format = ChatFormat.load(run.path.parents[1] / "model")
    for entry in index_run(run).entries:
        page.open(f"{address}#episode=train:{entry.line}")
        page.wait("document.querySelector('.stream .t')")
        page.eval("document.querySelector('.stream').style.height = '9e4px'")
        tokens = "[...document.querySelectorAll('.stream .t')].map(token => token.textContent.replaceAll('⏎', ''))"
        ids = read_episode(entry).episode.timelines[0].token_ids
        page.wait(f"document.querySelectorAll('.stream .t').length === {len(ids)}")
        assert page.eval(tokens) == chat_format.pieces(ids)


def test_trained_tokens_are_coloured_exactly_where_the_loss_is(page, address, run):
    records = list(read_episodes(run.episodes_dir / "train.jsonl"))[:16]
    rewards: dict[str, set] = {}
    for record in records:
        rewards.setdefault(record.episode.task.task_id, set()).add(record.episode.reward)
    number, record = next(
        (number, record) for number, record in enumerate(records, 1) if len(rewards[record.episode.task.task_id]) > 1
    )
    page.open(f"{address}#episode=train:{number}")
    page.wait("document.querySelector('.stream .t')")
    line = record.episode.timelines[0]
    trained = "[...document.querySelectorAll('.stream .t')].map(token => token.closest('.run').matches('.trained'))"
    assert tuple(page.eval(trained)) == line.loss_mask
    page.open(f"{address}#episode=eval%2Fgreedy:1")
    page.wait("document.querySelector('.stream .t')")
    assert not any(page.eval(trained))
    page.open(f"{address}#episode=train:{number}")
    page.wait("document.querySelector('.stream .t')")
    clear = "getComputedStyle(document.querySelector('.stream .CLASS .t')).backgroundColor"
    none = "rgba(0, 0, 0, 0)"
    assert page.eval(clear.replace("CLASS", "trained")) != none and page.eval(clear.replace("CLASS", "context")) == none


def test_number_keys_switch_the_colours_and_the_tags_say_what_they_mean(page, address):
    page.open(f"{address}#episode=train:1")
    page.wait("document.querySelector('.stream .tag')")
    colour = "getComputedStyle(document.querySelector('.stream .sampled .t')).backgroundColor"
    tag = "getComputedStyle(document.querySelector('.stream .tag'), '::before').content"
    seen = []
    for key, mode in zip("2341", ("advantage", "logprob", "version", "mask"), strict=True):
        page.press(key)
        assert page.eval("document.querySelector('.stream').dataset.mode") == mode
        assert page.eval(f"document.querySelector('[data-set-mode={mode}]').getAttribute('aria-pressed')") == "true"
        seen.append((page.eval(colour), page.eval(tag)))
    assert len({shade for shade, _ in seen}) == 4
    assert "v0" in seen[2][1] and page.eval("location.hash") == "#episode=train%3A1"


def test_a_token_tells_its_id_probability_version_and_weight_or_why_not(page, address):
    page.open(f"{address}#episode=train:1")
    page.wait("document.querySelector('.stream .sampled .t')")
    page.point(".stream .sampled .t", click=True)
    for told in (page.text("#tip"), page.text("#inspector")):
        assert all(word in told for word in ("id", "logprob", "probability", "policy version 0"))
        assert "weight" in told or "not trained" in told
    before = page.text("#inspector")
    page.press("ArrowRight")
    assert page.text("#inspector") != before
    page.open(f"{address}#phase=eval/greedy")
    page.press("Enter")
    page.wait("document.querySelector('.stream .sampled .t')")
    page.point(".stream .sampled .t")
    assert "not trained" in page.text("#tip")
    page.point(".stream .context .t")
    assert "read by the model, not sampled" in page.text("#tip")


def test_a_link_to_a_turn_shows_it(page, golden):
    run, address = golden
    entry = next(entry for entry in index_run(run).entries if entry.turns >= 6)
    page.open(f"{address}#episode=train:{entry.line}&turn=6")
    page.wait("document.querySelector('#turn-5.chosen')")
    assert 0 <= page.eval("document.querySelector('#turn-5').getBoundingClientRect().top") < 1000
    assert page.eval("document.querySelector('.forest .turn.chosen').dataset.turn") == "5"


def test_going_back_in_the_browser_closes_the_episode_and_keeps_the_filter(page, address):
    page.open(f"{address}#phase=train&sort=-sampled")
    page.press("Enter")
    page.wait(OPENED)
    page.eval("history.back()")
    page.wait("document.querySelector('#episode').hidden")
    assert page.eval(COUNT) == "96 of 144 episodes" and "sort=-sampled" in page.eval("location.hash")


def test_dark_and_light_follow_the_system_and_the_switch(address):
    lightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    with Chromium(dark=True) as page:
        page.open(address)
        assert page.eval(lightness) < 40
        page.press("t")
        assert page.eval(lightness) > 200
        page.open(address)  # it is remembered
        assert page.eval(lightness) > 200
        assert page.errors == []


def test_help_lists_the_keys_and_closes(page, address):
    page.open(address)
    page.press("?")
    assert page.eval("document.querySelector('#help').open") and "next and previous episode" in page.text("#help")
    page.press("j")
    assert page.eval("document.querySelector('.row.selected').dataset.item") == "0"
    page.press("Escape")
    page.wait("!document.querySelector('#help').open")


def test_a_narrow_window_needs_no_sideways_scrolling(page, address):
    page.resize(420, 900)
    try:
        for place in ("", "#episode=train:1"):
            page.open(address + place)
            page.wait("document.querySelector('.stream .t')" if place else "true")
            assert page.eval("document.documentElement.scrollWidth <= innerWidth")
    finally:
        page.resize(1400, 1000)


def test_text_of_agents_stays_text(page, tmp_path):
    run = empty_run(tmp_path, project_name=HOSTILE)
    messages = ({"role": "system", "content": HOSTILE}, {"role": "user", "content": HOSTILE})
    response = {
        "content": HOSTILE,
        "reasoning_content": HOSTILE,
        "tool_calls": [{"function": {"name": HOSTILE, "arguments": HOSTILE}}],
    }
    episode = small_episode(0.0)
    episode = replace(
        episode,
        episode_id=HOSTILE,
        task=Task(HOSTILE, HOSTILE, answer=HOSTILE, metadata={HOSTILE: HOSTILE}),
        turns=(replace(episode.turns[0], agent=HOSTILE, messages=messages, response=response, excluded=HOSTILE),),
        timelines=(Timeline(HOSTILE, (1, 2, 3), episode.timelines[0].spans, HOSTILE),),
        output=WorkflowOutput(HOSTILE),
        stop_reason=StopReason.ERROR,
        error=EpisodeError("workflow", HOSTILE, HOSTILE, HOSTILE),
        agent_rewards={HOSTILE: 1.0},
    )
    with EpisodeLog(run) as log:
        log.write(episode, step=1, phase="train")
    page.open(write_view(run.path, tmp_path / "view.html").as_uri())
    assert HOSTILE.split("\u2028")[0] in page.text("#table")
    page.press("Enter")
    page.wait(OPENED)
    assert page.text("#episode").count("onerror") > 8
    assert page.eval("document.querySelectorAll('img, iframe, object, #episode script, #run script').length") == 0


def test_token_ids_are_shown_where_the_tokenizer_is_gone(page, tmp_path):
    run = empty_run(tmp_path, model={"path": str(tmp_path / "gone")})
    with EpisodeLog(run) as log:
        log.write(small_episode(1.0, ids=(11, 22, 33)), step=0, phase="debug")
    page.open(write_view(run.path, tmp_path / "view.html").as_uri() + "#episode=debug:1")
    page.wait("document.querySelector('.stream .t')")
    assert page.eval("[...document.querySelectorAll('.stream .t')].map(token => token.textContent)") == [
        "11",
        "22",
        "33",
    ]
    assert page.text(".large") == ""  # a debug run has no curve


def test_a_long_episode_opens_with_a_few_of_its_tokens_and_jumps_to_the_last(page, tmp_path):
    run = empty_run(tmp_path)
    episode = small_episode(1.0, ids=tuple(300 + i % 900 for i in range(32768)))
    with EpisodeLog(run) as log:
        log.write(episode, step=1, phase="train")
    page.open(write_view(run.path, tmp_path / "view.html").as_uri() + "#episode=train:1")
    page.wait("document.querySelector('.stream .t')")
    assert 0 < page.eval("document.querySelectorAll('.stream .t').length") < 8000
    page.eval("document.querySelector('.stream').scrollTop = 1e9")
    page.wait("[...document.querySelectorAll('.stream .t')].at(-1)?.i === 32767")
    page.wait("document.querySelectorAll('.stream .t').length < 8000")
    # A reader who scrolls before the page has drawn its jump to a token stays where they scrolled to.
    click = "document.querySelector('button.number').click()"
    page.eval(f"void ({click}, document.querySelector('.stream').scrollTop = 1e9)")
    page.eval("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    assert page.eval("document.querySelector('.stream').scrollTop") > 5000


def test_what_happened_is_told_by_heading_and_what_not_all_knew_says_who_did(page, tmp_path):
    run = empty_run(tmp_path)
    told = (
        {"text": "wants to kill 4", "who": "2 wolf", "heading": "night 1", "known_to": ["2 wolf", "3 wolf"]},
        {"text": HOSTILE, "heading": "day 1"},
        {"text": "votes for 2", "who": "5 villager", "heading": "day 1"},
    )
    with EpisodeLog(run) as log:
        log.write(replace(small_episode(1.0), output=WorkflowOutput(events=told)), step=1, phase="train")
        log.write(small_episode(1.0), step=1, phase="train")
    page.open(write_view(run.path, tmp_path / "view.html").as_uri() + "#episode=train:1")
    page.wait("document.querySelector('#happened')")
    lines = page.eval("[...document.querySelector('#happened > div').children].map(line => line.textContent)")
    assert lines == [
        "night 1",
        "2 wolfwants to kill 4known to 2 wolf, 3 wolf",
        "day 1",
        HOSTILE,
        "5 villagervotes for 2",
    ]
    page.press("n")
    page.wait("location.hash.includes('train%3A2') && !document.querySelector('#happened')")


def test_a_damaged_run_tells_how_many_lines_are_missing(page, tmp_path):
    run = empty_run(tmp_path)
    with EpisodeLog(run) as log:
        log.write(small_episode(1.0), step=1, phase="train")
    with (run.episodes_dir / "train.jsonl").open("a") as file:
        file.write('{"step": 1, "pha')
    page.open(write_view(run.path, tmp_path / "view.html").as_uri())
    assert "1 line of train.jsonl" in page.text("#notice") and "line 2: the line is unfinished" in page.text("#notice")
    assert page.eval(COUNT) == "1 episode"
