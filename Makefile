# The commands of Meridian. `make help` lists them.
#
#   make drill                  RATE=, DURATION=, REGIONS=, DRILL= change the run
#   make test

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help drill drills test unit live up status down smoke load build prerequisites fetch

REGIONS ?= 3
DRILL ?= region-kill
PLAN ?= default
RATE ?=
DURATION ?=

native := target/release/native
loadtest := target/release/loadtest
load_options := $(if $(RATE),--rate $(RATE)) $(if $(DURATION),--duration $(DURATION))
# A name of loadtest/plans, or the path of a file.
plan_file := $(if $(wildcard $(PLAN)),$(PLAN),loadtest/plans/$(PLAN).toml)

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Parameters: REGIONS=1..5 (now $(REGIONS)), DRILL=$(DRILL), DRILLS=, PLAN=$(PLAN), RATE= events/s a region, DURATION= seconds"

prerequisites: ## Check what this machine must have; install what is missing where allowed
	@deploy/native/prerequisites.sh

build: prerequisites ## Build services, launcher and load tester
	@echo "build: compiling (the first time takes minutes)"
	@cargo build --release --locked --workspace --bins

fetch: build ## Fetch the engines into the user's cache, once
	@$(native) fetch

drill: fetch ## Three regions, load, iad killed and returned, verdict and report
	@$(native) run --regions $(REGIONS) -- $(loadtest) drill run $(DRILL) $(load_options)

drills: fetch ## DRILLS= one after the other, each in a world of its own (all of them when not given)
	@drills="$(DRILLS)"; [ -n "$$drills" ] || drills=$$($(loadtest) drill list --names); \
	bad=(); for drill in $$drills; do \
	  code=0; $(native) run --regions $(REGIONS) -- $(loadtest) drill run $$drill $(load_options) || code=$$?; \
	  case $$code in 0) ;; 130) exit 130 ;; *) bad+=("$$drill") ;; esac; \
	done; \
	if [ $${#bad[@]} != 0 ]; then echo "drills: not good: $${bad[*]}" >&2; exit 1; fi; echo "drills: all good"

smoke: fetch ## One region, seconds: one event's whole way
	@$(native) run --regions 1 -- $(loadtest) smoke

load: fetch ## Load by PLAN= on the running world, or on one made for it
	@if $(native) status --json > /dev/null 2>&1; then $(loadtest) load $(plan_file) $(load_options); \
	else $(native) run --regions $(REGIONS) -- $(loadtest) load $(plan_file) $(load_options); fi

up: fetch ## Start REGIONS= regions in the background
	@$(native) up --regions $(REGIONS)

status: ## Lag by pair and hop, watermark age, parked records, addresses
	@$(native) status

down: ## Stop them
	@$(native) down

test: fetch ## All tests: without engines, then live on real engines
	@deploy/native/test.sh

unit: prerequisites ## The tests that need no engines
	@cargo test --release --locked --workspace --exclude live

live: fetch ## The tests on real engines
	@deploy/native/test.sh live
