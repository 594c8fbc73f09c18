import itertools
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astune.online.store.requests import (
    RecordedRequest,
    RecordedTurn,
    TurnPlace,
    conversation_of_history,
    exclude,
    expose,
    find_request,
    load_conversation,
    pack_ids,
    pack_logprobs,
    record,
    requests_in,
    unpack_ids,
    unpack_logprobs,
)
from astune.online.store.retention import DeletionScope, delete
from astune.store import tables
from astune.store.database import Database
from astune.token_ids import Logprobs, TokenIds
from astune.types import Turn
from tests.store.databases import one_database

_NUMBERS = itertools.count()
database = one_database


def message(role: str, text: str, **more: object) -> dict[str, object]:
    return {"role": role, "content": text, **more}


def a_request(
    number: int, conversation: str, turns: tuple[RecordedTurn, ...], follows: TurnPlace | None = None, **more: object
) -> RecordedRequest:
    fields = {"client": "", "user": "ana", "task_id": None, "run_id": None, "agent": "policy", "model": "m"} | more
    msg_id = f"{conversation}-{number}"
    return RecordedRequest(
        msg_id=msg_id,
        conversation_id=conversation,
        exchange=msg_id,
        follows=follows,
        seen=number,
        asked=float(number),
        answered=number + 0.5,
        turns=turns,
        **fields,
    )


texts = st.text(st.characters(codec="utf-8"), max_size=6)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)


@st.composite
def conversations(draw: st.DrawFn) -> list[RecordedRequest]:
    """Requests that go on from any earlier answer, with histories and prompts that were changed, or from none."""
    name = f"c{next(_NUMBERS)}"
    requests: list[RecordedRequest] = []
    places: list[tuple[TurnPlace, Turn]] = []
    for number in range(draw(st.integers(1, 6))):
        followed = draw(st.none() | st.integers(0, len(places) - 1)) if places else None
        messages: tuple[object, ...] = ()
        prompt: tuple[int, ...] = ()
        tools: tuple[object, ...] = tuple({"name": text} for text in draw(st.lists(texts, max_size=2)))
        if followed is not None:
            before = places[followed][1]
            said, sent = (*before.messages, before.response), (*before.prompt_ids, *before.output_ids)
            messages = said[: draw(st.integers(0, len(said)))]
            prompt = sent[: draw(st.integers(0, len(sent)))]
            tools = before.tools if draw(st.booleans()) else tools
        messages = (*messages, *draw(st.lists(texts.map(lambda text: message("user", text)), min_size=1, max_size=3)))
        prompt = (*prompt, *draw(ids), 7)
        turns = tuple(
            RecordedTurn(
                Turn(
                    "policy",
                    prompt,
                    sampled := draw(ids),
                    [-0.125 * (place + 1) for place in range(len(sampled))],
                    draw(st.integers(0, 3)),
                    draw(st.sampled_from(["stop", "length"])),
                    temperature=draw(st.sampled_from([1.0, 0.7])),
                    fork=draw(st.sampled_from([None, "branch"])),
                    follows=followed,
                    messages=messages,
                    tools=tools,
                    response=message("assistant", draw(texts)),
                    call=len(places) + choice,
                ),
                history=f"{name}-{number}-{choice}",
                forced=draw(st.integers(0, 1)),
                shown=draw(st.none() | st.just(0)),
            )
            for choice in range(draw(st.integers(1, 3)))
        )
        request = a_request(number, name, turns, None if followed is None else places[followed][0])
        requests.append(request)
        places += [(TurnPlace(request.msg_id, choice), each.turn) for choice, each in enumerate(turns)]
    return requests


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=conversations())
def test_a_conversation_comes_back_as_it_was_written(database: Database, requests: list[RecordedRequest]) -> None:
    turns = [recorded.turn for request in requests for recorded in request.turns]
    with database.writing() as connection:
        for number, request in enumerate(requests):
            follows = request.turns[0].turn.follows
            assert record(connection, request, None if follows is None else turns[follows]) == number
    with database.reading() as connection:
        assert load_conversation(connection, requests[0].conversation_id) == requests


def turn(prompt: list[int], output: list[int], messages: int = 1, **more: object) -> Turn:
    sent = tuple(message("user", str(number)) for number in range(messages))
    logprobs = [-1.0] * len(output)
    return Turn(
        "policy", prompt, output, logprobs, 0, "stop", messages=sent, response=message("assistant", "a"), **more
    )


def test_what_a_request_repeats_is_not_written_again(database: Database) -> None:
    name = f"c{next(_NUMBERS)}"
    first = turn([1, 2, 3], [4, 5])
    then = Turn(
        "policy",
        [1, 2, 3, 4, 5, 6],
        [7],
        [-1.0],
        0,
        "stop",
        messages=(*first.messages, first.response, message("user", "more")),
        response=message("assistant", "b"),
        follows=0,
    )
    with database.writing() as connection:
        record(connection, a_request(0, name, (RecordedTurn(first, f"{name}0"),)))
        place = TurnPlace(f"{name}-0", 0)
        record(connection, a_request(1, name, (RecordedTurn(then, f"{name}1"),) * 2, place), first)
        rows = connection.execute(tables.turns.select().where(tables.turns.c.msg_id == f"{name}-1")).all()
        messages = connection.execute(tables.requests.select().where(tables.requests.c.msg_id == f"{name}-1")).one()
    assert messages.messages_kept == 2 and messages.messages == [message("user", "more")] and messages.tools is None
    assert [(row.prompt_kept, len(row.prompt_ids)) for row in rows] == [(5, 4), (6, 0)]


def test_a_conversation_is_found_by_its_history_and_each_of_two_goes_on_by_itself(database: Database) -> None:
    one, two, history = f"c{next(_NUMBERS)}", f"c{next(_NUMBERS)}", f"h{next(_NUMBERS)}"
    with database.writing() as connection:
        for name in (one, two):
            record(connection, a_request(0, name, (RecordedTurn(turn([1], [2]), history),)))
        assert conversation_of_history(connection, ["unknown", history]) == two
        on = RecordedTurn(turn([1, 2, 3], [4], 3, follows=0), f"{history}-on")
        record(connection, a_request(1, two, (on,), TurnPlace(f"{two}-0", 0)), turn([1], [2]))
        assert conversation_of_history(connection, [history]) == one
        assert conversation_of_history(connection, [f"{history}-on", history]) == two
        assert conversation_of_history(connection, ["unknown"]) is None
        assert requests_in(connection, two) == 2
        assert requests_in(connection, "nobody's") == 0
        assert find_request(connection, f"{two}-1") == two
        assert find_request(connection, "nobody's") is None
    with database.reading() as connection:
        assert load_conversation(connection, "nobody's") == []


def test_turns_are_excluded_once_and_exposures_are_remembered_once(database: Database) -> None:
    name = f"c{next(_NUMBERS)}"
    with database.writing() as connection:
        record(connection, a_request(0, name, (RecordedTurn(turn([1], [2]), name), RecordedTurn(turn([1], [3]), name))))
        exclude(connection, [TurnPlace(f"{name}-0", 1)], "retried")
        exclude(connection, [TurnPlace(f"{name}-0", 1)], "again")
        for now in (5.0, 6.0):
            expose(connection, name, 3, now)
    with database.reading() as connection:
        (loaded,) = load_conversation(connection, name)
        assert [recorded.turn.excluded for recorded in loaded.turns] == [None, "retried"]
        rows = connection.execute(tables.exposures.select().where(tables.exposures.c.conversation_id == name)).all()
    assert [tuple(row) for row in rows] == [(name, 3, 5.0)]


@given(ids)
def test_ids_are_packed_as_four_bytes_the_lowest_first(given_ids: list[int]) -> None:
    data = pack_ids(TokenIds(given_ids))
    assert data == b"".join(number.to_bytes(4, "little") for number in given_ids)
    assert unpack_ids(data) == given_ids


@given(st.lists(st.floats(width=64)))
def test_logprobs_come_back_bit_for_bit(values: list[float]) -> None:
    assert pack_logprobs(unpack_logprobs(pack_logprobs(Logprobs(values)))) == pack_logprobs(Logprobs(values))


def test_a_conversation_that_was_deleted_under_way_begins_anew(database: Database) -> None:
    name = f"c{next(_NUMBERS)}"
    first = Turn("policy", [1, 2], [3], [-0.5], 0, "stop", messages=(message("user", "a"),), response=message("x", "b"))
    second = replace(
        first, prompt_ids=[1, 2, 3, 4], messages=(*first.messages, first.response, message("user", "c")), follows=0
    )
    with database.writing() as connection:
        record(connection, a_request(0, name, (RecordedTurn(first, "one"),)))
    delete(database, DeletionScope(conversation=name), role="command", now=1.0)
    place = TurnPlace(f"{name}-0", 0)
    with database.writing() as connection:
        later = replace(a_request(1, name, (RecordedTurn(second, "two"),), place), exchange=f"{name}-0")
        assert record(connection, later, first) == 0
    with database.reading() as connection:
        (found,) = load_conversation(connection, name)
    assert (found.follows, found.exchange, found.turns[0].turn) == (None, f"{name}-1", replace(second, follows=None))
