# Every target does one thing whole; `make help` lists them.
.DEFAULT_GOAL := help
GO ?= go
BUILD = $(GO) build -ldflags "-X main.commit=$$(git rev-parse --short=12 HEAD 2>/dev/null)" -o bin/meterplex ./cmd/meterplex

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

.PHONY: run
run: ## Run the service with a demo tenant and traffic (Ctrl-C stops it)
	@$(BUILD)
	@./bin/meterplex demo $(ARGS)

.PHONY: build
build: ## Build bin/meterplex
	@$(BUILD)

# Tests need no debugging information, which takes an eighth of a compilation, and no inlining (-l) in the packages of LARGE, which takes a third of
# theirs. All commands below share the flags, and so the packages that they compile.
LARGE = github.com/meterplex/meterplex/http github.com/meterplex/meterplex/cmd/meterplex/e2e github.com/stripe/stripe-go/v84 github.com/twmb/franz-go/pkg/kmsg
test: export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS 2>/dev/null) -gcflags=all=-dwarf=false $(LARGE:%='-gcflags=%=-l -dwarf=false'))
# Checks without clocks use the time in which the other tests only wait: they yield to them, and what they print comes last.
.PHONY: test
test: form vet ## Run lint and every test, against a real PostgreSQL and a real Kafka
	@echo "nice make calm &"; found=$$(mktemp) || exit 1; $(CALMLY) calm >"$$found" 2>&1 & checking=$$!; \
	trap 'kill $$checking 2>/dev/null; rm -f "$$found"' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; \
	[ -n "$(RACE)" ] || echo "SKIPPED the race detector: it needs a C compiler, $$($(GO) env CC)"; \
	$(PARALLEL) tests; tested=$$?; \
	wait $$checking; calm=$$?; cat "$$found"; [ $$calm = 0 ] && exit $$tested; echo "make calm failed, see above"; exit 1

# These checks neither wait nor measure time, so that they may be slow: staticcheck, the files in deploy, the simulation and the planted bugs. deploy/check is
# a module of its own: the service does not depend on Helm and Kubernetes. Go would reuse its results although the files that it reads outside its module have changed.
CALMLY = nice -n 19 $(MAKE) --no-print-directory -k
.PHONY: calm staticcheck test-deploy test-calm
calm: staticcheck test-deploy test-calm
staticcheck:
	$(SPARING) $(STATICCHECK)
test-deploy:
	cd deploy/check && $(TEST) -count=1 ./...
test-calm:
	$(TEST) $(CALM)

# Three parts of the tests run at a time, and each runs one package at a time. Those with servers of their own mostly wait; their clocks
# go first, and the others yield to them. The longest part begins first. A part's lines appear together, once it has ended, if make can do that.
PARALLEL = $(MAKE) --no-print-directory -k -j 3 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
PARTS = test-e2e test-servers test-raced test-projections test-http test-cmd test-others
YIELD = nice -n 5
TEST = $(GO) test -vet=off -ldflags=-s -p 1 -timeout 40m
.PHONY: tests $(PARTS)
tests: $(PARTS)
test-e2e:
	$(TEST) ./cmd/meterplex/e2e
# The rules, the vocabulary, the write side and the bodies of requests run under the race detector, and only there. It needs a C compiler.
test-raced:
	-@$(SPARING) $(YIELD) $(COMPILED) >/dev/null
	$(YIELD) $(TEST) $(RACE) $(RACES)
test-projections:
	$(YIELD) $(TEST) ./projections
test-http:
	$(YIELD) $(TEST) ./http
test-servers:
	$(TEST) $(SERVERS)
test-cmd:
	$(TEST) $$($(GO) list ./cmd/... | grep -vE '/meterplex/cmd/(meterplex/e2e|planted(/.*)?)$$')
test-others:
	$(YIELD) $(TEST) $$($(GO) list ./... | grep -vE '/meterplex/($(APART))$$')

CALM = ./infra/simulation ./deploy/observe/... ./cmd/planted/...
SERVERS = ./infra/kafka ./infra/relay ./infra/local ./infra/local/localkafka ./infra/pgpipe
# The packages of the parts above.
APART = cmd/.*|projections|http|infra/(kafka|relay|local(/localkafka)?|pgpipe|simulation)|deploy/observe(/.*)?|(domain|events|commands|infra/postgres)(/.*)?|http/body
RACES = ./domain/... ./events/... ./commands/... ./infra/postgres/... ./http/body
RACE = $(if $(shell command -v $(firstword $(shell $(GO) env CC))),-race)
STATICCHECK = $(GO) tool staticcheck ./...
# Collecting garbage later saves the compiler and the analyses a quarter of their work. Tests choose their own.
SPARING = GOGC=400
# Compiles for the race detector and links nothing, as vet does for the other packages, while the end-to-end tests already run. It compiles
# one package at a time, to leave them a processor. The tests report the errors.
COMPILED = $(GO) list -p 1 -test -export -e $(RACE) $(RACES)

.PHONY: race
race: ## Run every test under the race detector, against a service built with it
	$(GO) test -race -p 2 -timeout 90m ./...

.PHONY: torture
torture: ## Torture real instances for DURATION (20m) by SEED (random) with BROKERS (1, 3), into docs/reliability/latest.md
	METERPLEX_TORTURE=$${DURATION:-20m} METERPLEX_TEST_SEED=$$SEED METERPLEX_TORTURE_BROKERS=$$BROKERS METERPLEX_TORTURE_REPORT=$(CURDIR)/docs/reliability/latest.md \
	  $(GO) test ./cmd/meterplex/e2e -run '^TestTorture$$' -count=1 -timeout 0 -v

.PHONY: linearizable
linearizable: ## Check histories of requests against limits, with failing instances, for DURATION (10m) by SEED (random)
	METERPLEX_TEST_LINEARIZABLE=$${DURATION:-10m} METERPLEX_TEST_SEED=$$SEED $(GO) test ./http -run '^TestP7_RequestsAreLinearizable$$' -count=1 -timeout 0 -v

.PHONY: closes
closes: ## Draw histories of closes through Kafka, with crashing instances, for DURATION (10m) by SEED (random)
	METERPLEX_TEST_CLOSES=$${DURATION:-10m} METERPLEX_TEST_SEED=$$SEED $(GO) test ./projections -run '^TestP8_AnyHistoryOfClosesAddsUpThroughKafka$$' -count=1 -timeout 0 -v

.PHONY: chart
chart: ## Write the golden files of the Helm chart
	cd deploy/check && $(GO) test -run '^TestTheChartRenders$$' . -update

.PHONY: lint
lint: form vet staticcheck ## Check form, known faults and vulnerabilities: gofmt, go vet, staticcheck, govulncheck
	@$(MAKE) --no-print-directory vulnerabilities

# A machine without access to the database of vulnerabilities, or to the program, skips the check, and says so within seconds.
VULNERABILITIES = https://vuln.go.dev
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.3.0

.PHONY: vulnerabilities
vulnerabilities: ## Look for known vulnerabilities in the dependencies (needs curl and vuln.go.dev)
	@if ! curl --silent --fail --connect-timeout 3 --max-time 5 --output /dev/null $(VULNERABILITIES)/index/db.json; then \
	  echo "SKIPPED govulncheck: $(VULNERABILITIES) cannot be reached from here"; \
	elif ! $(GO) run $(GOVULNCHECK) -version >/dev/null 2>&1; then \
	  echo "SKIPPED govulncheck: $(GOVULNCHECK) cannot be fetched from here"; \
	else $(GO) run $(GOVULNCHECK) -db $(VULNERABILITIES) ./...; fi

.PHONY: form
form:
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo "gofmt: the files above"; exit 1; }

.PHONY: vet
vet:
	$(SPARING) $(GO) vet ./...

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (20s) on FUZZPARALLEL processors (1)
	@for p in $$($(GO) list ./...); do for f in $$($(GO) test $$p -list '^Fuzz' | grep ^Fuzz); do \
	  echo "$$p $$f"; $(GO) test $$p -run XXX -fuzz "^$$f$$" -fuzztime $${FUZZTIME:-20s} -fuzzminimizetime 1x -parallel $${FUZZPARALLEL:-1} || exit 1; done; done

.PHONY: vocabulary
vocabulary: ## Write the vocabulary of this binary into events/vocabularies/, after a change of a subject or a schema
	$(GO) test ./events -run '^TestEveryVocabularyIsEmbedded$$' -count=1 -update

.PHONY: observe
observe: ## Write the rules, dashboards and the index of runbooks from the table in deploy/observe
	$(GO) test ./deploy/observe -run '^TestTheFilesHoldTheTable$$' -count=1 -update

.PHONY: errors
errors: ## Write docs/errors.md from the table of codes in domain/codes
	$(GO) test ./domain/codes -run '^TestTheDocumentHoldsTheTable$$' -count=1 -update

.PHONY: examples
examples: ## Send the examples of http/examples to a service, and write its answers into them
	$(GO) test ./http -run '^TestEveryExampleIsSent$$' -count=1 -update

.PHONY: lint-api
lint-api: ## Generate clients, and check the OpenAPI document by spectral and /docs by axe (needs npm, Python and Chromium)
	METERPLEX_TEST_LINT=1 $(GO) test ./http -run TestToolsOfTheDescriptionWork -count=1 -v

.PHONY: schemathesis
schemathesis: ## Hold the service against its description, EXAMPLES (50) requests for each operation (some 3 minutes)
	METERPLEX_TEST_SCHEMATHESIS=$${EXAMPLES:-50} $(GO) test ./cmd/meterplex/e2e -run TestTheServiceMatchesItsOpenAPIDocument -count=1 -timeout 70m -v

.PHONY: console-pictures
console-pictures: ## Write the pictures of the console into docs/console/ (needs Chromium)
	METERPLEX_TEST_PICTURES=$(CURDIR)/docs/console $(GO) test ./cmd/meterplex/e2e -run '^TestConsole_InABrowser$$/^pictures$$' -count=1 -v

.PHONY: planted
planted: ## Plant known bugs one by one (ARGS=name) and show which test catches each
	$(GO) run ./cmd/planted -out docs/reliability/planted.md $(ARGS)

.PHONY: bench
bench: build ## Measure the service beside its raw limits, into docs/benchmarks/ and docs/scaling.md
	./bin/meterplex bench --out docs/benchmarks
	$(GO) run ./cmd/scaling

.PHONY: bench-quick
bench-quick: build ## Measure it shortly, in some minutes, and print the table
	./bin/meterplex bench --quick $(ARGS)
