# The first call of any target makes the environment in .venv; later calls find it there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CONFIG ?= configs/transnext/upernet_tiny_ade20k.py
# What else `make setup` installs, such as 'deploy demo': deploy for tools/export.py, demo for tools/demo.py, log for
# --log wandb and --log mlflow, evaluation for COCO's metrics in C++, bridges for the libraries of
# docs/other_libraries.md, tiff for TIFF images that are not RGB in 8 bits.
EXTRA ?=
WORK_DIR = work_dirs/$(patsubst configs/%.py,%,$(CONFIG))_mini
# Mixed precision of the demo, as tools/train.py takes it; AMP= for float32.
AMP ?= auto

# For the tests, as bioattn_mm/cli/threads_and_memory.py does for the tools: threads that soon sleep leave their core to others.
ifndef OMP_WAIT_POLICY
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT ?= 1000
endif

# Containers often tell Python to keep no compiled modules. Then each process of the tools would compile thousands of
# modules of the upstream libraries anew, for 10 seconds or more.
export PYTHONDONTWRITEBYTECODE :=

# Tests run side by side, each file in one process, and share the cores. They often wait, for processes and for files:
# a third process then finds work for two cores. Each takes up to 3 GB of memory.
JOBS ?= $(or $(shell awk '/MemAvailable/ { print ($$2 > 12000000 ? 3 : 2) }' /proc/meminfo 2> /dev/null),2)
THREADS ?= $(shell n=$$(( $$(nproc) / $(JOBS) )); echo $$(( n > 0 ? n : 1 )))
PYTEST = OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: help setup wheel demo test test-slow test-extra test-all test-docs test-real test-package test-peers test-portable test-bounds test-capabilities test-asan test-arm dry-run-all mutants gallery docs lint clean

help:
	@echo 'make setup   environment in .venv (a few minutes the first time); EXTRA=deploy adds what tools/export.py needs,'
	@echo '             EXTRA=demo what tools/demo.py and its tests need, EXTRA=log what --log wandb and mlflow need,'
	@echo '             EXTRA=bridges transformers, segmentation-models-pytorch, Lightning and Accelerate,'
	@echo "             EXTRA=evaluation COCO's metrics in C++, EXTRA=tiff what TIFF images that are not RGB in 8 bits need;"
	@echo "             EXTRA='deploy demo log evaluation bridges tiff' all of it"
	@echo 'make wheel   the wheel for every Python and torch, into dist/; with CUDA operators where nvcc is'
	@echo 'make demo    train and test $(CONFIG) on miniature data; CONFIG=... for another'
	@echo 'make test    the test suite; make test-all trains and tests every config, too (hours)'
	@echo 'make test-slow    what takes half a minute and more: runs in several processes, the CUDA kernels on the CPU'
	@echo 'make test-extra   of the suite, what needs the packages of an EXTRA, all of which it installs'
	@echo 'make test-docs   every command of README.md and docs/, made short (half an hour)'
	@echo 'make test-real DATA=FOLDER   train, test, predict and export on real data, whose archives are in the folder (minutes)'
	@echo 'make dry-run-all   the first training step of every config at full size (hours on a CPU)'
	@echo 'make test-package   installs wheel and sdist into empty environments, trains and predicts there'
	@echo 'make test-peers PEERS=FOLDER   upstream tests from checkouts in the folder, and sixty upstream configs with our backbones'
	@echo 'make test-portable  the tests of systems and inference without compiled operators'
	@echo 'make test-bounds    the wheel in the lowest, the newest and other releases of torch, with each Python (an hour); the'
	@echo "             operators' tests and trainings in the newest Python of each torch, --check and predictions in all;"
	@echo '             compiling for ARM. WHEEL=dist/... takes a wheel that is there'
	@echo 'make test-capabilities   the tests of the CPU operators with each instruction set below the one in use'
	@echo 'make test-asan      the tests of the operators under AddressSanitizer, compiled into build/asan'
	@echo 'make test-arm       the tests of the operators on 64-bit ARM in an emulator, compiled into build/arm'
	@echo 'make mutants PATHS=FOLDER   changes one place of the package at a time, and names what no test finds'
	@echo 'make gallery   the pictures of docs/gallery.md and docs/systems, by the commands there, where their models are'
	@echo 'make docs    the documentation site, into site/; broken links and references fail'
	@echo 'make lint    style checks'
	@echo 'make clean   remove .venv and generated data; work_dirs stays'

setup: $(READY) $(EXTRA:%=$(VENV)/.ready-%)

# OpenCV comes in through two packages that share a folder; the headless one goes last, because the other needs
# graphics libraries that a bare machine does not have. At the end, Python compiles the modules that the tools import; pip
# would compile all twenty thousand files.
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
	@$(BIN)/python -W ignore -c 'import bioattn_mm, mmdet.apis, mmseg.apis, mmpretrain.apis' > /dev/null
	@touch $@

# With nvcc, for CUDA too. auditwheel checks that it runs on any Linux from 2018 on, and says so in its name.
CUDA_HOME ?= /usr/local/cuda
wheel: $(VENV)/.ready-wheel
	rm -rf build/wheel dist/bioattn_mm-*.whl
	FORCE_CUDA=$(if $(wildcard $(CUDA_HOME)/bin/nvcc),1,0) CUDA_HOME=$(CUDA_HOME) \
		$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	PATH="$(BIN):$$PATH" $(BIN)/auditwheel repair --plat manylinux_2_28_x86_64 --only-plat \
		--exclude 'libtorch*.so' --wheel-dir dist build/wheel/*.whl

# Compiling needs torch alone, not the environment of `make setup`.
$(VENV)/.ready-wheel: requirements/wheel.txt requirements/build.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --no-compile -r requirements/build.txt -r requirements/wheel.txt -c requirements/runtime.txt torch
	@touch $@

# mmdeploy names packages that would replace those of the environment.
$(VENV)/.ready-deploy: $(READY)
	$(BIN)/pip install -r requirements/deploy.txt
	$(BIN)/pip install --no-deps -r requirements/deploy-no-deps.txt
	@touch $@

$(VENV)/.ready-%: requirements/%.txt $(READY)
	$(BIN)/pip install -r $<
	@touch $@

# With AMP=auto, a segmentor trains in bfloat16 where the processor multiplies it; boxes suffer from it in so short a
# training. Where it does not, UperNet's heads, which take most of the time, get half of their channels.
# The test at the end says what was learned: no validation before.
demo: setup
	@set -e; amp='$(AMP)'; options=; \
	if [ "$$amp" = auto ]; then \
		amp=; \
		case '$(CONFIG)' in *ade20k*) \
			if $(BIN)/python -c 'import sys; from bioattn_mm.training.amp import cpu_has_bfloat16 as has; sys.exit(not has())'; \
			then amp='--amp bfloat16'; fi;; esac; \
		case "$$amp $(CONFIG)" in ' '*upernet*) \
			echo 'This processor does not multiply bfloat16: float32, and heads of 256 instead of 512 channels.'; \
			options='model.decode_head.channels=256 model.auxiliary_head.channels=128';; esac; \
	fi; \
	set -x; \
	$(BIN)/python tools/train.py $(CONFIG) --mini --resume $$amp --cfg-options train_cfg.val_begin=1000 $$options; \
	rm -rf $(WORK_DIR)/images; \
	$(BIN)/python tools/test.py $(CONFIG) $(WORK_DIR)/iter_200.pth --mini --show-dir $(WORK_DIR)/images \
		$${options:+--cfg-options $$options}

test: setup
	$(PYTEST) $(PYTEST_ARGS)

test-slow: setup
	$(PYTEST) -m 'slow and not every_config and not every_kernel and not every_compilation' $(PYTEST_ARGS)

test-extra: setup $(patsubst %,$(VENV)/.ready-%,deploy demo log evaluation bridges tiff)
	$(PYTEST) -m 'extra and not slow and not every_config' $(PYTEST_ARGS)

test-all: setup
	$(PYTEST) -m 'not dry_run and not every_command' $(PYTEST_ARGS)

test-docs: setup $(VENV)/.ready-deploy
	$(BIN)/python -m pytest -m every_command tests/docs/test_every_command.py $(PYTEST_ARGS)

# The folder of the archives of docs/results.md: make test-real DATA=FOLDER
test-real: setup $(VENV)/.ready-deploy
	@test -n '$(DATA)' || { echo 'Name the folder of camvid.tar and bccd.tar: make test-real DATA=FOLDER'; exit 2; }
	BIOATTN_REAL_DATA='$(abspath $(DATA))' $(BIN)/python -m pytest tests/real $(PYTEST_ARGS)

test-package: setup $(VENV)/.ready-deploy
	tests/package/check.sh $(BIN)/python

# Without operators, as on a machine where nothing compiles: a copy of the checkout without libraries.
PORTABLE_TESTS ?= tests/systems tests/inference
test-portable: setup
	tests/ops/copy_checkout.sh build/portable
	cd build/portable && PYTHONPATH=$(CURDIR)/build/portable OMP_NUM_THREADS=$(THREADS) $(CURDIR)/$(BIN)/python -m pytest \
		-n $(JOBS) --dist loadfile -W 'ignore:bioattn_mm was installed without' $(PORTABLE_TESTS) $(PYTEST_ARGS)

# The tests of mmcv, mmdet, mmseg and timm: make test-peers PEERS=FOLDER COMPILED=FOLDER, see tests/peers.py --help.
test-peers: setup $(VENV)/.ready-evaluation $(VENV)/.ready-peers
	@test -n '$(PEERS)' || { echo 'Name the folder of the checkouts: make test-peers PEERS=FOLDER'; exit 2; }
	$(BIN)/python -m pytest -m every_config tests/hosts/test_any_model.py
	$(BIN)/python tests/peers.py '$(PEERS)' $(if $(COMPILED),--compiled '$(COMPILED)') $(PEERS_ARGS)

# Those of pyenv, or else on the path, the newest first. BOUNDS_PYTHONS=... for others.
BOUNDS_PYTHONS ?= $(foreach minor,14 13 12 11 10,$(firstword \
	$(wildcard $(HOME)/.pyenv/versions/3.$(minor).*/bin/python) $(shell command -v python3.$(minor))))

# WHEEL=dist/... for one that is there.
test-bounds: $(if $(WHEEL),$(VENV)/.ready-wheel,wheel)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/package/bounds.py \
		$(or $(WHEEL),dist/bioattn_mm-*.whl) --pythons $(BOUNDS_PYTHONS) $(BOUNDS_ARGS)
	tests/package/cross_compile.sh $(BIN)/python

# The variables lower PyTorch, oneDNN and MKL, too; what runs kernels for GPUs on the CPU is left out.
test-capabilities: setup
	@for name in $$($(BIN)/python -c 'import torch; from bioattn_mm.ops import backends; \
		print(*(n for n in torch.ops.bioattn_mm.cpu_capabilities()[:-1] if n != "avx512"))'); do \
		echo "$$name"; \
		ATEN_CPU_CAPABILITY=$$name ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
			OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n $(JOBS) --dist load -q tests/ops \
			--deselect tests/ops/test_launches.py $(PYTEST_ARGS) || exit 1; done

# BIOATTN_MM_FUZZ_CASES=10000 for hours of random calls.
test-asan: setup
	tests/ops/asan.sh $(BIN)/python $(PYTEST_ARGS)

# Needs packages of Debian or Ubuntu that the script names.
test-arm: setup
	tests/ops/arm.sh $(BIN)/python $(PYTEST_ARGS)

# One after the other: at full size some take most of the memory of a small machine.
dry-run-all: setup
	$(BIN)/python -m pytest -m dry_run -rP tests/tools/test_every_config.py $(PYTEST_ARGS)

# Of a file or folder: make mutants PATHS=bioattn_mm/training/ema.py MUTANTS_ARGS='--number 40'
mutants: setup
	$(BIN)/python tests/mutants.py $(or $(PATHS),bioattn_mm) $(MUTANTS_ARGS)

gallery: setup
	rm -rf work_dirs/gallery
	$(BIN)/python docs/make_gallery.py

SITE ?= site
docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir '$(abspath $(SITE))'
	@echo '$(SITE)/index.html; with its search: python3 -m http.server --directory $(SITE)'

lint: setup
	$(BIN)/pip install --quiet -r requirements/lint.txt
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/docs/test_language.py
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.cu' '*.cuh' '*.h')

clean:
	rm -rf $(VENV) data/mini site
