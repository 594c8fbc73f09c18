import pytest

from astune.errors import StoreError
from astune.online.store.trace import AnswerTrace, VersionTrace, trace
from astune.store.database import Database
from tests.store.databases import database as database
from tests.store.databases import url as url
from tests.store.rows import add_feedback, add_request, add_version


@pytest.fixture
def filled(database: Database) -> Database:
    """An exchange of two requests that is judged by its second, trained into v1, on which v2 and v3 were made."""
    with database.writing() as connection:
        first = add_request(connection, "chatcmpl-1", "conv", "2+2?", user="ana", task_id="sum", version=0)
        add_request(
            connection,
            "chatcmpl-2",
            "conv",
            "tool: 4",
            user="ana",
            task_id="sum",
            exchange="chatcmpl-1",
            follows="chatcmpl-1",
        )
        add_request(connection, "chatcmpl-3", "other", "hello", version=1)
        add_feedback(connection, "ana", ["chatcmpl-2"], value=1.0, comment="right")
        add_feedback(connection, "bo", ["chatcmpl-3"], value=0.0)
        add_feedback(connection, "bo", ["chatcmpl-9"], state="waits", value=0.0)
        add_version(connection, 0, None, {})
        add_version(connection, 1, 0, {"commit-1/0": (first, ["chatcmpl-1", "chatcmpl-2"])})
        add_version(connection, 2, 1, {})
        add_version(connection, 3, 1, {})
    return database


def test_an_answer_is_traced_to_the_version_that_came_of_it(filled: Database) -> None:
    with filled.reading() as connection:
        found = trace(connection, "chatcmpl-1")
    assert isinstance(found, AnswerTrace)
    assert (found.conversation_id, found.user, found.task_id, found.version) == ("conv", "ana", "sum", 0)
    (turn,) = found.turns
    assert (turn.prompt_tokens, turn.output_tokens, turn.excluded) == (4, 2, None)
    (opinion,) = found.feedback
    assert (opinion.author, opinion.value, opinion.comment, opinion.named) == ("ana", 1.0, "right", ("chatcmpl-2",))
    (episode,) = found.episodes
    assert (episode.episode_id, episode.reward, episode.state, episode.version) == ("commit-1/0", 1.0, "trained", 1)
    (sample,) = episode.samples
    assert (sample.method, sample.advantage, sample.weight, sample.tokens) == ("policy", 0.5, 0.25, 2)
    with filled.reading() as connection:
        second, third = trace(connection, "chatcmpl-2"), trace(connection, "chatcmpl-3")
    assert isinstance(second, AnswerTrace) and isinstance(third, AnswerTrace)
    assert second.episodes[0].samples == () and len(second.feedback) == 1
    assert third.episodes == () and third.feedback[0].author == "bo"


def test_a_version_is_traced_to_the_answers_that_made_it(filled: Database) -> None:
    with filled.reading() as connection:
        found, last = trace(connection, "v1"), trace(connection, "v3")
    assert isinstance(found, VersionTrace) and isinstance(last, VersionTrace)
    assert (found.parents, found.children, found.answered, found.conversations) == ((0,), (2, 3), 1, 1)
    assert [sample.msg_id for sample in found.samples] == ["chatcmpl-1"]
    assert found.rewards == {"commit-1/0": 1.0} and found.figures == {"loss": 0.5}
    assert found.commit is not None and found.commit["by"] == "hand"
    assert last.parents == (1, 0) and last.samples == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chatcmpl-x", r"no answer 'chatcmpl-x' in the store\. Did you mean 'chatcmpl-\d'"),
        ("conv", "'conv' is a conversation, whose last answer is 'chatcmpl-2'"),
        ("chatcmpl-9", "feedback 3 names it and waits"),
        ("v12", "no version v12; the last is v3"),
        ("????????", r"The newest is 'chatcmpl-\d'"),
    ],
)
def test_what_is_not_there_is_an_error_with_the_nearest(filled: Database, text: str, message: str) -> None:
    with filled.reading() as connection, pytest.raises(StoreError, match=message):
        trace(connection, text)


def test_an_empty_store_says_so(database: Database) -> None:
    with database.reading() as connection:
        with pytest.raises(StoreError, match="nothing was recorded yet"):
            trace(connection, "chatcmpl-1")
        with pytest.raises(StoreError, match="there is none"):
            trace(connection, "v1")
