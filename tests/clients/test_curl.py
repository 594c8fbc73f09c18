import asyncio
import json
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


async def curl(*arguments):
    command = ["curl", "--silent", "--show-error", "--max-time", "60", *arguments]
    done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True)
    return done.stdout


async def test_two_calls_of_curl_are_one_timeline(capture):
    answers = ["Five.", "Yes."]
    episode = capture(answers)
    messages = [{"role": "user", "content": "2 + 3?"}]
    url = f"{episode.url}/chat/completions"
    first = json.loads(await curl(url, "--json", json.dumps({"messages": messages})))
    assert first["choices"][0]["message"]["content"] == "Five."
    messages += [first["choices"][0]["message"], {"role": "user", "content": "Sure?"}]
    streamed = await curl("--no-buffer", url, "--json", json.dumps({"messages": messages, "stream": True}))
    lines = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
    assert lines[-1] == "[DONE]"
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
    (timeline,) = episode.timelines(answers)
    assert len(timeline.spans) == 2


async def test_curl_sees_the_status_and_the_reason_of_a_bad_request(capture):
    episode = capture([])
    body = json.dumps({"messages": [{"role": "user", "content": "?"}], "tempreature": 1})
    shown = await curl("--write-out", "\n%{http_code}", f"{episode.url}/chat/completions", "--json", body)
    error, status = shown.rsplit("\n", 1)
    assert status == "400"
    assert json.loads(error)["error"]["message"].endswith("Did you mean 'temperature'?")


async def test_curl_is_told_that_a_body_is_too_large_before_it_has_sent_it(capture, tmp_path):
    episode = capture([])
    large = tmp_path / "large.json"
    large.write_text(json.dumps({"messages": [{"role": "user", "content": "a" * 20_000_000}]}))
    for headers in ((), ("--header", "Transfer-Encoding: chunked"), ("--header", "Expect:")):
        shown = await curl(
            "--write-out", "\n%{http_code}", f"{episode.url}/chat/completions", "--json", f"@{large}", *headers
        )
        error, status = shown.rsplit("\n", 1)
        assert (status, json.loads(error)["error"]["code"]) == ("400", "context_length_exceeded")
