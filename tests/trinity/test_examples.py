"""Examples become the tokens that an engine and the model would have exchanged. Runs without Trinity."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.backbone.base import BACKBONES, check_keys
from astune.backbone.local.engine import LocalBackbone
from astune.backbone.trinity.conversion.convert import Converted, convert, not_used
from astune.config.load import load_config
from astune.config.schema import AstuneConfig, TrainerConfig
from astune.context_tracker.merge import TurnForest
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.doctor.checked_config import CheckedConfig
from astune.doctor.run_checks import OF_EPISODES, run_checks
from astune.errors import ConfigError, TaskError
from astune.examples.conversation import conversation_rows
from astune.examples.read import TrainingExample, read_examples
from astune.monitor.episodes import EpisodeRecord, episode_to_row
from astune.support.resources import tiny_model_dir
from astune.testing import write_test_model_dir
from astune.training.schedule import Schedule
from astune.types import Episode, StopReason, Task, Timeline, Turn, Verdict
from tests.rows import each_row

TEMPLATES = Path(__file__).parents[1] / "context_tracker" / "templates"
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call_0001", "type": "function", "function": {"name": "add", "arguments": '{"a": 3, "b": 4}'}}
QUESTION = {"role": "user", "content": "3 and 4?"}
WITH_TOOL: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    QUESTION,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_0001", "content": "7"},
    {"role": "assistant", "content": "7."},
]
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that says itself what the assistant writes."""


@pytest.fixture(scope="module")
def tiny() -> ChatFormat:
    return ChatFormat.load(tiny_model_dir())


@pytest.fixture(scope="module")
def marked_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_test_model_dir(tmp_path_factory.mktemp("marked"))
    (folder / "chat_template.jinja").write_text(MARKED)
    return folder


@pytest.fixture(scope="module", params=["qwen2_5", "qwen3", "mistral_v13", "glm4moe"])
def chat_format(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    folder = write_test_model_dir(tmp_path_factory.mktemp(request.param))
    (folder / "chat_template.jinja").write_text((TEMPLATES / f"{request.param}.jinja").read_text(encoding="utf-8"))
    return ChatFormat.load(folder)


def trained(chat_format: ChatFormat, row: Timeline) -> list[str]:
    """The texts that carry loss."""
    ids = list(row.token_ids)
    return [chat_format.decode(ids[span.start : span.stop]) for span in row.spans if span.trainable and not span.shared]


def read(
    folder: Path, chat_format: ChatFormat, rows: Sequence[Mapping[str, Any]], method: str = "sft", **trainer: Any
) -> list[TrainingExample]:
    file = folder / "examples.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"algorithm": {"method": method}, "trainer": {"examples": str(file), **trainer}}
    return read_examples(AstuneConfig.model_validate(settings), chat_format)


# what carries loss


def test_calls_of_tools_and_answers_carry_loss_and_nothing_else_does(tiny: ChatFormat) -> None:
    (row,) = conversation_rows(tiny, WITH_TOOL, [ADD])
    assert trained(tiny, row) == [
        '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call><|im_end|>',
        "7.<|im_end|>",
    ]
    assert tiny.decode(list(row.token_ids)) == tiny.render(WITH_TOOL, [ADD], add_generation_prompt=False).rstrip("\n")


def test_an_answer_of_weight_0_is_history_and_carries_no_loss(tiny: ChatFormat, tmp_path: Path) -> None:
    talk = [QUESTION, {"role": "assistant", "content": "8.", "weight": 0}, {"role": "user", "content": "Sure?"}]
    right = {"role": "assistant", "content": "7.", "weight": 1}
    (example,) = read(tmp_path, tiny, [{"messages": [*talk, right]}])
    (row,) = example.rows
    assert trained(tiny, row) == ["7.<|im_end|>"]
    plain = [{name: value for name, value in each.items() if name != "weight"} for each in (*talk, right)]
    assert tiny.decode(list(row.token_ids)) == tiny.render(plain, (), add_generation_prompt=False).rstrip("\n")
    with pytest.raises(TaskError, match="no message of role 'assistant' has a weight, so there is nothing to learn"):
        read(tmp_path, tiny, [{"messages": talk[:2]}])
    with pytest.raises(TaskError, match=r"messages\[0\].weight: expected 0 or 1, of the assistant's messages alone"):
        read(tmp_path, tiny, [{"messages": [{**QUESTION, "weight": 0}, right]}])


def test_reasoning_that_later_history_drops_is_learned_in_a_row_of_its_own(tiny: ChatFormat) -> None:
    first, second = conversation_rows(
        tiny,
        [
            QUESTION,
            {"role": "assistant", "content": "7.", "reasoning_content": "Add."},
            {"role": "user", "content": "Thanks."},
            {"role": "assistant", "content": "Bye."},
        ],
    )
    assert trained(tiny, first) == ["<think>\nAdd.\n</think>\n\n7.<|im_end|>"]
    assert trained(tiny, second) == ["Bye.<|im_end|>"]
    assert "Add." not in tiny.decode(list(second.token_ids))


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="<>|{}"), min_size=1, max_size=12).filter(str.strip)
ASKED = st.builds(lambda text: {"role": "user", "content": text.strip()}, TEXTS)
SAID = st.builds(lambda text: {"role": "assistant", "content": text.strip()}, TEXTS)
CONVERSATIONS = st.lists(st.tuples(ASKED, SAID), min_size=1, max_size=4).map(
    lambda pairs: [m for p in pairs for m in p]
)


@settings(max_examples=60, deadline=None)
@given(messages=CONVERSATIONS)
def test_before_every_answer_stands_the_prompt_of_the_engine(
    chat_format: ChatFormat, messages: list[dict[str, Any]]
) -> None:
    said = iter([index for index, message in enumerate(messages) if message["role"] == "assistant"])
    for row in conversation_rows(chat_format, messages):
        ids = list(row.token_ids)
        for span in (span for span in row.spans if not span.shared):
            index = next(said)
            assert chat_format.decode(ids[: span.start]) == chat_format.render(messages[:index])
            answer = ids[span.start : span.stop]
            assert answer[-1] in chat_format.stop_token_ids
            assert chat_format.decode(answer[:-1]).strip().endswith(messages[index]["content"])
            assert chat_format.parse_text(chat_format.decode(answer[:-1])).content == messages[index]["content"]
    assert next(said, None) is None


@settings(max_examples=60, deadline=None)
@given(messages=CONVERSATIONS)
def test_the_mask_is_that_of_transformers_where_the_template_says_what_is_generated(
    marked_dir: Path, messages: list[dict[str, Any]]
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(marked_dir)
    theirs = tokenizer.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True)
    (row,) = conversation_rows(ChatFormat.load(marked_dir), messages)
    length = len(row.token_ids)
    assert list(row.token_ids) == theirs["input_ids"][:length]
    assert [int(one) for one in row.loss_mask] == theirs["assistant_masks"][:length]
    assert not any(theirs["assistant_masks"][length:])


# files


def test_a_preference_is_two_rows_with_the_same_context_of_which_only_the_answers_count(
    tmp_path: Path, tiny: ChatFormat
) -> None:
    row = {"messages": WITH_TOOL[:4], "tools": [ADD], "chosen": {"role": "assistant", "content": "7."}}
    row["rejected"] = [{"role": "assistant", "content": "12."}]
    (example,) = read(tmp_path, tiny, [row], "dpo")
    assert [trained(tiny, one) for one in example.rows] == [["7.<|im_end|>"], ["12.<|im_end|>"]]
    chosen, rejected = (list(one.token_ids)[: one.spans[0].start] for one in example.rows)
    assert chosen == rejected and tiny.decode(chosen) == tiny.render(WITH_TOOL[:4], [ADD])


def test_a_preference_may_be_of_several_messages(tmp_path: Path, tiny: ChatFormat) -> None:
    row = {"messages": WITH_TOOL[:2], "tools": [ADD], "chosen": WITH_TOOL[2:], "rejected": WITH_TOOL[4:]}
    (example,) = read(tmp_path, tiny, [row], "dpo")
    assert [len(trained(tiny, one)) for one in example.rows] == [2, 1]
    assert not any("tool_response" in text for text in trained(tiny, example.rows[0]))


def recorded(name: str, reward: float, output: Sequence[int], excluded: str | None = None) -> dict[str, Any]:
    turn = Turn("a", [1, 2, 3], output, [-0.5] * len(output), 4, "stop", excluded=excluded)
    episode = Episode(
        name, Task(name, "q"), (turn,), TurnForest([turn]).timelines(), StopReason.COMPLETED, verdict=Verdict(reward)
    )
    return episode_to_row(EpisodeRecord(1, "train", episode))


def test_recorded_episodes_keep_their_tokens_and_a_filter_chooses(tmp_path: Path, tiny: ChatFormat) -> None:
    rows = [recorded("good", 1.0, [7, 8]), recorded("bad", 0.0, [9]), recorded("frozen", 1.0, [6], "frozen")]
    everything = read(tmp_path, tiny, rows)
    assert [list(one.rows[0].token_ids) for one in everything] == [[1, 2, 3, 7, 8], [1, 2, 3, 9]]
    (good,) = read(tmp_path, tiny, rows, examples_filter="reward>=1")
    assert good.rows[0].loss_mask == (False, False, False, True, True)
    with pytest.raises(TaskError, match=r"examples\.jsonl has no examples"):
        read(tmp_path, tiny, rows, examples_filter="reward>1")


ANSWERED = [QUESTION, {"role": "assistant", "content": "7."}]


@each_row(
    ("method", "row", "message"),
    [
        ("sft", {}, "no field 'messages'; there are: none"),
        ("sft", {"message": ANSWERED}, "unknown field 'message'. Did you mean 'messages'? There are: messages, tools"),
        ("sft", {"messages": []}, "messages: expected a list of messages, got []"),
        ("sft", {"messages": ["hi"]}, """messages[0]: expected {"role": ..., "content": ...}, got 'hi'"""),
        ("sft", {"messages": [QUESTION]}, "messages: no message of role 'assistant', so there is nothing to learn"),
        (
            "sft",
            {"messages": [QUESTION, {"role": "asistant", "content": "7"}]},
            "messages[1].role: expected one of system, developer, user, assistant, tool, got 'asistant'. Did you mean "
            "'assistant'?",
        ),
        (
            "sft",
            {"messages": [{"role": "user", "content": 3}, *ANSWERED]},
            "messages[0].content: expected text or a list of text parts, got 3",
        ),
        (
            "sft",
            {"messages": [QUESTION, {"role": "assistant", "tool_calls": [{"name": "add"}]}]},
            'messages[1].tool_calls[0]: expected {"function": {"name": ..., "arguments": "<JSON>"}}, got ',
        ),
        ("sft", {"messages": ANSWERED, "tools": [{"name": "add"}]}, 'tools[0]: expected {"type": "function", "functi'),
        ("sft", {"timelines": []}, "not an episode that ASTune recorded (KeyError: 'output')"),
        ("dpo", {"messages": ANSWERED}, "expected examples with messages, chosen, rejected, and this is conversations"),
        ("dpo", {"messages": [QUESTION], "rejected": ANSWERED[1]}, "no field 'chosen'; there are: messages, rejected"),
        (
            "dpo",
            {"messages": [QUESTION], "chosen": ANSWERED[1], "rejected": QUESTION},
            "rejected: no message of role 'assistant'",
        ),
    ],
)
def test_a_bad_row_is_named_with_file_line_and_field(
    tmp_path: Path, tiny: ChatFormat, method: str, row: dict[str, Any], message: str
) -> None:
    good = {"messages": ANSWERED} if method == "sft" else None
    good = good or {"messages": [QUESTION], "chosen": ANSWERED[1], "rejected": {"role": "assistant", "content": "8"}}
    with pytest.raises(TaskError) as caught:
        read(tmp_path, tiny, [good, row], method)
    where, _, what = str(caught.value).partition("examples.jsonl:2: ")
    assert where == f"{tmp_path}/" and message in what


LONG = {"role": "user", "content": "x " * 5000}
IMAGE = {"role": "user", "content": [{"type": "image_url"}]}
BROKEN = {"role": "assistant", "content": "", "tool_calls": [{**CALL, "function": {"name": "add", "arguments": "{"}}]}
SEVERAL = [{**ANSWERED[1], "reasoning_content": "Add."}, {"role": "user", "content": "Sure?"}, ANSWERED[1]]
NOT_TAKEN = {
    "that do not fit the model's context of 2048 tokens (astune.model.max_model_len)": ([LONG], ANSWERED[1:]),
    "that the model's chat template cannot write": ([IMAGE], ANSWERED[1:]),
    "cannot write": ([QUESTION], [BROKEN]),
    "in several histories": ([QUESTION], SEVERAL),
}


def line_of(method: str, context: list[dict[str, Any]], answer: list[dict[str, Any]]) -> dict[str, Any]:
    if method == "sft":
        return {"messages": [*context, *answer]}
    if method == "kto":
        return {"messages": context, "answer": answer, "good": True}
    return {"messages": context, "chosen": answer, "rejected": ANSWERED[1]}


@pytest.mark.fault(
    "Input files and settings",
    "a line of examples cannot be written by the model's chat template, or does not fit its context",
    "it is left out and counted with its cause; the run stops only where nothing is left",
)
@each_row("method", ["sft", "dpo", "kto"])
@each_row("cause", NOT_TAKEN)
def test_a_line_that_the_model_cannot_take_is_left_out_and_counted(
    tmp_path: Path, tiny: ChatFormat, method: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = line_of(method, *NOT_TAKEN[cause]), line_of(method, [QUESTION], ANSWERED[1:])
    if cause == "in several histories" and method != "dpo":
        assert read(tmp_path, tiny, [good, bad, bad], method)[1:] and not caplog.messages
        return
    (found,) = read(tmp_path, tiny, [bad, good, bad], method)
    (said,) = caplog.messages
    assert found.place.endswith(":2")
    assert "1 examples are learned; left out are 2 " in said and cause in said and "the first: " in said
    assert "examples.jsonl:1: " in said
    with pytest.raises(TaskError, match="has no examples; left out are 1 ") as caught:
        read(tmp_path, tiny, [bad], method)
    assert cause in str(caught.value)


def test_without_examples_it_says_why_by_cause_and_count(tmp_path: Path, tiny: ChatFormat) -> None:
    alone, equal = recorded("alone", 1.0, [7]), recorded("equal", 0.5, [7])
    unjudged = {**recorded("unjudged", 0.0, [7]), "verdict": None}
    rows = [alone, equal, equal, unjudged, recorded("frozen", 1.0, [6], "frozen"), recorded("bad", 0.0, [9])]
    with pytest.raises(TaskError) as caught:
        read(tmp_path, tiny, rows, "dpo", examples_filter="not task=bad")
    file = tmp_path / "examples.jsonl"
    assert str(caught.value) == (
        f"astune.trainer.examples: {file} has no examples; left out are 1 that nobody judged (the first: {file}:4); "
        f"1 in which no answer can be trained (the first: {file}:5: answers: 1 frozen); "
        f"1 that astune.trainer.examples_filter refuses (the first: {file}:6); "
        f"1 that are the only attempt at their task in their step; kto learns from single ones (the first: {file}:1); "
        f"2 whose reward is that of the attempts that they are compared with (the first: {file}:2)"
    )
    with pytest.raises(TaskError, match="has no examples: the file is empty"):
        read(tmp_path, tiny, [], "kto")


def test_the_last_line_of_a_run_that_was_killed_is_left_out(tmp_path: Path, tiny: ChatFormat) -> None:
    file = tmp_path / "examples.jsonl"
    line = json.dumps(recorded("good", 1.0, [7, 8]))
    config = AstuneConfig.model_validate({"algorithm": {"method": "sft"}, "trainer": {"examples": str(file)}})
    file.write_text(f"{line}\n{line[:50]}")
    assert len(read_examples(config, tiny)) == 1
    for text in (f"{line[:50]}\n{line}\n", json.dumps({"messages": ANSWERED}) + '\n{"messages"'):
        file.write_text(text)
        with pytest.raises(TaskError, match="broken JSON"):
            read_examples(config, tiny)


def test_a_call_as_text_is_learned_as_text(chat_format: ChatFormat) -> None:
    """Models call tools that nobody offers, and users write calls into the text of examples."""
    (row,) = conversation_rows(chat_format, [QUESTION, WITH_TOOL[2]], [ADD])
    (called,) = trained(chat_format, row)
    text = called.removesuffix(chat_format.decode(list(row.token_ids)[-1:])).rpartition("</think>")[2].strip()
    for tools in ((), [ADD]):
        (row,) = conversation_rows(chat_format, [QUESTION, {"role": "assistant", "content": text}], tools)
        assert text in trained(chat_format, row)[0]


def test_a_filter_of_episodes_is_refused_for_conversations(tmp_path: Path, tiny: ChatFormat) -> None:
    with pytest.raises(TaskError, match=r"examples\.jsonl:1: not a recorded episode, which .*examples_filter chooses"):
        read(tmp_path, tiny, [{"messages": ANSWERED}], examples_filter="passed")


# the order


@given(st.integers(1, 20), st.integers(1, 5), st.integers(0, 9))
def test_every_pass_is_another_order_of_all_examples_and_a_step_depends_on_its_number_alone(
    count: int, per_step: int, seed: int
) -> None:
    if count < per_step:
        with pytest.raises(ConfigError, match=rf"tasks_per_step is {per_step}, but there are only {count} examples"):
            Schedule(range(count), TrainerConfig(tasks_per_step=per_step), seed, noun="examples")
        return
    trainer = TrainerConfig(tasks_per_step=per_step, total_epochs=2, total_steps=None)
    schedule = Schedule(range(count), trainer, seed, noun="examples")
    steps = [schedule.at(step) for step in range(schedule.total_steps)]
    assert schedule.total_steps == 2 * (count // per_step) and all(len(step) == per_step for step in steps)
    half = schedule.steps_per_epoch
    for epoch in (steps[:half], steps[half:]):
        items = [item for step in epoch for item in step]
        assert len(set(items)) == len(items) == half * per_step
    longer = Schedule(range(count), trainer.model_copy(update={"total_epochs": 5}), seed, noun="examples")
    assert [longer.at(step) for step in range(half, 2 * half)] == steps[half:]


# configuration


def job(folder: Path, *overrides: str, backbone: str = "trinity", text: str = "") -> Any:
    (folder / "examples.jsonl").write_text("")
    (folder / "job.yaml").write_text(f"astune:\n  trainer: {{examples: examples.jsonl}}\n{text}")
    return load_config(folder / "job.yaml", overrides, backbone=backbone)


SFT, DPO = "astune.algorithm.method=sft", "astune.algorithm.method=dpo"
TINKER = "trinity.model.tinker.enable=true"


def converted(folder: Path, *overrides: str) -> Converted:
    return convert(job(folder, *overrides), folder / "run", 20)


def test_examples_need_no_workflow_no_tasks_and_no_judge(tmp_path: Path) -> None:
    loaded = job(tmp_path, SFT)
    assert loaded.config.astune.trainer.examples == str(tmp_path / "examples.jsonl")
    tree = convert(loaded, tmp_path / "run", 20).tree
    assert tree["mode"] == "train" and tree["trainer"]["total_steps"] == 100
    assert tree["buffer"]["train_batch_size"] == 8 and "repeat_times" not in tree["algorithm"]
    assert tree["algorithm"]["policy_loss_fn_args"] == {"loss_agg_mode": "seq-mean-token-mean"}


def test_the_length_of_the_run_is_that_of_passes_over_the_examples(tmp_path: Path) -> None:
    tree = converted(tmp_path, SFT, "astune.trainer.total_epochs=3", "astune.trainer.tasks_per_step=6").tree
    assert tree["trainer"]["total_steps"] == 9


def test_a_preference_is_two_rows_of_the_batch_and_its_beta_arrives(tmp_path: Path) -> None:
    tree = converted(tmp_path, DPO, TINKER, "astune.algorithm.dpo_beta=0.3").tree
    assert tree["buffer"]["train_batch_size"] == 16
    assert tree["algorithm"]["policy_loss_fn_args"] == {"beta": 0.3}
    assert tree["algorithm"]["sample_strategy_args"] == {"trainer": "tinker"}


@each_row(
    ("overrides", "backbone", "message"),
    [
        ((), "trinity", "job.yaml:2: astune.trainer.examples: astune.algorithm.method 'rl' learns from rewards"),
        (
            (SFT, "astune.trainer.examples=null"),
            "trinity",
            "command line: astune.trainer.examples: not set; astune.alg",
        ),
        (
            ("astune.algorithm.method=kto", "astune.trainer.tasks_per_step=2"),
            "trinity",
            "command line: astune.algorithm.method: got 'kto', which Trinity has not; expected 'rl', 'sft' or 'dpo'",
        ),
        ((DPO, "astune.trainer.held_out_examples=held.jsonl"), "trinity", "held_out_examples: only method 'sft' tells"),
        (
            (SFT, "astune.debug.with_update=true"),
            "debug",
            "command line: astune.algorithm.method: got 'sft', but the backbone 'debug' learns from rewards only",
        ),
        ((SFT, "astune.algorithm.dpo_beta=1"), "trinity", "command line: astune.algorithm.dpo_beta: only methods"),
        (
            (DPO, "astune.trainer.examples_filter=passed"),
            "trinity",
            "command line: astune.trainer.examples_filter: it chooses among recorded episodes",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_errors(
    tmp_path: Path, overrides: tuple[str, ...], backbone: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        job(tmp_path, *overrides, backbone=backbone)


def test_preferences_on_the_trainer_that_would_part_them_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"command line: astune\.algorithm\.method: 'dpo' needs trinity\.model\.tink"):
        converted(tmp_path, DPO, "trinity.model.tinker.enable=false")


def test_keys_of_rollouts_are_listed_as_not_used(tmp_path: Path) -> None:
    text = "  rollout: {num_repeat: 2}\n  evaluation: {every: 5}\n  synchronizer: {offset: 1}\n"
    loaded = job(tmp_path, SFT, TINKER, "astune.rollout.temperature=0.5", text=text)
    assert not_used(loaded) == [
        "astune.rollout.num_repeat",
        "astune.rollout.temperature",
        "astune.synchronizer.offset",
        "astune.evaluation.every",
    ]
    tree = convert(loaded, tmp_path / "run", 20).tree
    assert "temperature" not in tree["model"] and "sync_offset" not in tree["synchronizer"]


def test_a_file_for_rl_may_be_run_on_local_with_none_of_this(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("")
    loaded = job(
        tmp_path,
        "astune.trainer.examples=null",
        "astune.rollout.agentscope_learn_protocol=package.module:Agent",
        f"astune.task_reader.jsonl.training.file_path={tmp_path}/train.jsonl",
        backbone="local",
    )
    assert check_keys(LocalBackbone(), loaded) == []


def test_the_doctor_asks_for_no_workflow_and_no_tasks(tmp_path: Path) -> None:
    job(tmp_path, SFT)
    findings = run_checks(
        CheckedConfig(tmp_path / "job.yaml", [SFT], backbone="trinity", backbones=BACKBONES, offline=True)
    )
    of_episodes = [finding for finding in findings if finding.check in OF_EPISODES]
    assert {finding.level for finding in of_episodes} == {"skip"} and len(of_episodes) == len(OF_EPISODES)
    assert not [finding for finding in findings if "broke" in finding.what]
