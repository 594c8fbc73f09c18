"""`astune export`: the model of a checkpoint, for others."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from astune.cli.suggesting_parser import Commands
from astune.errors import ConfigError
from astune.support.chinese import localize
from astune.support.visible import tell

EXAMPLES = """\
  {program} export --run runs/p/n --out my_model             the newest checkpoint, as a folder for transformers or peft
  {program} export --checkpoint runs/p/n/checkpoints/step_000100 --out my_model
  {program} export --checkpoint runs/p/n@best --out my_model        the best by astune.trainer.keep_best
  {program} export --run runs/p/n --out my_model --merged    LoRA: adapter and base as one model
  {program} export --run runs/p/n --out my_model --dtype bfloat16  in half the size, as models are served
  {program} export --run runs/p/n --push me/my-agent      to the Hugging Face hub, private, with a model card"""


def add_export(commands: Commands) -> None:
    command = commands.add_parser(
        "export", help="write the model of a checkpoint, or its adapter, for others", examples=EXAMPLES
    )
    command.set_defaults(execute=_execute)
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path, metavar="RUN", help="folder of a run, whose newest checkpoint it is")
    source.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="folder of a checkpoint")
    command.add_argument("--out", type=Path, metavar="DIR", help="a new folder; with --push it may be left out")
    command.add_argument(
        "--merged", action="store_true", help="of a run with LoRA, write the whole model; without, only the adapter"
    )
    command.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="precision of the model; default: that of the checkpoint, with --merged that of the base",
    )
    hub = command.add_argument_group("to a hub")
    hub.add_argument(
        "--push", metavar="ORG/NAME", help="send it to the Hugging Face hub, with a card made from the run"
    )
    hub.add_argument("--public", action="store_true", help="of a repository that --push makes; else it is private")
    hub.add_argument("--license", metavar="ID", help="licence of the base, where its card does not say it")
    hub.add_argument(
        "--dry-run", action="store_true", help="with --push and --out: write the card, list files, send none"
    )


def _execute(known: argparse.Namespace) -> int:
    if known.push is None:
        for name in ("public", "license", "dry_run"):
            if getattr(known, name):
                raise ConfigError(f"--{name.replace('_', '-')}: nothing is pushed without --push ORG/NAME")
    if known.out is None and (known.push is None or known.dry_run):
        raise ConfigError("--out: not given; name a new folder")
    found = _find(known.run, known.checkpoint)
    if known.push is None:
        return _export(found, known.out, known.merged, known.dtype)
    from astune.cli.push import check_repo, make_card, push

    check_repo(known.push, token=not known.dry_run)
    card = make_card(known.push, found, known.license)
    with ExitStack() as stack:
        out = known.out or Path(stack.enter_context(TemporaryDirectory(dir=found.parent, prefix=".push."))) / "model"
        _export(found, out, known.merged, known.dtype)
        card = replace(card, what="adapter" if (out / "adapter_config.json").is_file() else "model")
        push(out, card, public=known.public, dry_run=known.dry_run)
    return 0


def _find(run: Path | None, checkpoint: Path | None) -> Path:
    """The checkpoint. Either may name one as `find_checkpoint` takes it, such as RUN@best; a damaged one is refused."""
    from astune.monitor.checkpoint_names import find_checkpoint
    from astune.support.file_kinds import Kind, other_kind

    found = find_checkpoint(str(checkpoint or run)) or checkpoint or _newest(run or Path())
    if wrong := other_kind(found, "a checkpoint", Kind.CHECKPOINT):
        raise ConfigError(f"--checkpoint {wrong}")
    if not found.is_dir():
        raise ConfigError(
            f"--checkpoint {found}: no such folder; expected one as runs/project/name/checkpoints/step_000100"
        )
    return found


def _export(found: Path, out: Path, merged: bool, dtype: str | None) -> int:
    """Write what a checkpoint holds into the folder `out`, a model in the precision `dtype` if one is given."""
    from astune.backbone.local.export import export_checkpoint

    what = export_checkpoint(found, out, merged=merged, dtype=dtype)
    tell(localize(f"from    {found}\n{what:8}{out}"))
    return 0


def _newest(run: Path) -> Path:
    """The newest complete checkpoint of a run."""
    from astune.monitor.run_dir import RunDir
    from astune.support.file_kinds import Kind, other_kind

    if wrong := other_kind(run, "the folder of a run", Kind.RUN):
        raise ConfigError(f"--run {wrong}")
    if not run.is_dir():
        raise ConfigError(f"--run {run}: no such folder; expected the folder of a run, as runs/project/name")
    found = RunDir(run).latest_checkpoint()
    if found is None:
        raise ConfigError(f"--run {run}: it has no checkpoint (astune.trainer.save_every)")
    return found
