"""Models that judge: one answer, pairs, lists, by a prompt or by a rubric."""
