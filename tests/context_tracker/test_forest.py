"""The compressed trie against a plain set of prefixes."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from astune.context_tracker.merge import PrefixForest, path
from astune.token_ids import TokenIds

TOKENS = st.lists(st.integers(0, 2), max_size=8).map(tuple)


def spelled(node):
    """What is written from the root to `node`."""
    data = b"".join(reversed([each.own for each in path(node)]))
    return tuple(memoryview(data).cast("i").tolist())


def prefixes(sequences):
    return {ids[: place + 1] for ids in sequences for place in range(len(ids))}


@st.composite
def ropes(draw):
    """Sequences, most of which extend an earlier one's object, by nothing too; and equal ones that do not."""
    made = [TokenIds()]
    for _ in range(draw(st.integers(0, 8))):
        base = draw(st.sampled_from([*made, None]))
        made.append(TokenIds(draw(TOKENS), base))
        if draw(st.integers(0, 3)) == 0:
            made.append(TokenIds(tuple(made[-1])[: draw(st.integers(0, 8))]))
    return draw(st.permutations(made))


@given(ropes())
def test_every_path_spells_what_was_inserted_whatever_is_split_later(sequences):
    said = [tuple(ids) for ids in sequences]
    forest = PrefixForest()
    ends = [forest.insert(ids) for ids in sequences]
    assert [spelled(end) for end in ends] == said
    assert [tuple(end.ids) for end in ends] == said
    assert [tuple(ids) for ids in sequences] == said
    assert [forest.insert(ids) for ids in sequences] == ends


@given(ropes())
def test_each_token_is_held_once_per_context(sequences):
    forest = PrefixForest()
    for ids in sequences:
        forest.insert(ids)
    expected = prefixes([tuple(ids) for ids in sequences])
    assert forest.unique_tokens == len(expected)
    nodes = list(forest.nodes())
    assert sum(len(node.own) // 4 for node in nodes) == len(expected)
    assert prefixes([spelled(node) for node in nodes]) == expected


@given(ropes())
def test_sequences_that_share_objects_give_the_same_tree_as_sequences_that_do_not(sequences):
    flat = [TokenIds(tuple(ids)) for ids in sequences]
    linked, plain = PrefixForest(), PrefixForest()
    for ids, copy in zip(sequences, flat, strict=True):
        assert spelled(linked.insert(ids)) == spelled(plain.insert(copy))
    assert linked.unique_tokens == plain.unique_tokens
    assert {spelled(node) for node in plain.nodes()} <= {spelled(node) for node in linked.nodes()}


@given(ropes())
def test_nodes_come_after_their_parents_and_no_two_children_begin_alike(sequences):
    forest = PrefixForest()
    for ids in sequences:
        forest.insert(ids)
    seen = set()
    for node in forest.nodes():
        assert node.parent is None or id(node.parent) in seen
        assert all(key == child.own[:4] and child.parent is node for key, child in node.children.items())
        seen.add(id(node))


def test_two_forests_of_the_same_objects_both_stay_right():
    for seed in range(300):
        chance = Random(seed)
        made = [TokenIds()]
        forests = [PrefixForest(), PrefixForest(), PrefixForest()]
        said = [()]
        held = []
        for _ in range(12):
            more = [chance.randrange(2) for _ in range(chance.randrange(5))]
            base = chance.choice([*made, None])
            made.append(TokenIds(more, base))
            said.append((() if base is None else tuple(base)) + tuple(more))
            for forest in chance.sample(forests, 2):
                number = chance.randrange(len(made))
                held.append((forest.insert(made[number]), number))
        assert [tuple(ids) for ids in made] == said
        assert all(spelled(node) == tuple(node.ids) == said[number] for node, number in held)


def test_the_children_keep_the_order_in_which_they_came():
    forest = PrefixForest()
    for last in (3, 1, 2):
        forest.insert(TokenIds([9, last]))
    assert [spelled(node) for node in forest.nodes()] == [(), (9,), (9, 3), (9, 1), (9, 2)]


def test_equal_prompts_that_were_made_separately_are_held_once():
    """A template that rewrites history gives a new list of ids at every call."""
    chance = Random(0)
    text = [chance.randrange(100_000) for _ in range(20_000)]
    forest = PrefixForest()
    prompts = [TokenIds([*text, number, number]) for number in range(50)]
    for prompt in prompts:
        forest.insert(prompt)
    held = {}
    for ids in prompts:
        while ids is not None:
            held[id(ids.own)] = len(ids.own) // 4
            ids = ids.before
    assert sum(held.values()) == forest.unique_tokens == 20_000 + 2 * 50


def test_a_very_long_chain_of_objects_is_read_and_freed_without_recursion():
    ids = TokenIds()
    for number in range(100_000):
        ids = TokenIds([number], ids)
    forest = PrefixForest()
    end = forest.insert(ids)
    assert len(end.ids) == forest.unique_tokens == 100_000
    del forest, end
    assert ids[-1] == 99_999
    del ids
