# make up [PORT=8080] [APP=module:name] [DATA=dir]   everything on this machine
# make test [TESTS="tests/db -k cron"]               all tests, or these
# make check                                         format, lint, types, import contracts
# make bench [JSON=file] [ONLY="shared steady"]      the figures, beside the machine's own limit
# make bench-peers [ONLY="procrastinate rq"] [MEASURES="drain"] [ROUNDS=1] [PUBLISH=1]  the same for Hourhand and its peers
# make bench-capacity [JOBS=100000]                  ten million jobs on this machine, or a trial with fewer
# make bench-soak [MINUTES=10]                       half an hour with a long transaction in it, or a shorter trial
# make bench-profile                                 where each microsecond of a run goes
# make compare REF=<commit>                          before and after, in one run
# make mutants                                       break each guarantee, see its test fail
# make chaos [MINUTES=5] [FAULTS=...] [SEED=n]       kill, pause and cut off a fleet, and check from outside

VENV   := .venv
BIN    := $(VENV)/bin
PYTHON ?= python3
STAMP  := $(VENV)/.installed
PORT   ?= 8080
SOAK   := $(MINUTES)

.PHONY: up test check bench bench-peers bench-capacity bench-soak bench-profile compare mutants chaos format clean

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

up: $(STAMP)
	@exec $(BIN)/hourhand up --port $(PORT) $(if $(APP),--app $(APP)) $(if $(DATA),--data $(DATA))

# Tests wait more than they compute: three processes share them. Those that kill processes have the machine to themselves.
test: $(STAMP)
ifdef TESTS
	$(BIN)/python -m pytest $(TESTS)
else
	$(BIN)/python -m pytest -n 3 --dist loadfile tests/unit tests/db
	$(BIN)/python -m pytest tests/cluster
	$(BIN)/python -m pytest tests/browser
endif

check: $(STAMP)
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(STAMP)
	$(BIN)/python -m benchmarks.run $(if $(JSON),--json $(JSON)) $(if $(ONLY),--only $(ONLY))

# What only these need.
$(VENV)/.bench: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	@touch $@

# Each peer in an environment of its own, in build/peers. Redis and Node.js must be on the machine for those that need them. What is not
# whole is a trial, and leaves its figures in build; PUBLISH=1 puts figures of some peers or measures among the others, of a commit and in
# three rounds, and measures Hourhand beside them.
bench-peers: PUBLISHED = $(if $(ONLY)$(MEASURES)$(ROUNDS),$(if $(PUBLISH),,--results build/benchmarks.json))
bench-peers: $(VENV)/.bench
	@mkdir -p build
	@$(if $(PUBLISHED),rm -f build/benchmarks.json)
	$(BIN)/python -m benchmarks.peers $(if $(ONLY),--only $(ONLY)) $(if $(MEASURES),--measures $(MEASURES)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(PUBLISHED)

# What is published comes of whole runs; a smaller one leaves its figures in build.
bench-capacity: $(VENV)/.bench
	@mkdir -p build
	$(BIN)/python -m benchmarks.capacity $(if $(JOBS),--jobs $(JOBS) --json build/capacity.json,--json docs/capacity.json)

bench-soak: WHERE = $(if $(SOAK),--minutes $(SOAK) --json build/soak.json --chart build/soak.svg,--json docs/soak.json --chart docs/images/soak.svg)
bench-soak: $(VENV)/.bench
	@mkdir -p build
	$(BIN)/python -m benchmarks.soak $(WHERE)

bench-profile: $(VENV)/.bench
	$(BIN)/python -m benchmarks.profile

compare: $(STAMP)
	$(BIN)/python -m benchmarks.compare $(REF)

# Breaks each guarantee on purpose; takes some minutes.
mutants: $(STAMP)
	$(BIN)/python -m tests.mutants

# Five minutes by default; an hour by hand: make chaos MINUTES=60
MINUTES ?= 5
FAULTS  ?= kill,pause,partition,restart,skew,lock,connections,idle,standby
RATE    ?= 60
chaos: $(STAMP)
	$(BIN)/hourhand verify --faults $(FAULTS) --minutes $(MINUTES) --rate $(RATE) $(if $(SEED),--seed $(SEED)) $(if $(KEEP),--keep $(KEEP)) $(if $(JSON),--json > $(JSON))

format: $(STAMP)
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
