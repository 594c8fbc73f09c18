"""One message says everything that is missing and what to type."""

import importlib
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from astune.backbone.foreign.packages import KERNELS, NEEDED_BY, Needed, lacking, numbers
from astune.backbone.trinity import versions
from astune.backbone.trinity.versions import require_trinity
from astune.backbone.verl.backbone import require_verl
from astune.errors import MissingDependency

ROOT = Path(__file__).parents[2]
GOOD = {"trinity-rft": "0.6.0", "ray": "2.60.0", "tinker": "0.25.3", "verl": "0.8.0", "vllm": "0.23.0"}
FLASH = {"flash-attn": "2.8.3"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`machine({"ray": "2.60.0"})` makes this a machine with just these packages, as pip would have left them."""

    def install(packages: Mapping[str, str], python: tuple[int, ...] = (3, 12, 4)) -> None:
        site = tmp_path / "site"
        for package, version in packages.items():
            module = site / ("trinity" if package == "trinity-rft" else package.replace("-", "_"))
            (module / "common").mkdir(parents=True, exist_ok=True)
            for folder in (module, module / "common"):
                (folder / "__init__.py").touch()
            (module / "common" / "config.py").write_text("class Config: ...\n")
            about = site / f"{package.replace('-', '_')}-{version}.dist-info"
            about.mkdir()
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        names = [
            versions.TRINITY,
            versions.RAY,
            versions.TINKER,
            versions.VERL,
            versions.VLLM,
            *NEEDED_BY.values(),
            KERNELS,
        ]
        heavy = {needed.module for needed in names}
        monkeypatch.setattr(sys, "version_info", python)
        monkeypatch.setattr(sys, "path", [str(site), *(p for p in sys.path if not has_any(p, heavy))])
        monkeypatch.setattr(sys, "modules", {n: m for n, m in sys.modules.items() if n.partition(".")[0] not in heavy})
        importlib.invalidate_caches()

    return install


def has_any(folder: str, modules: set[str]) -> bool:
    return any((Path(folder) / module).is_dir() for module in modules)


def refusal(**needs: Any) -> str:
    with pytest.raises(MissingDependency) as caught:
        require_trinity(**needs)
    return str(caught.value)


def missed(**needs: bool) -> list[str]:
    """The packages that are said to be missing."""
    try:
        require_trinity(**needs)
    except MissingDependency as error:
        return re.findall(r"\n  - (\S+) is not installed", str(error))
    return []


@pytest.mark.parametrize("missing", [None, *GOOD])
def test_what_fits_passes_and_what_is_missing_is_named(machine: Any, missing: str | None) -> None:
    machine({name: version for name, version in GOOD.items() if name != missing})
    assert missed(tinker=True, verl=True) == ([] if missing is None else [missing])


def test_everything_that_is_missing_is_told_at_once(machine: Any) -> None:
    machine({})
    message = refusal(tinker=True, verl=True)
    for package in GOOD:
        assert f"\n  - {package} is not installed; expected >=" in message
    assert 'pip install "astune[trinity]"' in message
    assert "external/trinity/README.md" in message


def test_only_what_the_run_uses_is_needed(machine: Any) -> None:
    machine({"trinity-rft": "0.6.0", "ray": "2.60.0", "vllm": "0.11.0"})
    require_trinity()
    assert re.findall(r"\n  - (\S+) is", refusal(tinker=True)) == ["tinker"]
    assert re.findall(r"\n  - (\S+) is", refusal(verl=True)) == ["verl", "vllm"]


@pytest.mark.parametrize(
    ("packages", "attention", "told"),
    [
        (FLASH, "flash_attention_2", None),
        ({}, "sdpa", None),
        ({}, "", None),
        ({"kernels": "0.12.0"}, "flash_attention_2", None),
        ({}, "flash_attention_2", "flash-attn is not installed; expected >=2.3.3,<3"),
        ({"flash-attn": "2.0.0"}, "flash_attention_2", "flash-attn is 2.0.0; expected >=2.3.3,<3"),
        ({"kernels": "0.12.0"}, "kernels-community/flash-attn3", None),
        (FLASH, "kernels-community/flash-attn3", "kernels is not installed"),
        (FLASH, "flash_attention_3", "flash-attn-3 is not installed"),
        (FLASH, "flash_attention_4", "flash-attn-4 is not installed"),
    ],
)
def test_flash_attn_is_needed_where_gpus_train_with_it(
    machine: Any, packages: dict[str, str], attention: str, told: str | None
) -> None:
    machine(GOOD | packages)
    if told is None:
        require_trinity(verl=True, attention=attention)
        assert list(lacking(attention)) == []
        return
    message = refusal(verl=True, attention=attention)
    assert f"lacks its package: {told}" in message and "or go without: astune.model.attention: sdpa" in message
    assert "pip install flash-attn==2.8.3 --no-build-isolation" in message
    with pytest.raises(MissingDependency, match=re.escape(f"lacks its package: {told}")):
        require_verl("vllm", attention, "naive")


@pytest.mark.parametrize(("way", "packages", "told"), [("nccl", {}, 1), ("naive", {}, 0), ("nccl", {"cupy": "14"}, 0)])
def test_cupy_is_needed_where_weights_travel_with_it(
    machine: Any, way: str, packages: dict[str, str], told: int
) -> None:
    machine(packages)
    with pytest.raises(MissingDependency) as caught:
        require_verl("vllm", "sdpa", way)
    assert str(caught.value).count("cupy is not installed, and weights travel with it") == told


def test_flash_attn_that_was_compiled_for_another_torch_is_told_before_anything_starts(
    machine: Any, tmp_path: Path
) -> None:
    machine(GOOD | FLASH)
    (tmp_path / "site" / "flash_attn" / "__init__.py").write_text("raise ImportError('undefined symbol: _ZN3c10')\n")
    told = "flash-attn is installed, but does not load: ImportError: undefined symbol: _ZN3c10"
    assert told in refusal(verl=True, attention="flash_attention_2")


def test_vllm_must_be_importable_even_where_tinker_samples(machine: Any) -> None:
    machine({name: version for name, version in GOOD.items() if name != "vllm"})
    assert "vllm is not installed, and Trinity 0.6.0 imports it whatever the engine" in refusal(tinker=True)


@pytest.mark.parametrize(
    ("package", "version", "expected"),
    [
        ("trinity-rft", "0.5.2", ">=0.6,<0.7"),
        ("trinity-rft", "0.7.0rc1", ">=0.6,<0.7"),
        ("ray", "2.49.2", ">=2.50,<3"),
        ("tinker", "0.38.0", ">=0.25,<0.26"),
        ("verl", "0.9.1", ">=0.7.1,<0.9"),
        ("vllm", "0.19.1", ">=0.22,<0.23.1"),
    ],
)
def test_a_version_that_does_not_fit_is_told_with_the_one_expected(
    machine: Any, package: str, version: str, expected: str
) -> None:
    machine(GOOD | {package: version})
    assert f"\n  - {package} is {version}; expected {expected}" in refusal(tinker=True, verl=True)


@pytest.mark.parametrize(("python", "fits"), [((3, 10, 0), True), ((3, 12, 9), True), ((3, 13, 0), False)])
def test_python_must_be_one_that_trinity_takes(machine: Any, python: tuple[int, ...], fits: bool) -> None:
    machine(GOOD, python)
    if fits:
        require_trinity()
    else:
        assert "this is Python 3.13.0; Trinity-RFT needs at least 3.10 and less than 3.13" in refusal()


def test_a_module_that_trinity_forgot_to_ask_for_is_named(machine: Any, tmp_path: Path) -> None:
    machine(GOOD)
    config = tmp_path / "site" / "trinity" / "common" / "config.py"
    config.write_text("import greenlet_that_nobody_asked_for\n")
    assert "imports 'greenlet_that_nobody_asked_for', which is not there" in refusal()
    config.write_text("from os import no_such_name\n")
    assert "importing it fails: cannot import name 'no_such_name'" in refusal()


def test_asking_imports_nothing_heavy_where_something_is_missing() -> None:
    code = (
        "import sys\nfrom astune.backbone.trinity.versions import *\nfrom astune.errors import MissingDependency\n"
        "import importlib.metadata\nreal = importlib.metadata.version\n"
        "importlib.metadata.version = lambda name: '0.1' if name == 'ray' else real(name)\n"
        "try:\n    require_trinity(tinker=True)\nexcept MissingDependency:\n"
        "    print(*sorted({'ray', 'trinity', 'tinker', 'torch', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_the_extra_and_the_pins_ask_for_what_is_checked() -> None:
    """pyproject.toml, external/trinity and this check name the same versions."""
    asked = (ROOT / "pyproject.toml").read_text() + (ROOT / "external/trinity/requirements-cpu.txt").read_text()
    assert f"trinity-rft{versions.TRINITY.expected}" in asked
    assert asked.count(f"tinker{versions.TINKER.expected}") == 2
    pins = (ROOT / "constraints/trinity.txt").read_text() + (
        ROOT / "external/trinity/requirements-no-deps.txt"
    ).read_text()
    for needed in (versions.TRINITY, versions.RAY, versions.TINKER):
        (pin,) = re.findall(rf"^{needed.package}==(\S+)$", pins, re.MULTILINE)
        assert needed.at_least <= numbers(pin) < needed.below


def test_the_numbers_of_a_version_are_compared_as_numbers() -> None:
    assert numbers("2.100.1") > numbers("2.50")
    assert [numbers(text) for text in ("0.6.0", "2.13.0+cpu", "0.7.1rc2", "1.2.3.4", "none")] == [
        (0, 6, 0),
        (2, 13, 0),
        (0, 7, 1),
        (1, 2, 3),
        (),
    ]
    assert Needed("x", "x", (0, 7, 1), (0, 9)).expected == ">=0.7.1,<0.9"
