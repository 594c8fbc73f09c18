"""The SDK's protobuf messages, and the parts of its JSON that hold tokens (SDK 0.25 to 0.38)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tinker.proto import tinker_public_pb2 as pb

from astune.sampling import MOST_INTEGER, shorten
from astune.tinker_server.requests import RequestBody, RequestError
from astune.tinker_server.rows import TargetRow
from astune.tinker_server.versions import PromptScores
from astune.types import Generation, Sampling

PROTOBUF = "application/x-protobuf"
LOSS = "cross_entropy"
_MOST_WHOLE = 2**63
_LENGTH = pb.SampleResponse.DESCRIPTOR.fields_by_name["topk_prompt_logprobs"].message_type.fields_by_number[4].name
"""SDKs call this field of the message otherwise."""
_NOT_SERVED = ("topk_sample_logprobs", "target_prompt_logprobs", "prompt_alt_tokens_k", "record_stability_info")
"""Fields of a request to sample that newer SDKs have."""
TENSOR_DTYPES = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64, pb.DTYPE_INT32: np.int32}


@dataclass(frozen=True)
class Limits:
    """Limits of rows and prompts: token ids below `vocabulary`, at most `context_length` of them."""

    vocabulary: int
    context_length: int

    def check(self, ids: np.ndarray, where: str) -> None:
        if len(ids) == 0:
            raise RequestError(f"{where} has no tokens")
        if len(ids) > self.context_length:
            raise RequestError(f"{where} has {len(ids)} tokens, more than the context length of {self.context_length}")
        if ids.min() < 0 or ids.max() >= self.vocabulary:
            wrong = ids[(ids < 0) | (ids >= self.vocabulary)][0]
            raise RequestError(f"{where} has token id {wrong}, but the model knows 0 to {self.vocabulary - 1}")


def read_forward(body: bytes) -> Any:
    """The message of a request for gradients; its rows are read by `read_rows`."""
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise RequestError(f"the body is no ForwardBackwardRequest of the tinker SDK: {error}") from error
    return message


def read_rows(message: Any, limits: Limits) -> list[TargetRow]:
    if message.loss_fn != LOSS:
        raise RequestError(
            f"loss function {message.loss_fn!r} is not supported; use {LOSS!r}, or forward_backward_custom for any "
            "other loss over log-probabilities"
        )
    if configured := [str(value) for field, value in message.ListFields() if field.name.startswith("loss_fn_config")]:
        raise RequestError(f"{LOSS} takes no loss_fn_config, but got {shorten(configured[0])}")
    return [_row(datum, f"row {number}", limits) for number, datum in enumerate(message.data)]


def _row(datum: Any, where: str, limits: Limits) -> TargetRow:
    for chunk in datum.model_input:
        if chunk.WhichOneof("chunk") != "encoded_text":
            raise RequestError(f"{where} holds {chunk.WhichOneof('chunk')!r}, but this server takes only tokens")
    parts = [np.frombuffer(chunk.encoded_text.tokens, np.int32) for chunk in datum.model_input]
    tokens = np.concatenate([*parts, np.zeros(0, np.int32)]).astype(np.int64)
    limits.check(tokens, where)
    columns = [_tensor(datum.loss_fn_inputs, name, where) for name in ("target_tokens", "weights")]
    for name, column in zip(("target_tokens", "weights"), columns, strict=True):
        if column.shape != tokens.shape:
            raise RequestError(f"{where}: {name} has {column.size} entries for {len(tokens)} tokens")
    targets, weights = columns[0].astype(np.int64), columns[1].astype(np.float32)
    limits.check(targets, f"target_tokens of {where}")
    if not np.isfinite(weights).all():
        raise RequestError(f"weights of {where} are not all finite")
    return TargetRow(tokens, targets, weights)


def _tensor(inputs: Mapping[str, Any], name: str, where: str) -> np.ndarray:
    if name not in inputs:
        raise RequestError(f"{where} has no {name}; {LOSS} takes target_tokens and weights, one for each token")
    tensor = inputs[name]
    if tensor.WhichOneof("encoding") != "dense" or tensor.dtype not in TENSOR_DTYPES:
        raise RequestError(f"{name} of {where} must be a dense tensor of float32 or int64")
    return np.frombuffer(tensor.dense, TENSOR_DTYPES[tensor.dtype])


def forward_reply(logprobs: Sequence[np.ndarray], loss: float) -> bytes:
    sizes = np.cumsum([0, *(4 * len(row) for row in logprobs)])
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics={"loss:sum": loss})
    record = message.loss_fn_outputs.add(num_datums=len(logprobs))
    field = record.fields["logprobs"]
    field.data = np.concatenate([*logprobs, np.zeros(0, np.float32)]).astype(np.float32).tobytes()
    field.offsets = sizes.astype(np.int64).tobytes()
    field.dtype = pb.DTYPE_FLOAT32
    data: bytes = message.SerializeToString()
    return data


def sample_reply(generations: Sequence[Generation], scores: PromptScores | None) -> bytes:
    message = pb.SampleResponse()
    for generation in generations:
        message.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if generation.finish_reason == "stop" else pb.STOP_REASON_LENGTH,
            tokens=np.asarray(generation.output_ids, np.int32).tobytes(),
            logprobs=np.asarray(generation.logprobs, np.float32).tobytes(),
        )
    if scores is not None:
        message.prompt_logprobs = scores.logprobs.tobytes()
        length, top = scores.top_ids.shape
        if top:
            message.topk_prompt_logprobs.token_ids = scores.top_ids.tobytes()
            message.topk_prompt_logprobs.logprobs = scores.top_logprobs.tobytes()
            message.topk_prompt_logprobs.k = top
            setattr(message.topk_prompt_logprobs, _LENGTH, length)
    data: bytes = message.SerializeToString()
    return data


def read_prompt(body: Mapping[str, Any], limits: Limits) -> list[int]:
    """`body` is a `ModelInput`."""
    tokens: list[int] = []
    for chunk in body["chunks"]:
        if chunk["type"] != "encoded_text":
            raise RequestError(f"the prompt holds {chunk['type']!r}, but this server takes only tokens")
        tokens += chunk["tokens"]
    if any(not 0 <= token <= MOST_INTEGER for token in tokens):
        raise RequestError(f"the prompt has token ids outside 0 to {limits.vocabulary - 1}, all that the model knows")
    limits.check(np.asarray(tokens, np.int64), "the prompt")
    return tokens


def check_sample(body: RequestBody) -> None:
    """Check that a request to sample has values of the right kinds; that they can be served is seen when it runs."""
    for chunk in body.section("prompt").get("chunks") or ():
        if chunk["type"] == "encoded_text" and not all(type(token) is int for token in chunk["tokens"]):
            raise RequestError("the prompt holds token ids that are no integers")
    params = body.section("sampling_params")
    for name in params.pick("max_tokens", "top_k", "seed"):
        params.whole(name, -_MOST_WHOLE, _MOST_WHOLE)
    for name in params.pick("temperature", "top_p"):
        params.number(name)
    for name in body.pick("num_samples", "topk_prompt_logprobs"):
        body.whole(name)
    for name in body.pick("prompt_logprobs"):
        body.flag(name)
    for name in _NOT_SERVED:
        if body.get(name):
            raise RequestError(f"{name} is {shorten(body[name])}, which this server does not serve; leave it out")


def read_last(body: RequestBody, length: int) -> int | None:
    """The tokens at the end of the prompt that are to be scored; None: all."""
    return body.whole("prompt_logprobs_last_n", 1, length - 1) if body.pick("prompt_logprobs_last_n") else None


def check_optimizer(body: RequestBody) -> None:
    """Raises RequestError for an optimizer other than AdamW."""
    for name in body.pick("optimizer_config", "optimizer_params"):
        kind = body.section(name).get("type")
        if kind != "adamw":
            raise RequestError(f"{name}.type is {shorten(kind)}: this server trains with adamw alone")


def read_sampling(body: RequestBody, room: int, end_ids: Sequence[int], limits: Limits) -> Sampling:
    """`body` is a `SamplingParams`. Without `max_tokens` an answer may fill the `room` left in the context. It ends
    at `end_ids` and at what `stop` says; an empty list says that nothing ends it."""
    if room < 1:
        raise RequestError("the prompt fills the whole context")
    params = {name: body[name] for name in body.pick("max_tokens", "temperature", "top_p", "top_k", "seed")}
    if params.get("top_k", -1) == -1:
        params["top_k"] = 0
    ids, texts = _stops(body.get("stop"))
    if body.get("stop") == []:
        end_ids = ()
    if ids:
        limits.check(np.asarray(ids, np.int64), "stop")
    try:
        return Sampling(**({"max_tokens": room} | params), stop_token_ids=(*end_ids, *ids), stop=texts)
    except ValueError as error:
        raise RequestError(str(error)) from None


def _stops(stop: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Token ids and texts of the SDK's `stop`: a text, texts, token ids or nothing."""
    entries = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(entries, list):
        raise RequestError(f"stop {shorten(stop)}: a text, a list of texts or a list of token ids")
    ids = tuple(entry for entry in entries if type(entry) is int and 0 <= entry <= MOST_INTEGER)
    texts = tuple(entry for entry in entries if isinstance(entry, str) and entry)
    if len(ids) + len(texts) != len(entries):
        raise RequestError(f"stop {shorten(stop)}: a text, a list of texts or a list of token ids")
    return ids, texts
