"""The messages between the environment service and its clients, version 1.

A call is `POST {url}/{name}` with a JSON object; all calls share AgentJet's envelope `env_type`, `task_id`,
`instance_id`, `messages`, `params`, and each reads the part of it that its class below names. A reply is
`{"success": true, "data": ...}`, or `{"success": false, "error": {"code", "message"}}` with a status of 400 or more.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field, FiniteFloat, ValidationError, field_validator

from astune.environment.environment_base import Action, Message, ToolCall
from astune.support.http.service import HttpError

VERSION = "1"
VERSION_HEADER = "Astune-Env-Protocol"
KEY_HEADER = "Idempotency-Key"

MAX_ID = 512
"""Characters of an instance's id."""

ERRORS = {
    "bad_request": (400, "The body is no JSON object, or a field of it is missing or wrong; the message names it."),
    "unauthorized": (401, "The service asks for a token, and the header `Authorization: Bearer TOKEN` has another."),
    "forbidden": (
        403,
        "A page of a browser asks, or the service is asked for by a name: that needs a token.",
    ),
    "unknown_call": (404, "There is no such call."),
    "unknown_env_type": (404, "The service does not serve this type of environment."),
    "unknown_split": (404, "The environment has no such split."),
    "unknown_task": (404, "The environment has no such task."),
    "unknown_instance": (404, "There never was such an instance, or it was released, or not used for too long."),
    "method_not_allowed": (405, "Calls are POST; `/health` and `/metrics` are GET."),
    "instance_exists": (409, "The id belongs to an instance of another task."),
    "terminated": (409, "The instance has ended; it can be evaluated and released."),
    "too_large": (413, "The body is larger than the service takes."),
    "no_json": (415, "The body does not say `Content-Type: application/json`."),
    "environment_failed": (500, "The environment raised; the message says what. The instance stays."),
    "full": (503, "As many instances live as the service has room for; the header Retry-After says when to ask again."),
    "stopping": (503, "The service is ending."),
}
"""By code: the HTTP status, and what it means."""


class CallError(HttpError):
    """A call that cannot be answered; becomes the reply of the same code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(ERRORS[code][0], code, message)


class ServiceReply(NamedTuple):
    """The HTTP status and body of a reply."""

    status: int
    body: bytes


def success(data: Any) -> ServiceReply:
    """Raises `TypeError` or `ValueError` for what JSON does not have, infinity among it."""
    return ServiceReply(200, b'{"success":true,"data":%s}' % _json(data))


def failure(error: HttpError) -> ServiceReply:
    described = {"code": error.code, "message": error.message}
    return ServiceReply(error.status, b'{"success":false,"error":%s}' % _json(described))


def _json(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


# -- requests -----------------------------------------------------------------------------------------------------


class ProfileParams(BaseModel):
    split: str = Field("train", description="which tasks")


class ProfileRequest(BaseModel):
    """`get_env_profile`: the ids of a split's tasks."""

    env_type: str | None = Field(None, description="may be left out where the service has one type")
    params: ProfileParams | None = None


class CreateRequest(BaseModel):
    """`create`: a new instance. The client chooses its id, so that a repeat makes no second one."""

    env_type: str | None = Field(None, description="may be left out where the service has one type")
    task_id: str
    instance_id: str = Field(min_length=1, max_length=MAX_ID, description="unique among all clients of the service")
    params: dict[str, Any] | None = Field(None, description="for the environment")


class FunctionCall(BaseModel):
    name: str
    arguments: str | dict[str, Any] = Field("{}", description="a JSON object, as text or as such")


class ToolCallMessage(BaseModel):
    id: str
    function: FunctionCall


class TextPart(BaseModel):
    type: str
    text: str = ""


class AssistantMessage(BaseModel):
    """What the agent said, in OpenAI's shape; other fields are not looked at."""

    role: str = Field("assistant", pattern="^assistant$")
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCallMessage] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StepRequest(BaseModel):
    """`step`: the agent's message. In place of one message a list is taken, too, of which the last counts.

    With the header `Idempotency-Key` of the instance's last step it returns that step's reply and does not act.
    """

    instance_id: str
    messages: AssistantMessage

    @field_validator("messages", mode="before")
    @classmethod
    def _last_of_a_list(cls, value: Any) -> Any:
        if isinstance(value, list):
            if not value:
                raise ValueError("no message in the list")
            return value[-1]
        return value


class InstanceRequest(BaseModel):
    """`evaluate` and `release`."""

    instance_id: str


class InfoRequest(BaseModel):
    """`get_info`: of an instance, or without `instance_id` of a type of environment."""

    env_type: str | None = None
    instance_id: str | None = None


# -- replies: the `data` of each ----------------------------------------------------------------------------------


class Created(BaseModel):
    """Of `create`."""

    class Info(BaseModel):
        instance_id: str
        tools: list[dict[str, Any]] = Field(description="in OpenAI's shape; empty where actions are text")

    state: list[dict[str, Any]] = Field(description="the messages that the agent starts from")
    reward: FiniteFloat = Field(description="always 0")
    is_terminated: bool = Field(description="always false")
    info: Info


class Stepped(BaseModel):
    """Of `step`."""

    state: list[dict[str, Any]] = Field(description="what the agent sees: messages of role `tool` or `user`")
    reward: FiniteFloat = Field(description="of this step alone")
    is_terminated: bool
    info: dict[str, Any]


class InstanceInfo(BaseModel):
    """Of `get_info` with `instance_id`."""

    env_type: str
    task_id: str
    instance_id: str
    tools: list[dict[str, Any]]
    steps: int
    is_terminated: bool
    age: float = Field(description="seconds since it was made")


class EnvironmentInfo(BaseModel):
    """Of `get_info` without `instance_id`."""

    env_type: str


class Failure(BaseModel):
    class Error(BaseModel):
        code: str = Field(json_schema_extra={"enum": list(ERRORS)})
        message: str

    success: bool = Field(json_schema_extra={"const": False})
    error: Error


# -- parsing ------------------------------------------------------------------------------------------------------

Request = TypeVar("Request", bound=BaseModel)


def parse(model: type[Request], body: bytes) -> Request:
    """Raises `CallError` bad_request that names each wrong field."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in error.errors()]
        raise CallError("bad_request", "; ".join(faults)) from None


def read_action(message: AssistantMessage) -> Action | tuple[Message, ...]:
    """The action; or, where a tool's arguments are no JSON object, what the agent is told of each call, as none of them
    is carried out: it is the agent's mistake, not the client's."""
    calls, faults = [], {}
    for call in message.tool_calls or ():
        arguments = call.function.arguments
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError) as error:
                faults[call.id] = f"the arguments of {call.function.name} are no JSON: {error}"
                continue
        if isinstance(arguments, dict):
            calls.append(ToolCall(call.id, call.function.name, arguments))
        else:
            faults[call.id] = f"the arguments of {call.function.name} are no JSON object"
    if faults:
        other = "not carried out, as another call of this message has wrong arguments"
        return tuple(
            {"role": "tool", "tool_call_id": call.id, "content": f"Error: {faults.get(call.id, other)}"}
            for call in message.tool_calls or ()
        )
    return Action(message.text, tuple(calls))


# -- the schema ---------------------------------------------------------------------------------------------------

CALLS: dict[str, tuple[type[BaseModel], list[Any]]] = {
    "get_env_profile": (ProfileRequest, [{"type": "array", "items": {"type": "string"}}]),
    "create": (CreateRequest, [Created]),
    "step": (StepRequest, [Stepped]),
    "evaluate": (InstanceRequest, [{"type": "number"}]),
    "get_info": (InfoRequest, [InstanceInfo, EnvironmentInfo]),
    "release": (InstanceRequest, [{"type": "boolean"}]),
}
"""By call: its request, and what its `data` may be."""
