# The parts of CI (.ci/run) by name, and the long runs. CONTRIBUTING.md explains
# them. `go test ./...` needs none of this.

GO ?= go
# Go's ten minutes for the tests of a package are too few for a run in full on a starved machine.
TIMEOUT ?= 30m
# How long each soak lasts.
FOR ?= 4m

.PHONY: help
help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' Makefile | expand -t 16

.PHONY: lint
lint: format vet tidy staticcheck ## all checks that run no test

.PHONY: format
format: ## gofmt has nothing to change
	@files=$$(gofmt -l .); [ -z "$$files" ] || { echo "not formatted:"; echo "$$files"; exit 1; }

# No file of ours is for one system of those with unix but without Linux, so macOS stands for all of
# them; FreeBSD itself is in the long runs. CI takes one of the two, by its commit, as each takes more
# than a minute.
SYSTEMS ?= darwin windows
.PHONY: vet
vet: ## go vet, here and where the lock falls back to the TTL
	$(GO) vet ./...
	for system in $(SYSTEMS); do GOOS=$$system CGO_ENABLED=0 $(GO) vet ./... || exit 1; done
	cd internal/drivers && $(GO) vet ./...
	cd schedlock/spans && $(GO) vet ./...

.PHONY: tidy
tidy: ## go mod tidy has nothing to change
	$(GO) mod tidy -diff
	cd schedlock/spans && $(GO) mod tidy -diff

.PHONY: staticcheck
staticcheck: ## staticcheck, the version of go.mod
	$(GO) tool staticcheck ./...

.PHONY: golangci
golangci: ## golangci-lint with .golangci.yml; its first build takes minutes
	@if $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0; \
	then "$$($(GO) env GOPATH)/bin/golangci-lint" run; \
	else echo "missing on this machine: golangci-lint, which cannot be installed"; fi

.PHONY: short
short: ## tests without a server, in seconds
	$(GO) test -short ./...

.PHONY: test
test: ## all tests but soaks; in full with SCHEDLOCK_TEST_LONG=1
	$(GO) test -timeout $(TIMEOUT) ./...

.PHONY: race
race: ## the same with the race detector, in random order
	$(GO) test -timeout $(TIMEOUT) -race -shuffle=on ./...

.PHONY: drivers
drivers: ## other SQLite drivers; needs a C compiler
	cd internal/drivers && $(GO) test ./...

.PHONY: spans
spans: ## the OpenTelemetry spans, a module of its own
	cd schedlock/spans && $(GO) test ./...

.PHONY: containers
containers: ## compose.yaml; needs a Docker engine, and Flask, gunicorn and APScheduler
	$(GO) test ./internal/e2e -run '^TestDocker' -containers

.PHONY: peers
peers: ## other ways to elect a leader, for docs/benchmarks.md; needs redis-server and PostgreSQL
	cd internal/bench/peers && $(GO) vet ./... && $(GO) run . -page ../../../docs/benchmarks.md

.PHONY: breaks
breaks: ## every deliberate break is noticed; more than an hour on two processors
	$(GO) test ./internal/breaks -v -timeout 0 -breaks.all

.PHONY: soak
soak: export SCHEDLOCK_TEST_LONG = 1
soak: ## the fault harness on each database for FOR, and on Galera, and the other long runs
	GOOS=freebsd CGO_ENABLED=0 $(GO) vet ./...
	$(GO) test ./internal/faults -v -timeout 0 -run Soak -faults.soak=$(FOR)
	$(GO) test ./internal/faults -v -timeout 0 -run Soak -faults.soak=$(FOR) -faults.database=postgres
	$(GO) test ./internal/faults -v -timeout 0 -run Soak -faults.soak=$(FOR) -faults.database=mysql
	$(GO) test ./internal/faults -v -timeout 0 -run Soak -faults.soak=$(FOR) \
		-faults.database=galera -faults.clusters=1
	$(GO) test ./internal/faults -v -timeout 0 -run Load -faults.load=2m
	$(GO) test ./internal/faults -v -timeout 0 -run SideFiles -faults.orders=20
	$(GO) test ./internal/faults -v -timeout 0 -run 'TestPatroni$$' -faults.patroni=10
	$(GO) test ./schedlock/sqlite -v -timeout 0 -run 'PowerCut|ErrorOfTheDisk|NoKill' -sqlite.powercuts
	$(GO) test ./internal/linear -v -timeout 0 -linear.histories=100
	$(GO) test ./internal/e2e -v -timeout 0 -soak
	$(GO) test ./internal/e2e -v -timeout 0 -run DockerPython -containers -python.for=$(FOR)
	$(GO) test ./tasks/queue -v -timeout 0 -queue.tasks=10000
	$(GO) test ./internal/model -v -timeout 0 -model.all
	$(GO) test ./internal/simulate -v -timeout 0 -run Histories -simulate.for=$(FOR)
