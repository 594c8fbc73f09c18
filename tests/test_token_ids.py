"""Packed token ids and logprobs behave as the tuples of what they hold."""

import copy
import itertools
import pickle
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.token_ids import Logprobs, TokenIds

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=6).map(tuple)
SMALL = st.lists(st.integers(0, 1), max_size=4).map(tuple)
FLOATS = st.lists(st.floats(max_value=0.0, allow_nan=False), max_size=6).map(tuple)


@st.composite
def ropes(draw, ids=IDS):
    """(a rope of up to five pieces, the tuple it stands for)"""
    rope, plain = TokenIds(), ()
    for _ in range(draw(st.integers(0, 5))):
        piece = draw(ids)
        rope, plain = rope + piece, plain + piece
    return rope, plain


def follows_the_laws_of(sequence, plain):
    assert len(sequence) == len(plain)
    assert tuple(sequence) == plain
    assert tuple(reversed(sequence)) == plain[::-1]
    assert [sequence[place] for place in range(-len(plain), len(plain))] == [*plain, *plain]
    assert sequence == plain and plain == sequence and sequence == list(plain)
    assert hash(sequence) == hash(plain)
    assert bool(sequence) == bool(plain)
    assert all(item in sequence and sequence.count(item) == plain.count(item) for item in plain)
    assert all(sequence.index(item) == plain.index(item) for item in plain)
    for beyond in (len(plain), -len(plain) - 1):
        with pytest.raises(IndexError):
            sequence[beyond]


@given(ropes(), st.slices(12))
def test_ids_are_a_sequence_like_their_tuple(pair, part):
    rope, plain = pair
    follows_the_laws_of(rope, plain)
    assert rope[part] == plain[part]
    assert eval(repr(rope)) == rope


@given(FLOATS, st.slices(6))
def test_logprobs_are_a_sequence_like_their_tuple(plain, part):
    follows_the_laws_of(Logprobs(plain), plain)
    assert Logprobs(plain)[part] == plain[part]
    assert Logprobs(array("d", plain)) == Logprobs(plain)


@given(ropes(SMALL), ropes(SMALL))
def test_ids_are_equal_if_they_hold_the_same_whatever_their_links(one, other):
    assert (one[0] == other[0]) == (one[1] == other[1]) == (one[0] == other[1])
    assert (one[0] != other[0]) == (one[1] != other[1])
    assert one[0] != "text" and one[0] != set(one[1])


@given(FLOATS, FLOATS)
def test_logprobs_are_equal_if_they_hold_the_same(one, other):
    assert (Logprobs(one) == Logprobs(other)) == (one == other) == (Logprobs(one) == list(other))
    assert Logprobs(one) != "text"


@given(ropes(), IDS)
def test_an_extension_holds_what_it_extends_and_its_own(pair, new):
    rope, plain = pair
    longer = rope + new
    assert longer.before is rope
    assert longer.own == array("i", new).tobytes()
    assert longer == plain + new
    assert rope == plain
    assert longer + TokenIds(new) == plain + new + new


@given(ropes())
def test_packed_ids_are_native_32_bit_integers(pair):
    rope, plain = pair
    assert rope.pack() == array("i", plain).tobytes()
    assert TokenIds.from_packed(rope.pack()) == plain
    assert TokenIds.from_packed(array("i", plain).tobytes(), rope) == plain + plain


@given(ropes(), st.integers(0, 20))
def test_another_cut_is_the_same_value(pair, place):
    rope, plain = pair
    same = TokenIds(plain)
    same.share(TokenIds(plain[:place]), array("i", plain[place:]).tobytes())
    follows_the_laws_of(same, plain)
    assert same == rope


@given(ropes(), FLOATS)
def test_pickles_and_copies_are_equal(pair, logprobs):
    for value in (pair[0], Logprobs(logprobs)):
        assert pickle.loads(pickle.dumps(value)) == value
        assert copy.copy(value) is value and copy.deepcopy([value])[0] is value


def test_a_pickle_takes_four_bytes_a_token():
    ids = TokenIds(range(50_000)) + range(50_000)
    assert len(pickle.dumps(ids)) < 4 * 100_000 + 200


def test_what_is_packed_is_not_packed_again():
    ids, logprobs = TokenIds([1]), Logprobs([0.0])
    assert TokenIds.of(ids) is ids and Logprobs.of(logprobs) is logprobs
    assert TokenIds.of([1]) == ids and Logprobs.of([0.0]) == logprobs


@pytest.mark.parametrize("token", [2**31, 2**40])
def test_an_id_that_does_not_fit_is_refused(token):
    with pytest.raises(OverflowError):
        TokenIds([token])


def test_the_prompts_of_a_conversation_take_memory_linear_in_the_last_one():
    piece = list(range(300, 400))
    prompts = [TokenIds()]
    for _ in range(1000):
        prompts.append(prompts[-1] + piece)
    assert len(prompts[-1]) == 100_000
    assert all(longer.before is prompt for prompt, longer in itertools.pairwise(prompts))
    assert sum(len(ids.own) for ids in prompts) == 4 * 100_000


def test_a_very_long_chain_is_freed_without_recursion():
    ids = TokenIds()
    for number in range(200_000):
        ids = TokenIds([number], ids)
    assert ids[-1] == 199_999
    del ids
