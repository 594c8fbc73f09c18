"""Files: a tree of texts, whose folders are there as long as something is in them."""

from __future__ import annotations

from typing import Any

from astune.worlds.apps.app import App, AppError, paginate
from astune.worlds.apps.state import CALENDAR_TIME, File, World

FILES = App("files", "Text files in folders.")


def _show(path: str, file: File) -> dict[str, Any]:
    return {"path": path, "size": len(file.content), "modified": file.modified.strftime(CALENDAR_TIME)}


def find_file(world: World, name: str, path: str) -> File:
    """The file of a path that the agent has given as parameter `name`."""
    if path not in world.files:
        raise AppError(f"{name}: there is no file {path!r:.80}; list_files and search_files show which are")
    return world.files[path]


def new_path(world: World, name: str, path: str) -> str:
    """`path`, where a file can be made: nothing is there, and nothing on the way is a file."""
    if path in world.files:
        raise AppError(f"{name}: {path} exists already")
    parts = path.split("/")
    if parts[0] or not all(parts[1:]) or {".", ".."} & set(parts) or len(path) > 200:
        raise AppError(f"{name}: expected a path as /documents/notes.txt, got {path!r:.80}")
    if any(other.startswith(f"{path}/") for other in world.files):
        raise AppError(f"{name}: {path} is a folder")
    if above := [other for other in world.files if path.startswith(f"{other}/")]:
        raise AppError(f"{name}: {above[0]} is a file, not a folder")
    return path


@FILES.api(folder="path of the folder, / for the uppermost", page="page of the list")
def list_files(world: World, folder: str = "/", page: int = 1) -> Any:
    """What is in a folder, 5 on a page: files, and folders as paths that end in /."""
    top = folder.rstrip("/") + "/"
    inside = {path: file for path, file in sorted(world.files.items()) if path.startswith(top)}
    if not inside:
        raise AppError(f"folder: there is no folder {folder!r:.80}; list_files of / shows the uppermost")
    folders = sorted({top + path.removeprefix(top).split("/")[0] + "/" for path in inside if "/" in path[len(top) :]})
    files = [_show(path, file) for path, file in inside.items() if "/" not in path[len(top) :]]
    return paginate([*({"path": path} for path in folders), *files], page)


@FILES.api(query="part of a path", page="page of the list")
def search_files(world: World, query: str, page: int = 1) -> Any:
    """Files of all folders whose path has a text in it, 5 on a page."""
    wanted = query.lower()
    return paginate([_show(path, file) for path, file in sorted(world.files.items()) if wanted in path.lower()], page)


@FILES.api(path="path of the file")
def file_info(world: World, path: str) -> Any:
    """Size and time of the last change."""
    return _show(path, find_file(world, "path", path))


@FILES.api(path="path of the file")
def read_file(world: World, path: str) -> Any:
    """The text of a file."""
    return {"path": path, "content": find_file(world, "path", path).content}


@FILES.api(path="path of the file", content="the text", overwrite="replace the file that is there")
def write_file(world: World, path: str, content: str, overwrite: bool = False) -> Any:
    """Write a file. One that is there is replaced only if overwrite is true."""
    if not (overwrite and path in world.files):
        new_path(world, "path", path)
    world.files[path] = File(content, world.now)
    return _show(path, world.files[path])


@FILES.api(path="path of the file", to="its new path")
def move_file(world: World, path: str, to: str) -> Any:
    """Give a file another path. Its time of change stays."""
    file = find_file(world, "path", path)
    world.files[new_path(world, "to", to)] = file
    del world.files[path]
    return _show(to, file)


@FILES.api(path="path of the file", to="path of the copy")
def copy_file(world: World, path: str, to: str) -> Any:
    """Copy a file."""
    content = find_file(world, "path", path).content
    world.files[new_path(world, "to", to)] = File(content, world.now)
    return _show(to, world.files[to])


@FILES.api(path="path of the file")
def delete_file(world: World, path: str) -> Any:
    """Remove a file. There is no way back."""
    find_file(world, "path", path)
    del world.files[path]
    return {"deleted": path}
