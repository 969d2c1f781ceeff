# Every target does one thing whole; `make help` lists them.
.DEFAULT_GOAL := help
# One set of compiler flags: run, build and test, and each clone, share what is compiled. Without paths and debugging information.
export GOFLAGS := $(strip $(shell go env GOFLAGS 2>/dev/null) -trimpath -gcflags=all=-dwarf=false)
# The compiler needs a quarter less processor time if it collects garbage later.
test lint: export GOGC = 400
# The modules of go.work. The longest tests begin first.
ALL = ./test/... ./... ./verify/... ./sdk/go/... ./examples/llm-budget
PKG = $(ALL)
COMMIT = $(shell git rev-parse --short=12 HEAD 2>/dev/null)
TEST = go test -vet=off $(TESTFLAGS)
LONG = -count=1 -timeout 0 -v
RACED = ./sdk/go/... ./domain/... ./events/... ./commands/... ./infra/postgres/... ./http/body

.PHONY: help run build test test-all lint vulnerabilities release torture planted mutants fuzz bench generate

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 17

run: build ## Run the service with a demo tenant and traffic (Ctrl-C stops it)
	@./bin/meterplex demo $(ARGS)

build: ## Build bin/meterplex, and bin/meterplex-verify for auditors
	@go build -ldflags "-X main.commit=$(COMMIT)" -o bin/meterplex ./cmd/meterplex
	@go build -o bin/meterplex-verify ./verify/cmd/meterplex-verify

test: ## Run each promise end to end and the short form of all other tests (PKG=./infra/relay TESTFLAGS='-run TestP2_': a part)
	go vet $(PKG)
	$(TEST) -short -p 3 -timeout 8m $(PKG)

test-all: lint ## Run every test in full, before a release (an hour; Chromium, npm and Python are used if installed)
	go vet $(ALL)
	$(TEST) -p 2 -timeout 2h $(ALL)
	$(TEST) -race -p 2 -timeout 2h $(RACED)
	cd deploy/check && GOWORK=off $(TEST) -count=1 ./...

lint: ## Check form, known faults, the rules of imports, links: gofmt, staticcheck, the tests of the root folder
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo "gofmt -w the files above"; exit 1; }
	go tool staticcheck $(ALL)
	$(TEST) -short -timeout 8m .
	@$(MAKE) --no-print-directory vulnerabilities

# A machine that cannot reach the database of vulnerabilities reports that nothing was checked. For a release that is a failure.
VULNERABILITIES = https://vuln.go.dev
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.3.0
vulnerabilities: ## Look for known vulnerabilities in the dependencies (needs curl and vuln.go.dev)
	@if curl --silent --fail --connect-timeout 3 --max-time 5 --output /dev/null $(VULNERABILITIES)/index/db.json; \
	then go run $(GOVULNCHECK) -db $(VULNERABILITIES) ./...; else echo "WARNING: NOT CHECKED for known vulnerabilities: $(VULNERABILITIES) cannot be reached from here" >&2; test -z "$(RELEASE)"; fi

SBOM = github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0
release: ## Build dist/: the programs of each platform, their SBOM and checksums (fails if vulnerabilities cannot be looked up)
	@$(MAKE) --no-print-directory vulnerabilities RELEASE=1
	rm -rf dist && mkdir dist
	for p in linux/amd64 linux/arm64 darwin/arm64; do CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} \
	go build -trimpath -ldflags "-s -w" -o dist/meterplex-$${p%/*}-$${p#*/} ./cmd/meterplex && \
	go build -trimpath -ldflags "-s -w" -o dist/meterplex-verify-$${p%/*}-$${p#*/} ./verify/cmd/meterplex-verify || exit 1; done
	go run $(SBOM) app -json -main cmd/meterplex -output dist/meterplex.cdx.json .
	cd dist && sha256sum * > SHA256SUMS
	@! grep -n '^FROM' deploy/Dockerfile | grep -v @sha256: >&2 || echo "WARNING: NOT PINNED: the base images above have no digest (docs/how-to/deploy-with-compose.md#image)" >&2

torture: ## Apply random faults to real instances for METERPLEX_TEST_DURATION (20m) from METERPLEX_TEST_SEED (random)
	METERPLEX_TEST_DURATION=$${METERPLEX_TEST_DURATION:-20m} $(TEST) $(LONG) ./test/e2e -run '^TestTorture$$' $(ARGS)

planted: ## Plant each known bug, require that its test fails, and write docs/reliability/planted.md (20 minutes; ARGS=name)
	test/planted/planted.sh $(ARGS)

mutants: ## Change single operators of domain, events and commands, and list those that no test notices (ARGS='--diff main~5 domain')
	test/planted/mutants.sh $(ARGS)

fuzz: ## Run each fuzz target for FUZZTIME (20s)
	@for p in $$(go list $(ALL)); do for f in $$(go test $$p -list '^Fuzz' | grep ^Fuzz); do \
	  echo "$$p $$f"; go test $$p -run XXX -fuzz "^$$f$$" -fuzztime $${FUZZTIME:-20s} -fuzzminimizetime 1x -parallel 1 || exit 1; done; done

bench: ## Measure the service beside its raw limits, into docs/benchmarks/ and docs/explanation/scaling.md (ARGS=--quick: some minutes, table only)
	go build -o bin/bench ./test/bench && ./bin/bench all $(or $(ARGS),--out docs/benchmarks)
	$(if $(ARGS),,go run ./test/scaling)

UPDATE = $(TEST) -count=1
generate: ## Write every generated file: vocabulary, rules and dashboards, codes of errors, settings, examples, operations of the command line, golden files
	$(UPDATE) ./events -run '^TestEveryVocabularyIsEmbedded$$' -update
	$(UPDATE) ./test/observe -run '^TestTheFilesHoldTheTable$$' -update
	$(UPDATE) ./domain/codes -run '^(TestTheDocumentHoldsTheTable|TestTheSDKsHoldTheRemedies)$$' -update
	$(UPDATE) ./cmd/meterplex/config -run '^TestTheReferenceHoldsTheSettings$$' -update
	$(UPDATE) ./http -run '^TestEveryExampleIsSent$$' -update
	$(UPDATE) ./http -run '^TestTheSDKsKnowTheDocument$$' -update-sdk
	$(UPDATE) ./http -run '^TestTheCommandLineKnowsTheDocument$$' -update-cli
	cd deploy/check && GOWORK=off $(UPDATE) -run '^TestTheChartRenders$$' . -update
