"""Prompts built from the tokens that were sent and sampled before, so that nothing is tokenized twice.

A chat request repeats the whole conversation. Tokenizing it again need not give the tokens that were sampled
(the model writes `{"x":1}`, the template writes `{"x": 1}`), and the agent may have dropped the reasoning.
So the new prompt is the old tokens plus the tokens of what the template writes after the last answer:

    sent      <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
    sampled   Hello<|im_end|>
    rest      \n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n     only this is tokenized

It works from renderings, for any template. Where the template writes an earlier part differently now (Qwen3 drops
reasoning once a new user message comes) or the agent changed its history, the prompt is built anew from there, and
says why. Answers after that place which the template still writes as they were sampled keep their tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from astune.context_tracker import forks
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.conversations import Conversations, Match
from astune.context_tracker.prompt.encoding import LONG_TEXT
from astune.context_tracker.prompt.messages import Message
from astune.context_tracker.prompt.sampled_answer import (
    ENDING,
    AnswerText,
    Beginnings,
    SampledAnswer,
    TextRope,
    windows,
)
from astune.token_ids import TokenIds


@dataclass(frozen=True, eq=False)
class Prompt:
    """Token ids to send, and why they do not go on from the agent's closest earlier call.

    Where they do, `ids` is that call's rope extended: its `Prompt.ids`, its output ids, the new ids. `fork` is None
    for an agent's first prompt and for one that goes on from an earlier point, else one of `forks`. `sent_before` says
    that an earlier request had all its answers, written as here: nothing was rewritten for this one. `answer_start` is
    the text at the end of `ids` that the answer was made to begin with. `ending` are the last characters of its text,
    without `answer_start`: they tell whether reasoning was opened. `follows` is the last sampled answer that its
    messages hold, whether or not the template still writes it so.

    The other fields are what `PromptBuilder.record` needs: the template's text, and the request beside what is known;
    None for a raw text.
    """

    ids: TokenIds
    fork: str | None
    sent_before: bool = False
    answer_start: str = ""
    ending: str = ""
    follows: SampledAnswer | None = field(default=None, repr=False)
    start_ids: tuple[int, ...] = field(default=(), repr=False)
    rendering: TextRope = field(default_factory=lambda: TextRope(""), repr=False)
    match: Match | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Draft:
    """A prompt before it is tokenized: the ids that `prompt` has are followed by `parts`, texts and known ids, and by
    the text `rest`."""

    prompt: Prompt
    parts: tuple[str | Sequence[int], ...] = ()
    rest: str = ""

    @property
    def is_long(self) -> bool:
        """True if its texts take long to tokenize."""
        return sum(len(part) for part in (*self.parts, self.rest) if isinstance(part, str)) > LONG_TEXT

    def least_tokens(self, chat_format: ChatFormat) -> int:
        """A lower bound of the prompt's tokens: the known ones, and those that the size of its texts implies."""
        sizes = (
            chat_format.least_tokens(part) if isinstance(part, str) else len(part) for part in (*self.parts, self.rest)
        )
        return len(self.prompt.ids) + sum(sizes)


class PromptBuilder:
    """Builds prompts from earlier calls of the same agent. Invariant: `prompt.ids` is what is to be sent.

        prompt = builder.build("solver", messages, tools)
        output_ids = sample(prompt.ids)
        builder.record("solver", prompt, output_ids, answer_message)

    Memory is linear in the distinct messages and tokens; a call costs the rendering and tokenizing of what is new since
    the agent's last call, and plain comparisons.
    """

    def __init__(self, chat_format: ChatFormat) -> None:
        self._format = chat_format
        self._conversations: dict[str, Conversations] = {}
        self._texts: dict[str, list[SampledAnswer]] = {}
        self._pieces: dict[str, TokenIds] = {}

    def build(
        self,
        agent: str,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        answer_start: Callable[[str], str] | None = None,
    ) -> Prompt:
        """The prompt for `messages`, of the tokens of earlier calls wherever the template writes the same.

        Earlier messages are compared in meaning (see `messages.meaning`); reasoning that the agent dropped is put
        back, so that the template decides whether it stays. `answer_start(ending)` gives the text that the answer must
        begin with, after a prompt that ends like `Prompt.ending`.
        """
        return self.finish(self.draft(agent, messages, tools, answer_start=answer_start))

    def draft(
        self,
        agent: str,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        answer_start: Callable[[str], str] | None = None,
    ) -> Draft:
        """`build` up to the tokenizing: which tokens are known, and which text is new."""
        conversations = self._conversations.get(agent, Conversations())
        match = conversations.match(messages, tools)
        rendering = self._format.render(match.messages, match.tools)
        place, base, start = self._longest_written(match, rendering)
        later = {index: AnswerText(self._format, sampled) for index, sampled in match.sampled.items() if index > place}
        # The template may write later answers in another place or way, so they are looked for, each in its stretch.
        around = windows(self._format, match.messages, match.tools, rendering) if later else {}
        ends = {place: start} | {index: around.get(index, (0, len(rendering)))[1] for index in later}
        parts: list[str | Sequence[int]] = []
        position, kept = start, set[int]()
        for index, answer in sorted(later.items()):
            found = answer.place_in(rendering, *around[index]) if index in around else None
            if found is not None and found[0] >= position:
                parts += [rendering[position : found[0]], answer.sampled.answer_ids()]
                position = ends[index] = found[1]
                kept.add(index)
        if base is None or base.tools != match.tools:
            self._format.check_said(rendering, (), match.tools)
        new = set(range(place + 1, len(match.messages))) - kept
        self._format.check_said(rendering[start:], match.messages, places=new)
        sent_up_to = conversations.find_sent_up_to(match, rendering, ends)
        known = [each.rendering for each in (base, match.request) if each is not None]
        ending = rendering[-ENDING:]
        prompt = Prompt(
            ids=TokenIds() if base is None else base.ids,
            fork=_find_fork(match, rendering, place, later, sent_up_to, around),
            sent_before=sent_up_to >= max(0, *ends),
            answer_start="" if answer_start is None else answer_start(ending),
            ending=ending,
            follows=match.sampled[max(match.sampled)] if match.sampled else None,
            rendering=TextRope.of(rendering, known),
            match=match,
        )
        return Draft(prompt, tuple(parts), rendering[position:])

    def draft_text(self, agent: str, text: str | Sequence[int]) -> Draft:
        """Like `draft`, for a raw text without a template: the ids of the longest earlier raw text and answer of the
        agent that `text` goes on from, and the rest of the text. Token ids are taken as they are.

        Text that goes on without the end token that was sampled goes on from the ids before that token.
        """
        if not isinstance(text, str):
            written = self._format.decode(list(text))
            return Draft(Prompt(TokenIds(text), None, ending=written[-ENDING:], rendering=TextRope(written)))
        begins = Beginnings(text)
        found: tuple[int, SampledAnswer, int] | None = None
        for sampled in self._texts.get(agent, ()):
            if begins.has(sampled.rendering):
                answer = AnswerText(self._format, sampled)
                dropped = 0 if text.startswith(answer.text, len(sampled.rendering)) else 1
                said = answer.text.removesuffix(answer.stop or "") if dropped else answer.text
                end = len(sampled.rendering) + len(said)
                if text.startswith(said, len(sampled.rendering)) and (found is None or end >= found[0]):
                    found = end, sampled, dropped
        latest = self._texts.get(agent, ())[-1:]
        if found is None:
            rendering = TextRope.of(text, [each.rendering for each in latest])
            return Draft(Prompt(TokenIds(), None, ending=text[-ENDING:], rendering=rendering), rest=text)
        end, base, dropped = found
        before = base.ids if not dropped else TokenIds(base.answer_ids()[:-1], before=base.ids.before)
        rendering = TextRope.of(text, [each.rendering for each in (base, *latest)])
        return Draft(Prompt(before, None, ending=text[-ENDING:], rendering=rendering), rest=text[end:])

    def finish(self, draft: Draft) -> Prompt:
        """Tokenize the texts of `draft` and return the prompt. May run in another thread."""
        prompt = draft.prompt
        new: list[int] = []
        for part in draft.parts:
            new += self._piece(part) if isinstance(part, str) else part
        new += self._format.encode(draft.rest)
        start_ids = tuple(self._format.encode(prompt.answer_start))
        added = (*new, *start_ids)
        ids = TokenIds(added, before=prompt.ids) if len(prompt.ids) else TokenIds(added)
        return replace(prompt, ids=ids if added else prompt.ids, start_ids=start_ids)

    def record(self, agent: str, prompt: Prompt, output_ids: Sequence[int], answer: Message | None) -> SampledAnswer:
        """Remember that `output_ids` was sampled after `prompt` and given to the agent as the message `answer`, or as
        text if that is None."""
        ids = prompt.ids + output_ids
        if prompt.match is None or answer is None:
            sampled = SampledAnswer(prompt.rendering, prompt.ending, (), ids, ids.own)
            self._texts.setdefault(agent, []).append(sampled)
        else:
            tools, start_ids = prompt.match.tools, prompt.start_ids
            sampled = SampledAnswer(prompt.rendering, prompt.ending, tools, ids, ids.own, start_ids)
            self._conversations.setdefault(agent, Conversations()).add(prompt.match, answer, sampled)
        return sampled

    def _piece(self, text: str) -> TokenIds:
        """Tokenize the text between two answers, once: a history that forks again and again has it every time."""
        if text not in self._pieces:
            self._pieces[text] = TokenIds(self._format.encode(text))
        return self._pieces[text]

    def _longest_written(self, match: Match, rendering: str) -> tuple[int, SampledAnswer | None, int]:
        """Find the last answer up to which `rendering` is what was sent and sampled: its index (-1 if there is none),
        its call, and the place after it."""
        begins = Beginnings(rendering)
        for index, sampled in sorted(match.sampled.items(), reverse=True):
            if begins.has(sampled.rendering):
                end = AnswerText(self._format, sampled).end_in(rendering, len(sampled.rendering), len(rendering))
                if end is not None:
                    return index, sampled, end
        return -1, None, 0


def _find_fork(
    match: Match,
    rendering: str,
    place: int,
    later: Mapping[int, AnswerText],
    sent_up_to: int,
    around: Mapping[int, tuple[int, int]],
) -> str | None:
    """Collect the facts for `forks.of_prompt`. `place` is the answer up to which the prompt is what was sent and
    sampled, `later` are the answers after it, `sent_up_to` the one up to which an earlier request was written so.

    An answer of a history that an earlier request had changed already is not written differently now: what goes on from
    that request is a branch.
    """
    changed_before = {index for index, node in enumerate(match.path[: sent_up_to + 1]) if node.moved}
    whole_was_sent = sent_up_to >= len(match.sent)
    rewritten = {} if whole_was_sent else {index: later[index] for index in later if index not in changed_before}
    if rewritten:
        other_tools = rewritten[max(rewritten)].sampled.tools != match.tools
    elif match.sampled or match.request is None or match.request.tools == match.tools:
        other_tools = False
    else:
        other_tools = next(match.find_answers(), None) is None
    last = max((index for index, said in enumerate(match.meanings) if said[0] == "assistant"), default=-1)
    whole = (0, len(rendering))
    return forks.of_prompt(
        goes_on=place == last >= 0,
        changed_from=None if match.changed_from is None else match.changed_from.meanings(),
        now=match.meanings,
        other_tools=other_tools,
        rewritten=bool(rewritten),
        reasoning_lost=lambda: any(
            answer.has_lost_reasoning(rendering[slice(*around.get(index, whole))])
            for index, answer in rewritten.items()
        ),
    )
