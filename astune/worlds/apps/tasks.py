"""The tasks of the apps world: templates that a seed fills."""

from __future__ import annotations

import random

from astune.worlds.apps import calendar_tasks, file_tasks, mail_tasks
from astune.worlds.apps.seeded_world import seeded_world
from astune.worlds.apps.task import AppsTask, Template

TEMPLATES: dict[str, Template] = {
    template.__name__: template
    for template in (
        calendar_tasks.move_meeting,
        mail_tasks.count_unread,
        file_tasks.clean_up,
        calendar_tasks.invite_who_said_yes,
        mail_tasks.reply_with_line,
        file_tasks.add_up_invoices,
        calendar_tasks.cancel_from_hour,
        mail_tasks.save_attachment,
        file_tasks.send_file,
        mail_tasks.new_phone_number,
        mail_tasks.mail_group,
        mail_tasks.archive_read,
    )
}


def make_task(template: str, seed: str) -> AppsTask:
    """The same for equal arguments, on every platform."""
    rng = random.Random(seed)
    return TEMPLATES[template](rng, seeded_world(rng))
