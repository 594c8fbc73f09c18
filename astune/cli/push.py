"""`astune export --push`: an exported model and its page to a hub."""

from __future__ import annotations

import re
from pathlib import Path

from astune.cli.model_card import CARD, Card, hub_id, read_license
from astune.config.load import load_config
from astune.errors import ConfigError
from astune.monitor.metrics import read_metrics
from astune.support.visible import tell


def check_repo(repo: str, *, token: bool) -> None:
    """Raises ConfigError for what is no `ORG/NAME`, and with `token` where none is known."""
    from huggingface_hub import get_token

    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repo, re.ASCII):
        raise ConfigError(f"--push {repo}: expected ORG/NAME, as your-name/my-agent")
    if token and get_token() is None:
        raise ConfigError("--push: no token; set HF_TOKEN, or run `hf auth login`. It is written nowhere")


def make_card(repo: str, checkpoint: Path, license: str | None) -> Card:
    """Make the card of a checkpoint's model from the folder of its run; whether it is an adapter is said later. Raises
    ConfigError where the checkpoint stands in no run, or the licence of the base is not known."""
    run = checkpoint.resolve().parent.parent
    if not (run / "config.yaml").is_file():
        raise ConfigError(f"--push: {checkpoint} stands in no folder of a run, from which the model card is made")
    config = load_config(run / "config.yaml", for_run=False).config.astune
    step = int(checkpoint.resolve().name.removeprefix("step_"))
    metrics = [row for row in read_metrics(run / "metrics.jsonl") if row["step"] <= step]
    found = license or find_license(config.model.path)
    if found is None:
        raise ConfigError(
            f"--push: the licence of the base {config.model.path} is not known, and what is made of it is bound by it; "
            "say --license, as --license apache-2.0"
        )
    return Card(repo, config, metrics, step, "model", found)


def find_license(base: str) -> str | None:
    """Find the licence of a base model: in its folder, else in its card on the hub."""
    if base == "tiny":
        return "apache-2.0"  # it came with ASTune
    if Path(base).is_dir():
        return read_license(Path(base))
    if hub_id(base) is None:
        return None
    from huggingface_hub import model_info
    from huggingface_hub.errors import HfHubHTTPError

    try:
        data = model_info(base).card_data
    except (HfHubHTTPError, OSError):
        return None
    found = None if data is None else data.get("license_name") or data.get("license")
    return found if isinstance(found, str) else None


def push(folder: Path, card: Card, *, public: bool, dry_run: bool) -> None:
    """Write the card into `folder` and send all of it as one commit. A repository that is there keeps its visibility.
    Raises ConfigError where the hub refuses, or cannot be reached."""
    (folder / CARD).write_text(card.write(), encoding="utf-8")
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        tell(f"{file.stat().st_size:12,}  {file.relative_to(folder)}")
    if dry_run:
        tell(f"nothing was sent: --dry-run; the card is {folder / CARD}")
        return
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    try:
        where = api.create_repo(card.repo, private=not public, exist_ok=True)
        api.upload_folder(repo_id=card.repo, folder_path=folder, commit_message=f"Step {card.step}")
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ConfigError(
            f"--push {card.repo}: {error}. The same command goes on: files that the hub has are not sent again"
        ) from error
    tell(f"pushed  {where}")
