# One command per chore. `make demo` and `make test` need nothing but Python 3.11 to 3.13, make and a C compiler.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN := .venv/bin
PACKAGE := atom

.PHONY: .venv demo demo-home test gpu gpu-bench chaos explore architectures browser promtool docker walk check check-torch format proto bench clean

# pip shows its progress on a terminal only.
INSTALL := $(BIN)/python -m pip install $(if $(MAKE_TERMOUT),,--quiet) --constraint constraints.txt --editable
INSTALLED := .venv/installed
TOOLS := .venv/for-developers
RIGHT_PYTHON := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

.venv: $(INSTALLED)

# Everything that a peer needs, and no more. The file exists once all of it is installed. The folder may exist
# earlier, incomplete or with another version of Python: then it is created again.
$(INSTALLED): pyproject.toml constraints.txt setup.py atom/base/build_kernels.py atom/base/kernel.h $(wildcard atom/*/*.h) $(wildcard atom/*/*_kernels.c atom/*/*/*_kernels.c)
	@$(BIN)/python -c '$(RIGHT_PYTHON)' 2>/dev/null || $(PYTHON) -c '$(RIGHT_PYTHON)' || { \
		echo "error: $$($(PYTHON) --version 2>&1) was found, but Atom needs Python 3.11 to 3.13" >&2; \
		echo "hint:  install one of these, and name it: make .venv PYTHON=python3.12" >&2; exit 1; }
	{ $(BIN)/python -c '$(RIGHT_PYTHON)' && $(BIN)/python -m pip --version; } >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(INSTALL) .
	touch $@

# Additional packages of tests and checks.
$(TOOLS): $(INSTALLED)
	$(INSTALL) '.[dev]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/atom demo

# Both modes on home lines, side by side, and a picture of the result. Needs root.
demo-home: $(TOOLS)
	$(BIN)/python -m benchmarks.home.demo --picture home.png

# Whole files to three workers for two cores, four at most, because tests of daemons often wait; these come first.
test: $(TOOLS)
	$(BIN)/python -m pytest --numprocesses $$(($$(nproc) * 3 / 2)) --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# The device path on a GPU; on a machine without one on the CPU, like `make test`.
gpu: $(TOOLS)
	$(BIN)/python -m pytest tests/gpu

# Cost of swapping on a GPU: every row of docs/performance.md with a verdict, the most important first, in
# 35 minutes. Ends with 0 if all targets were met. GPU_BENCH: further options of the program.
gpu-bench: $(TOOLS)
	$(BIN)/python -m benchmarks.swap.run --device cuda --case all --runs 2 --deadline 2100 --json gpu-bench.json --markdown gpu-bench.md $(GPU_BENCH)

# The explorer's long bounds, 200,000 simulated rounds, then a hundred faults of real daemons: kills, freezes,
# restarts with damaged disks, partitions, faulty connections; and again with local steps.
chaos: $(TOOLS) explore
	ATOM_CHAOS_BLOCKS=320 $(BIN)/python -m pytest -x -n auto tests/training/round/test_round_chaos.py -k realistic_faults
	for rule in every-step local-steps; do \
		ATOM_CHAOS_RULE=$$rule ATOM_CHAOS_TIMES=32 ATOM_CHAOS_FREEZE_S=10 $(BIN)/python -m pytest \
			tests/chaos/test_faults.py -s || exit 1; done

# The real round machine in every order of events, within the long bounds; twenty minutes of one core.
explore: $(TOOLS)
	$(BIN)/python -m tests.training.explorer

# The tested architectures of docs/compiler.md: every one founded, trained, exported, loaded; ten minutes of
# one core.
architectures: $(TOOLS)
	$(BIN)/python -m tests.architectures.table

# The dashboard in a real browser: Chromium must be installed, or $ATOM_BROWSER name one.
browser: $(TOOLS)
	$(BIN)/python -m pytest tests/browser/dashboard_in_browser.py

# Prometheus' own checker on the daemon's metrics: promtool must be installed (Debian: prometheus).
promtool: $(TOOLS)
	$(BIN)/python -m pytest tests/daemon/owner/promtool_check.py

# The image and a swarm of four containers: a Docker engine with compose 2 must run.
docker: $(TOOLS)
	$(BIN)/python -m pytest tests/docker/compose_check.py -s

# The steps of README.md in an empty folder: from `git clone` to the first round with a second peer, in five minutes.
walk:
	$(PYTHON) tests/walk/readme_walk.py

# The rooms that need only PyTorch, with the versions of PyTorch and Python on GPU machines. Before each release.
OTHER_TORCH ?= 2.11.0
OTHER_PYTHON ?= python3.12
OTHER := .venv-torch
check-torch:
	$(OTHER_PYTHON) -m venv --clear $(OTHER)
	grep -v '^torch==' constraints.txt > $(OTHER)/constraints.txt
	$(OTHER)/bin/python -m pip install --quiet --constraint $(OTHER)/constraints.txt --editable '.[dev]' torch==$(OTHER_TORCH)
	$(OTHER)/bin/python -m pytest tests/graph tests/swap tests/optim

check: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python -m pytest tests/test_layering.py tests/test_exports.py tests/test_docs.py tests/test_test_names.py tests/test_budget.py tests/test_plain_english.py

format: $(TOOLS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(TOOLS)
	$(BIN)/python -m grpc_tools.protoc --proto_path=proto --python_out=. --pyi_out=. proto/atom/wire/*.proto

# Every benchmark that a page names. As root: `home` and `papers` put peers on lines of their own.
BENCHMARKS := swap.run devices.run ring.run optimizer.run parity.run plan.partition \
	plan.accuracy plan.bound_share scale.virtual scale.daemons scale.one_peer state.run text.run home.run \
	attacks.run attacks.crowd papers.run
bench: $(TOOLS)
	for program in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$program || exit 1; done

clean:
	rm -rf .venv .venv-torch build *.egg-info atom/*/*.so atom/*/*/*.so
