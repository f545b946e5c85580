# `make` lists the targets. Go and gcc are enough for all but conformance, which also wants npm.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help build test race race-turn exhaustive exhaustive-turn user-exhaustive user-exhaustive-turn outside outside-turn check fmt vet arch lint vuln generate conformance battery battery-turn oracle sigstore cedar cedar-turn swaps swaps-turn sysfuzz agents clients console pictures fuzz fuzzers bench bench-full bench-baseline bench-compare lab lab-turn demo cross cross-turn ci clean

$(if $(findstring palyra_knobs,$(GOFLAGS) $(shell go env GOFLAGS)),$(error palyra_knobs builds a sandbox with holes: for tests only, never for bin/))
GIT     := git -c safe.directory=*
VERSION ?= $(shell $(GIT) describe --always --dirty 2>/dev/null || echo unknown)
# VERSION says what stamping would ask git, which refuses others' clones. -trimpath: tests build from what build compiled.
export GOFLAGS := $(filter-out -buildvcs=% -trimpath,$(GOFLAGS)) -buildvcs=false -trimpath
BUILD    = CGO_ENABLED=0 go build -ldflags '-s -w -X main.version=$(VERSION)'
FUZZTIME ?= 20s
OTHERS  := linux/arm64 darwin/arm64 windows/amd64
NESTED  := $(patsubst %/go.mod,%,$(wildcard conformance/*/go.mod))
.PHONY: linux/amd64 $(OTHERS) $(NESTED)

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

build: ## every program into bin/, static
	$(BUILD) -o bin/ ./cmd/...
	@[ -e bin/palyra-sh ] || ln -sf palyra bin/palyra-sh

# GORACE: end 0.1 s after the last test, not 1 s. Check vets.
test race exhaustive outside: export GORACE ?= atexit_sleep_ms=100
# Memory for time: compilers and tests that allocate take a sixth less of the processor than with 100.
test race exhaustive outside: export GOGC ?= 400
test race exhaustive outside: export PALYRA_TEST_BUILT = $(CURDIR)/bin
# No debugger's tables: a fifth of the time of linking, of what tests build, too.
test race exhaustive outside: export GOFLAGS += '-ldflags=-s -w'
# As the programs are built, from what build compiled.
test exhaustive outside: export CGO_ENABLED = 0
# Instrumented, all is four times as slow. SQLite's own code (C made Go, no goroutines) and the arithmetic of ciphers, curves and
# lattices (on its own values) needn't be. Leaving out what has others' generic code in it (go tool nm: "[" in a name that isn't
# its own) would lend an uninstrumented sync.Map to all.
PLAIN := modernc.org/sqlite/lib modernc.org/libc modernc.org/memory $(addprefix crypto/internal/fips140/,edwards25519/... nistec/... bigmod mlkem sha3) \
	$(addprefix golang.org/x/crypto/,argon2 blake2b chacha20 internal/poly1305 scrypt)
DETECTOR := -race -gcflags=all=-dwarf=false $(PLAIN:%='-gcflags=%=-race=false -dwarf=false')
# A busy machine takes more than Go's ten minutes for a package; lanes have budgets.
GOTEST = go test -vet=off -shuffle=on -timeout 20m
# A Go program that has just begun sleeps for 3 and 20 µs over and over. A kernel that may wake it 1 ms later does so far less
# often: a fifth of what palyra exec takes of the processor of a virtual machine, a tenth of what the tests take.
LAZY = { echo 1000000 >/proc/self/timerslack_ns; } 2>/dev/null || :;
# Packages wait, too: for deadlines, processes and the disk. Two more than there are processors keep those busy.
# The slowest of the list's end go first, or they're alone at the end. The rules of the tree are check's.
SOME = $(GOTEST) -short -p $$(($$(nproc) + 2)) $(TESTFLAGS)
FIRST := $(addprefix palyra/,kernel hub/local isolate/cell transport/httpapi)
ALL = $$(printf '%s\n' $(FIRST) $$(go list ./...) | grep -vxF $(patsubst %,-e %,palyra/conformance/arch $(OUTSIDE)) $(OFTURN))
OUTSIDE := $(addprefix palyra/,conformance/script cmd/palyrad conformance/egress conformance/escape conformance/lane)
# The targets in -turn do a third of their work, by turns: the next two commits' are the others.
TURN = $$(git rev-list --count HEAD)
PART0 := agentloop|conformance/egress|hub|transport
PART1 := authz|call|conformance/escape|isolate|kernel
OFTURN = $(if $(THIRD),| grep -E$(if $(THIRD:2=),,v) '^(palyra|\.)/($(or $(PART$(THIRD)),$(PART0)|$(PART1)))(/|$$)')
race-turn exhaustive-turn user-exhaustive-turn outside-turn cedar-turn swaps-turn:
	@$(MAKE) --no-print-directory $(@:-turn=) THIRD=$$(($(TURN) % 3))
test: build ## every Go test but check's and outside's, in random order; exhaustive ones take a sample (-short)
	$(LAZY) $(SOME) $(or $(PACKAGES),$(ALL))
outside: build ## those that look from outside at what is built: commands as they are typed, palyrad, calls that reach hosts, the battery itself, CI's lanes
	$(LAZY) $(SOME) $(or $(PACKAGES),$$(printf '%s\n' $(OUTSIDE) $(OFTURN)))
# Packages without goroutines, in tests too, have no races of their own; conformance looks from outside at programs as they ship.
race: build ## those of make test, with the race detector where there are goroutines
	@$(LAZY) calm=$$([[ -n "$(PACKAGES)" ]] || go list -f '{{.ImportPath}} {{.Dir}}' $(ALL) | while read -r p d; do \
		[[ $$p != palyra/conformance/* ]] && grep -qE '"sync|\.Go\(|\.Parallel\(|\bgo (func|[a-z][A-Za-z.]*\()' $$d/*.go || echo $$p; done); status=0; \
	{ [[ -z $$calm ]] || CGO_ENABLED=0 $(SOME) -p $$(nproc) $$calm; } & \
	$(SOME) $(DETECTOR) $(or $(PACKAGES),$$(grep -vxFf <(echo "$$calm") <(printf '%s\n' $(ALL)))) || status=1; wait $$! || status=1; exit $$status
SAMPLED = $(shell grep -rl --include='*_test.go' '^	"palyra/internal/sample"$$' .)
exhaustive: build ## the exhaustive tests, whole: kill -9 at every step, every input, every trial
	$(LAZY) $(GOTEST) -parallel $$(($$(nproc) * 2)) -run "^($$(awk -F '[ (]' '/^func Test/ { t = $$2 } /sample\.(Of|Steps)/ { print t }' $(SAMPLED) | sort -u | paste -sd'|'))$$" \
		$(TESTFLAGS) $(or $(PACKAGES),$$(printf '%s\n' ./hub/local $$(dirname $(SAMPLED) | sort -u) $(OFTURN)))
user-exhaustive: ## those of cells and of tools, where it matters who runs them
	@$(MAKE) --no-print-directory exhaustive PACKAGES="$(or $(PACKAGES),$$(printf '%s\n' ./cmd/palyra-tool/... ./conformance/egress ./conformance/escape ./isolate/cell ./kernel $(OFTURN) | paste -sd' '))"

# Looking shares what build compiled; check is quick after it. Memory for time.
LOOK := CGO_ENABLED=0 GOGC=400
check: fmt ## formatting, types and vet on each platform, the rules of the tree, staticcheck, govulncheck
	@$(MAKE) --no-print-directory -j2 -O vet lint arch vuln
fmt:
	@out=$$(gofmt -l .); test -z "$$out" || { echo "gofmt: $$out"; exit 1; }
VET = go run -C conformance/vet . -C $(CURDIR)
vet: linux/amd64 $(OTHERS) $(NESTED)
linux/amd64 $(OTHERS): ; @echo "vet on $@"; $(LOOK) $(VET) $@
$(NESTED): ; @echo "vet $@"; $(LOOK) $(VET)/$@ linux/amd64
arch: ; $(LOOK) go test $(TESTFLAGS) ./conformance/arch
lint: ; $(LOOK) go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
vuln: ; @$(LOOK) bash .ci/vuln $(VULNDB)
generate: ## rewrite the generated parts of docs and golden files
	go test ./authz/policy -run '^TestSchemaIsPrinted$$' -update # the rest compiles it in
	go test ./authz/policy ./call/diagnosis ./conformance/arch ./hub/config ./kernel/tool ./transport/httpapi -update

conformance: outside battery oracle sigstore cedar swaps sysfuzz ## tests from outside; the attack battery; receipts, journal and decisions under software that is not ours
battery: build ; go run ./conformance/escape -out conformance/results/latest.json
# Every attempt as root or as the user.
battery-turn: build ; go run ./conformance/escape -turn $(TURN) -out conformance/results/latest.json
swaps: build ; PALYRA_TRIALS=$(if $(THIRD),7000,20000) go test -count 1 -timeout 12m -run TestApprovedIsWhatRan ./kernel
sysfuzz: build ; go run ./conformance/sysfuzz -calls 200000
agents: build ## Claude Code, Codex and the MCP inspector, unmodified, with palyra's tools (npm: 1 GB)
	go run ./conformance/agents
oracle: build
	go test $(TESTFLAGS) ./conformance/powercut
	@for m in $(filter-out conformance/console conformance/clients,$(NESTED)); do (cd $$m && go test $(TESTFLAGS) ./...); done
clients: build conformance/clients/node_modules ## OpenAI's clients for Go and JavaScript and Anthropic's, unchanged, at /v1/ (npm)
	cd conformance/clients && go test -count 1 $(TESTFLAGS) .
console: build conformance/console/node_modules ## the pages in Chromium, and what axe-core has against them (npm)
	cd conformance/console && go test -count 1 -timeout 20m $(TESTFLAGS) .
pictures: build conformance/console/node_modules ## the pictures of the pages, in docs/console
	mkdir -p docs/console; cd conformance/console && go test -count 1 -run '^TestPictures$$' . -args -pictures $(CURDIR)/docs/console
	sha256sum transport/console/pages/* transport/console/assets/*.css transport/console/assets/*.js >docs/console/SOURCES
conformance/%/node_modules: conformance/%/package-lock.json
	cd $(@D) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2
sigstore: build ; go run ./conformance/foreign
cedar:
	go run ./conformance/cedardiff $(addprefix -turn ,$(THIRD))
	go test -count 1 -v -run '^TestCorpus$$' ./authz/policy

fuzz: ## each fuzz target for FUZZTIME (20s): executions, new inputs, coverage
	go run ./conformance/fuzz -time $(FUZZTIME)
fuzzers: ## the targets as programs into bin/fuzz, for palyra fuzz
	go run ./conformance/fuzz -build bin/fuzz
bench: build ## cells, whole calls and palyra exec beside fork+exec, bwrap and other peers, interleaved
	go run ./bench
bench-full bench-baseline: build
	go run ./bench $(if $(filter %full,$@),-full,-accept)
bench-compare:
	@go build -o bin/tools/ ./bench && bin/tools/bench -compare
lab: ## emulated machines: the cell on other kernels and arm64, the units under systemd
	go run ./conformance/lab
# Of the long machines a third.
lab-turn: ; go run ./conformance/lab -turn $(TURN)
demo: build ## the whole path in a minute
	conformance/demo/run

cross: ## static binaries for linux amd64 and arm64
	@for a in amd64 arm64; do echo "linux/$$a"; GOOS=linux GOARCH=$$a $(BUILD) -o bin/linux-$$a/ ./cmd/...; done
# In another turn lab-turn has arm64. Check has its types and assembly in each.
cross-turn: ; @[ $$(($(TURN) % 3)) != 1 ] || $(MAKE) --no-print-directory cross
ci: ## check, test, demo, conformance and lab on the last commit, in lanes with budgets; .ci/run runs it
	@.ci/lanes
clean: ## remove what the targets made
	rm -rf bin conformance/results bench/results
