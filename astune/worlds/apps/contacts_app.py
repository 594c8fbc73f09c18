"""The address book."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from astune.errors import nearest
from astune.worlds.apps.app import App, AppError, check_address, paginate
from astune.worlds.apps.state import Contact, World

CONTACTS = App("contacts", "People with mail address, phone number and group.")
FIELDS = ("name", "email", "phone", "group")


def _show(contact_id: int, contact: Contact) -> dict[str, Any]:
    return {"contact_id": contact_id, **asdict(contact)}


def _short(contact_id: int, contact: Contact) -> dict[str, Any]:
    return {"contact_id": contact_id, "name": contact.name}


def _find(world: World, contact_id: int) -> Contact:
    if contact_id not in world.contacts:
        raise AppError(f"contact_id: there is no contact {contact_id}; search_contacts shows which are")
    return world.contacts[contact_id]


@CONTACTS.api(query="part of a name or an address; empty for everybody", page="page of the list")
def search_contacts(world: World, query: str = "", page: int = 1) -> Any:
    """Names and numbers of contacts, 5 on a page."""
    wanted = query.lower()
    found = [(key, one) for key, one in world.contacts.items() if wanted in f"{one.name} {one.email}".lower()]
    return paginate([_short(key, one) for key, one in found], page)


@CONTACTS.api(contact_id="number of the contact")
def show_contact(world: World, contact_id: int) -> Any:
    """Everything about one contact."""
    return _show(contact_id, _find(world, contact_id))


@CONTACTS.api()
def list_groups(world: World) -> Any:
    """The names of all groups."""
    return sorted({one.group for one in world.contacts.values()} - {""})


@CONTACTS.api(group="name of the group", page="page of the list")
def list_group(world: World, group: str, page: int = 1) -> Any:
    """Names and numbers of the contacts in a group, 5 on a page."""
    groups = list_groups(world)
    if group not in groups:
        raise AppError(
            f"group: there is no group {group!r:.40}.{nearest(group, groups)} There are: {', '.join(groups)}"
        )
    return paginate([_short(key, one) for key, one in world.contacts.items() if one.group == group], page)


@CONTACTS.api(name="name", email="mail address", phone="phone number", group="name of a group")
def create_contact(world: World, name: str, email: str, phone: str = "", group: str = "") -> Any:
    """Add a contact. No two have the same address."""
    contact = Contact(name, _new_address(world, email), phone, group)
    contact_id = world.new_id()
    world.contacts[contact_id] = contact
    return _show(contact_id, contact)


@CONTACTS.api(contact_id="number of the contact", field="name, email, phone or group", value="what it becomes")
def update_contact(world: World, contact_id: int, field: str, value: str) -> Any:
    """Change one field of a contact."""
    contact = _find(world, contact_id)
    if field not in FIELDS:
        raise AppError(f"field: expected one of {', '.join(FIELDS)}, got {field!r:.40}")
    setattr(contact, field, _new_address(world, value) if field == "email" else value)
    return _show(contact_id, contact)


@CONTACTS.api(contact_id="number of the contact")
def delete_contact(world: World, contact_id: int) -> Any:
    """Remove a contact. There is no way back."""
    _find(world, contact_id)
    del world.contacts[contact_id]
    return {"deleted": contact_id}


def _new_address(world: World, text: str) -> str:
    address = check_address("email", text)
    if any(one.email == address for one in world.contacts.values()):
        raise AppError(f"email: {address} belongs to a contact already")
    return address
