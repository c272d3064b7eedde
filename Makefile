# `make` explains itself. Only Python 3.11 to 3.13 with pip is needed; everything goes into .venv.
#
#   make demo PYTHON=/path/to/python3.12     another interpreter than the first suitable one found
#   make demo EXTRA=cuda                     with CUDA, for an NVIDIA GPU
#   make setup EXTRA=old-physics VENV=.venv-old    the simulators of the published results, see docs/simulators.md

VENV  := .venv
BIN   := $(VENV)/bin
EXTRA := cpu
LOCK  := requirements/$(EXTRA).txt
# There when exactly what the lock says is installed; a changed lock or pyproject.toml makes it outdated.
STAMP := $(VENV)/.installed-$(EXTRA)
# The same with the simulators that only the tests need, on top: the demo does without.
SIMULATORS := $(VENV)/.installed-simulators
# And with what makes the documentation site.
DOCS := $(VENV)/.installed-docs
SIMULATOR_EXTRAS := --extra dmc --extra myosuite --extra playground --extra export --extra sweep --extra wandb --extra check
# One more than the two cores that the suite is made for: some tests wait for processes of their own.
JOBS  := 3

DEMO_TASK := InvertedDoublePendulum-v5
SUITABLE  := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
# `make lock UPGRADE=` keeps the versions that still fit.
UPGRADE   := --upgrade
UV        := $(BIN)/python -m uv pip compile --quiet $(UPGRADE) --generate-hashes --no-header --no-annotate --no-emit-index-url
COMPILE   := $(UV) --universal --fork-strategy fewest --python-version 3.11 --extra mujoco --extra dev pyproject.toml
# The newest that each Python has, instead of one version for all.
EACH_PYTHON := $(UV) --universal --python-version 3.11 --extra mujoco --extra export pyproject.toml
# Only wheels whose hash is in the lock are installed: no code of a package runs meanwhile. This package itself, the
# working tree, has no hash; it is built with the locked setuptools.
INSTALL   := python -m pip install --quiet --disable-pip-version-check --no-deps
LOCKED    := $(INSTALL) --require-hashes --only-binary :all:
THIS      := $(INSTALL) --no-build-isolation --editable .
# A requirement and its hashes as one line.
ONE_LINE  := awk '{ if (sub(/ *\\$$/, " ")) printf "%s", $$0; else print }'

# Simulators on torch are tested in environments of their own, .venv-NAME, with the versions of requirements/NAME.txt.
# What a lock leaves out: the CUDA packages of torch, of which a CPU build has no need. IsaacLab's torch has no CPU build;
# there it is the largest packages that its tests do without.
TORCH_SIMULATORS := mjlab mjlab-old maniskill isaaclab
LEFT_OUT         := cuda-|nvidia-|triton|torchvision
LEFT_OUT_isaaclab := triton|open3d|transformers
TORCH_VERSION    := 2.13.0
# The hash of its CPU build for Python 3.11 on x86-64, which is on torch's own index: the builds of PyPI, whose hashes uv
# finds, need the CUDA packages.
TORCH_CPU        := 6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
TESTS_mjlab-old  := tests/test_mjlab.py tests/test_mjlab_robots.py
TESTS_mjlab      := $(patsubst %,tests/test_%.py,torch torch_benchmarks processes_torch ppo_torch golden overrides motion mjlab_motion own_torch examples) \
                    $(TESTS_mjlab-old)
TESTS_maniskill  := tests/test_maniskill.py
TESTS_isaaclab   := tests/test_isaaclab.py
# A plugin for pytest that comes along and fails.
OPTIONS_isaaclab := -p no:dash
PYTHON_mjlab     := python3.11 python3 python3.12 python3.13
PYTHON_mjlab-old := $(PYTHON_mjlab)
PYTHON_maniskill := $(PYTHON_mjlab)
PYTHON_isaaclab  := python3.12 $(wildcard $(HOME)/.pyenv/versions/3.12*/bin/python)
# Which extra a lock is made from, where it is not called the same.
EXTRA_mjlab-old  := sim2real
# What has no wheel is built with the locked setuptools.
SOURCE_isaaclab  := --no-binary antlr4-python3-runtime --no-build-isolation --use-pep517
SUITABLE_isaaclab := import sys; sys.exit(sys.version_info[:2] != (3, 12))

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format types licences audit unit tasks test-old-physics browser vulkan bench soak lock clean
.PHONY: docs dist test-wheel test-jax
.PHONY: $(TORCH_SIMULATORS:%=test-%)

help:  ## this list
	@awk -F ':.*## *' '/^[a-z-]+:.*##/ { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## make .venv with the locked versions and this package

demo: $(STAMP)  ## train a small task on two CPU cores in a few minutes, and show what came out
	@run=runs/demo-$$(date +%Y%m%d-%H%M%S); \
	$(BIN)/warpsac train $(DEMO_TASK) --profile demo --out runs --name $${run#runs/} || exit $$?; \
	echo; \
	if $(BIN)/warpsac play $$run > /dev/null; then video=$$run/policy.mp4; \
	else video="none: nothing to draw with here (see the line above)"; fi; \
	echo "the policy is trained:"; \
	echo "  run folder      $$run"; \
	echo "  learning curve  $$run/curve.png"; \
	echo "  video           $$video"; \
	echo "next, evaluate it on new episodes:"; \
	echo "  $(BIN)/warpsac eval $$run"

test: lint types licences unit tasks  ## lint, types, licences, all tests and benchmark tasks; what CI runs

lint: $(STAMP)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## mypy
	$(BIN)/mypy

licences: $(STAMP) $(SIMULATORS)  ## whether all that is installed has a licence that we accept
	$(BIN)/python .ci/licences.py

audit: $(STAMP)  ## which locked versions have known vulnerabilities, as PyPI knows; OSV=all.zip: as an export of OSV knows
	$(BIN)/python .ci/audit.py $(if $(OSV),--database $(OSV)) requirements/*.txt

unit: $(STAMP) $(SIMULATORS)  ## pytest alone; ARGS="-k ring" picks tests
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)
	$(if $(ARGS),,XLA_FLAGS= $(BIN)/python -m pytest -n $(JOBS) tests/test_golden.py)

tasks: $(STAMP) $(SIMULATORS)  ## try every benchmark task that can run here
	$(BIN)/warpsac tasks --check

# What steps, saves and draws MuJoCo from Python.
TESTS_old_physics := $(patsubst %,tests/test_%.py,envs dmc workers evaluate policy viewer_live)

test-old-physics:  ## the tests of host simulators with MuJoCo 3.3.3, that of the published runs, in .venv-old
	@$(MAKE) --no-print-directory setup EXTRA=old-physics VENV=.venv-old
	.venv-old/bin/python -m pytest -n $(JOBS) $(TESTS_old_physics) $(ARGS)

# Environments of all suitable Pythons that are found, one after the other: .venv-LOCK-VERSION, with requirements/LOCK.txt.
PYTHONS := python3.11 python3.12 python3.13 $(foreach v,3.11 3.12 3.13,$(wildcard $(HOME)/.pyenv/versions/$(v).*/bin/python))
NUMBER  := import sys; print("%d.%d" % sys.version_info[:2])
define for_each_python
done=; for python in $(or $(PYTHON),$(PYTHONS)); do \
  $$python -c '$(SUITABLE)' > /dev/null 2>&1 || continue; \
  number=$$($$python -c '$(NUMBER)'); case " $$done " in *" $$number "*) continue;; esac; done="$$done $$number"; \
  $(1) || exit; \
done; \
for number in 3.11 3.12 3.13; do case " $$done " in *" $$number "*) ;; *) echo "$@: no Python $$number found";; esac; done; \
[ -n "$$done" ]
endef

docs: $(DOCS)  ## the documentation as pages, site/index.html: warnings and broken links fail; needs no network to read
	$(BIN)/python docs/site/make_site.py site
	$(BIN)/python tests/site_in_browser.py site

dist: $(STAMP)  ## build dist/: the sdist, and from it the wheel
	@$(BIN)/$(LOCKED) --requirement requirements/tools.txt
	rm -rf dist build
	$(BIN)/python -m build --no-isolation

test-wheel: dist  ## train, evaluate, watch, report and export with the wheel alone, on each Python that is found
	$(BIN)/python .ci/extras.py
	@$(call for_each_python,venv=.venv-wheel-$$number && echo "the wheel on Python $$number" && \
	  $$python -m venv --clear $$venv && $$venv/bin/$(LOCKED) --requirement requirements/wheel.txt && \
	  $$venv/bin/$(INSTALL) dist/*.whl && $$venv/bin/python -m pip check && $$venv/bin/python .ci/wheel.py && rm -rf $$venv)

# What computes with JAX, without simulators of others.
TESTS_jax := $(patsubst %,tests/test_%.py,age ring losses networks sac ppo reward_scale policy checkpoint own_jax training)
# ONLY="oldest-3.11 newest-3.13": these pairs of a JAX and a Python alone.
ONLY :=

test-jax:  ## the core with the oldest and the newest JAX that each Python has; ONLY="oldest-3.11 newest-3.13": some of them
	@$(call for_each_python,for jax in oldest newest; do venv=.venv-jax-$$jax-$$number; \
	  case " $(or $(ONLY),$$jax-$$number) " in (*" $$jax-$$number "*) ;; (*) continue;; esac; \
	  $(MAKE) --no-print-directory setup EXTRA=jax-$$jax VENV=$$venv PYTHON=$$python && \
	  $$venv/bin/python -c 'import platform; import jax; print("JAX", jax.__version__, "on Python", platform.python_version())' && \
	  XLA_FLAGS= $$venv/bin/python -m pytest -q -n $(JOBS) $(TESTS_jax) $(ARGS) && rm -rf $$venv || exit; done)

browser:  ## install Chromium, in which the tests look at report pages (Debian and Ubuntu, as root)
	@command -v chromium > /dev/null || { apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null; }

test-mjlab:  ## the tests of torch simulators in general and of MJLab, in .venv-mjlab
test-mjlab-old:  ## those of MJLab with 1.2.0, the version of the published runs, in .venv-mjlab-old
test-maniskill:  ## those of ManiSkill, in .venv-maniskill; without Vulkan (`make vulkan`) they are skipped
test-isaaclab:  ## those of IsaacLab 3, in .venv-isaaclab, if there is a Python 3.12

$(TORCH_SIMULATORS:%=test-%): test-%:
	@python=; for one in $(or $(PYTHON),$(PYTHON_$*)); do \
	  $$one -c '$(or $(SUITABLE_$*),$(SUITABLE))' > /dev/null 2>&1 && python=$$one && break; \
	done; \
	if [ -z "$$python" ]; then echo "$@: skipped, it needs another Python: make $@ PYTHON=/path/to/python3.12"; exit 0; fi; \
	$(MAKE) --no-print-directory .venv-$*/.installed PYTHON=$$python && \
	.venv-$*/bin/python .ci/licences.py && \
	XLA_FLAGS= OMP_NUM_THREADS=1 .venv-$*/bin/python -m pytest $(OPTIONS_$*) $(TESTS_$*) $(ARGS)

vulkan:  ## install a software Vulkan for ManiSkill (Debian and Ubuntu, as root)
	@ls /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json > /dev/null 2>&1 || .ci/vulkan

bench: $(STAMP)  ## speed of replay sampling, one learner update and a report on this machine
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/update.py
	$(BIN)/python benchmarks/report.py

KILLS := 1000

soak: $(STAMP)  ## kill runs, fail their disk, damage their files; figures in results/reliability.json
	$(BIN)/python tests/soak.py --kills $(KILLS) --errors $$(($(KILLS) / 6)) --write kills
	@if [ -e .venv-mjlab/.installed ]; then \
	  .venv-mjlab/bin/python tests/soak.py --kills $$(($(KILLS) / 12)) --errors $$(($(KILLS) / 60)) --write kills-torch; \
	else echo "soak: no torch runs without .venv-mjlab (make test-mjlab)"; fi
	$(BIN)/python tests/soak.py --flips 1 --frozen 1 --write flips-and-stops
	@if [ -e tests/fuzz.py ]; then $(BIN)/python tests/soak.py --write odd-input \
	  --figures-of "tests/fuzz.py --command-lines 2000 --folders 2000 --json"; fi

lock: $(STAMP)  ## choose the locked versions again from pyproject.toml
	$(BIN)/$(LOCKED) --requirement requirements/tools.txt
	$(COMPILE) $(SIMULATOR_EXTRAS) --output-file requirements/simulators.txt
	$(COMPILE) --constraint requirements/simulators.txt --output-file requirements/cpu.txt
	$(COMPILE) --extra cuda --constraint requirements/cpu.txt --output-file requirements/cuda.txt
	$(COMPILE) --extra dmc --constraint requirements/old-physics.in --output-file requirements/old-physics.txt
	$(COMPILE) --extra ray --constraint requirements/simulators.txt --constraint requirements/cpu.txt \
	  --output-file requirements/ray.txt
	$(COMPILE) --extra docs --constraint requirements/simulators.txt --constraint requirements/ray.txt \
	  --output-file requirements/docs.txt
	$(EACH_PYTHON) --extra dev --constraint requirements/jax-oldest.in --output-file requirements/jax-oldest.txt
	$(EACH_PYTHON) --extra dev --output-file requirements/jax-newest.txt
	$(EACH_PYTHON) --constraint requirements/jax-newest.txt --output-file requirements/wheel.txt
	$(MAKE) --no-print-directory $(TORCH_SIMULATORS:%=requirements/%.txt.new)
	$(UV) --universal --python-version 3.11 requirements/tools.in --output-file requirements/tools.txt

requirements/%.txt.new:
	@echo "torch==$(TORCH_VERSION)" > $@.torch
	@cp requirements/$*.txt $@
	$(UV) --python-version $(if $(filter isaaclab,$*),3.12,3.11) --python-platform x86_64-manylinux_2_36 --extra dev \
	  --extra $(or $(EXTRA_$*),$*) $(if $(findstring mjlab,$*),--extra export) \
	  $(if $(filter isaaclab,$*),,--constraint $@.torch) pyproject.toml --output-file $@
	@awk '/^[^ ]/ { left_out = /^($(or $(LEFT_OUT_$*),$(LEFT_OUT)))/ } left_out { next } { print } \
	  /^torch==$(TORCH_VERSION) / { print "    --hash=sha256:$(TORCH_CPU)"; left_out = 1 }' $@ > $@.torch
	@mv $@.torch requirements/$*.txt
	@rm $@

clean:  ## remove .venv and caches; run folders stay
	rm -rf $(VENV) .venv-old .venv-wheel-* .venv-jax-* $(TORCH_SIMULATORS:%=.venv-%) build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

.venv-%/.installed: requirements/%.txt pyproject.toml
	@echo "installing the versions of requirements/$*.txt into .venv-$* (once)"
	@$(PYTHON) -m venv --clear .venv-$*
	@# A few at a time: pip keeps all that one call downloads, gigabytes, until the last of it is installed.
	@$(ONE_LINE) requirements/$*.txt | grep '^setuptools==' > .venv-$*/some
	@$(ONE_LINE) requirements/$*.txt | grep -v '^setuptools==' | split -l 20 - .venv-$*/some-
	@for some in .venv-$*/some*; do .venv-$*/bin/$(LOCKED) $(SOURCE_$*) --requirement $$some || exit; done
	@.venv-$*/bin/$(THIS)
	@touch $@

$(SIMULATORS): requirements/simulators.txt requirements/ray.txt $(STAMP)
	@echo "installing the simulators, and Ray, that the tests need"
	@$(BIN)/$(LOCKED) --requirement requirements/ray.txt
	@$(BIN)/$(LOCKED) --requirement requirements/simulators.txt
	@touch $@

$(DOCS): requirements/docs.txt $(STAMP)
	@echo "installing what makes the documentation"
	@$(BIN)/$(LOCKED) --requirement requirements/docs.txt
	@$(BIN)/python .ci/licences.py
	@touch $@

$(STAMP): $(LOCK) pyproject.toml
	@if ! $(BIN)/python -c '$(SUITABLE)' 2> /dev/null; then \
	  for python in $(or $(PYTHON),python3 python python3.13 python3.12 python3.11); do \
	    $$python -c '$(SUITABLE)' > /dev/null 2>&1 && found=$$python && break; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "no Python 3.11, 3.12 or 3.13 found$(if $(PYTHON), at $(PYTHON)); name one: make PYTHON=/path/to/python3" >&2; \
	    exit 2; \
	  fi; \
	  echo "making $(VENV) with $$($$found --version)"; \
	  if $$found -c 'import ensurepip' 2> /dev/null; then $$found -m venv --clear $(VENV); \
	  else $$found -m venv --clear --without-pip $(VENV) && $(ONE_LINE) requirements/tools.txt | grep '^pip==' > $(VENV)/pip && \
	    $$found -m pip --python $(BIN)/python install --quiet --require-hashes --requirement $(VENV)/pip; fi; \
	fi
	@echo "installing the versions of $(LOCK) into $(VENV) (once)"
	@$(BIN)/$(LOCKED) --requirement $(LOCK)
	@$(BIN)/$(THIS)
	@touch $@
