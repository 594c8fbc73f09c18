"""A model folder's tokenizer and chat template, on `tokenizers` and `jinja2` alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer

from astune.context_tracker.messages import for_template
from astune.context_tracker.template import compile_template
from astune.context_tracker.tool_calls import (
    READERS,
    ParsedMessage,
    ToolCall,
    detect_format,
    split_reasoning,
    split_tool_calls,
)
from astune.errors import ModelError, WorkflowError, nearest

__all__ = ["ChatFormat", "ParsedMessage", "ToolCall"]

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_PROBE = "ANSWER-PROBE"
_MAX_UTF8_BYTES = 4
_HOW_TO_MAKE = "transformers writes it: AutoTokenizer.from_pretrained(...).save_pretrained(folder)"


class ChatFormat:
    """How a model writes a conversation as tokens, and how its answers are read.

        chat_format = ChatFormat.load(Path("Qwen3-0.6B"))
        ids = chat_format.encode(chat_format.render([{"role": "user", "content": "Hi"}]))
        chat_format.parse(sampled_ids).content

    Rendering and encoding give what `AutoTokenizer.apply_chat_template` gives, token for token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        templates: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str],
        eos_token_ids: Sequence[int] = (),
        context_length: int | None = None,
        tool_call_format: str = "auto",
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._templates: dict[str, Template] = {name: compile_template(text) for name, text in templates.items()}
        self._variables = {**special_tokens, **(template_kwargs or {})}
        self.tool_call_format = (
            detect_format("\n".join(templates.values())) if tool_call_format == "auto" else tool_call_format
        )
        self.context_length = context_length
        """Most tokens of prompt and answer together that the model was made for; None if its config does not say."""
        self.close_token = self._find_close_token()
        """The special token that the template ends an assistant message with; None if it ends otherwise."""
        self._opens_thinking = self._prompt_opens_thinking()
        close = [] if self.close_token is None else self.encode(self.close_token)
        eos = self.encode(special_tokens["eos_token"]) if "eos_token" in special_tokens else []
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys((*close, *eos, *eos_token_ids)))
        """The tokens that end an answer."""

    @classmethod
    def load(
        cls, model_dir: Path, *, tool_call_format: str = "auto", template_kwargs: Mapping[str, Any] | None = None
    ) -> ChatFormat:
        """Read `tokenizer.json`, the chat template and the small config files beside them.

        Raises ModelError if one is missing or broken, or if the tool-call format is not known.
        """
        known = ("auto", *READERS, "none")
        if tool_call_format not in known:
            raise ModelError(
                f"astune.model.tool_call_format={tool_call_format!r}: expected one of {', '.join(known)}."
                + nearest(tool_call_format, known)
            )
        path = model_dir / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{model_dir} has no tokenizer.json. {_HOW_TO_MAKE}")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the tokenizers library raises no narrower class
            raise ModelError(f"{path} is not a tokenizer this version of 'tokenizers' can read: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        config = {
            **_read_json(model_dir / "special_tokens_map.json"),
            **_read_json(model_dir / "tokenizer_config.json"),
        }
        model = _read_json(model_dir / "config.json")
        eos = _read_json(model_dir / "generation_config.json").get("eos_token_id") or ()
        try:
            return cls(
                tokenizer,
                _read_templates(model_dir, config),
                special_tokens={name: text for name in _SPECIAL if (text := _token_text(config.get(name))) is not None},
                eos_token_ids=(eos,) if isinstance(eos, int) else eos,
                context_length={**model, **model.get("text_config", {})}.get("max_position_embeddings"),
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
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        try:
            return self._templates[name].render(
                messages=[for_template(message) for message in messages],
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        except (TemplateError, TypeError, AttributeError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise WorkflowError(f"the chat template refuses the conversation ({roles}): {error}") from error

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`. Special tokens written in it are recognised; nothing is added."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

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

    def parse(self, output_ids: Sequence[int], tools: Sequence[Mapping[str, Any]] | None = None) -> ParsedMessage:
        """Take a sampled answer apart. Its last token is dropped if it is a stop token.

        `tools` are those offered with the request: with none offered, text that looks like a call is content.
        None leaves that open: calls are read, and parameters whose type only a schema tells are strings.
        """
        ended = bool(output_ids) and output_ids[-1] in self.stop_token_ids
        return self.parse_text(self.decode(output_ids[:-1] if ended else output_ids), tools)

    def parse_text(self, text: str, tools: Sequence[Mapping[str, Any]] | None = None) -> ParsedMessage:
        """Like `parse`, for the text that follows the generation prompt, without a stop token."""
        reasoning, rest = split_reasoning(text, opened=self._opens_thinking)
        form = self.tool_call_format if tools is None or tools else "none"
        content, calls = split_tool_calls(rest, form, tools or ())
        return ParsedMessage(content or None, reasoning, calls)

    def _find_close_token(self) -> str | None:
        exchange = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
        _, _, after = self.render(exchange, add_generation_prompt=False).rpartition(_PROBE)
        added = [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        return next((token for token in sorted(added, key=len, reverse=True) if after.startswith(token)), None)

    def _prompt_opens_thinking(self) -> bool:
        """Whether the template's generation prompt already ends inside `<think>`."""
        question = [{"role": "user", "content": "?"}]
        prompt = self.render(question)[len(self.render(question, add_generation_prompt=False)) :]
        return prompt.rstrip().endswith("<think>")


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file, empty if there is no file."""
    if not path.is_file():
        return {}
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    return value


def _read_templates(model_dir: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Template texts by name, "default" among them."""
    path = model_dir / "chat_template.jinja"
    source = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
    if isinstance(source, str):
        return {"default": source}
    named = {entry["name"]: entry["template"] for entry in source or ()}
    if "default" not in named:
        raise ModelError(
            f"{model_dir} has no chat template: neither chat_template.jinja nor a default 'chat_template' in "
            f"tokenizer_config.json. Use the instruct version of the model, or set tokenizer.chat_template and "
            f"save it. {_HOW_TO_MAKE}"
        )
    return named


def _token_text(token: Any) -> str | None:
    """A special token's text, None if the model has none; files hold it as a string or an object with `content`."""
    text: str | None = token["content"] if isinstance(token, dict) else token
    return text
