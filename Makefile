# The first call of any target makes the environment in .venv; later calls find it there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CONFIG ?= configs/transnext/upernet_tiny_ade20k.py
# What else `make setup` installs, such as 'deploy demo': deploy for tools/export.py, demo for tools/demo.py, log for
# --log wandb and --log mlflow.
EXTRA ?=
WORK_DIR = work_dirs/$(patsubst configs/%.py,%,$(CONFIG))_mini
# Mixed precision for the demo of a segmentor where the processor multiplies bfloat16; AMP= for float32. Boxes suffer from
# it in so short a training.
AMP ?= $(if $(findstring ade20k,$(CONFIG)),$(shell \
	grep -qsw -e avx512_bf16 -e amx_bf16 -e bf16 /proc/cpuinfo && echo --amp bfloat16))

# For the tests, as bioattn_mm/cli/threads.py does for the tools: threads that sleep leave their core to others.
export OMP_WAIT_POLICY ?= PASSIVE

# Tests run side by side, each file in one process, and share the cores.
JOBS ?= 2
THREADS ?= $(shell n=$$(( $$(nproc) / $(JOBS) )); echo $$(( n > 0 ? n : 1 )))
PYTEST = OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo test test-all test-docs test-package test-bounds dry-run-all gallery docs lint clean

help:
	@echo 'make setup   environment in .venv (a few minutes the first time); EXTRA=deploy adds what tools/export.py needs,'
	@echo '             EXTRA=demo what tools/demo.py and its tests need, EXTRA=log what --log wandb and mlflow need;'
	@echo "             EXTRA='deploy demo log' all of it"
	@echo 'make demo    train and test $(CONFIG) on miniature data; CONFIG=... for another'
	@echo 'make test    the test suite; make test-all trains and tests every config, too (hours)'
	@echo 'make test-docs   every command of README.md and docs/, made short (half an hour)'
	@echo 'make dry-run-all   the first training step of every config at full size (hours on a CPU)'
	@echo 'make test-package   installs wheel and sdist into empty environments, trains and predicts there'
	@echo 'make test-bounds    the lowest versions that pyproject.toml allows, each Python that is found, ARM (hours)'
	@echo 'make gallery   the pictures of docs/gallery.md and docs/systems, by the commands there (about 15 minutes)'
	@echo 'make docs    the documentation site, into site/; broken links and references fail'
	@echo 'make lint    style checks'
	@echo 'make clean   remove .venv and generated data; work_dirs stays'

setup: $(READY) $(EXTRA:%=$(VENV)/.ready-%)

# OpenCV comes in through two packages that share a folder; the headless one goes last, because the other needs
# graphics libraries that a bare machine does not have. Python compiles the modules that are imported, at the first
# time; pip would compile all twenty thousand files.
$(READY): $(wildcard requirements/*.txt) setup.py pyproject.toml $(shell find bioattn_mm/ops/csrc -type f)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo 'Python 3.10 or later is needed; name one with: make PYTHON=python3.11'; exit 2; }
	@$(PYTHON) -m venv $(VENV) \
		|| { echo 'The venv module is missing; on Debian and Ubuntu: apt install python3-venv'; exit 2; }
	$(BIN)/pip install --no-compile -r requirements/build.txt -r requirements/runtime.txt -r requirements/test.txt
	$(BIN)/pip install --quiet --no-compile --no-deps --force-reinstall \
		"opencv-python-headless==$$($(BIN)/pip show opencv-python-headless | sed -n 's/^Version: //p')"
	@echo 'Compiling the operators, under a minute on two cores'
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# mmdeploy names packages that would replace those of the environment.
$(VENV)/.ready-deploy: $(READY)
	$(BIN)/pip install -r requirements/deploy.txt
	$(BIN)/pip install --no-deps -r requirements/deploy-no-deps.txt
	@touch $@

$(VENV)/.ready-demo: $(READY)
	$(BIN)/pip install -r requirements/demo.txt
	@touch $@

$(VENV)/.ready-log: $(READY)
	$(BIN)/pip install -r requirements/log.txt
	@touch $@

$(VENV)/.ready-docs: $(READY)
	$(BIN)/pip install -r requirements/docs.txt
	@touch $@

# The test at the end says what was learned: no validation before.
demo: setup
	$(BIN)/python tools/train.py $(CONFIG) --mini --resume $(AMP) --cfg-options train_cfg.val_begin=1000
	@rm -rf $(WORK_DIR)/images
	$(BIN)/python tools/test.py $(CONFIG) $(WORK_DIR)/iter_200.pth --mini --show-dir $(WORK_DIR)/images

test: setup
	$(PYTEST) $(PYTEST_ARGS)

test-all: setup
	$(PYTEST) -m 'not dry_run and not every_command' $(PYTEST_ARGS)

test-docs: setup $(VENV)/.ready-deploy
	$(BIN)/python -m pytest -m every_command tests/docs/test_every_command.py $(PYTEST_ARGS)

test-package: setup $(VENV)/.ready-deploy
	tests/package/check.sh $(BIN)/python

# Those of pyenv, or else on the path; the first one gets the lowest versions. BOUNDS_PYTHONS=... for others.
BOUNDS_PYTHONS ?= $(foreach minor,10 11 12 13,$(firstword \
	$(wildcard $(HOME)/.pyenv/versions/3.$(minor).*/bin/python) $(shell command -v python3.$(minor))))

test-bounds: setup
	tests/package/bounds.sh $(BOUNDS_PYTHONS)
	tests/package/cross_compile.sh $(BIN)/python

# One after the other: at full size some take most of the memory of a small machine.
dry-run-all: setup
	$(BIN)/python -m pytest -m dry_run -rP tests/tools/test_dry_run_every_config.py $(PYTEST_ARGS)

gallery: setup
	rm -rf work_dirs/gallery
	$(BIN)/python docs/make_gallery.py

docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'site/index.html; with its search: python3 -m http.server --directory site'

lint: setup
	$(BIN)/pip install --quiet -r requirements/lint.txt
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.cu' '*.cuh' '*.h')

clean:
	rm -rf $(VENV) data/mini site
