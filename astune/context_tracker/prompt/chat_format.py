"""A model folder's tokenizer and chat template, on `tokenizers` and `jinja2` alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from jinja2 import Template
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer

from astune.context_tracker.prompt.answer_formats import FORMATS, AnswerFormat, any_of
from astune.context_tracker.prompt.call_check import CallProblem, find_call_problem
from astune.context_tracker.prompt.encoding import TextEncoder, Vocabulary
from astune.context_tracker.prompt.messages import for_template
from astune.context_tracker.prompt.template import (
    HOW_TO_MAKE,
    compile_template,
    read_json,
    read_special_tokens,
    read_templates,
)
from astune.context_tracker.prompt.template_style import (
    CALL,
    TOOL,
    AnswersTakenBack,
    CallStyle,
    SystemStyle,
    find_call_style,
    find_system_style,
)
from astune.context_tracker.prompt.tool_calls import ParsedMessage, WrittenCall
from astune.context_tracker.prompt.unsaid import find_unsaid
from astune.errors import ModelError, WorkflowError, nearest

__all__ = ["ChatFormat", "ParsedMessage", "WrittenCall"]

_PROBE = "ANSWER-PROBE"
_QUESTION = {"role": "user", "content": "?"}
_ANSWER = {"role": "assistant", "content": _PROBE}


class ChatFormat:
    """A model's tokenizer and chat template: writes conversations as tokens, and reads answers.

        chat_format = ChatFormat.load(Path("Qwen3-0.6B"))
        ids = chat_format.encode(chat_format.render([{"role": "user", "content": "Hi"}]))
        chat_format.parse_text("Hello").content

    Rendering and encoding give what `AutoTokenizer.apply_chat_template` gives, token for token. It can be pickled.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        templates: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str],
        eos_token_ids: Sequence[int] = (),
        context_length: int | None = None,
        vocab_size: int | None = None,
        tool_call_format: str = "auto",
        template_kwargs: Mapping[str, Any] | None = None,
        clock: datetime | None = None,
    ) -> None:
        """`clock` is the time that a template which asks for it (`strftime_now`) is told, at every rendering; None is
        the time at which the format is made."""
        self.clock = clock or datetime.now()
        self._given: tuple[Tokenizer, Mapping[str, str]] = tokenizer, dict(templates)
        self._options: dict[str, Any] = {
            "special_tokens": special_tokens,
            "eos_token_ids": eos_token_ids,
            "context_length": context_length,
            "vocab_size": vocab_size,
            "tool_call_format": tool_call_format,
            "template_kwargs": template_kwargs,
            "clock": self.clock,
        }
        self._tokenizer = tokenizer
        self._vocabulary = Vocabulary(tokenizer)
        self._templates: dict[str, Template] = {name: compile_template(text) for name, text in templates.items()}
        self._variables = {"strftime_now": self.clock.strftime, **special_tokens, **(template_kwargs or {})}
        self.tells_time = any("strftime_now" in text for text in templates.values())
        """True if a prompt may depend on `clock`."""
        self._system_style = SystemStyle()  # messages as they come, while it is tried how the template takes them
        self._added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        self.close_token = self._find_close_token()
        """The special token that the template ends an assistant message with; None if it ends otherwise."""
        given = () if tool_call_format == "auto" else (FORMATS[tool_call_format],)
        self._call_style, found = self._find_call_style(given or FORMATS.values())
        self._system_style = find_system_style(self._render)
        self._answers: AnswerFormat = given[0] if given else found or FORMATS["none"]
        self.tool_call_format = self._answers.name
        """The format of its answers: a key of `answer_formats.FORMATS`."""
        self.context_length = context_length
        """Most tokens of prompt and answer together that the model was made for; None if its config does not say."""
        self._vocab_size = vocab_size or tokenizer.get_vocab_size(with_added_tokens=True)
        self._prompt = self.render([_QUESTION])
        written = self.render([_QUESTION], add_generation_prompt=False)
        self.generation_prompt = self._prompt[len(written) :] if self._prompt.startswith(written) else ""
        """The text that the template ends a prompt with, so that an answer follows; "" if it writes none."""
        self.stop_token_ids: tuple[int, ...] = self._find_stops(special_tokens.get("eos_token"), eos_token_ids)
        """The tokens that end an answer."""
        self.next_openings = frozenset(self._answers.next_openings).intersection(self._added)
        """Special tokens that end an answer and belong to the message after it, which the template writes as its
        first token (GLM: `<|user|>`, `<|observation|>`). A model that samples one has begun that message."""
        self.reasoning_openings: tuple[str, ...] = tuple(marks.opening for marks in self._answers.reasoning)
        """The texts that reasoning begins with, one of them for most models: `<think>`."""
        self.encode = TextEncoder(tokenizer, self.generation_prompt).encode
        self._closing = self._closing_pattern()
        self._answer_lead = self._find_answer_lead()
        self.takes_back = AnswersTakenBack(partial(self.render, add_generation_prompt=False)).take

    def __reduce__(self) -> tuple[Callable[..., ChatFormat], tuple[Any, ...]]:
        return partial(type(self), **self._options), self._given

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        tool_call_format: str = "auto",
        template_kwargs: Mapping[str, Any] | None = None,
        clock: datetime | None = None,
    ) -> ChatFormat:
        """Read `tokenizer.json`, the chat template and the small config files beside them.

        Raises ModelError if one is missing or broken, or if the tool-call format is not known.
        """
        known = ("auto", *FORMATS)
        if tool_call_format not in known:
            raise ModelError(
                f"astune.model.tool_call_format={tool_call_format!r}: expected one of {', '.join(known)}."
                + nearest(tool_call_format, known)
            )
        path = model_dir / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{model_dir} has no tokenizer.json. {HOW_TO_MAKE}")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the tokenizers library raises no narrower class
            raise ModelError(f"{path} is not a tokenizer this version of 'tokenizers' can read: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        config = {
            **read_json(model_dir / "special_tokens_map.json"),
            **read_json(model_dir / "tokenizer_config.json"),
        }
        model = read_json(model_dir / "config.json")
        eos = read_json(model_dir / "generation_config.json").get("eos_token_id") or ()
        sizes = {**model, **model.get("text_config", {})}
        try:
            return cls(
                tokenizer,
                read_templates(model_dir, config),
                special_tokens=read_special_tokens(config),
                eos_token_ids=(eos,) if isinstance(eos, int) else eos,
                context_length=sizes.get("max_position_embeddings"),
                vocab_size=sizes.get("vocab_size"),
                tool_call_format=tool_call_format,
                template_kwargs=template_kwargs,
                clock=clock,
            )
        except (TemplateError, WorkflowError) as error:
            raise ModelError(f"the chat template of {model_dir} does not work: {error}") from error

    def find_difference(self, other: ChatFormat) -> str | None:
        """Find what is another than in `other`, "tokenizer" or "chat template"; None if neither is."""
        (tokenizer, templates), (others, other_templates) = self._given, other._given
        if tokenizer.to_str() != others.to_str():
            return "tokenizer"
        return None if templates == other_templates else "chat template"

    def at(self, clock: datetime) -> ChatFormat:
        """The same format at another time. What is found out only once is found out before, for both."""
        for name in (name for name, kept in vars(ChatFormat).items() if isinstance(kept, cached_property)):
            getattr(self, name)
        other = object.__new__(type(self))  # copy.copy would make it anew, by __reduce__
        other.__dict__.update(self.__dict__)
        other.clock = clock
        other._options = {**self._options, "clock": clock}
        other._variables = {**self._variables, "strftime_now": clock.strftime}
        return other

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The conversation as the chat template writes it; see `messages.for_template` for what it is given.

        Raises WorkflowError where the template refuses the conversation.
        """
        prepare, apply = self._answers.for_template, self._call_style.apply
        prepared = [apply(prepare(for_template(message)), message) for message in messages]
        return self._render(prepared, tools, add_generation_prompt=add_generation_prompt)

    def check_said(
        self,
        written: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        places: Iterable[int] | None = None,
    ) -> None:
        """Raise WorkflowError if the text `written` does not have what the messages at `places` (all if None), and the
        tools, say. Reasoning may be missing: templates leave it out on purpose."""
        ends = [marks.closing for marks in self._answers.reasoning]
        unsaid = next(find_unsaid(written, messages, tools, places=places, reasoning_ends=ends), None)
        if unsaid is not None:
            raise WorkflowError(f"the chat template {unsaid}")

    @cached_property
    def writes_text_beside_calls(self) -> bool:
        """True if the template writes the text of a message that calls tools."""
        try:
            return _PROBE in self.render([_QUESTION, {**CALL, "content": _PROBE}], [TOOL])
        except WorkflowError:
            return False

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        template = self._templates["tool_use" if tools and "tool_use" in self._templates else "default"]
        variables = {
            "messages": list(self._system_style.apply(messages)),
            "tools": list(tools) or None,
            "xml_tools": list(tools) or None,  # SmolLM3's name for them
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return template.render(dict(**variables, **self._variables))
        except (TemplateError, TypeError, AttributeError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise WorkflowError(f"the chat template refuses the conversation ({roles}): {error}") from error

    def least_tokens(self, text: str) -> int:
        """A lower bound of the number of tokens of `text`, from its size alone."""
        return 0 if self._most_bytes is None else -(-len(text.encode(errors="surrogatepass")) // self._most_bytes)

    @cached_property
    def _most_bytes(self) -> int | None:
        return self._vocabulary.most_bytes()

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def foreign_id(self, ids: Sequence[int]) -> int | None:
        """The first of `ids` that the model does not know; None if it knows all. It knows those from 0 up to its
        config's `vocab_size`, which may be more than the tokenizer has texts for."""
        return next((token for token in ids if not 0 <= token < self._vocab_size), None)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One string per token, for display; together they read as the text.

        A character whose bytes are spread over several tokens is shown at the last of them.
        """
        return self._vocabulary.pieces(ids, self.decode)

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes that each token stands for, which need not be whole characters."""
        return [self._vocabulary.bytes_of(token, text) for token, text in zip(ids, self.pieces(ids), strict=True)]

    def parse_text(
        self, text: str, tools: Sequence[Mapping[str, Any]] | None = None, *, prompt: str | None = None
    ) -> ParsedMessage:
        """Parse an answer: the text that follows the generation prompt, without its stop token.

        `tools` are those offered with the request: with none offered, text that looks like a call is content.
        None leaves that open: calls are read, and arguments whose type only a schema tells are strings.
        `prompt` is the text that the model was given: some templates open reasoning in some prompts only. Without
        it, the prompt is taken to be one that ends with a user message.
        """
        opened = self._answers.find_opened(self._prompt if prompt is None else prompt)
        return self._answers.read(text, tools, opened)

    def write_forced_start(
        self, force: Literal["tool_call", "json_object"], tool: str | None = None, prompt: str | None = None
    ) -> str:
        """The text that an answer must begin with so that it calls a tool, `tool` if given, or is a JSON object.

            chat_format.write_forced_start("tool_call", "add")    # <tool_call>\\n{"name": "add", "arguments":

        It is written into the prompt, so it is context: not sampled, not trained. Reasoning is left out: where the
        prompt has opened it, it is closed first. Raises WorkflowError if no format of calls is known.
        """
        opened = self._answers.find_opened(self._prompt if prompt is None else prompt)
        lead = self._answer_lead if opened is None else opened.empty_rest
        if force == "tool_call":
            return lead + self._answers.call_start(tool)
        return lead + self._answers.text_start + "{"

    def find_closing(self, rendering: str, start: int) -> tuple[int, str] | None:
        """Find the end of the answer that begins at `start` of a rendering, and the special token that is there.

        The token closes the answer, or opens the next message if it is one of `next_openings`. None if there is none.
        """
        found = self._closing.search(rendering, start)
        return None if found is None else (found.start(), found.group())

    def _find_call_style(self, formats: Iterable[AnswerFormat]) -> tuple[CallStyle, AnswerFormat | None]:
        closings = (self.close_token, self._options["special_tokens"].get("eos_token"))
        return find_call_style(self._render, formats, tokens=self._added, closings=closings)

    @cached_property
    def taught_format(self) -> str:
        """The format that `tool_call_format: auto` gives, whatever is set: read off the template by trying."""
        found = self._find_call_style(FORMATS.values())[1]
        return "none" if found is None else found.name

    @cached_property
    def call_problem(self) -> CallProblem | None:
        """The problem that keeps agents from using tools with the model, None if there is none."""
        return find_call_problem(self.render, self.tool_call_format, self.taught_format, self.close_token)

    def _find_close_token(self) -> str | None:
        _, _, after = self._render([_QUESTION, _ANSWER], (), add_generation_prompt=False).rpartition(_PROBE)
        added = [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        return next((token for token in sorted(added, key=len, reverse=True) if after.startswith(token)), None)

    def _find_stops(self, eos_token: str | None, eos_token_ids: Sequence[int]) -> tuple[int, ...]:
        texts = (self.close_token, eos_token, *self._answers.stops)
        ids = [self._tokenizer.token_to_id(text) for text in texts if text is not None]
        return tuple(dict.fromkeys((*(number for number in ids if number is not None), *eos_token_ids)))

    def _closing_pattern(self) -> re.Pattern[str]:
        stops = [text for text in self._added if self._tokenizer.token_to_id(text) in self.stop_token_ids]
        tokens = any_of([*stops, *self.next_openings])
        further = self._answers.closing_pattern
        return re.compile(f"{tokens}|{further}" if further else tokens)

    def _find_answer_lead(self) -> str:
        """The template's text between the generation prompt and the text of an answer without reasoning."""
        written = self.render([_QUESTION, _ANSWER, _QUESTION])
        lead, found, _ = written.removeprefix(self._prompt).partition(_PROBE)
        if not found or not written.startswith(self._prompt):
            return ""
        return lead.removesuffix(self._answers.text_start)
