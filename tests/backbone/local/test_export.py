"""`astune export`: a checkpoint as a folder for transformers or peft."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from astune.backbone.local.engine import write_weights
from astune.backbone.local.model.model import load_model, read_weights, save_model
from astune.cli import main
from astune.config.schema import LoraConfig, ModelConfig
from astune.monitor import RunDir
from tests.backbone.local.conftest import make_model
from tests.rows import each_row

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def base(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    make_model().to(dtype).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def saved(folder: Path, model_dir: Path, **lora: Any) -> torch.Tensor:
    """A checkpoint of `model_dir` trained a little, with its state of the optimizer; the logits of what was trained."""
    torch.manual_seed(0)
    settings = LoraConfig(rank=4, **lora) if lora else LoraConfig()
    loaded = load_model(ModelConfig(path=str(model_dir), device="cpu", lora=settings))
    random = torch.Generator().manual_seed(1)
    for parameter in loaded.trainable():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=random)
    save_model(loaded, folder)
    (folder / "trainer_state.pt").write_text("not for others")
    return logits(loaded.model)


def logits(model: Any) -> torch.Tensor:
    model.set_attn_implementation("sdpa")
    with torch.inference_mode():
        found: torch.Tensor = model.eval()(IDS, use_cache=False).logits
    return found.clone()


def export(*arguments: str | Path) -> int:
    return main(["export", *map(str, arguments)])


@pytest.mark.parametrize("lora", [{}, {"alpha": 32}])
def test_weights_that_are_written_have_the_rights_of_any_new_file(tmp_path: Path, lora: dict[str, Any]) -> None:
    made = base(tmp_path / "base")
    before = os.umask(0o027)
    try:
        with RunDir(tmp_path / "run").save_checkpoint(3) as checkpoint:
            saved(checkpoint, made, **lora)
            loaded = load_model(
                ModelConfig(path=str(made), device="cpu", lora=LoraConfig(**({"rank": 4} if lora else {})))
            )
            (tmp_path / "served").mkdir()
            write_weights(loaded, tmp_path / "served")
        whole = ["--merged"] if lora else ["--dtype", "bfloat16"]
        assert export("--run", tmp_path / "run", "--out", tmp_path / "out", *whole) == 0
        assert export("--run", tmp_path / "run", "--out", tmp_path / "as_it_is") == 0
    finally:
        os.umask(before)
    files = [file for file in tmp_path.rglob("*") if file.is_file() and made not in file.parents]
    assert sum(file.suffix == ".safetensors" for file in files) == 4
    assert {file.stat().st_mode & 0o777 for file in files} == {0o640}


@pytest.mark.parametrize("lora", [{"alpha": 32}, {"rslora": True}, {"dora": True}, {"targets": ("q_proj", "up_proj")}])
def test_a_merged_adapter_is_a_model_that_computes_the_same(tmp_path: Path, lora: dict[str, Any]) -> None:
    from transformers import AutoModelForCausalLM

    with RunDir(tmp_path / "run").save_checkpoint(3) as checkpoint:
        expected = saved(checkpoint, base(tmp_path / "base"), **lora)
    assert export("--run", tmp_path / "run", "--out", tmp_path / "out", "--merged") == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(merged), expected, atol=1e-5, rtol=1e-5)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}


def test_an_adapter_is_a_folder_that_peft_reads(tmp_path: Path) -> None:
    expected = saved(tmp_path / "step", base(tmp_path / "base"), alpha=16)
    assert export("--checkpoint", tmp_path / "step", "--out", tmp_path / "new" / "out") == 0
    folder = tmp_path / "new" / "out"
    assert {path.name for path in folder.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
    }
    model = peft.AutoPeftModelForCausalLM.from_pretrained(folder).base_model.model
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("more", [(), ("--merged",)])
def test_a_checkpoint_of_all_weights_is_copied(tmp_path: Path, more: tuple[str, ...]) -> None:
    expected = saved(tmp_path / "step", base(tmp_path / "base"))
    assert export("--checkpoint", tmp_path / "step", "--out", tmp_path / "out", *more) == 0
    found = load_model(ModelConfig(path=str(tmp_path / "out"), device="cpu"))
    assert torch.equal(logits(found.model), expected)
    assert not (tmp_path / "out" / "trainer_state.pt").exists()


def test_merged_weights_have_the_precision_of_the_base(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    saved(tmp_path / "step", base(tmp_path / "base", torch.bfloat16), alpha=16)
    assert export("--checkpoint", tmp_path / "step", "--out", tmp_path / "out", "--merged") == 0
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("more", [{}, {"alpha": 16}], ids=["all weights", "an adapter"])
def test_a_model_is_written_in_the_precision_that_is_asked_for(tmp_path: Path, more: dict[str, Any]) -> None:
    from safetensors.torch import load_file

    expected = saved(tmp_path / "step", base(tmp_path / "base"), **more)
    merged = ["--merged"] if more else []
    for dtype in ("bfloat16", "float32"):
        assert export("--checkpoint", tmp_path / "step", "--out", tmp_path / dtype, "--dtype", dtype, *merged) == 0
        weights = load_file(tmp_path / dtype / "model.safetensors")
        assert {weight.dtype for weight in weights.values()} == {getattr(torch, dtype)}
        assert json.loads((tmp_path / dtype / "config.json").read_text())["dtype"] == dtype
        assert not (tmp_path / dtype / "trainer_state.pt").exists()
    whole = load_file(tmp_path / "float32" / "model.safetensors")
    rounded = load_file(tmp_path / "bfloat16" / "model.safetensors")
    assert all(torch.equal(whole[name].bfloat16(), rounded[name]) for name in whole)
    torch.testing.assert_close(logits(read_weights(tmp_path / "float32")), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.fault(
    "Records and checkpoints",
    "a checkpoint is exported that is none, is damaged, or whose base model is gone or another one",
    "an error that says so, and no folder is left",
)
@each_row(
    ("fault", "message"),
    [
        ("empty", "has neither config.json nor adapter_config.json"),
        ("no run", "no such folder; expected the folder of a run"),
        ("no checkpoint", "it has no checkpoint"),
        ("not new", "it is there already; name a folder that is new"),
        ("base gone", "is not there; if it was moved, say so at base_model_name_or_path"),
        ("another base", "was trained over other weights than those of its base model"),
        ("cut off", "does not load: SafetensorError"),
        ("no weights", "has no weights (model.safetensors.index.json)"),
        ("precision of an adapter", "holds an adapter, which stays as it is; add --merged"),
    ],
)
def test_what_cannot_be_exported_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str, message: str
) -> None:
    step, source, out = tmp_path / "step", ["--checkpoint", tmp_path / "step"], tmp_path / "out"
    step.mkdir()
    if fault in ("no run", "no checkpoint"):
        (tmp_path / "run" / "checkpoints").mkdir(parents=True)
        source = ["--run", tmp_path / ("run" if fault == "no checkpoint" else "nor")]
    elif fault == "no weights":
        (step / "config.json").write_text("{}")
    elif fault != "empty":
        saved(step, base(tmp_path / "base"), alpha=16)
    if fault == "not new":
        out.mkdir()
        (out / "mine").write_text("")
    elif fault == "base gone":
        (tmp_path / "base").rename(tmp_path / "moved")
    elif fault == "another base":
        make_model(seed=1).save_pretrained(tmp_path / "base")
    elif fault == "cut off":
        file = step / "adapter_model.safetensors"
        file.write_bytes(file.read_bytes()[:-50])
    wanted = ["--dtype", "bfloat16"] if fault == "precision of an adapter" else ["--merged"]
    assert export(*source, "--out", out, *wanted) == 2
    assert message in capsys.readouterr().err
    assert fault == "not new" or {path.name for path in tmp_path.iterdir()} <= {"step", "run", "base", "moved"}
