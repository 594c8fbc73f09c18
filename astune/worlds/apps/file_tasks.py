"""Tasks with files."""

from __future__ import annotations

import copy
import random
from datetime import timedelta

from astune.worlds.apps.seeded_world import days, lines, people_of
from astune.worlds.apps.state import CALENDAR_TIME, File, Mail, World
from astune.worlds.apps.task import AppsTask, CallApi, address_of, every, show_day


def clean_up(rng: random.Random, world: World) -> AppsTask:
    """The old files of a folder and those below it are gone."""
    folder = "/tmp/"
    limit = days(world)[0] - timedelta(days=rng.randrange(10, 25))
    world.files["/tmp/old.txt"] = File(lines(rng), limit - timedelta(minutes=1))
    expected = copy.deepcopy(world)
    for path, file in world.files.items():
        if path.startswith(folder) and file.modified < limit:
            del expected.files[path]

    def solve(call: CallApi) -> str:
        for file in list(every(call, "files", "search_files", query=folder)):
            if file["path"].startswith(folder) and file["modified"] < limit.strftime(CALENDAR_TIME):
                call("files", "delete_file", path=file["path"])
        return ""

    query = (
        f"Delete every file in /tmp and its folders that was last changed before {show_day(limit)}. Keep the others."
    )
    return AppsTask(query, world, expected, solve)


def add_up_invoices(rng: random.Random, world: World) -> AppsTask:
    """The answer is the sum of a month's invoices."""
    month = f"2026-{rng.randrange(1, 4):02}"
    expected = copy.deepcopy(world)
    texts = [file.content for path, file in world.files.items() if path.startswith(f"/invoices/{month}")]
    expected.answer = str(sum(int(text.split()[-1]) for text in texts))

    def solve(call: CallApi) -> str:
        paths = [file["path"] for file in every(call, "files", "search_files", query=f"/invoices/{month}")]
        return str(sum(int(call("files", "read_file", path=path)["content"].split()[-1]) for path in paths))

    query = (
        f"What do the totals of my invoices of {month} (the files in /invoices whose names begin with {month}) add up "
        "to? Answer with the number alone."
    )
    return AppsTask(query, world, expected, solve)


def send_file(rng: random.Random, world: World) -> AppsTask:
    """Somebody has got the file of a folder that was changed last."""
    person, shop = rng.choice(people_of(world)), "/invoices/"
    path = max((path for path in world.files if path.startswith(shop)), key=lambda path: world.files[path].modified)
    world.files[path].modified = world.now - timedelta(minutes=rng.randrange(1, 50))
    expected = copy.deepcopy(world)
    attached = {path.rpartition("/")[2]: world.files[path].content}
    mail = Mail("sent", world.email, [person.email], "Invoice", "Here it is.", world.now, attachments=attached)
    expected.mails[expected.new_id()] = mail

    def solve(call: CallApi) -> str:
        files = every(call, "files", "list_files", folder=shop)
        newest_file = max(files, key=lambda file: str(file["modified"]))["path"]
        email = address_of(call, person.name)
        call("mail", "send_mail", to=[email], subject="Invoice", body="Here it is.", attachments=[newest_file])
        return ""

    query = (
        f"Mail {person.name} the file in /invoices that was changed last, as an attachment, with the subject 'Invoice' "
        "and the text 'Here it is.'"
    )
    return AppsTask(query, world, expected, solve)
