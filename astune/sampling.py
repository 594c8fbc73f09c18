"""The settings of sampling, their limits, what counts as greedy, and what is taken out of a prompt beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LEAST_TEMPERATURE = 0.01
"""Below it the likeliest token is drawn but for near-ties, and gradients grow more than a hundredfold: greedy."""
MOST_TEMPERATURE = 100.0
"""At it every token of a vocabulary is about as likely as any other."""
LEAST_TOP_P = 0.001
"""Up to it only the likeliest token is ever drawn: no model spreads its first choice thinner."""
MOST_INTEGER = 2**31 - 1
"""Greatest value of `max_tokens` and `top_k`."""
TEMPERATURE = f"a number from 0 (greedy) to {MOST_TEMPERATURE:g}"
TOP_P = "a number above 0, at most 1"


def is_greedy(temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> bool:
    """True if such a draw leaves nothing to chance. Greedy answers are not trained."""
    return temperature < LEAST_TEMPERATURE or top_p <= LEAST_TOP_P or top_k == 1


@dataclass(frozen=True)
class Sampling:
    """The settings by which one answer is drawn. Checked at birth, so that no value is lost in float32; settings that
    leave nothing to chance (`is_greedy`) become temperature 0 without top-p and top-k.

    >>> Sampling(8, temperature=1e-6) == Sampling(8, top_k=1) == Sampling(8, temperature=0)
    True

    Raises ValueError for a value of the wrong kind or out of its range, naming it.
    """

    max_tokens: int
    temperature: float = 1.0
    """0 (greedy), or from `LEAST_TEMPERATURE` to `MOST_TEMPERATURE`."""
    top_p: float = 1.0
    """The smallest set of likeliest tokens whose probabilities reach it is kept: one at least."""
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends after the first of these; it is part of the output."""
    stop: tuple[str, ...] = ()
    """Generation ends after the token that completes the first of these texts; it is part of the output."""
    seed: int | None = None
    """Equal seed, prompt, weights: equal answer, whatever else runs beside it."""
    model: str = ""
    """The one of `astune.models` that answers; empty where there is only one."""

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, f"an integer from 1 to {MOST_INTEGER}", 1, MOST_INTEGER, whole=True)
        _check("temperature", self.temperature, TEMPERATURE, 0, MOST_TEMPERATURE)
        _check("top_p", self.top_p, TOP_P, 0, 1)
        _check("top_k", self.top_k, f"an integer from 0 (all tokens) to {MOST_INTEGER}", 0, MOST_INTEGER, whole=True)
        if self.top_p == 0:
            raise ValueError(f"top_p is 0; expected {TOP_P}")
        if not all(map(is_text, self.stop)):
            raise ValueError(f"stop is {shorten(self.stop)}; expected texts that UTF-8 can write")
        if is_greedy(self.temperature, self.top_p, self.top_k):
            for name, value in (("temperature", 0.0), ("top_p", 1.0), ("top_k", 0)):
                object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is taken each time."""
        return self.temperature == 0


def _check(name: str, value: object, expected: str, least: float, most: float, *, whole: bool = False) -> None:
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        raise ValueError(f"{name} is {shorten(value)}; expected {expected}")


def is_text(value: object) -> bool:
    """Half of a surrogate pair is none."""
    return isinstance(value, str) and value.encode(errors="replace") == value.encode(errors="surrogatepass")


def shorten(value: object, most: int = 100) -> str:
    """The value for a message. Python refuses to write integers of more than 4,300 digits."""
    text = f"an integer of {value.bit_length()} bits" if isinstance(value, int) and abs(value) >> 1024 else repr(value)
    return text if len(text) <= most else f"{text[:most]}..."


@dataclass(frozen=True)
class ContextCut:
    """A cut that the run made in a conversation that was nearly as long as the model's context
    (`astune.rollout.context`)."""

    strategy: Literal["discard", "summarise", "restart"]
    messages: int
    """Messages that were taken out, of which with "discard" the text alone."""
    prompt_tokens: int
    """Tokens of the prompt as it would have been."""
    summary: int | None = None
    """The number of the turn that stands in their place; None with "discard"."""
