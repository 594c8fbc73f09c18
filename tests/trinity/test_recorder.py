"""Figures of Trinity's trainer as the run folder has them. Runs without Trinity."""

from astune.backbone.trinity.driver.recorder import count_as_skipped


def test_the_tokens_of_a_skipped_train_step_count_as_left_out() -> None:
    figures = {"tokens/trained": 7.0, "tokens/sampled": 9.0, "tokens/dropped_greedy": 2.0, "updates/skipped": 1.0}
    figures |= count_as_skipped(figures)
    assert (figures["tokens/trained"], figures["tokens/dropped_skipped_update"]) == (0.0, 7.0)
