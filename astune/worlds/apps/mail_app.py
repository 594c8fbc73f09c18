"""Mail: a list in pages, newest first, with attachments that come from files and go to files."""

from __future__ import annotations

from typing import Any

from astune.worlds.apps.app import App, AppError, check_address, paginate
from astune.worlds.apps.files_app import find_file, new_path
from astune.worlds.apps.state import CALENDAR_TIME, File, Mail, World

MAIL = App("mail", "Mails that came and mails that went out.")
FOLDERS = ("inbox", "archive", "sent")


def _short(mail_id: int, mail: Mail) -> dict[str, Any]:
    return {
        "mail_id": mail_id,
        "from": mail.sender,
        "subject": mail.subject,
        "sent": mail.sent.strftime(CALENDAR_TIME),
        "unread": mail.unread,
        "attachments": len(mail.attachments),
    }


def _find(world: World, mail_id: int) -> Mail:
    if mail_id not in world.mails:
        raise AppError(f"mail_id: there is no mail {mail_id}; search_mails shows which are")
    return world.mails[mail_id]


def _check_folder(folder: str) -> str:
    if folder not in FOLDERS:
        raise AppError(f"folder: expected one of {', '.join(FOLDERS)}, got {folder!r:.40}")
    return folder


def _send(world: World, to: list[str], mail: Mail) -> Any:
    if not to:
        raise AppError("to: expected at least one mail address")
    mail.to = [check_address("to", one) for one in to]
    mail_id = world.new_id()
    world.mails[mail_id] = mail
    return {"sent": mail_id, "to": mail.to, "subject": mail.subject}


def _attach(world: World, paths: list[str]) -> dict[str, str]:
    return {path.rpartition("/")[2]: find_file(world, "attachments", path).content for path in paths}


@MAIL.api(
    query="part of the subject; empty for all",
    sender="part of the sender's address; empty for all",
    folder="inbox, archive or sent",
    unread_only="leave out mails that were read",
    page="page of the list",
)
def search_mails(
    world: World, query: str = "", sender: str = "", folder: str = "inbox", unread_only: bool = False, page: int = 1
) -> Any:
    """Mails of a folder, newest first, 5 on a page."""
    _check_folder(folder)
    found = [
        (key, mail)
        for key, mail in sorted(world.mails.items(), key=lambda pair: (pair[1].sent, pair[0]), reverse=True)
        if mail.folder == folder and query.lower() in mail.subject.lower() and sender.lower() in mail.sender
    ]
    return paginate([_short(key, mail) for key, mail in found if mail.unread or not unread_only], page)


@MAIL.api(mail_id="number of the mail")
def read_mail(world: World, mail_id: int) -> Any:
    """A whole mail. It stays unread until mark_mail says otherwise."""
    mail = _find(world, mail_id)
    whole = {"to": mail.to, "body": mail.body, "folder": mail.folder, "attachments": sorted(mail.attachments)}
    return {**_short(mail_id, mail), **whole}


@MAIL.api(to="mail addresses", subject="subject", body="text", attachments="paths of files")
def send_mail(world: World, to: list[str], subject: str, body: str, attachments: list[str] = []) -> Any:  # noqa: B006
    """Send one mail to everybody named. It cannot be taken back."""
    files = _attach(world, attachments)
    return _send(world, to, Mail("sent", world.email, [], subject, body, world.now, attachments=files))


@MAIL.api(mail_id="number of the mail", body="text", attachments="paths of files")
def reply(world: World, mail_id: int, body: str, attachments: list[str] = []) -> Any:  # noqa: B006
    """Answer a mail: to its sender, with its subject. It cannot be taken back."""
    mail, files = _find(world, mail_id), _attach(world, attachments)
    answer = Mail("sent", world.email, [], f"Re: {mail.subject}", body, world.now, False, files, mail_id)
    return _send(world, [mail.sender], answer)


@MAIL.api(mail_id="number of the mail", to="mail addresses", body="text to put before it")
def forward(world: World, mail_id: int, to: list[str], body: str = "") -> Any:
    """Send a mail on, with its attachments. It cannot be taken back."""
    mail = _find(world, mail_id)
    text = f"{body}\n\n{mail.body}".strip()
    copy = Mail("sent", world.email, [], f"Fwd: {mail.subject}", text, world.now, False, dict(mail.attachments))
    return _send(world, to, copy)


@MAIL.api(mail_id="number of the mail", unread="true or false")
def mark_mail(world: World, mail_id: int, unread: bool) -> Any:
    """Mark a mail as unread or read."""
    mail = _find(world, mail_id)
    mail.unread = unread
    return _short(mail_id, mail)


@MAIL.api(mail_id="number of the mail", folder="inbox, archive or sent")
def move_mail(world: World, mail_id: int, folder: str) -> Any:
    """Put a mail into another folder."""
    mail = _find(world, mail_id)
    mail.folder = _check_folder(folder)
    return {"mail_id": mail_id, "folder": folder}


@MAIL.api(mail_id="number of the mail")
def delete_mail(world: World, mail_id: int) -> Any:
    """Remove a mail. There is no way back."""
    _find(world, mail_id)
    del world.mails[mail_id]
    return {"deleted": mail_id}


@MAIL.api(mail_id="number of the mail", name="name of the attachment", path="path of the new file")
def save_attachment(world: World, mail_id: int, name: str, path: str) -> Any:
    """Write an attachment to a file that does not exist yet."""
    mail = _find(world, mail_id)
    if name not in mail.attachments:
        there = ", ".join(sorted(mail.attachments)) or "none"
        raise AppError(f"name: mail {mail_id} has no attachment {name!r:.60}; it has: {there}")
    world.files[new_path(world, "path", path)] = File(mail.attachments[name], world.now)
    return {"saved": path}
