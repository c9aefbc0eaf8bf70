# Every target does its own set-up: a virtual environment, the pinned install, the run. Only `gpu` takes the Python and
# torch of its machine, which have to fit its CUDA.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-avx2 browser chromium lint format docs book notebooks package bench gpu faults clients ray mutation golden clean

demo: $(VENV)/core ## what the bundled models can do; ARGS=--train trains two small ones
	$(BIN)/formers demo $(ARGS)

test: $(VENV)/dev ## the whole suite, under ten minutes on two cores
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

# Other instructions add in another order, lack bf16, or saturate in 8 bits: what holds with AVX-512 alone is found here.
test-avx2: $(VENV)/dev ## the tests of arithmetic once more, as a processor without AVX-512 computes
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 FBGEMM_ENABLE_INSTRUCTIONS=AVX2 $(BIN)/python -m pytest -n 2 \
		--dist loadgroup tests/parity tests/nn tests/generation tests/test_former.py $(ARGS)

# Chromium is a package of the system and axe-core one of npm's (MPL-2.0, for this test alone); neither is part of formers.
AXE := build/browser/node_modules/axe-core/axe.min.js
browser: chromium $(AXE) $(VENV)/dev ## the view page and the playground in headless Chromium, with axe-core
	$(PIP) -e ".[dev,browser]"
	FORMERS_BROWSER=1 FORMERS_AXE=$(AXE) $(BIN)/python -m pytest -s tests/browser $(ARGS)

chromium:
	@command -v chromium >/dev/null || [ -n "$$FORMERS_CHROMIUM" ] || { echo \
		"make browser needs Chromium: apt-get install chromium fonts-noto-cjk, or FORMERS_CHROMIUM=/path/to/it"; exit 1; }

$(AXE):
	@command -v npm >/dev/null || { echo "make browser needs npm, for axe-core: apt-get install npm"; exit 1; }
	npm install --silent --no-save --no-audit --no-fund --prefix build/browser axe-core@4.14.0

lint: $(VENV)/dev ## what CI and pre-commit check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/dev ## put the code into form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/core ## the book in both languages, as a site in build/site: warnings are errors, every link is followed
	$(PIP) -e ".[docs,serve]"
	$(BIN)/python scripts/check_translations.py
	$(BIN)/python scripts/build_docs.py $(ARGS)

book: $(VENV)/dev ## the shell commands of every page, shortened, in a folder with tiny models
	$(BIN)/python -m pytest --book tests/test_book_commands.py $(ARGS)

notebooks: $(VENV)/core ## the tutorials as executed notebooks, in build/notebooks
	$(PIP) -e ".[docs,serve,eval]"
	$(BIN)/python scripts/make_notebooks.py $(ARGS)

# Outside the repository nothing but the wheel can answer: a file that was left out of it is missed here.
package: ## build dist/, install the wheel into an environment of its own and use it outside the repository
	rm -rf build/package dist && $(PYTHON) -m venv build/package/venv
	build/package/venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build
	build/package/venv/bin/python -m build --outdir dist
	build/package/venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$(echo dist/*.whl)[serve]"
	build/package/venv/bin/python scripts/try_package.py

bench: $(VENV)/dev ## formers and its peers side by side on this machine's CPU
	$(BIN)/python -m benchmarks.cpu $(ARGS)

gpu: ## on a machine with a CUDA device and its own Python packages: kernel tests, then the training benchmark
	PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python3 -m pytest -p no:cacheprovider -m gpu tests/gpu
	PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} python3 -m benchmarks.gpu $(ARGS)

faults: $(VENV)/dev ## the fault tests with their full counts
	$(BIN)/python -m pytest --full -s tests/faults $(ARGS)

clients: $(VENV)/dev $(VENV)-clients/ready ## real clients (openai, huggingface_hub, langchain, lm-eval, …) against a running server
	FORMERS_CLIENTS=$(VENV)-clients $(BIN)/python -m pytest tests/serving/test_clients.py $(ARGS)

ray: $(VENV)-ray/ready ## a deployment on a Ray of its own: two replicas, one of them killed
	PYTHONPATH=src $(VENV)-ray/bin/python -m pytest tests/serving/test_ray_deployment.py $(ARGS)

mutation: $(VENV)/dev ## does a test notice when nn/ or objectives/ is broken? prints the score
	$(BIN)/python -m tests.mutation $(ARGS)
	$(BIN)/python -m tests.mutation $(ARGS) src/formers/objectives/*.py

golden: $(VENV)/dev ## make the golden files of the parity tests anew
	$(BIN)/python -m tests.parity.make_golden

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) $(VENV)-clients $(VENV)-ray .ruff_cache .mypy_cache .hypothesis

$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(VENV)/dev: $(VENV)/core
	$(PIP) -e ".[dev]"
	@touch $@

$(VENV)-clients/ready: tests/serving/clients/requirements.txt
	$(PYTHON) -m venv $(VENV)-clients
	$(VENV)-clients/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(VENV)-ray/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-ray
	$(VENV)-ray/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[ray]" pytest hypothesis
	@touch $@
