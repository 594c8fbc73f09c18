"""Sixty faults of one line each: what is wrong with it, the file, the text that stands there and the text that would be
the fault, and the test files that have to notice.

`old` stands once in its file. Where the code has changed so that it no longer does, the fault is planted at what does
the same now, never left out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`tests` are parts of `tests/`; one failing test in them is enough."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def faults_in(file: str, tests: str, *planted: tuple[str, str, str]) -> list[Fault]:
    """The faults of a file: (what is wrong, old, new) each."""
    return [
        Fault(what, f"astune/{file}", old, new, tuple(f"tests/{each}" for each in tests.split()))
        for what, old, new in planted
    ]


MERGE_AND_CREDIT = [
    *faults_in(
        "context_tracker/merge.py",
        "context_tracker/test_timeline.py context_tracker/test_histories.py",
        (
            "the last token of a turn is not trained",
            "stop=start + len(turn.output_ids)",
            "stop=start + len(turn.output_ids) - 1",
        ),
        (
            "an agent goes on with another one's timeline",
            "(earlier.agent, earlier.exact, earlier.model) == (turn.agent, turn.exact, turn.model)",
            "(earlier.exact, earlier.model) == (turn.exact, turn.model)",
        ),
        (
            "ids made from text go on from an engine's",
            "(earlier.agent, earlier.exact, earlier.model) == (turn.agent, turn.exact, turn.model)",
            "(earlier.agent, earlier.model) == (turn.agent, turn.model)",
        ),
        ("the first of repeated answers is taken out in place of the last", "same[-n:]", "same[:n]"),
        ("another reason replaces the one that a turn was taken out for", "turn.excluded or reason", "reason"),
        ("the turns of a branch come backwards", "spans.reverse()", "spans.sort(key=lambda span: -span.turn)"),
        (
            "every branch is in one timeline",
            "self._places[before].after == number",
            "self._places[before].after is not None",
        ),
        ("frozen turns are trained", "trainable=turn.trainable", "trainable=True"),
        ("the age of tokens is lost", "policy_version=turn.policy_version", "policy_version=0"),
    ),
    *faults_in(
        "context_tracker/merge.py",
        "context_tracker/test_forest.py",
        ("shared tokens are counted again", "len(link.own) // WIDTH", "len(link)"),
    ),
    *faults_in(
        "algorithm/credit.py",
        "algorithm/test_credit.py algorithm/test_samples.py",
        ("a turn's reward goes to the turns after it", "in reversed(timeline.spans)", "in timeline.spans"),
        ("each branch gets only a part of the loss", 'if credit == "mean_branch" else', 'if credit != "once" else'),
        ("branches count the turns that they share once only", '(credit == "once" and span.shared)', "span.shared"),
        (
            "rewritten conversations add up in place of their mean",
            "math.fsum(later) / len(later) if",
            "math.fsum(later) if",
        ),
        (
            "an agent's own reward is lost",
            "base = self.of_agent.get(timeline.agent, self.outcome)",
            "base = self.outcome",
        ),
        (
            "who did not act is compared too",
            "if agent is None or any(turn.agent == agent for turn in episode.turns)",
            "",
        ),
    ),
    *faults_in(
        "algorithm/aggregation.py",
        "algorithm/test_samples.py context_tracker/test_histories.py",
        ("a shared turn weighs as much as a whole one", "entry.share / (len(sizes)", "1.0 / (len(sizes)"),
        ("`constant` depends on the lengths", "float(max_tokens)", "float(sum(sizes.values()))"),
    ),
    *faults_in(
        "algorithm/advantage.py",
        "algorithm/test_advantages.py",
        (
            "rloo has its own reward in its baseline",
            "len(rewards) / others if others else 0.0",
            "1.0 if others else 0.0",
        ),
    ),
    *faults_in(
        "backbone/losses/critic.py",
        "algorithm/test_gae.py",
        ("the advantage of later tokens is not discounted", "gamma * lam * later", "lam * later"),
    ),
]

LOSSES = [
    *faults_in(
        "backbone/losses/policy.py",
        "backbone/losses",
        (
            "what the clipping forbids is taken",
            "-torch.minimum(ratio * advantage, clipped",
            "-torch.maximum(ratio * advantage, clipped",
        ),
        (
            "the upper bound of the ratio is the lower one's",
            "1.0 + config.clip_high\n    clipped",
            "1.0 + config.clip_low\n    clipped",
        ),
        (
            "dual clipping cuts what is encouraged too",
            "torch.where(entries.advantage < 0, torch.minimum(loss, most), loss)",
            "torch.minimum(loss, most)",
        ),
        (
            "cispo has a lower bound",
            "ratio.clamp(max=1.0 + config.clip_high)",
            "ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)",
        ),
        (
            "minirl drops unlikely tokens that are encouraged",
            "(ratio < 1.0 - config.clip_low * wide) & (entries.advantage < 0)",
            "ratio < 1.0 - config.clip_low * wide",
        ),
        ("importance is left out beside a mask", "(loss * ratio).masked_fill", "loss.masked_fill"),
    ),
    *faults_in(
        "backbone/losses/entries.py",
        "backbone/losses",
        ("what a token pays for begins after it", "until[last] - until + exact", "until[last] - until"),
    ),
    *faults_in(
        "backbone/losses/objective.py",
        "backbone/losses",
        (
            "k3 has the wrong direction",
            "bound(-difference)) - 1 + difference",
            "bound(difference)) - 1 - difference",
        ),
    ),
    *faults_in(
        "backbone/losses/objective.py",
        "backbone/local/test_objective.py",
        ("a teacher is compared with who sampled", "teacher - entries.logprob.detach()", "teacher - entries.sampled"),
    ),
    *faults_in(
        "backbone/losses/critic.py",
        "backbone/local/test_critic.py::test_value_loss_and_explained_variance_by_hand",
        ("a clipped value gains by moving on", "torch.maximum(squared", "torch.minimum(squared"),
    ),
]

GATEWAY = [
    *faults_in(
        "gateway/api_request.py",
        "gateway",
        ("of two calls both are given though one was asked for", "calls[:1]", "calls[:2]"),
        (
            "the tokens of one answer of several count",
            "sum(answer.completion_tokens for answer in answers)",
            "answers[0].completion_tokens",
        ),
        ("a log-probability that is no number is written", "each if math.isfinite(each) else None for", "each for"),
    ),
    *faults_in(
        "gateway/api_request.py",
        "gateway/test_requests.py gateway/test_server.py",
        ("the larger of two limits holds", "min(most)", "max(most)"),
    ),
    *faults_in(
        "gateway/messages.py",
        "gateway/test_requests.py",
        (
            "JSON is forced where a call may come",
            'if not (arguments["tools"] and arguments.get("may_call", True)):',
            "if True:",
        ),
    ),
    *faults_in(
        "gateway/http.py",
        "gateway",
        ("a message does not say the code that frameworks look for", 'f"{error} ({_CONTEXT_EXCEEDED})"', "str(error)"),
    ),
    *faults_in(
        "gateway/http.py",
        "gateway/test_client.py gateway/test_server.py gateway/test_capture.py",
        ("clients are told to ask again", '"x-should-retry": "false"', '"x-should-retry": "true"'),
    ),
    *faults_in(
        "support/http/service.py",
        "gateway/test_doors.py gateway/test_large_requests.py",
        (
            "half of a pair of characters gets in",
            "json.dumps(value, ensure_ascii=False).encode()",
            "json.dumps(value).encode()",
        ),
    ),
    *faults_in(
        "gateway/completions.py",
        "gateway/test_requests.py gateway/test_odd_requests.py",
        ("a negative number is a token", "0 <= each <= _MOST_TOKEN_ID", "each <= _MOST_TOKEN_ID"),
    ),
    *faults_in(
        "gateway/responses_request.py",
        "gateway/test_responses.py",
        ("events are numbered from one", "enumerate(_events(response))", "enumerate(_events(response), start=1)"),
    ),
]

STORE_AND_ONLINE = [
    *faults_in(
        "online/store/leases.py",
        "store",
        (
            "a lease that ran out is renewed",
            "leases.c.holder == holder, leases.c.until > now)\n    return bool",
            "leases.c.holder == holder)\n    return bool",
        ),
        ("a lease is taken while it lasts", "leases.c.until <= now)", "leases.c.until <= now + seconds)"),
    ),
    *faults_in(
        "online/store/feedback/rules.py",
        "store",
        ("anyone may rate another client's answers", "any(answer.client != row.client for answer in known)", "False"),
        ("anyone may rate another user's answers", 'if row.user and users - {row.user} else ""', 'if False else ""'),
        ("what was trained already is trained again", "if nothing_new or facts.target_trained:", "if nothing_new:"),
        ("the first word counts in place of the last", "row.age > plain[0].age", "row.age < plain[0].age"),
    ),
    *faults_in(
        "online/store/feedback/states.py",
        "store/test_feedback.py",
        ("a judge speaks where a person has", "if people else []", "if not people else []"),
    ),
    *faults_in(
        "online/training/weighing.py",
        "online/training",
        ("a bounded author takes weight from all", "math.fsum(sizes.values()) / kept", "1.0"),
        ("a long lesson beside weighs more", "total / units / max(1.0, size)", "total / units"),
    ),
    *faults_in(
        "online/training/plan.py",
        "online/training/test_plan.py",
        ("a commit takes what is oldest", "key=_newest, reverse=True", "key=_newest"),
    ),
]

RUN_FOLDER = [
    *faults_in(
        "monitor/jsonl.py",
        "monitor/test_jsonl.py monitor/test_disk.py",
        ("half a line is read", 'if not line.endswith(b"\\n")', "if not line"),
        ("a full disk leaves half a line", "self._file.truncate(end)", "self._file.seek(end)"),
        (
            "NaN is written into JSON",
            "return value if math.isfinite(value) else None\n        if isinstance",
            "return value\n        if isinstance",
        ),
    ),
    *faults_in(
        "monitor/run_dir.py",
        "monitor training/test_evaluation.py training/test_any_order.py",
        ("the oldest run of a name goes on", "numbers[max(numbers)]", "numbers[min(numbers)]"),
        ("the oldest checkpoints are kept", "self.checkpoints()[-keep:]", "self.checkpoints()[:keep]"),
        (
            "a checkpoint of a stage is deleted",
            "path < kept[-1] and path not in spared",
            "path < kept[-1] and path not in kept",
        ),
    ),
    *faults_in(
        "monitor/disk.py",
        "monitor training/test_any_order.py",
        ("a file that changed is taken as it was", "if _sha256(path) != checksum", "if not path.stat().st_size"),
    ),
    *faults_in(
        "monitor/run_dir.py",
        "monitor/test_run_lock.py",
        ("two processes work in one folder", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB"),
    ),
    *faults_in(
        "monitor/episodes.py",
        "monitor recordings",
        ("a turn that is shared is read as an own one", "span if span.shared else replace(span, shared=True)", "span"),
    ),
    *faults_in(
        "monitor/metrics.py",
        "monitor/test_metrics_log.py",
        ("figures after a checkpoint stay", 'row["step"] <= step', 'row["step"] <= step + 1'),
    ),
]

FAULTS = {
    "merge and credit": MERGE_AND_CREDIT,
    "losses": LOSSES,
    "gateway": GATEWAY,
    "store and online": STORE_AND_ONLINE,
    "run folder": RUN_FOLDER,
}
