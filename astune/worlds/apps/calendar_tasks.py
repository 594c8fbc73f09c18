"""Tasks with the calendar."""

from __future__ import annotations

import copy
import random
from datetime import timedelta

from astune.worlds.apps.seeded_world import FIRST_HOUR, LAST_HOUR, days, people_of
from astune.worlds.apps.state import CALENDAR_TIME, Event, World
from astune.worlds.apps.task import AppsTask, CallApi, address_of, every, show_day


def move_meeting(rng: random.Random, world: World) -> AppsTask:
    """A meeting has the first free hour of another day."""
    person = rng.choice(people_of(world))
    for event in world.events.values():
        event.attendees.pop(person.email, None)
    before, day = rng.choice(days(world)[:2]), rng.choice(days(world)[2:])
    event_id = world.new_id()
    start = before + timedelta(hours=LAST_HOUR)
    world.events[event_id] = Event("Catching up", start, 60, {person.email: "yes"})
    expected = copy.deepcopy(world)
    busy = {event.start.hour for event in world.events.values() if event.start.date() == day.date()}
    hour = next(hour for hour in range(FIRST_HOUR, LAST_HOUR) if hour not in busy)
    expected.events[event_id].start = day + timedelta(hours=hour)

    def solve(call: CallApi) -> str:
        (event,) = every(call, "calendar", "search_events", query=address_of(call, person.name))
        busy = {other["start"] for other in every(call, "calendar", "list_events", date=show_day(day))}
        times = [(day + timedelta(hours=hour)).strftime(CALENDAR_TIME) for hour in range(FIRST_HOUR, LAST_HOUR)]
        free = next(time for time in times if time not in busy)
        call("calendar", "move_event", event_id=event["event_id"], start=free)
        return ""

    query = (
        f"Move my meeting with {person.name} to the first free hour on {day:%A}, {show_day(day)}: "
        f"between {FIRST_HOUR}:00 and {LAST_HOUR}:00, on the hour."
    )
    return AppsTask(query, world, expected, solve)


def invite_who_said_yes(rng: random.Random, world: World) -> AppsTask:
    """Guests of one event are invited to another."""
    first, second = days(world)[0] + timedelta(hours=19), days(world)[4] + timedelta(hours=19)
    guests = rng.sample(people_of(world), 6)
    answers = ["yes", "yes", "yes", "no", "waiting", rng.choice(("yes", "no"))]
    rng.shuffle(answers)
    invited = {guest.email: answer for guest, answer in zip(guests, answers, strict=True)}
    world.events[world.new_id()] = Event("Quiz night", first, 90, invited)
    event_id = world.new_id()
    already = next(email for email, answer in invited.items() if answer == "yes")
    world.events[event_id] = Event("Barbecue", second, 120, {already: "no"})
    expected = copy.deepcopy(world)
    for email, answer in invited.items():
        if answer == "yes":
            expected.events[event_id].attendees.setdefault(email, "waiting")

    def solve(call: CallApi) -> str:
        (quiz,) = every(call, "calendar", "search_events", query="Quiz night")
        (barbecue,) = every(call, "calendar", "search_events", query="Barbecue")
        said = call("calendar", "show_event", event_id=quiz["event_id"])["attendees"]
        there = call("calendar", "show_event", event_id=barbecue["event_id"])["attendees"]
        missing = [email for email, answer in said.items() if answer == "yes" and email not in there]
        call("calendar", "invite", event_id=barbecue["event_id"], emails=missing)
        return ""

    query = "Invite everyone who said yes to the Quiz night to the Barbecue too, unless they are invited already."
    return AppsTask(query, world, expected, solve)


def cancel_from_hour(rng: random.Random, world: World) -> AppsTask:
    """Every event of a day from an hour on is gone."""
    day = rng.choice(days(world))
    hours = sorted(event.start.hour for event in world.events.values() if event.start.date() == day.date())
    limit = day + timedelta(hours=hours[-1] - rng.randrange(3))
    expected = copy.deepcopy(world)
    for event_id, event in world.events.items():
        if event.start.date() == day.date() and event.start >= limit:
            del expected.events[event_id]

    def solve(call: CallApi) -> str:
        for event in list(every(call, "calendar", "list_events", date=show_day(day))):
            if event["start"] >= limit.strftime(CALENDAR_TIME):
                call("calendar", "cancel_event", event_id=event["event_id"])
        return ""

    query = f"Cancel all my events on {day:%A}, {show_day(day)}, that start at {limit:%H}:00 or later."
    return AppsTask(query, world, expected, solve)
