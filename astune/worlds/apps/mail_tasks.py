"""Tasks with mail."""

from __future__ import annotations

import copy
import random
from datetime import timedelta

from astune.worlds.apps.seeded_world import TOPICS, add_mail, lines, people_of
from astune.worlds.apps.state import File, Mail, World
from astune.worlds.apps.task import AppsTask, CallApi, address_of, every, newest, someone


def reply_with_line(rng: random.Random, world: World) -> AppsTask:
    """The newest mail of somebody has an answer that quotes a file."""
    person, name = someone(rng, world), f"{rng.choice(TOPICS)}.txt"
    expected = copy.deepcopy(world)
    mail_id, mail = newest(world, person)
    (text,) = (file.content for path, file in world.files.items() if path.endswith(f"/{name}"))
    answer = Mail(
        "sent", world.email, [person.email], f"Re: {mail.subject}", text.splitlines()[1], world.now, reply_to=mail_id
    )
    expected.mails[expected.new_id()] = answer

    def solve(call: CallApi) -> str:
        newest = call("mail", "search_mails", sender=address_of(call, person.name))["items"][0]
        (file,) = every(call, "files", "search_files", query=f"/{name}")
        text = call("files", "read_file", path=file["path"])["content"]
        call("mail", "reply", mail_id=newest["mail_id"], body=text.splitlines()[1])
        return ""

    query = f"Reply to the newest mail from {person.name} with the second line of my file {name}, and nothing else."
    return AppsTask(query, world, expected, solve)


def count_unread(rng: random.Random, world: World) -> AppsTask:
    """The answer is a number of mails, more than a page of them."""
    person = someone(rng, world, mails=7)
    expected = copy.deepcopy(world)
    mails = [mail for mail in world.mails.values() if mail.sender == person.email]
    expected.answer = str(sum(mail.unread for mail in mails))

    def solve(call: CallApi) -> str:
        sender = address_of(call, person.name)
        return str(len(list(every(call, "mail", "search_mails", sender=sender, unread_only=True))))

    query = f"How many unread mails from {person.name} are in my inbox? Answer with the number alone."
    return AppsTask(query, world, expected, solve)


def save_attachment(rng: random.Random, world: World) -> AppsTask:
    """An attachment is a file."""
    person = someone(rng, world, mails=4)
    sent = add_mail(rng, world, person.email)
    sent.attachments = {f"{rng.choice(TOPICS)}-{rng.randrange(100)}.txt": lines(rng)}
    path = f"/documents/from-{person.name.split()[0].lower()}.txt"
    expected = copy.deepcopy(world)
    _, mail = newest(world, person, with_attachment=True)
    (content,) = mail.attachments.values()
    expected.files[path] = File(content, world.now)

    def solve(call: CallApi) -> str:
        mails = every(call, "mail", "search_mails", sender=address_of(call, person.name))
        mail_id = next(mail["mail_id"] for mail in mails if mail["attachments"])
        (name,) = call("mail", "read_mail", mail_id=mail_id)["attachments"]
        call("mail", "save_attachment", mail_id=mail_id, name=name, path=path)
        return ""

    query = f"Save what is attached to the newest mail from {person.name} that has an attachment as {path}."
    return AppsTask(query, world, expected, solve)


def new_phone_number(rng: random.Random, world: World) -> AppsTask:
    """A contact has the number that the newer of two mails says."""
    person = someone(rng, world)
    old, new = (f"0{rng.randrange(100, 1000)} {rng.randrange(100_000, 1_000_000)}" for _ in range(2))
    mails = [add_mail(rng, world, person.email, "My new number", f"It is {number} now.") for number in (old, new)]
    mails[1].sent = max(mail.sent for mail in world.mails.values()) + timedelta(minutes=1)
    contact_id = next(key for key, one in world.contacts.items() if one is person)
    expected = copy.deepcopy(world)
    expected.contacts[contact_id].phone = new

    def solve(call: CallApi) -> str:
        (found,) = every(call, "contacts", "search_contacts", query=person.name)
        sender = address_of(call, person.name)
        newest = call("mail", "search_mails", sender=sender, query="My new number")["items"][0]
        number = call("mail", "read_mail", mail_id=newest["mail_id"])["body"]
        phone = number.removeprefix("It is ").removesuffix(" now.")
        call("contacts", "update_contact", contact_id=found["contact_id"], field="phone", value=phone)
        return ""

    query = f"{person.name} has a new phone number and wrote me so. Put the latest one into my contacts."
    return AppsTask(query, world, expected, solve)


def mail_group(rng: random.Random, world: World) -> AppsTask:
    """Everybody in a group has got a mail of their own."""
    group = rng.choice(people_of(world)).group
    subject, text = f"{group.capitalize()} on Friday", f"We meet at {rng.randrange(5, 9)}."
    expected = copy.deepcopy(world)
    for person in people_of(world):
        if person.group == group:
            mail = Mail("sent", world.email, [person.email], subject, text, world.now)
            expected.mails[expected.new_id()] = mail

    def solve(call: CallApi) -> str:
        for person in list(every(call, "contacts", "list_group", group=group)):
            email = call("contacts", "show_contact", contact_id=person["contact_id"])["email"]
            call("mail", "send_mail", to=[email], subject=subject, body=text)
        return ""

    query = (
        f"Send everybody in my contacts' group {group} a mail of their own with the subject {subject!r} "
        f"and the text {text!r}."
    )
    return AppsTask(query, world, expected, solve)


def archive_read(rng: random.Random, world: World) -> AppsTask:
    """The mails of somebody that were read are in the archive."""
    person = someone(rng, world, mails=7)
    newest(world, person)[1].unread = False
    expected = copy.deepcopy(world)
    for mail in expected.mails.values():
        if mail.sender == person.email and not mail.unread:
            mail.folder = "archive"

    def solve(call: CallApi) -> str:
        for mail in list(every(call, "mail", "search_mails", sender=address_of(call, person.name))):
            if not mail["unread"]:
                call("mail", "move_mail", mail_id=mail["mail_id"], folder="archive")
        return ""

    query = f"Move the mails from {person.name} in my inbox that I have read to the archive."
    return AppsTask(query, world, expected, solve)
