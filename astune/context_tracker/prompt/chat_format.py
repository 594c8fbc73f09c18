"""A model folder's tokenizer and chat template, on `tokenizers` and `jinja2` alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from jinja2 import Template
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer

from astune.context_tracker.prompt.answer_formats import FORMATS, any_of, detect_format
from astune.context_tracker.prompt.call_style import CallStyle, find_call_style
from astune.context_tracker.prompt.encoding import TextEncoder
from astune.context_tracker.prompt.messages import for_template
from astune.context_tracker.prompt.rendering import Rendering, TemplateRun, same_start
from astune.context_tracker.prompt.resumable import Resumable
from astune.context_tracker.prompt.template import (
    HOW_TO_MAKE,
    compile_resumable,
    compile_template,
    read_json,
    read_templates,
)
from astune.context_tracker.prompt.tool_calls import ParsedMessage, WrittenCall
from astune.context_tracker.prompt.vocabulary import Vocabulary
from astune.errors import ModelError, WorkflowError, nearest

__all__ = ["ChatFormat", "ParsedMessage", "WrittenCall"]

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_PROBE = "ANSWER-PROBE"
_QUESTION = {"role": "user", "content": "?"}
_ANSWER = {"role": "assistant", "content": _PROBE}
_MAX_UTF8_BYTES = 4


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
    ) -> None:
        self._given: tuple[Tokenizer, Mapping[str, str]] = tokenizer, dict(templates)
        self._options: dict[str, Any] = {
            "special_tokens": special_tokens,
            "eos_token_ids": eos_token_ids,
            "context_length": context_length,
            "vocab_size": vocab_size,
            "tool_call_format": tool_call_format,
            "template_kwargs": template_kwargs,
        }
        self._tokenizer = tokenizer
        self._vocabulary = Vocabulary(tokenizer)
        self._templates: dict[str, Template] = {name: compile_template(text) for name, text in templates.items()}
        self._variables = {**special_tokens, **(template_kwargs or {})}
        self.tool_call_format = (
            detect_format("\n".join(templates.values())) if tool_call_format == "auto" else tool_call_format
        )
        """The format of its answers: a key of `answer_formats.FORMATS`."""
        self._answers = FORMATS[self.tool_call_format]
        self._call_style: CallStyle = find_call_style(self._render)
        self.context_length = context_length
        """Most tokens of prompt and answer together that the model was made for; None if its config does not say."""
        self._vocab_size = vocab_size or tokenizer.get_vocab_size(with_added_tokens=True)
        self._prompt = self.render([_QUESTION])
        self.generation_prompt = self._find_generation_prompt()
        """The text that the template ends a prompt with, so that an answer follows; "" if it writes none."""
        self._added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        self.close_token = self._find_close_token()
        """The special token that the template ends an assistant message with; None if it ends otherwise."""
        self.stop_token_ids: tuple[int, ...] = self._find_stops(special_tokens.get("eos_token"), eos_token_ids)
        """The tokens that end an answer."""
        self.next_openings = frozenset(self._answers.next_openings).intersection(self._added)
        """Special tokens that end an answer and belong to the message after it, which the template writes as its
        first token (GLM: `<|user|>`, `<|observation|>`). A model that samples one has begun that message."""
        self.reasoning_openings: tuple[str, ...] = tuple(marks.opening for marks in self._answers.reasoning)
        """The texts that reasoning begins with, one of them for most models: `<think>`."""
        self._encoder = TextEncoder(tokenizer, self.generation_prompt)
        self._closing = self._closing_pattern()
        self._answer_lead = self._find_answer_lead()

    def __reduce__(self) -> tuple[Callable[..., ChatFormat], tuple[Any, ...]]:
        return partial(type(self), **self._options), self._given

    @classmethod
    def load(
        cls, model_dir: Path, *, tool_call_format: str = "auto", template_kwargs: Mapping[str, Any] | None = None
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
                special_tokens={name: text for name in _SPECIAL if (text := _token_text(config.get(name))) is not None},
                eos_token_ids=(eos,) if isinstance(eos, int) else eos,
                context_length=sizes.get("max_position_embeddings"),
                vocab_size=sizes.get("vocab_size"),
                tool_call_format=tool_call_format,
                template_kwargs=template_kwargs,
            )
        except (TemplateError, WorkflowError) as error:
            raise ModelError(f"the chat template of {model_dir} does not work: {error}") from error

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
        prepared = [self._prepared(message) for message in messages]
        return self._render(prepared, tools, add_generation_prompt=add_generation_prompt)

    def render_on(
        self, before: Rendering | None, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> Rendering:
        """`render`, where the template does not write anew what it wrote in `before`, an earlier rendering of this
        format, and would write the same.

        Invariant: `text` is what `render` gives. Messages and tools must not change afterwards: they are known by
        identity. Raises WorkflowError as `render` does.
        """
        name = self._template_name(tools)
        known = 0 if before is None else same_start(before.messages, messages)
        prepared = [*(() if before is None else before.prepared[:known]), *map(self._prepared, messages[known:])]
        template = self._resumable[name]
        if template is None:
            return Rendering(self._render(prepared, tools), name, messages, prepared)
        run = TemplateRun(template, before if before is not None and before.name == name else None)
        text = self._written(run.text, prepared, tools, add_generation_prompt=True)
        return Rendering(text, name, messages, prepared, run.loops)

    @cached_property
    def _resumable(self) -> dict[str, Resumable | None]:
        return {name: compile_resumable(text) for name, text in self._given[1].items()}

    def _prepared(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._call_style.apply(self._answers.for_template(for_template(message)), message)

    def _template_name(self, tools: Sequence[Mapping[str, Any]]) -> str:
        return "tool_use" if tools and "tool_use" in self._templates else "default"

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        render = self._templates[self._template_name(tools)].render
        return self._written(render, messages, tools, add_generation_prompt=add_generation_prompt)

    def _written(
        self,
        render: Callable[[Mapping[str, Any]], str],
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
    ) -> str:
        variables = {
            "messages": list(messages),
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return render(dict(**variables, **self._variables))
        except (TemplateError, TypeError, AttributeError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise WorkflowError(f"the chat template refuses the conversation ({roles}): {error}") from error

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`. Special tokens written in it are recognised; nothing is added.

        Raises WorkflowError for text that UTF-8 cannot write.
        """
        return self._encoder.encode(text)

    def least_tokens(self, text: str) -> int:
        """No more than `text` has tokens, from its size alone."""
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
        pieces: list[str] = []
        before: list[int] = []
        group: list[int] = []
        for place, token in enumerate(ids, start=1):
            group.append(token)
            text = self.decode([*before, *group])[len(self.decode(before)) :]
            if text.endswith("\ufffd") and len(group) < _MAX_UTF8_BYTES and place < len(ids):
                pieces.append("")
            else:
                pieces.append(text)
                before, group = group, []
        return pieces

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes that each token stands for, which need not be whole characters."""
        return [self._vocabulary.bytes_of(token, text) for token, text in zip(ids, self.pieces(ids), strict=True)]

    def parse_text(
        self, text: str, tools: Sequence[Mapping[str, Any]] | None = None, *, prompt: str | None = None
    ) -> ParsedMessage:
        """Take an answer apart: the text that follows the generation prompt, without its stop token.

        `tools` are those offered with the request: with none offered, text that looks like a call is content.
        None leaves that open: calls are read, and arguments whose type only a schema tells are strings.
        `prompt` is the text that the model was given: some templates open reasoning in some prompts only. Without
        it, the prompt is taken to be one that ends with a user message.
        """
        opened = self._answers.opened_by(self._prompt if prompt is None else prompt)
        return self._answers.read(text, tools, opened)

    def forced_start(
        self, force: Literal["tool_call", "json_object"], tool: str | None = None, *, prompt: str | None = None
    ) -> str:
        """The text that an answer must begin with so that it calls a tool, `tool` if given, or is a JSON object.

            chat_format.forced_start("tool_call", "add")    # <tool_call>\\n{"name": "add", "arguments":

        It is written into the prompt, so it is context: not sampled, not trained. Reasoning is left out: where the
        prompt has opened it, it is closed first. Raises WorkflowError if no format of calls is known.
        """
        opened = self._answers.opened_by(self._prompt if prompt is None else prompt)
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

    def _find_generation_prompt(self) -> str:
        written = self.render([_QUESTION], add_generation_prompt=False)
        return self._prompt[len(written) :] if self._prompt.startswith(written) else ""

    def _find_close_token(self) -> str | None:
        _, _, after = self.render([_QUESTION, _ANSWER], add_generation_prompt=False).rpartition(_PROBE)
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


def _token_text(token: Any) -> str | None:
    """A special token's text, None if the model has none; files hold it as a string or an object with `content`."""
    text: str | None = token["content"] if isinstance(token, dict) else token
    return text
