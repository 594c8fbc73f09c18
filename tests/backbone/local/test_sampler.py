from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from astune.backbone.local.sampling import sampler as sampling_module
from astune.backbone.local.sampling.sampler import Sampler
from astune.errors import ContextOverflow, PolicyError, WorkflowError
from astune.types import Generation, Sampling

SYSTEM = list(range(40))


def sampler_over(model: Any, slots: int = 8) -> Sampler:
    return Sampler(model, slots=slots, context_length=256)


async def conversation(sampler: Sampler, number: int, turns: int = 3) -> list[tuple[list[int], Generation]]:
    """An agent that answers each generation with three more tokens."""
    prompt = [*SYSTEM, number % 5, 7]
    calls = []
    for turn in range(turns):
        sampling = Sampling(max_tokens=6, stop_token_ids=(1,), seed=100 * number + turn)
        generation = await sampler.generate(prompt, sampling)
        calls.append((list(prompt), generation))
        prompt = [*prompt, *generation.output_ids, 50, 51, number % 64]
    return calls


async def together(sampler: Sampler, numbers: list[int]) -> list[list[tuple[list[int], Generation]]]:
    return list(await asyncio.gather(*(conversation(sampler, number) for number in numbers)))


async def test_logprobs_are_those_of_the_plain_model(model: Any) -> None:
    conversations = await together(sampler_over(model), list(range(12)))
    model.set_attn_implementation("sdpa")
    for prompt, generation in (call for calls in conversations for call in calls):
        ids = torch.tensor([[*prompt, *generation.output_ids]])
        with torch.inference_mode():
            logprobs = torch.log_softmax(model(ids).logits[0], -1)
        for place, (token, logprob) in enumerate(zip(generation.output_ids, generation.logprobs, strict=True)):
            assert logprobs[len(prompt) + place - 1, token].item() == pytest.approx(logprob, abs=1e-4)


@pytest.mark.fault(
    "Agents and the engine", "many agents share the engine's batches", "each gets the tokens that it would get alone"
)
async def test_an_answer_does_not_depend_on_what_runs_beside_it(model: Any) -> None:
    beside = await together(sampler_over(model), list(range(12)))
    for number in (0, 5, 11):
        alone = await conversation(sampler_over(model), number)
        assert [g.output_ids for _, g in alone] == [g.output_ids for _, g in beside[number]]


async def test_the_same_calls_give_the_same_bits(model: Any) -> None:
    numbers = list(range(20))
    assert await together(sampler_over(model), numbers) == await together(sampler_over(model), numbers)


async def test_a_shared_prompt_is_computed_once(model: Any) -> None:
    computed = 0

    def count(module: Any, arguments: Any, options: dict[str, Any]) -> None:
        nonlocal computed
        computed += options["input_ids"].numel()

    model.register_forward_pre_hook(count, with_kwargs=True)
    sampler = sampler_over(model)
    prompts = [[*SYSTEM, 9, 9, number] for number in range(8)]
    await asyncio.gather(*(sampler.generate(prompt, Sampling(max_tokens=1, seed=1)) for prompt in prompts))
    assert computed == 42 + 8  # the common 42 tokens once, then each prompt's last token


async def test_more_conversations_than_slots_wait_their_turn(model: Any) -> None:
    few, many = (
        await together(sampler_over(model, 2), [1, 2, 3, 4, 5]),
        await together(sampler_over(model), [1, 2, 3, 4, 5]),
    )
    assert [[g.output_ids for _, g in calls] for calls in few] == [[g.output_ids for _, g in calls] for calls in many]


LONG = [(7 * number + 3) % 64 for number in range(200)]


async def answers_around(sampler: Sampler, model: Any, *arriving: list[int]) -> tuple[list[tuple[int, ...]], list[Any]]:
    """An answer under way, and prompts that come after its third token: the shapes that were computed from then on,
    and what each gave, the one under way first."""
    shapes: list[tuple[int, ...]] = []

    def note(module: Any, arguments: Any, options: dict[str, Any]) -> None:
        shapes.append(tuple(options["input_ids"].shape))

    with model.register_forward_pre_hook(note, with_kwargs=True):
        first = asyncio.ensure_future(sampler.generate([5, 6, 7], Sampling(max_tokens=40, seed=1)))
        while len(shapes) < 4:
            await asyncio.sleep(0)
        shapes.clear()
        calls = [sampler.generate(prompt, Sampling(max_tokens=3, seed=2)) for prompt in arriving]
        return shapes, list(await asyncio.gather(first, *calls))


async def test_an_answer_goes_on_between_the_pieces_of_a_long_prompt(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_module, "TOKENS_BETWEEN_STEPS", 50)
    shapes, answers = await answers_around(sampler_over(model), model, LONG)
    begun = shapes.index((1, 50))
    assert shapes[begun : begun + 8] == [(1, 50), (1, 1), (1, 50), (1, 1), (1, 50), (1, 1), (1, 49), (2, 1)]
    alone = [
        await sampler_over(model).generate(prompt, Sampling(max_tokens=most, seed=seed))
        for prompt, most, seed in (([5, 6, 7], 40, 1), (LONG, 3, 2))
    ]
    assert [each.output_ids for each in answers] == [each.output_ids for each in alone]


async def test_a_short_prompt_does_not_wait_for_a_long_one(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_module, "TOKENS_BETWEEN_STEPS", 50)
    monkeypatch.setattr(sampling_module, "WORTH_A_PASS", 10)
    shapes, _ = await answers_around(sampler_over(model), model, LONG, [9, 8, 7, 6, 5])
    both = next(number for number, (rows, width) in enumerate(shapes) if rows > 1 and width == 1)
    assert sum(width for _, width in shapes[:both]) < 60  # the long prompt is not computed by then


@pytest.mark.parametrize("between", [1, 7, 30])
async def test_a_prompt_in_pieces_changes_no_answer(model: Any, between: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = list(range(12))
    whole = tokens_of(await together(sampler_over(model, 4), numbers))
    monkeypatch.setattr(sampling_module, "TOKENS_BETWEEN_STEPS", between)
    monkeypatch.setattr(sampling_module, "WORTH_A_PASS", 2)
    assert tokens_of(await together(sampler_over(model, 4), numbers)) == whole


async def test_a_group_waits_for_its_prompt_while_it_is_computed_in_pieces(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_module, "TOKENS_BETWEEN_STEPS", 50)
    shapes, _ = await answers_around(sampler_over(model), model, *([*LONG, number] for number in range(4)))
    assert sum(rows * width for rows, width in shapes if width > 1) == len(LONG)


async def test_an_edited_history_is_not_confused_with_the_old_one(model: Any) -> None:
    sampler, sampling = sampler_over(model, 1), Sampling(max_tokens=5, seed=3)
    await sampler.generate([1, 2, 3, 4, 5, 6], sampling)
    edited = await sampler.generate([1, 2, 9, 4, 5, 6], sampling)
    fresh = await sampler_over(model, 1).generate([1, 2, 9, 4, 5, 6], sampling)
    assert edited.output_ids == fresh.output_ids
    assert edited.logprobs == pytest.approx(fresh.logprobs, abs=1e-5)


async def test_generation_ends_at_a_stop_token_or_at_the_limit(model: Any) -> None:
    sampler = sampler_over(model)
    free = await sampler.generate([1, 2, 3], Sampling(max_tokens=10, seed=5))
    assert free.finish_reason == "length" and len(free.output_ids) == 10
    stop = free.output_ids[3]
    stopped = await sampler.generate([1, 2, 3], Sampling(max_tokens=10, seed=5, stop_token_ids=(stop,)))
    assert stopped.finish_reason == "stop"
    assert stopped.output_ids == free.output_ids[: free.output_ids.index(stop) + 1]


@pytest.mark.fault(
    "Agents and the engine", "a model call is cancelled in the middle of a batch", "the other calls get their answers"
)
async def test_a_cancelled_call_leaves_the_others_alone(model: Any) -> None:
    sampler, passes = sampler_over(model), []
    with model.get_input_embeddings().register_forward_pre_hook(lambda *_: passes.append(1)):
        doomed = asyncio.ensure_future(sampler.generate([5, 6, 7], Sampling(max_tokens=100, seed=1)))
        kept = asyncio.ensure_future(conversation(sampler, 3))
        while len(passes) < 5:
            await asyncio.sleep(0)
    assert not doomed.done() and not kept.done()
    doomed.cancel()
    assert [g.output_ids for _, g in await kept] == [
        g.output_ids for _, g in await conversation(sampler_over(model), 3)
    ]
    assert doomed.cancelled()
    await sampler.generate([5, 6, 7], Sampling(max_tokens=2, seed=1))
    assert sampler.publish() == 1


@pytest.mark.fault(
    "Agents and the engine",
    "the last episode of a step runs out of time within a model call",
    "the call ends, and the step is learned from",
)
async def test_calls_that_were_just_cancelled_do_not_keep_new_weights_away(model: Any) -> None:
    """More calls than slots: some wait, some are under way, and nobody steps between cancelling and publishing."""
    sampler = sampler_over(model)
    doomed = [asyncio.ensure_future(sampler.generate([5, n], Sampling(max_tokens=100, seed=1))) for n in range(40)]
    for _ in range(20):
        await asyncio.sleep(0)
    for call in doomed:
        call.cancel()
    await asyncio.gather(*doomed, return_exceptions=True)
    assert sampler.publish() == 1
    after, fresh = sampler, sampler_over(model)
    sampling = Sampling(max_tokens=8, seed=2)
    assert (await after.generate(SYSTEM, sampling)).output_ids == (await fresh.generate(SYSTEM, sampling)).output_ids


@pytest.mark.fault(
    "Agents and the engine", "the model computes NaN", "the call fails with that reason; nothing is sampled"
)
async def test_logits_that_are_not_numbers_fail_the_call(model: Any) -> None:
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(PolicyError, match="not finite"):
        await sampler_over(model).generate([1, 2], Sampling(max_tokens=2, seed=1))


@pytest.mark.fault(
    "Agents and the engine", "a prompt is longer than the context", "the call is refused before anything is computed"
)
async def test_a_prompt_beyond_the_context_is_refused(model: Any) -> None:
    with pytest.raises(ContextOverflow, match="context length of 256"):
        await sampler_over(model).generate([1] * 250, Sampling(max_tokens=7))


async def test_new_weights_start_from_an_empty_cache(model: Any) -> None:
    sampler, sampling = sampler_over(model), Sampling(max_tokens=8, seed=2)
    await sampler.generate(SYSTEM, sampling)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
    sampler.publish()
    again = await sampler.generate(SYSTEM, sampling)
    fresh = await sampler_over(model).generate(SYSTEM, sampling)
    assert again.policy_version == 1
    assert again.output_ids == fresh.output_ids
    assert again.logprobs == pytest.approx(fresh.logprobs, abs=1e-5)


async def test_a_sampler_that_forgot_does_what_a_new_one_does(model: Any) -> None:
    """The same batches in the same shapes, on which the last bits of every figure depend."""
    shapes: list[tuple[int, ...]] = []

    def note(module: Any, arguments: Any, options: dict[str, Any]) -> None:
        shapes.append(tuple(options["input_ids"].shape))

    model.register_forward_pre_hook(note, with_kwargs=True)
    new, used = sampler_over(model), sampler_over(model)
    await together(used, [7, 8, 9])
    used.forget()
    seen = []
    for sampler in (new, used):
        shapes.clear()
        answers = await together(sampler, list(range(12)))
        seen.append((answers, list(shapes)))
    assert seen[0] == seen[1]


async def test_random_sized_conversations_never_corrupt_the_cache(model: Any) -> None:
    """Prompts that share random prefixes with earlier ones, in few slots, equal a fresh sampler's answers."""
    chance, sampler = random.Random(0), sampler_over(model, 3)
    prompts: list[list[int]] = [[1, 2, 3]]
    for number in range(40):
        base = chance.choice(prompts)
        prompt = base[: chance.randint(1, len(base))] + [chance.randrange(64) for _ in range(chance.randint(1, 20))]
        sampling = Sampling(max_tokens=3, seed=number)
        got = await sampler.generate(prompt, sampling)
        assert got.output_ids == (await sampler_over(model, 1).generate(prompt, sampling)).output_ids
        prompts.append([*prompt, *got.output_ids])


def letters(ids: Sequence[int]) -> str:
    """Two letters per token."""
    return "".join(f"{chr(97 + token // 26 % 26)}{chr(97 + token % 26)}" for token in ids)


async def test_an_answer_ends_with_the_token_that_completes_a_stop_text(model: Any) -> None:
    async def sampled(*stop: str) -> Generation:
        sampler = Sampler(model, slots=4, context_length=256, decode=letters)
        return await sampler.generate([1, 2, 3], Sampling(max_tokens=12, seed=5, stop=stop))

    free = await sampled()
    text = letters(free.output_ids)
    across = text[5:8]  # the end of the third token and the fourth
    end = (text.index(across) + len(across) + 1) // 2
    stopped = await sampled("??", across)
    assert (stopped.finish_reason, stopped.output_ids) == ("stop", free.output_ids[:end])
    assert stopped.logprobs == free.logprobs[:end]
    assert await sampled("??") == free


async def test_a_stop_text_that_comes_with_the_last_token_allowed_is_a_stop(model: Any) -> None:
    sampler = Sampler(model, slots=4, context_length=256, decode=letters)
    free = await sampler.generate([1, 2, 3], Sampling(max_tokens=1, seed=5))
    stopped = await sampler.generate([1, 2, 3], Sampling(max_tokens=1, seed=5, stop=(letters(free.output_ids),)))
    assert (free.finish_reason, stopped.finish_reason) == ("length", "stop")


async def test_stop_texts_need_a_sampler_that_can_decode(model: Any) -> None:
    with pytest.raises(PolicyError, match="without `decode`"):
        await sampler_over(model).generate([1, 2], Sampling(max_tokens=2, stop=("x",)))


def break_at(model: Any, token: int, *, nan: bool = False) -> None:
    """The model raises, or loses all figures, in every pass that computes `token`."""

    def hook(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
        (ids,) = arguments
        hit = ids == token
        if bool(hit.any()) and not nan:
            raise RuntimeError(f"cannot compute {token}")
        return torch.where(hit[..., None], torch.nan, output)

    model.get_input_embeddings().register_forward_hook(hook)


FEW = [0, 1, 2, 3, 4]


async def beside(sampler: Sampler, *bad: list[int], **sampling: Any) -> list[Any]:
    """Conversations side by side with bad calls: what they gave, and what each bad call raised."""
    calls = [sampler.generate(prompt, Sampling(max_tokens=4, seed=1, **sampling)) for prompt in bad]
    return list(await asyncio.gather(together(sampler, FEW), *calls, return_exceptions=True))


@pytest.mark.fault(
    "Agents and the engine",
    "an agent sends token ids outside the vocabulary (`/v1/completions`)",
    "400 for that call; the other agents of the batch go on with the tokens they would have had",
)
async def test_token_ids_outside_the_vocabulary_fail_their_own_call_alone(model: Any) -> None:
    wrong: list[Any] = [64, -1, 2**31 - 1, 2**40, 2**70, 10**400, 1.5, "x", None]
    good, *failed = await beside(sampler_over(model), *([1, 2, token, 3] for token in wrong))
    assert all(isinstance(each, WorkflowError) and "the model knows 0 to 63" in str(each) for each in failed)
    assert tokens_of(good) == tokens_of(await together(sampler_over(model), FEW))


def tokens_of(conversations: list[list[tuple[list[int], Generation]]]) -> list[list[tuple[int, ...]]]:
    return [[generation.output_ids for _, generation in calls] for calls in conversations]


@pytest.mark.fault(
    "Agents and the engine",
    "the model raises, or computes NaN, for one prompt of a batch",
    "that call fails with the reason; the batch is computed again without it and the others keep their tokens",
)
@pytest.mark.parametrize("slots", [2, 16])
@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("bad", [[60, 61, 62, 63], [*SYSTEM, 63, 1]])
async def test_what_the_model_cannot_compute_fails_the_request_that_brought_it(
    model: Any, slots: int, nan: bool, bad: list[int]
) -> None:
    """In the prompt (computed in one pass with others) and as its last token (computed with the answers)."""
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        model.lm_head.weight[63] = 0.0  # so that it is hardly ever sampled
    expected = tokens_of(await together(sampler_over(model, slots), FEW))
    assert not any(63 in ids for calls in expected for ids in calls)
    break_at(model, 63, nan=nan)
    sampler = sampler_over(model, slots)
    good, failed = await beside(sampler, bad)
    assert isinstance(failed, PolicyError) and ("not finite" if nan else "cannot compute 63") in str(failed)
    assert tokens_of(good) == expected
    assert tokens_of(await together(sampler, FEW)) == expected  # nothing is left of it in the cache
    assert sampler.publish() == 1


@pytest.mark.fault(
    "Agents and the engine",
    "looking for a stop text raises",
    "the call that asked for it fails; the others go on",
)
async def test_a_stop_text_check_that_raises_fails_its_own_call_alone(model: Any) -> None:
    def decode(ids: Sequence[int]) -> str:
        raise OverflowError("no text")

    sampler = Sampler(model, slots=8, context_length=256, decode=decode)
    good, failed = await beside(sampler, [1, 2, 3], stop=("x",))
    assert isinstance(failed, PolicyError) and "no text" in str(failed)
    assert tokens_of(good) == tokens_of(await together(sampler_over(model), FEW))


async def test_a_call_that_is_cancelled_as_its_logits_are_lost_leaves_the_others_alone(model: Any) -> None:
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    break_at(model, 63, nan=True)
    sampler = sampler_over(model)
    doomed = asyncio.ensure_future(sampler.generate([1, 63], Sampling(max_tokens=4, seed=1)))
    kept = asyncio.ensure_future(sampler.generate([1, 2], Sampling(max_tokens=4, seed=1)))

    def cancel(*_: object) -> None:
        doomed.cancel()

    model.register_forward_pre_hook(cancel)
    assert len((await kept).output_ids) == 4
    assert doomed.cancelled()


async def test_calls_that_come_between_two_steps_have_the_same_place_in_any_order(model: Any) -> None:
    """On some processors the last bits of a row depend on its place."""
    calls = [([*SYSTEM, number], Sampling(max_tokens=3, seed=seed)) for number, seed in enumerate((5, 2, 9, 4))]
    seen = []
    for order in (calls, calls[::-1]):
        sampler = sampler_over(model)
        answers = await asyncio.gather(*(sampler.generate(prompt, sampling) for prompt, sampling in order))
        seen.append((sampler._cache.tokens.tolist(), sorted(answers, key=lambda answer: answer.logprobs)))
    assert seen[0] == seen[1]


@pytest.mark.fault(
    "Agents and the engine",
    "the engine fails by itself while answers are under way",
    "all of them fail with that reason; the next ones are answered",
)
async def test_an_error_of_no_single_call_fails_those_under_way_and_no_later_one(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, steps = sampler_over(model), 0
    plain = sampler._admit

    def admit() -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise RuntimeError("the engine is broken")
        plain()

    monkeypatch.setattr(sampler, "_admit", admit)
    with pytest.raises(PolicyError, match="the engine is broken"):
        await sampler.generate([1, 2, 3], Sampling(max_tokens=8, seed=1))
    answer = await sampler.generate([1, 2, 3], Sampling(max_tokens=8, seed=1))
    assert answer == await sampler_over(model).generate([1, 2, 3], Sampling(max_tokens=8, seed=1))
