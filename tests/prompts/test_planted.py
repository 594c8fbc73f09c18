"""In a world with a known answer the search finds what helps, nothing else, and claims no gain where there is none."""

from astune.testing import PlantedPrompts
from astune.testing.planted_prompts import FIRST, INSTRUCTIONS
from benchmarks.prompts import run


def test_it_finds_all_that_helps_and_no_decoy_in_few_calls() -> None:
    for seed in (0, 1):
        outcome = run(PlantedPrompts(seed, 45, skill=0.6))
        assert (outcome.needed, outcome.decoys, outcome.rewards) == (4, 0, (0.0, 1.0))
        assert outcome.found.gained and outcome.found.searching.calls < 250


def test_a_reflector_that_is_never_right_leaves_the_first_prompt_and_no_gain_is_claimed() -> None:
    outcome = run(PlantedPrompts(2, 45, skill=0.0, noise=0.1))
    assert not outcome.found.gained and outcome.found.prompts == {"system": FIRST}


def test_a_reflector_that_quotes_a_customer_gets_nowhere() -> None:
    outcome = run(PlantedPrompts(3, 45, quotes=True), rounds=3)
    assert outcome.found.dropped >= 3 and outcome.found.candidate == "c0"


def test_the_model_does_what_its_prompt_says_and_what_harms_leaves_nothing() -> None:
    world = PlantedPrompts(0, 4, planted=["order_number", "link"])
    prompt = " ".join([FIRST, *(INSTRUCTIONS[name].wordings[1] for name in world.planted)])
    assert world.worth(FIRST) == 0.0 and world.worth(prompt) == 1.0 and world.finds(prompt) == world.planted
    assert world.worth(f"{prompt} Is one word.") == 0.0 and world.decoys(f"{prompt} Is one word.") == {"Is one word."}
