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

build: ## bin/berth and bin/berth-control for this machine, static
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/berth ./cmd/berth-control

build-all: ## the same below bin/linux-amd64 and bin/linux-arm64
	for arch in amd64 arm64; do CGO_ENABLED=0 GOOS=linux GOARCH=$$arch go build -trimpath -ldflags '$(LDFLAGS)' -o bin/linux-$$arch/ ./cmd/berth ./cmd/berth-control || exit 1; done

deps: ## what the tests need on a fresh Debian 12
	./test/deps.sh $(DISTRIBUTION)

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
	go test -run '^$$' -bench FiveVolumes ./volumes

sim: ## the model world, SEEDS=n
	go test ./agent -run 'TestSim' -seeds $(SEEDS)

fuzz: ## every fuzz target for FUZZTIME
	./test/fuzz.sh $(FUZZTIME)

e2e: deps ## the end-to-end tests alone
	go test -race -count=1 -timeout 30m ./test/e2e ./test/crash

# A part that ends within a given time: make torture PIECE=Churn KILLS=500 BOUND=30m, or PIECES=./test/e2e PIECE=FullNode.
PIECE  ?= .
PIECES ?= ./test/crash ./test/e2e
KILLS  ?=
BOUND  ?= 6h
torture: deps ## what is too long for make test; PIECE= a test's name, PIECES= packages, KILLS=n, BOUND= at most so long
	BERTH_TORTURE=1 $(if $(KILLS),BERTH_KILLS=$(KILLS)) go test -v -count=1 -timeout $(BOUND) -run '$(PIECE)' $(PIECES)

bin/kubectl: go.mod test/kubectl/main.go # the stock kubectl, from its Go module
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $@ ./test/kubectl

up: DISTRIBUTION := any
up: deps build bin/kubectl ## everything set up, example pods running on real containers
	go run ./test/up up $(if $(CONTAINERD),-containerd $(CONTAINERD))

down: ## takes away all that make up made
	go run ./test/up down

generate: ## docs that are made from tables
	go generate ./...
