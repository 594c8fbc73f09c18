"""Checks once, before the first request that offers tools, that calls can be told from text and reach the model."""

from __future__ import annotations

from dataclasses import dataclass

from astune.context_tracker.prompt.answer_formats import FORMATS
from astune.context_tracker.prompt.template_style import CALL, NAME, QUESTION, RESULT, TOOL, Render, WrittenProbe
from astune.errors import WorkflowError

OFFERS_TOOLS = "the agent offers tools, but"
"""The beginning of every problem."""
_SETTING = "astune.model.tool_call_format"
_SET = f"set {_SETTING} to"
_ANOTHER = "use a model that was made for tools, or give this one a chat_template.jinja that writes them"
_SHOWN = 100


@dataclass(frozen=True)
class CallProblem:
    """The reason why an agent cannot use tools with a model, and what to set."""

    what: str
    fix: str

    @property
    def key(self) -> str:
        """The key of the configuration that has to change."""
        return _SETTING if self.fix.startswith(_SET) else "astune.model.path"

    def __str__(self) -> str:
        return f"{self.what}. What to do: {self.fix}"


def find_call_problem(render: Render, form: str, taught: str, close_token: str | None) -> CallProblem | None:
    """The problem that keeps agents from using tools with the answer format `form`, None if there is none.

    A prompt has to hold the tools; a call as it stands in a history has to be read again as it was; the result of the
    call has to be in the prompt after it.
    """
    other = f"{_SET} 'auto', which finds {taught!r}" if taught not in ("none", form) else None
    try:
        prompt = render([QUESTION], [TOOL])
        if NAME not in prompt:
            return _problem("the chat template drops the tools: the model would never see them", _ANOTHER)
        if form == "none" and other:
            return _problem(f"how this model writes tool calls is not known: {_SETTING} is 'none'", other)
        written = render([QUESTION, CALL], [TOOL], add_generation_prompt=False)
        results = render([QUESTION, CALL, RESULT], [TOOL])
    except WorkflowError as error:
        return _problem(str(error), _ANOTHER)
    probe = WrittenProbe.of(written, prompt, [close_token])
    if not probe.is_read_by(FORMATS[form]):
        return _unread(form, probe, other)
    if RESULT["content"] not in results:
        return _problem("the chat template drops the results of tools", _ANOTHER)
    return None


def _unread(form: str, probe: WrittenProbe, other: str | None) -> CallProblem:
    if probe.shows_call():
        how = f"the chat template writes a call as {probe.text.strip()[:_SHOWN]!r}"
        fix = f"{_ANOTHER}. Read are: {', '.join(name for name in FORMATS if name not in (form, 'none'))}"
    else:
        how = "the chat template writes no calls"
        known = ", ".join(name for name, each in FORMATS.items() if each.signs and name != form)
        fix = f"{_SET} the way in which the model was trained to write calls, one of {known}; else {_ANOTHER}"
    if form == "none":
        return _problem(f"how this model writes tool calls could not be read off its chat template: {how}", fix)
    return _problem(f"a tool call is not read back, with {_SETTING} = {form!r}: {how}", other or fix)


def _problem(what: str, fix: str) -> CallProblem:
    return CallProblem(f"{OFFERS_TOOLS} {what}", fix)
