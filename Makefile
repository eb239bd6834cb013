# berth: see README.md for the two commands that matter, make up and make test.
SHELL   := /bin/bash
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  := $(shell git rev-parse --short HEAD 2>/dev/null)
DATE    := $(shell git log -1 --format=%cI 2>/dev/null)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)
# gRPC without golang.org/x/net/trace: its templates call methods by name, and the linker would keep all methods of all
# types, 6 MB of them.
TAGS    := grpcnotrace
ARCHS   ?= amd64,arm64
GOLANGCI_VERSION := v2.15.0
GOLANGCI := $(CURDIR)/.cache/tools/golangci-lint-$(GOLANGCI_VERSION)
GOTESTSUM_VERSION := v1.13.0
GOTESTSUM := $(CURDIR)/.cache/tools/gotestsum-$(GOTESTSUM_VERSION)
VALE_VERSION := v3.21.0
VALE    := $(CURDIR)/.cache/tools/vale-$(VALE_VERSION)
GOVULNCHECK_VERSION := v1.9.0
GOVULNCHECK := $(CURDIR)/.cache/tools/govulncheck-$(GOVULNCHECK_VERSION)
SEEDS   ?= 2000
FUZZTIME ?= 20s
CONTAINERD ?=
RUNS    ?= 5
LOAD    ?= 4
TESTFLAGS ?=
LONGEST = $(addprefix ./test/,systemd e2e crash control pair vm nspawn up)

export GOFLAGS ?= -buildvcs=false

# A program built with the race detector would sleep for a second at each exit.
export GORACE ?= atexit_sleep_ms=0

.PHONY: ui build build-all deb test test-stress diagrams lint bench sim fuzz e2e torture conformance differential differential-dns placements mutations up down deps generate

ui: ## ui/dist from its sources in ui/, with npm and Node.js; the result is checked in
	cd ui && npm ci --ignore-scripts --no-audit --no-fund && npm run check && npm run build

build: ## bin/berth and bin/berth-control for this machine, static
	GOWORK=off CGO_ENABLED=0 go build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/ ./cmd/berth ./cmd/berth-control

build-all: ## the same below bin/linux-amd64 and bin/linux-arm64
	for arch in amd64 arm64; do GOWORK=off CGO_ENABLED=0 GOOS=linux GOARCH=$$arch go build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/linux-$$arch/ ./cmd/berth ./cmd/berth-control || exit 1; done

deb: ## dist/*.deb of berth and berth-control, ARCHS=amd64,arm64; reproducible for a commit
	CGO_ENABLED=0 go run -trimpath ./packaging -describe '$(VERSION)' -time '$(shell git log -1 --format=%ct 2>/dev/null)' -ldflags '$(LDFLAGS)' -tags '$(TAGS)' -arch '$(ARCHS)'

deps: ## what the tests need on a fresh Debian 12
	./test/deps.sh $(DISTRIBUTION)

# vet looks at packages as go test -race compiles them, so that this is done once. Programs and test packages
# are compiled before the tests: a compiler beside tests that run containers gets little CPU time.
# Without debugging information, a test program is linked in four fifths of the time.
# Two packages run at once, the longest first: their containers keep both CPUs of a small machine busy.
# TestSim runs without the race detector, and with a tenth of the seeds under it.
test: deps $(GOTESTSUM) ## everything, unit to end-to-end, under the race detector
	go vet -race ./... ./test/...
	CGO_ENABLED=0 go test -trimpath -vet=off -run 'TestSim$$' ./agent/pod -seeds $(SEEDS)
	go run ./test/programs
	go list -race -test -export ./... ./test/... >/dev/null
	mkdir -p .cache
	BERTH_PREBUILT=1 $(GOTESTSUM) --format pkgname --hide-summary output --jsonfile .cache/test.json -- -race -vet=off -ldflags='-s -w' -p 2 -timeout 90m $(TESTFLAGS) $(LONGEST) ./... ./test/...; status=$$?; \
		echo "The slowest tests:"; $(GOTESTSUM) tool slowest --jsonfile .cache/test.json --threshold 1s --num 20; \
		test $$status = 0 || go run ./test/failures .cache/test.json; exit $$status

test-stress: deps $(GOTESTSUM) ## make test RUNS times beside LOAD busy processes
	./test/stress.sh $(RUNS) $(LOAD)

lint: $(GOLANGCI) $(VALE) $(GOVULNCHECK) ## gofmt, vet, golangci-lint, known vulnerabilities (needs a network), and the language of prose, strings and commit subjects
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	go run ./test/lint commits .
	go run ./test/lint strings .
	$(VALE) --output line --no-wrap $$(git ls-files '*.md' '*.go' | grep -v zz_generated)
	@if command -v npm >/dev/null; then cd ui && npm ci --ignore-scripts --no-audit --no-fund && npm run check && npm run compare; \
		else echo "ui/dist is not compared with its sources: npm is not installed"; fi
	go vet ./... ./test/...
	$(GOLANGCI) run --concurrency 1 ./... ./test/...
	./test/vulncheck.sh $(GOVULNCHECK)

$(GOLANGCI): # built once, which takes some minutes
	mkdir -p $@.new
	GOBIN=$@.new CGO_ENABLED=0 go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv $@.new/golangci-lint $@ && rmdir $@.new

$(GOTESTSUM): # built once
	mkdir -p $@.new
	GOBIN=$@.new CGO_ENABLED=0 go install gotest.tools/gotestsum@$(GOTESTSUM_VERSION)
	mv $@.new/gotestsum $@ && rmdir $@.new

$(GOVULNCHECK): # built once
	mkdir -p $@.new
	GOBIN=$@.new CGO_ENABLED=0 go install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)
	mv $@.new/govulncheck $@ && rmdir $@.new

$(VALE): # built once from its Go module, which takes some minutes
	mkdir -p $@.new
	GOBIN=$@.new CGO_ENABLED=1 go install github.com/vale-cli/vale/v3/cmd/vale@$(VALE_VERSION)
	mv $@.new/vale $@ && rmdir $@.new

PEERS ?=

bench: deps build ## benchmarks, compared with the bare CRI calls; PEERS=1 with components of Kubernetes and CoreDNS too, which needs nft
	go run ./test/bench $(if $(PEERS),-peers)
	go test -run '^$$' -bench FiveVolumes ./volumes

sim: ## the model world, SEEDS=n
	go test ./agent/pod -run 'TestSim' -seeds $(SEEDS)

fuzz: ## every fuzz target for FUZZTIME
	./test/fuzz.sh $(FUZZTIME)

e2e: deps ## the end-to-end tests alone
	go test -race -count=1 -timeout 30m ./test/e2e ./test/crash

# A part that ends within a given time: make torture RUN=Churn KILLS=500 TIMEOUT=30m, or PKGS=./test/e2e RUN=FullNode.
# The long churn and the power cuts alone, with their reports: make torture RUN='LongChurn|PowerCuts' REPORT=docs/reports
RUN    ?= .
PKGS   ?= ./test/crash ./test/systemd ./test/e2e ./test/pair ./test/control ./test/vm ./test/cri ./test/arch ./agent/checkpoint ./services/announce
KILLS  ?=
HOUR   ?=
CUTS   ?=
REPORT ?=
TIMEOUT ?= 6h
torture: deps ## long tests; RUN= a test's name, PKGS= packages, KILLS=n, HOUR=10m, CUTS=n, REPORT= a folder, TIMEOUT= a duration
	BERTH_TORTURE=1 $(if $(KILLS),BERTH_KILLS=$(KILLS)) $(if $(HOUR),BERTH_HOUR=$(HOUR)) $(if $(CUTS),BERTH_CUTS=$(CUTS)) $(if $(REPORT),BERTH_REPORT=$(REPORT)) \
		go test -v -count=1 -timeout $(TIMEOUT) -run '$(RUN)' $(PKGS)

SERVER ?= both
SIG   ?= node,storage,apps
FOCUS ?=
LABELS ?= Conformance
LAN   ?=

conformance: deps ## Kubernetes' own conformance tests; SERVER=control|stock|both|mixed, SIG=node,storage,apps or network, FOCUS= a regular expression, LABELS= a filter for it, LAN=1 for nodes on a network
	go run -trimpath ./test/conformance -server '$(SERVER)' -sig '$(SIG)' -focus '$(FOCUS)' -labels '$(LABELS)' $(if $(LAN),-lan)

SCRIPTS ?= 300
CLUSTERS ?= 200
SEED    ?= 1

differential: deps ## the same SCRIPTS edits of workloads to berth-control and kube-controller-manager, and the objects compared
	go run -trimpath ./test/conformance -scripts '$(SCRIPTS)' -seed '$(SEED)'

SERVICES ?= 150
RECORD   ?=

differential-dns: deps ## the answers of the agent's DNS server and of CoreDNS about seeded SERVICES, compared; RECORD= a file
	go run -trimpath ./test/conformance -dns '$(SERVICES)' -seed '$(SEED)' -record '$(RECORD)'

placements: deps ## the same pods in CLUSTERS seeded clusters to the schedulers of berth-control and Kubernetes, and the decisions compared
	go run -trimpath ./test/conformance -placements '$(CLUSTERS)' -seed '$(SEED)'

COUNT ?= 20000
KIND  ?=

mutations: deps ## COUNT seeded mutations of valid objects to berth-control and kube-apiserver, and the answers compared; KIND= one kind, SEED=n, RECORD= a file
	go run -trimpath ./test/conformance -mutations '$(COUNT)' -seed '$(SEED)' -kind '$(KIND)' -record '$(RECORD)' -examples

bin/kubectl: test/go.mod test/kubectl/main.go # the stock kubectl, from its Go module
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $@ ./test/kubectl

up: DISTRIBUTION := any
up: deps build bin/kubectl ## everything set up, example pods running on real containers
	CGO_ENABLED=0 go run -trimpath ./test/up up $(if $(CONTAINERD),-containerd $(CONTAINERD))

down: ## remove everything that make up created
	CGO_ENABLED=0 go run -trimpath ./test/up down

generate: ## reference pages and code that are generated
	go generate ./... ./test/...
	CGO_ENABLED=0 go run -tags packaging ./cmd/berth reference pods >docs/reference/cli-berth.md
	CGO_ENABLED=0 go run -tags packaging ./cmd/berth reference agent >docs/reference/cli-berth-agent.md
	CGO_ENABLED=0 go run -tags packaging ./cmd/berth-control reference >docs/reference/cli-berth-control.md

diagrams: ## draws docs/diagrams/*.svg from their sources with Graphviz
	for f in docs/diagrams/*.dot; do dot -Tsvg $$f -o $${f%.dot}.svg; done
