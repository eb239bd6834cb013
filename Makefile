# berth: see README.md for the two commands that matter, make up and make test.
SHELL   := /bin/bash
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  := $(shell git rev-parse --short HEAD 2>/dev/null)
DATE    := $(shell git log -1 --format=%cI 2>/dev/null)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)
GOLANGCI_VERSION := v2.15.0
GOLANGCI := $(CURDIR)/.cache/tools/golangci-lint-$(GOLANGCI_VERSION)
SEEDS   ?= 2000
FUZZTIME ?= 20s
CONTAINERD ?=

export GOFLAGS ?= -buildvcs=false

.PHONY: build build-all test lint bench sim fuzz e2e torture up down deps generate

build: ## bin/berth for this machine, static
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/berth ./cmd/berth

build-all: ## bin/berth-linux-{amd64,arm64}
	for arch in amd64 arm64; do CGO_ENABLED=0 GOOS=linux GOARCH=$$arch go build -trimpath -ldflags '$(LDFLAGS)' -o bin/berth-linux-$$arch ./cmd/berth || exit 1; done

deps: ## what the tests need on a fresh Debian or Ubuntu
	./test/deps.sh

test: deps ## everything, unit to end-to-end, under the race detector
	go vet ./...
	go test -race -timeout 40m ./...

lint: $(GOLANGCI) ## gofmt, vet, golangci-lint
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	$(GOLANGCI) run --concurrency 1 ./...

$(GOLANGCI): # built once, which takes some minutes
	mkdir -p $@.new
	GOBIN=$@.new CGO_ENABLED=0 go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv $@.new/golangci-lint $@ && rmdir $@.new

bench: deps build ## the figures of the project, the bare CRI calls beside them
	go run ./test/bench
	go test -run '^$$' -bench 'Decide20|FiveVolumes' ./agent/plan ./volumes

sim: ## the model world, SEEDS=n
	go test ./agent -run 'TestSim' -seeds $(SEEDS)

fuzz: ## every fuzz target for FUZZTIME
	./test/fuzz.sh $(FUZZTIME)

e2e: deps ## the end-to-end tests alone
	go test -race -count=1 -timeout 30m ./test/e2e ./test/crash

torture: deps ## what is too long for make test
	BERTH_TORTURE=1 go test -count=1 -timeout 6h ./test/crash ./test/e2e

up: deps build ## everything set up, example pods running on real containers
	go run ./test/up up $(if $(CONTAINERD),-containerd $(CONTAINERD))

down: ## takes away all that make up made
	go run ./test/up down

generate: ## docs that are made from tables
	go generate ./...
