"""The calendar: events that cannot overlap, and the people who are invited."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from astune.worlds.apps.app import App, AppError, check_address, paginate, read_time
from astune.worlds.apps.state import CALENDAR_TIME, Event, World

CALENDAR = App("calendar", "Events and who comes to them.")


def _show(event_id: int, event: Event) -> dict[str, Any]:
    start, end = event.start, event.start + timedelta(minutes=event.minutes)
    times = {"start": start.strftime(CALENDAR_TIME), "end": end.strftime(CALENDAR_TIME)}
    return {"event_id": event_id, "title": event.title, **times, "attendees": len(event.attendees)}


def _find(world: World, event_id: int) -> Event:
    if event_id not in world.events:
        raise AppError(f"event_id: there is no event {event_id}; list_events and search_events show which are")
    return world.events[event_id]


def _in_order(world: World) -> list[tuple[int, Event]]:
    return sorted(world.events.items(), key=lambda pair: (pair[1].start, pair[0]))


def _check_free(world: World, start: datetime, minutes: int, besides: int | None = None) -> None:
    end = start + timedelta(minutes=minutes)
    for event_id, event in _in_order(world):
        if event_id != besides and event.start < end and start < event.start + timedelta(minutes=event.minutes):
            raise AppError(f"conflict with event {event_id}: {_show(event_id, event)}")


@CALENDAR.api(date="day as 2026-03-04", page="page of the list")
def list_events(world: World, date: str, page: int = 1) -> Any:
    """Events of one day in order of time, 5 on a page."""
    day = read_time(world, "date", f"{date} 00:00").date()
    return paginate([_show(key, event) for key, event in _in_order(world) if event.start.date() == day], page)


@CALENDAR.api(query="part of a title, or of the address of somebody invited", page="page of the list")
def search_events(world: World, query: str, page: int = 1) -> Any:
    """Events of any day, in order of time, 5 on a page."""
    wanted = query.lower()
    found = [
        (key, event) for key, event in _in_order(world) if wanted in " ".join([event.title, *event.attendees]).lower()
    ]
    return paginate([_show(key, event) for key, event in found], page)


@CALENDAR.api(event_id="number of the event")
def show_event(world: World, event_id: int) -> Any:
    """One event with everybody invited and their answers: yes, no or waiting."""
    event = _find(world, event_id)
    return {**_show(event_id, event), "attendees": dict(event.attendees)}


@CALENDAR.api(title="title", start="time as 2026-03-04 14:00", minutes="5 to 480", attendees="mail addresses")
def create_event(world: World, title: str, start: str, minutes: int, attendees: list[str] = []) -> Any:  # noqa: B006
    """Make an event and invite people. It cannot overlap another."""
    if not 5 <= minutes <= 480:
        raise AppError("minutes: expected 5 to 480")
    invited = dict.fromkeys((check_address("attendees", one) for one in attendees), "waiting")
    time = read_time(world, "start", start)
    _check_free(world, time, minutes)
    event_id = world.new_id()
    world.events[event_id] = Event(title, time, minutes, invited)
    return show_event(world, event_id)


@CALENDAR.api(event_id="number of the event", start="time as 2026-03-04 14:00")
def move_event(world: World, event_id: int, start: str) -> Any:
    """Give an event another time; it stays as long as it is. It cannot overlap another."""
    event, time = _find(world, event_id), read_time(world, "start", start)
    _check_free(world, time, event.minutes, besides=event_id)
    event.start = time
    return show_event(world, event_id)


@CALENDAR.api(event_id="number of the event")
def cancel_event(world: World, event_id: int) -> Any:
    """Remove an event for everybody. There is no way back."""
    _find(world, event_id)
    del world.events[event_id]
    return {"cancelled": event_id}


@CALENDAR.api(event_id="number of the event", emails="mail addresses")
def invite(world: World, event_id: int, emails: list[str]) -> Any:
    """Invite people to an event. Nobody can be invited twice."""
    event = _find(world, event_id)
    addresses = [check_address("emails", one) for one in emails]
    if again := [one for one in addresses if one in event.attendees]:
        raise AppError(f"emails: {', '.join(again)} is invited already; nobody was invited")
    event.attendees.update(dict.fromkeys(addresses, "waiting"))
    return show_event(world, event_id)


@CALENDAR.api(event_id="number of the event", email="mail address")
def remove_attendee(world: World, event_id: int, email: str) -> Any:
    """Take back an invitation."""
    event = _find(world, event_id)
    if email.lower() not in event.attendees:
        raise AppError(f"email: {email!r:.60} is not invited; show_event shows who is")
    del event.attendees[email.lower()]
    return show_event(world, event_id)
