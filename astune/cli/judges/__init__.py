"""Commands about rewards: what judges say of labelled answers, of recorded episodes, and rubrics that are learned."""
