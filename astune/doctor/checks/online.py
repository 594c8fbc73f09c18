"""Can `astune online` serve and train with this: store, versions, engine, port, tokens, plug-ins?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx

from astune.doctor.checked_config import CheckedConfig
from astune.doctor.checks.config_file import problems
from astune.doctor.findings import Finding, fail, ok, skip, warn
from astune.errors import AstuneError, ConfigError, PluginError
from astune.online.place import keep_file, online_folder, store_url, versions_folder
from astune.online.redaction import Redactor
from astune.online.service.access import read_tokens
from astune.online.training.check import check_online
from astune.support.http.serving import bound_socket
from astune.task_judge import make_judge

STORE = "astune.online.store"
FOLDER = "astune.online.folder"
SECONDS = 15.0
"""The longest wait for an engine's answer."""


def check_service(checked: CheckedConfig) -> Iterator[Finding]:
    if not checked.serves:
        return
    parts: tuple[Callable[[CheckedConfig], Iterator[Finding]], ...] = (
        _rules,
        _doors,
        _plug_ins,
        _folder,
        _store,
        _engine,
    )
    for part in parts:
        yield from part(checked)


def _rules(checked: CheckedConfig) -> Iterator[Finding]:
    """Find what the trainer refuses when it starts."""
    try:
        check_online(checked.loaded)
    except ConfigError as error:
        yield from problems(error)


def _doors(checked: CheckedConfig) -> Iterator[Finding]:
    serve = checked.config.online.serve
    try:
        tokens = read_tokens(serve)
    except ConfigError as error:
        fix = "export each variable that holds a token, or serve this machine alone: astune.online.serve.host=127.0.0.1"
        yield fail(str(error), where=checked.where("astune.online.serve.tokens"), fix=fix)
        tokens = {}
    if serve.feedback_without_token and not serve.tokens:
        key = "astune.online.serve.feedback_without_token"
        yield warn("there are no tokens, so nothing needs one", where=checked.where(key), fix="take the key out")
    try:
        bound_socket(serve.host, serve.port).close()
    except OSError as error:
        where = checked.where("astune.online.serve.port")
        if _is_served(serve.host, serve.port):
            yield warn(f"a service answers at {serve.host}:{serve.port} already", where=where, fix="end it first")
        else:
            fix = "end what listens there, or set astune.online.serve.port=0 for any that is free"
            yield fail(f"cannot serve at {serve.host}:{serve.port}: {error.strerror or error}", where=where, fix=fix)
        return
    clients = f"tokens of {', '.join(tokens)}" if tokens else "no tokens: this machine alone can come in"
    yield ok(f"{serve.host}:{serve.port} is free; {clients}")


def _is_served(host: str, port: int) -> bool:
    try:
        answer = httpx.get(f"http://{host}:{port}/health", timeout=2.0, trust_env=False)
        return answer.is_success and "state" in answer.json()
    except (httpx.HTTPError, ValueError, TypeError):
        return False


def _plug_ins(checked: CheckedConfig) -> Iterator[Finding]:
    online = checked.config.online
    try:
        Redactor.of(online.redact)
    except PluginError as error:
        fix = "name a plain function of a message, as redact.py:without_numbers"
        yield fail(str(error), where=checked.where("astune.online.redact"), fix=fix)
    if not online.feedback.judge_share:
        return
    key = "astune.task_judge.judge_protocol"
    try:
        if make_judge(checked.config.task_judge) is None:
            where = checked.where("astune.online.feedback.judge_share")
            yield fail(
                "a share is to be judged, and there is no judge", where=where, fix=f"set {key}, or the share to 0"
            )
    except (ConfigError, PluginError) as error:
        yield fail(str(error), where=checked.where(key), fix="correct that key, or set judge_share to 0")


def _folder(checked: CheckedConfig) -> Iterator[Finding]:
    folder = online_folder(checked.loaded.config)
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    if not existing.is_dir():
        yield fail(
            f"{existing} is a file, and versions need a folder there", where=checked.where(FOLDER), fix="name another"
        )
    elif not os.access(existing, os.W_OK | os.X_OK):
        fix = f"name a folder of your own with {FOLDER}, or change its rights"
        yield fail(f"nothing can be written into {existing}", where=checked.where(FOLDER), fix=fix)
    elif (file := keep_file(folder)).exists():
        fix = f"delete it, unless a backup is being made: rm {file}"
        yield warn(f"no old version is deleted, as {file} is there", where=checked.where(FOLDER), fix=fix)


def _store(checked: CheckedConfig) -> Iterator[Finding]:
    """The database, which is asked and not written to, and the checkpoint of the version that answers."""
    config = checked.loaded.config
    url = store_url(config)
    if checked.offline and not url.startswith("sqlite"):
        yield skip("astune.online.store is a server, and this is --offline")
        return
    try:
        from astune.online.store.aliases import champion
        from astune.online.training.checkpoint import check
        from astune.store.database import Database, check_usable, show_url
        from astune.store.upgrades import differences
    except ModuleNotFoundError as error:
        yield skip(f"the store needs {error.name!r}; see 'packages' above")
        return
    try:
        lacks = check_usable(url)
        if lacks is None:
            yield ok(f"{show_url(url)} will be made")
            return
        if lacks:
            steps = f"({len(lacks)} steps)"
            yield ok(f"{show_url(url)} is there; its tables are brought up to date by who opens it first {steps}")
            return
        with closing(Database(url)) as database, database.reading() as connection:
            version, wrong = champion(connection), differences(connection)
    except AstuneError as error:
        fix = "name a database that can be reached, as sqlite:///online.db"
        yield fail(str(error), where=checked.where(STORE), fix=fix)
        return
    if wrong:
        fix = "bring it back from a backup, or make what is missing as a new store has it"
        yield fail(
            f"the tables of {show_url(url)} are not as they were made: {'; '.join(wrong)}",
            where=checked.where(STORE),
            fix=fix,
        )
    path = Path(url.removeprefix("sqlite:///").partition("?")[0])
    if url.startswith("sqlite:///") and path.is_file() and not os.access(path, os.W_OK):
        yield fail(f"nothing can be written into {path}", where=checked.where(STORE), fix="change its rights")
    if version.folder is None:
        yield ok(f"{show_url(url)} is there; the model as configured answers")
        return
    try:
        check(versions_folder(online_folder(config)) / version.folder, version.sha256)
    except AstuneError as error:
        fix = f"name the folder that has it with {FOLDER}, or bring it back from a backup"
        yield fail(f"champion is version {version.number}, and {error}", where=checked.where(FOLDER), fix=fix)
        return
    yield ok(f"{show_url(url)} is there; champion is version {version.number}, and its checkpoint is whole")


def _engine(checked: CheckedConfig) -> Iterator[Finding]:
    """A vLLM in the sampler's place: there, with that model, and with token ids. It is asked for one token."""
    engine = checked.config.online.serve.engine
    if engine is None:
        return
    key = "astune.online.serve.engine"
    if checked.offline:
        yield skip(f"{key} ({engine.base_url}): this is --offline")
        return
    try:
        from astune.online.service.vllm import VllmEngine
        from astune.online.store.versions import ModelVersion
    except ModuleNotFoundError as error:
        yield skip(f"the service needs {error.name!r}; see 'packages' above")
        return
    quick = engine.model_copy(update={"timeout": min(engine.timeout, SECONDS)})
    try:
        with closing(VllmEngine(quick, versions_folder(online_folder(checked.loaded.config)))) as asked:
            asked.load(ModelVersion(0))
    except ConfigError as error:
        fix = "start the vLLM (0.10.2 or newer), or correct base_url, model or api_key_env"
        yield fail(str(error), where=checked.where(key), fix=fix)
        return
    yield ok(f"{engine.model} at {engine.base_url} gives token ids with log-probabilities")
