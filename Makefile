# Everything runs in virtual environments that `make` builds from constraints/, and builds anew only when
# pyproject.toml or the constraints change.
#
#   make demo PYTHON=python3.12
#   make demo PIP_ARGS="--index-url ..."     where pip should look; CPU builds of torch have an index of their own,
#                                            without it pip may take the (larger) CUDA build, which works too

PYTHON ?= python3
PIP_ARGS ?=
UV_ARGS ?=
PYTEST_ARGS ?=
GPU_ARGS ?=
BENCH_ARGS ?=
# Two tests at a time, each on one core. `PYTEST_ARGS="-n 0 --pdb ..."` is one test at a time.
SIDE_BY_SIDE := -n 2 --dist worksteal

VENV := .venv
VENV1 := .venv-as1
VENVB := .venv-bench
VENVC := .venv-clients
VENVO := .venv-openai-oldest
VENVT := .venv-trinity
VENVV := .venv-verl
VENVS := .venv-vllm
VENVK := .venv-tinker
VENVR := .venv-trackers
VENVE := .venv-openenv
VENVU := .venv-upgrades
VENVN := .venv-newest
VENVL := .venv-lowest
VENVN1 := .venv-newest-as1
OLDEST_OPENAI := 2.0.0
NEWEST_TINKER := 0.38.0
BIN := $(VENV)/bin
IN_TRINITY = OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/tests/trinity/stubs $(VENVT)/bin/python -m pytest

comma := ,
# The extras of the documentation, but those of the big backbones.
DOCUMENTED := agentscope2,local,lora,prompt,online,huggingface,environments,reasoning-gym
UPGRADES := tests/workflow tests/agents tests/docs/test_snippets.py \
	-k "not docs or README or workflows or online or own_world or tasks or environments or judges or recordings"

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of processes: each would compile ASTune, and each worker the tests, every time.
unexport PYTHONDONTWRITEBYTECODE

# Python's own pip compares every file of an index with every platform, which is most of what an installation costs.
PIP := pip==26.3
MINUTES ?= 5

.PHONY: demo online-demo attack environments test test-openenv test-npm test-agentscope1 test-clients test-newest test-upgrades test-trinity test-release test-verl test-vllm test-trackers check format docs site test-site test-lowest test-pythons release bench gpu-wheels gpu-check lock clean test-histories

demo: $(VENV)/.done
	$(BIN)/astune demo

# An agent gets better while it serves simulated users: tutorial/online.
online-demo: $(VENV)/.done
	$(BIN)/python tutorial/online/run.py

test: $(VENV)/.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SIDE_BY_SIDE) $(PYTEST_ARGS)

# What touches agentscope, with its older line. Of the tutorials these do: others have no agent of it, or one of 2.x; that
# of the demo is played, and what it learns from an episode does not depend on the line.
test-agentscope1: $(VENV1)/.done
	OMP_NUM_THREADS=1 $(VENV1)/bin/python -m pytest tests/agents tests/workflow tests/tuner tests/docs/test_snippets.py \
		tests/tutorial/test_react_agent.py tests/tutorial/test_workflow.py \
		tests/recordings/test_replay.py tests/recordings/test_commands.py tests/online/agent \
		tests/env_client/test_agentscope_runtime.py \
		tests/backbone/debug/test_stepper.py tests/cli/test_init_agent.py $(SIDE_BY_SIDE) $(PYTEST_ARGS)

# Real clients over HTTP: the newest of each, then the oldest openai package, in the process too. Without torch.
test-clients: $(VENVC)/.done $(VENVO)/.done
	$(VENVC)/bin/python -m pytest tests/clients $(PYTEST_ARGS)
	$(VENVO)/bin/python -m pytest tests/clients/test_openai.py tests/gateway $(PYTEST_ARGS)

# What a user gets who installs as the documentation says, today: the newest versions, within the bounds of PIP_ARGS alone,
# and every page and example with them. Before a release; not in CI, as another project's release is no fault of a change.
test-newest:
	rm -rf $(VENVN) $(VENVN1)
	$(call newest,$(VENVN),$(DOCUMENTED))
	$(call newest,$(VENVN1),agentscope1$(comma)local)

# The lowest versions that pyproject.toml names, without torch: a bound that is too low fails here. Not in CI; wants uv.
test-lowest:
	rm -rf $(VENVL)
	uv venv --python $(PYTHON) $(VENVL)
	uv pip install $(UV_ARGS) --python $(VENVL)/bin/python --resolution lowest-direct \
		--editable ".[agentscope2,online,environments,telemetry]" "hypothesis>=6.100" "numpy>=1.26" "pytest>=9" "pytest-asyncio>=1.2"
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR) $(VENVL)/bin/python -m pytest -o filterwarnings=default tests/store tests/gateway $(PYTEST_ARGS)

# The wheel and the sdist with each Python from 3.10 to 3.13 that uv finds or fetches; not in CI.
test-pythons: $(VENV)/.done
	$(BIN)/python -m scripts.try_pythons --uv-args="$(UV_ARGS)"

# Wheel and sdist, checked in an empty environment, and a tag; nothing is uploaded.
release: $(VENV)/.done
	$(BIN)/python -m scripts.release --pip-args="$(PIP_ARGS)"

# The same in CI's time: of what that installs only what is newer than the constraints, beside the packages of `make test`,
# and torch as it is; then what other packages can break, of the pages and of agents. A release that breaks something
# fails here: then suit it, or bound the version in pyproject.toml.
test-upgrades: $(VENV)/.done
	$(BIN)/python -m scripts.upgrades $(VENVU) --extras $(DOCUMENTED) --pip-args="$(PIP_ARGS)"
	PYTHONPATH=$(CURDIR) OMP_NUM_THREADS=1 $(VENVU)/bin/python -m pytest $(UPGRADES) $(SIDE_BY_SIDE) $(PYTEST_ARGS)

# The trinity backbone, on a machine without GPUs: tests/trinity/stubs stands in for vLLM. Python 3.11 or 3.12.
# test_convert.py needs no Trinity: it is part of `make test`.
test-trinity: $(VENVT)/.done
	$(IN_TRINITY) tests/trinity tests/tinker --ignore tests/trinity/test_convert.py $(PYTEST_ARGS)

# What takes long and has a cheaper proof in CI; before a release.
test-release: $(VENV)/.done $(VENVT)/.done $(VENVV)/.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m release $(PYTEST_ARGS)
	$(IN_TRINITY) tests/trinity -m release $(PYTEST_ARGS)
	OMP_NUM_THREADS=1 $(VENVV)/bin/python -m pytest tests/verl -m release $(PYTEST_ARGS)

# The tinker server with an SDK that is newer than the one of Trinity-RFT; not in CI.
test-tinker: $(VENVK)/.done
	PYTHONPATH=$(CURDIR) OMP_NUM_THREADS=1 $(VENVK)/bin/python -m pytest tests/tinker $(PYTEST_ARGS)

# The verl backbone with real verl and Ray, on a machine without GPUs. Python 3.11 or 3.12.
test-verl: $(VENVV)/.done
	OMP_NUM_THREADS=1 $(VENVV)/bin/python -m pytest tests/verl tests/backbone/test_conformance.py $(PYTEST_ARGS)

# W&B, SwanLab, MLflow and Trackio without a network: 450 MB of packages, so not in CI, where tests/monitor/test_trackers.py
# shows what holds of every tracker.
test-trackers: $(VENVR)/.done
	OMP_NUM_THREADS=1 $(VENVR)/bin/python -m pytest tests/trackers $(PYTEST_ARGS)

# MCP servers from npm, on node; not in CI.
test-npm: $(VENV)/.done
	npm install --no-audit --no-fund --prefix .venv-npm @modelcontextprotocol/server-everything@2026.8.31 \
		@modelcontextprotocol/server-filesystem@2026.8.31
	ASTUNE_MCP_SERVERS=$(CURDIR)/.venv-npm $(BIN)/python -m pytest tests/tools/test_npm.py $(PYTEST_ARGS)

# The real OpenEnv server, in an environment of its own; not in CI, where tests/openenv plays what it has answered.
test-openenv: $(VENV)/.done $(VENVE)/.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/openenv $(PYTEST_ARGS)

# vLLM as what answers agents: its CPU build, in an environment of its own, as it wants an older transformers than ours.
test-vllm: $(VENV)/.done $(VENVS)/.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/vllm $(PYTEST_ARGS)

# Every environment that tests need, so that they can be built while others run.
environments: $(VENV)/.done $(VENV1)/.done $(VENVC)/.done $(VENVO)/.done $(VENVT)/.done $(VENVV)/.done

# The histories of the context tracker against the definitions, twenty times as many as `make test` tries.
test-histories: $(VENV)/.done
	HISTORIES=10000 $(BIN)/python -m pytest tests/context_tracker/test_histories.py \
		tests/context_tracker/test_tracker_histories.py $(PYTEST_ARGS)

# What may go wrong made to go wrong: the tests of docs/reliability.md in every environment that is built, then kills of runs of every family,
# hostile agents, malformed requests, and 512 sessions at once for so many MINUTES.
attack: $(VENV)/.done
	$(BIN)/python -m tests.attack.attack --minutes $(MINUTES)

check: $(VENV)/.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m scripts.check_words

format: $(VENV)/.done
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The tables of docs/configuration.md and docs/reliability.md and the schema of the environment service anew, and everything the documentation says done for real.
docs: $(VENV)/.done
	$(BIN)/python docs/write_tables.py
	$(BIN)/python docs/write_env_schema.py
	$(BIN)/python docs/write_reliability.py
	$(BIN)/python docs/write_translations.py
	$(BIN)/python -m pytest tests/docs $(PYTEST_ARGS)

# The documentation as a site, into dist/site: python -m http.server --directory dist/site
site: $(VENV)/.done
	$(BIN)/python -m sphinx -q -E -W --keep-going -c docs/site . dist/site

# Every page of it in Chromium, on a phone, light and dark, by axe-core from npm, and the site built strictly; not in CI.
test-site: $(VENV)/.done
	npm install --no-audit --no-fund --prefix .venv-npm axe-core@4.14.1
	ASTUNE_AXE=$(CURDIR)/.venv-npm/node_modules/axe-core/axe.min.js $(BIN)/python -m pytest -m release tests/docs/test_site.py $(PYTEST_ARGS)

# The short form of what is measured beside something else, compared with benchmarks/recorded.json.
bench: $(VENVB)/.done
	$(VENVB)/bin/python benchmarks/ratios.py $(BENCH_ARGS)

# What a machine with CUDA and PyTorch lacks, for Python 3.12 on x86-64, into a folder that can be carried there.
gpu-wheels: $(VENV)/.done
	rm -rf .gpu-wheels
	$(BIN)/python -m scripts.gpu_wheels .gpu-wheels --pip-args="$(PIP_ARGS)"

# Everything that only a GPU can show, with the PyTorch that $(PYTHON) has: docs/performance.md. Goes on where it was cut.
gpu-check: MINUTES := 9
gpu-check:
	$(PYTHON) benchmarks/gpu_check.py --minutes $(MINUTES) $(GPU_ARGS)

$(VENV)/.done: pyproject.toml constraints/agentscope2.txt
	$(call build,$(VENV),constraints/agentscope2.txt,\
		agentscope2$(comma)local$(comma)lora$(comma)prompt$(comma)online$(comma)postgresql$(comma)huggingface$(comma)environments$(comma)reasoning-gym$(comma)data$(comma)documents$(comma)agent-service$(comma)notebook$(comma)site$(comma)dev)

$(VENV1)/.done: pyproject.toml constraints/agentscope1.txt
	$(call build,$(VENV1),constraints/agentscope1.txt,agentscope1$(comma)local$(comma)lora$(comma)prompt$(comma)online$(comma)notebook$(comma)dev,agentscope-runtime)

$(VENVB)/.done: pyproject.toml constraints/agentscope2.txt benchmarks/requirements.txt
	$(call build,$(VENVB),constraints/agentscope2.txt,agentscope2$(comma)local$(comma)online$(comma)huggingface$(comma)environments)
	$(VENVB)/bin/pip install --quiet $(PIP_ARGS) --constraint constraints/agentscope2.txt \
		--requirement benchmarks/requirements.txt
	@touch $@

$(VENVC)/.done: pyproject.toml constraints/clients.txt tests/clients/requirements.txt
	$(call build,$(VENVC),constraints/clients.txt,dev,--requirement tests/clients/requirements.txt)

$(VENVR)/.done: pyproject.toml constraints/trackers.txt
	$(call build,$(VENVR),constraints/trackers.txt,trackers,hypothesis pytest pytest-asyncio)

# What `openai>=` in pyproject.toml promises.
$(VENVO)/.done: pyproject.toml constraints/clients.txt
	@mkdir -p $(VENVO)
	@grep -v "^openai" constraints/clients.txt > $(VENVO)/constraints.txt
	$(call build,$(VENVO),$(VENVO)/constraints.txt,dev,"openai==$(OLDEST_OPENAI)")

# Trinity's own list asks for verl and through it for CUDA builds, so it comes without it: see external/trinity.
$(VENVT)/.done: pyproject.toml constraints/trinity.txt external/trinity/requirements-cpu.txt \
		external/trinity/requirements-no-deps.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 13))' \
		|| { echo "Trinity-RFT needs Python 3.11 or 3.12; name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(call build,$(VENVT),constraints/trinity.txt,agentscope2$(comma)local$(comma)lora$(comma)online$(comma)dev,\
		--requirement external/trinity/requirements-cpu.txt)
	$(VENVT)/bin/pip install --quiet $(PIP_ARGS) --no-deps --requirement external/trinity/requirements-no-deps.txt
	@touch $@

# verl's own list asks for packages older than ours, so it comes without it: see external/verl.
$(VENVV)/.done: pyproject.toml constraints/verl.txt external/verl/requirements-cpu.txt \
		external/verl/requirements-no-deps.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 13))' \
		|| { echo "verl needs Python 3.11 or 3.12; name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(call build,$(VENVV),constraints/verl.txt,agentscope2$(comma)local$(comma)dev,\
		--requirement external/verl/requirements-cpu.txt)
	$(VENVV)/bin/pip install --quiet $(PIP_ARGS) --no-deps --requirement external/verl/requirements-no-deps.txt
	@touch $@

# Every package is named, so that no other is looked for: vLLM's list asks for torchvision and the like, which do not
# fit its torch. PIP_ARGS says where a CPU build of torch is.
# That of `make test`, and the SDK on top.
$(VENVK)/.done: $(VENV)/.done
	$(BIN)/python -m venv $(VENVK)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(VENVK)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/of_make_test.pth"
	$(VENVK)/bin/pip install --quiet $(PIP_ARGS) tinker==$(NEWEST_TINKER)
	@touch $@

$(VENVE)/.done: constraints/openenv.txt
	$(PYTHON) -m venv $(VENVE)
	$(VENVE)/bin/pip install --quiet $(PIP_ARGS) --no-deps --requirement constraints/openenv.txt
	@touch $@

$(VENVS)/.done: constraints/vllm.txt
	$(PYTHON) -m venv $(VENVS)
	$(VENVS)/bin/pip install --quiet $(PIP_ARGS) --no-deps --requirement constraints/vllm.txt
	@touch $@


# $(call build,folder,constraints,extras,more to install)
define build
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
		|| { echo "$(PYTHON) is not Python 3.11, 3.12 or 3.13; name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(1)
	$(1)/bin/pip install --quiet $(PIP_ARGS) $(PIP)
	$(1)/bin/pip install --quiet $(PIP_ARGS) --constraint $(2) --editable ".[$(3)]" $(4)
	@touch $@
endef

# $(call newest,folder,extras): the versions are shown, for who has to find out which of them broke something.
define newest
	$(PYTHON) -m venv $(1)
	$(1)/bin/pip install --quiet $(PIP_ARGS) --editable ".[$(2)]" hypothesis pytest pytest-asyncio
	$(1)/bin/pip freeze --exclude-editable | grep -i -E "^(agentscope|mcp|openai|pydantic|starlette|torch|transformers|uvicorn)=="
	OMP_NUM_THREADS=1 $(1)/bin/python -m pytest tests/docs/test_snippets.py tests/workflow $(PYTEST_ARGS)
endef

# Exact versions anew, on Python 3.11.
lock:
	$(call freeze,agentscope2,\
		agentscope2$(comma)local$(comma)lora$(comma)prompt$(comma)online$(comma)postgresql$(comma)huggingface$(comma)environments$(comma)reasoning-gym$(comma)data$(comma)agent-service$(comma)notebook$(comma)site$(comma)dev,"torch==2.13.0")
	$(call freeze,agentscope1,agentscope1$(comma)local$(comma)lora$(comma)prompt$(comma)online$(comma)notebook$(comma)dev,agentscope-runtime "torch==2.13.0")
	$(call freeze,clients,dev,--requirement tests/clients/requirements.txt)
	$(call freeze,trackers,trackers,hypothesis pytest pytest-asyncio)
	$(call freeze,trinity,agentscope2$(comma)local$(comma)lora$(comma)online$(comma)dev,\
		--requirement external/trinity/requirements-cpu.txt "torch==2.13.0")
	$(call freeze,verl,agentscope2$(comma)local$(comma)dev,\
		--requirement external/verl/requirements-cpu.txt "torch==2.13.0")

# $(call freeze,name,extras,more to install): the local part of a version (torch's +cpu) is no part of a pin.
define freeze
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install --quiet $(PIP_ARGS) ".[$(2)]" $(3)
	{ sed -n '/^#/p' constraints/$(1).txt; \
	  .venv-lock/bin/pip freeze --exclude astune | sed 's/+[a-z0-9]*$$//'; } > constraints/$(1).new
	mv constraints/$(1).new constraints/$(1).txt
	rm -rf .venv-lock
endef

clean:
	rm -rf $(VENV) $(VENV1) $(VENVB) $(VENVC) $(VENVO) $(VENVT) $(VENVV) $(VENVS) $(VENVK) $(VENVR) $(VENVE) $(VENVU) $(VENVN) $(VENVN1) $(VENVL) .venv-lock .gpu-wheels .gpu-site dist build
