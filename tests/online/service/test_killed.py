"""The process itself: a SIGKILL loses nothing that was answered, SIGTERM lets requests end."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
import yaml

from astune.online.store.requests import find_request
from astune.store import open_database

ANSWERS = 12


def start(folder: Path) -> tuple[subprocess.Popen, str]:
    conf = folder / "service.yaml"
    online = {"folder": str(folder), "serve": {"port": 0}}
    conf.write_text(yaml.safe_dump({"astune": {"rollout": {"max_tokens": 8}, "online": online}}))
    command = [sys.executable, "-m", "astune", "online", "serve", "--conf", str(conf)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line.startswith("serves    tiny at http://127.0.0.1:")
    return process, line.split()[3].removesuffix("/v1,")


@pytest.mark.fault("Online training", "the service is killed under load", "all that was answered is in the store")
def test_all_that_was_answered_is_there_after_a_sigkill(tmp_path):
    process, url = start(tmp_path)
    answered: list[str] = []
    enough = threading.Event()

    def ask(user: str) -> None:
        try:
            with httpx.Client(base_url=url, trust_env=False) as client:
                while True:
                    body = {"messages": [{"role": "user", "content": "2 + 2?"}], "user": user}
                    answered.append(client.post("/v1/chat/completions", json=body, timeout=60).json()["id"])
                    if len(answered) >= ANSWERS:
                        enough.set()
        except httpx.HTTPError:
            pass

    threads = [threading.Thread(target=ask, args=(f"u{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    assert enough.wait(60)
    process.kill()
    for thread in threads:
        thread.join()
    process.wait()
    process.stdout.close()
    database = open_database(f"sqlite:///{tmp_path}/online.db")
    with database.reading() as connection:
        assert [msg_id for msg_id in answered if find_request(connection, msg_id) is None] == []
    database.close()


def test_sigterm_ends_it_in_order(tmp_path):
    process, url = start(tmp_path)
    assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and said.endswith("stopped; all that was answered is in the store\n")
    log = (tmp_path / "logs" / "serve.log").read_text().splitlines()
    assert " | serve | astune.command:open:" in log[0] and log[-1].endswith(" - exit code 0")
