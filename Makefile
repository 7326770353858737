# Needs Go, make and git; everything else is built from source into bin/, once. Only promtool is Debian's.

BIN := $(CURDIR)/bin

# What `make demo` shows.
OBJECTS    ?= 5000
OUTPUT     ?= text
DEMO_FLAGS ?=

# What `make bench` measures; see bench/README.md.
BENCH_FLAGS = $(if $(filter-out 0,$(SHORT)),--short) $(if $(NAME),--name='$(NAME)') $(if $(RUNS),--runs='$(RUNS)') $(if $(SCENARIOS),--scenarios='$(SCENARIOS)')

# What `make bench-compare` compares with.
BASE          ?= HEAD~1
COMPARE_FLAGS ?=

# What the attacks do. Seed 0 is another one each time, `make test`
# uses 1; 0 points are all.
SEED      ?= 0
TRIES     ?= 10000
MINUTES   ?= 30
IMAGES    ?= 1000
POINTS    ?= 0
WORKLOADS ?= 3

# What `make operator` does; see test/controllerruntime/operator.
OPERATOR_FLAGS ?=

# How often `make flaky` runs each test of which packages, how many processes at a time, and
# for how long at most; 0 is until it is done.
PASSES   ?= 500
PACKAGES ?= ./...
JOBS     ?= 1
FOR      ?= 0

# Flags of `go test`, for all modules.
TEST_FLAGS ?= -timeout 30m

# Every directory with a go.mod; nested modules keep heavy dependencies away from
# those who import the library.
MODULES := $(patsubst %/go.mod,%,$(sort $(shell find . -name go.mod -not -path './bin/*')))
# hack/controlplane only names what is built from it.
CODE_MODULES := $(filter-out ./hack/controlplane,$(MODULES))

# Go enables cgo when it finds a C compiler; the race detector needs one. With it
# come checks of unsafe pointers that end the process where bbolt looks at a
# damaged page before it looks at its length, and tests damage pages.
RACE := $(if $(filter 1,$(shell go env CGO_ENABLED)),-race -gcflags=go.etcd.io/bbolt/...=-d=checkptr=0)

# Systems that persist is vetted for, tests included: no other package of the library has files for one system. To compile
# what it needs takes a minute for each. The tests of linux/386 run.
PORTS := windows/amd64 darwin/arm64
# The race detector's second of sleep before each exit is as long as many packages' tests.
RACED := $(if $(RACE),GORACE=atexit_sleep_ms=0 $(RACE))

# What `make test` runs, three at a time: a directory, and what go test is given. The first mostly waits for servers. The
# race detector is on where goroutines of the library meet: the attacks are about files, others are about programs.
# The tests of ./prometheus read files of the repository outside of their module, whose changes go test's cache does not see.
# With -short, no test is left out, but random tests make fewer rounds; make test-long makes all.
TEST_RUNS := './test/e2e $(RACED) .' '. $(RACED) -short ./...' \
	'./test/controllerruntime -parallel=3 ./upstream' './test/controllerruntime $(RACED) .' './test/attack ./...' \
	'./cmd/demo ./...' './cmd/warmwatch ./...' './bench ./...' './controllerruntime $(RACED) ./...' './prometheus -count=1 ./...' \
	'./test/e2e ./agent ./controlplane ./display ./link ./meter ./workload' './examples ./...' './hack/tools ./...'

# A 64-bit Linux on x86 also runs the 32-bit tests of the packages whose numbers are in the file, in their short forms: the
# first rounds meet all of them. Some kernels run no such programs.
ENV_386 := $(if $(filter linux/amd64,$(shell go env GOHOSTOS)/$(shell go env GOHOSTARCH)),GOARCH=386 CGO_ENABLED=0)
RUN_386 := . $(ENV_386) -short ./checkpoint ./indexer ./internal/keyfield ./internal/record ./persist ./queue ./reflector

# What `make test-long` runs, one after the other: what is random, for longer and with other seeds.
LONG_RUNS := '. $(RACED) ./...' '. $(RACED) ./test/model -model.crashes=20000 -model.seed=0 -model.bulk -names.lives=1000 -names.seed=0' \
	'. $(RACED) ./test/storm -storm.rounds=200 -storm.seed=0 -storm.bulk' \
	'. $(RACED) ./test/faults -damage.trials=3000 -backlog.updates=200000' \
	'. $(RACED) ./internal/processor -random.rounds=5000' '. $(RACED) ./indexer -model.steps=20000' '. $(RACED) ./persist -persist.full' \
	'./test/e2e $(RACED) -run=Kill . -kills=60' './test/e2e $(RACED) -run=^TestLinks$$ . -links.for=$(MINUTES)m -seed=$(SEED)' \
	'./test/attack ./corrupt -corrupt.tries=$(TRIES) -corrupt.for=0 -corrupt.seed=$(SEED)' \
	'./test/attack ./power -power.images=$(IMAGES) -power.seed=$(SEED)' \
	'./test/attack ./crash -crash.seeds=$(WORKLOADS) -crash.points=$(POINTS) -crash.seed=$(SEED)'

KUBERNETES_VERSION = $(shell sed -n 's|^\tk8s.io/kubernetes \(v[0-9.]*\).*|\1|p' hack/controlplane/go.mod)
VERSION_PARTS      = $(subst ., ,$(patsubst v%,%,$(KUBERNETES_VERSION)))
VERSION_PACKAGE    = k8s.io/component-base/version
APISERVER_LDFLAGS  = -s -w \
	-X $(VERSION_PACKAGE).gitVersion=$(KUBERNETES_VERSION) \
	-X $(VERSION_PACKAGE).gitMajor=$(word 1,$(VERSION_PARTS)) \
	-X $(VERSION_PACKAGE).gitMinor=$(word 2,$(VERSION_PARTS))

.DEFAULT_GOAL := help

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(if $(findstring kubeconfig,$(DEMO_FLAGS)),,$(BIN)/kube-apiserver $(BIN)/etcd) ## Show the main job on a real API server (OBJECTS=5000 OUTPUT=text|json DEMO_FLAGS=)
	@go -C cmd/demo build -trimpath -buildvcs=false -o $(BIN)/demo .
	@$(BIN)/demo --bin-dir=$(BIN) --objects=$(OBJECTS) --output=$(OUTPUT) $(DEMO_FLAGS)

.PHONY: server
server: $(BIN)/kube-apiserver $(BIN)/etcd ## Run the API server alone until Ctrl-C, for the examples
	@go -C cmd/demo build -trimpath -buildvcs=false -o $(BIN)/demo .
	@$(BIN)/demo --bin-dir=$(BIN) --serve

.PHONY: bench
bench: $(BIN)/kube-apiserver $(BIN)/etcd $(BIN)/bench ## Measure beside client-go, half an hour or more (SHORT=1 5 minutes, NAME= RUNS= SCENARIOS=)
	@cd bench && $(BIN)/bench --bin-dir=$(BIN) $(BENCH_FLAGS)

.PHONY: bench-docs
bench-docs: $(BIN)/bench ## Make docs/benchmarks.md and the figures of the README from bench/results/NAME.json (NAME=)
	@cd bench && $(BIN)/bench docs $(if $(NAME),--name='$(NAME)')

.PHONY: bench-figures
bench-figures: $(BIN)/bench ## Print every figure of bench/results/NAME.json (NAME=)
	@cd bench && $(BIN)/bench figures $(if $(NAME),--name='$(NAME)')

.PHONY: bench-compare
bench-compare: $(BIN)/bench $(BIN)/benchstat ## Run the micro-benchmarks of BASE and of here; say what got slower (BASE=HEAD~1 COMPARE_FLAGS=)
	@$(BIN)/bench compare -C bench --benchstat=$(BIN)/benchstat $(COMPARE_FLAGS) '$(BASE)'

.PHONY: page
page: ## Make docs/images/page.png of the golden file in debug/testdata (installs Debian's chromium and pngquant where they are missing, as root)
	@command -v chromium >/dev/null && command -v pngquant >/dev/null || \
		{ apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core pngquant; }
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1240,1240 \
		--screenshot=$(CURDIR)/docs/images/page.png file://$(CURDIR)/debug/testdata/overview.html
	pngquant --force --output=docs/images/page.png 64 docs/images/page.png

# In CI the alerts are tested in any case.
.PHONY: test-rules
test-rules: ## Test the alerts of deploy/prometheus with promtool, which is taken from Debian's package if there is none
	@promtool=$$(command -v promtool || echo $(BIN)/promtool); \
	if [ ! -x "$$promtool" ] && ! $(MAKE) --no-print-directory $(BIN)/promtool; then \
		echo "# SKIPPED: the tests of the alerts, because there is no promtool, and no Debian package to take it from"; exit $(if $(CI),1,0); \
	fi; \
	"$$promtool" check rules deploy/prometheus/rules.yaml && "$$promtool" test rules deploy/prometheus/rules_test.yaml

.PHONY: test
test: test-rules $(BIN)/kube-apiserver $(BIN)/etcd $(BIN)/gotest ## Test every module, with the race detector and on a real API server, 8 minutes (TEST_FLAGS=)
	@$(if $(RACE),,echo "# no C compiler: the tests run without the race detector";) \
	run_386=$(if $(ENV_386),'$(RUN_386)'); \
	if [ -z "$$run_386" ] || ! env $(ENV_386) go test -vet=off -run='^$$' ./internal/keyfield >/dev/null 2>&1; then \
		echo "# no linux/amd64, or a kernel without 32-bit programs: the 32-bit tests do not run"; run_386=; \
	fi; \
	$(BIN)/gotest -jobs=3 -flags='-vet=off $(TEST_FLAGS)' $(TEST_RUNS) $${run_386:+"$$run_386"}
	$(if $(RACE),,@echo "# no C compiler: the tests ran without the race detector")

.PHONY: test-long
test-long: $(BIN)/kube-apiserver $(BIN)/etcd $(BIN)/gotest ## The long forms of random tests and attacks, hours (MINUTES=30 TRIES=10000 IMAGES=1000 WORKLOADS=3 POINTS=0 SEED=)
	@$(BIN)/gotest -jobs=1 -flags='-vet=off -count=1 -timeout=0' $(LONG_RUNS)

# The tests' files are in memory, where there is such a file system: hardly anything is as
# slow as an fsync, and no test of the library is about the disk's.
.PHONY: flaky
flaky: $(BIN)/gotest ## Run each test of the library many times, to find those that fail now and then (PASSES=500 PACKAGES=./... JOBS=1 FOR=0)
	@$(BIN)/gotest passes -n=$(PASSES) -jobs=$(JOBS) -for=$(FOR) -tmp=$(firstword $(wildcard /dev/shm)) -build='$(RACE)' . $(PACKAGES)

.PHONY: corrupt
corrupt: ## Damage cache files of every page class while nobody uses them, 40 minutes (TRIES=10000 SEED=)
	@go -C test/attack test ./corrupt -run '^TestCorrupt$$' -v -count=1 -timeout 0 \
		-corrupt.tries=$(TRIES) -corrupt.seed=$(SEED) -corrupt.for=0

.PHONY: links
links: $(BIN)/kube-apiserver $(BIN)/etcd ## An agent behind a flaky link, servers restarted and put back (MINUTES=30 SEED=)
	@go -C test/e2e test . -run '^TestLinks$$' -v -count=1 -timeout 0 -links.for=$(MINUTES)m -seed=$(SEED)

.PHONY: power
power: ## Cut the power IMAGES times, anywhere, and go on from what is left; root and FUSE (IMAGES=1000 SEED=0)
	@go -C test/attack test -count=1 -timeout 2h ./power -v -run PowerCut -power.images=$(IMAGES) -power.seed=$(SEED)

.PHONY: crash
crash: ## Fail each operation on the file, by an error and by a kill; root and FUSE (WORKLOADS=3 POINTS=0, which is all, SEED=0)
	@go -C test/attack test -count=1 -timeout 2h ./crash -v -run EachOperation -crash.seeds=$(WORKLOADS) -crash.points=$(POINTS) -crash.seed=$(SEED)

.PHONY: operator
operator: $(BIN)/kube-apiserver $(BIN)/etcd ## Restart a manager of controller-runtime with its stock caches and with warmwatch's (OPERATOR_FLAGS="-scenario=cass-operator -limits" needs root and a memory cgroup)
	@go -C test/controllerruntime run ./operator -bin-dir=$(BIN) $(OPERATOR_FLAGS)

# All modules are linted as one workspace, which loads the types of Kubernetes once.
.PHONY: lint
lint: $(BIN)/golangci-lint ## Check format, go.mod files and the rules of .golangci.yml
	@status=0; \
	unformatted=$$(gofmt -l .); \
	if [ -n "$$unformatted" ]; then echo "these files need gofmt -w:"; echo "$$unformatted"; status=1; fi; \
	for module in $(MODULES); do \
		echo "# $$module: go mod tidy -diff"; \
		go -C $$module mod tidy -diff || status=1; \
	done; \
	echo "# golangci-lint"; \
	rm -f $(BIN)/lint.work $(BIN)/lint.work.sum; \
	export GOWORK=$(BIN)/lint.work; \
	go work init $(CODE_MODULES) && $(BIN)/golangci-lint run $(CODE_MODULES:%=%/...) || status=1; \
	unset GOWORK; \
	for port in $(PORTS); do \
		echo "# $$port: go vet"; \
		CGO_ENABLED=0 GOOS=$${port%/*} GOARCH=$${port#*/} go vet ./persist || status=1; \
	done; \
	exit $$status

.PHONY: controlplane
controlplane: $(BIN)/kube-apiserver $(BIN)/etcd ## Build the real kube-apiserver and etcd into bin/ (3 minutes the first time)

.PHONY: clean
clean: ## Remove bin/
	rm -rf $(BIN)

$(BIN)/kube-apiserver: hack/controlplane/go.mod hack/controlplane/go.sum
	@echo "building kube-apiserver $(KUBERNETES_VERSION); this takes minutes the first time" >&2
	@go -C hack/controlplane build -trimpath -buildvcs=false -ldflags '$(APISERVER_LDFLAGS)' -o $@ k8s.io/kubernetes/cmd/kube-apiserver
	@touch $@

$(BIN)/etcd: hack/controlplane/go.mod hack/controlplane/go.sum
	@echo "building etcd" >&2
	@go -C hack/controlplane build -trimpath -buildvcs=false -ldflags '-s -w' -o $@ go.etcd.io/etcd/server/v3
	@touch $@

$(BIN)/golangci-lint: hack/tools/go.mod hack/tools/go.sum
	@echo "building golangci-lint" >&2
	@go -C hack/tools build -trimpath -buildvcs=false -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@

# Always: it measures what is there now.
.PHONY: $(BIN)/bench
$(BIN)/bench:
	@go -C bench build -trimpath -buildvcs=false -o $@ .

$(BIN)/benchstat: hack/tools/go.mod hack/tools/go.sum
	@go -C hack/tools build -trimpath -buildvcs=false -o $@ golang.org/x/perf/cmd/benchstat
	@touch $@

$(BIN)/gotest: hack/tools/go.mod $(wildcard hack/tools/gotest/*.go)
	@go -C hack/tools build -trimpath -buildvcs=false -o $@ ./gotest
	@touch $@

# To build promtool takes five minutes of processor time. The package starts a server when it is installed, so only this
# program is taken out of it.
$(BIN)/promtool:
	@echo "taking promtool from Debian's package prometheus" >&2
	@mkdir -p $(BIN); dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && cd "$$dir" || exit 1; \
	get() { apt-get -qq -o APT::Sandbox::User=root download prometheus; }; \
	{ get 2>/dev/null || { apt-get -qq update && get; }; } && dpkg-deb --fsys-tarfile prometheus_*.deb >tar && \
	tar -xf tar -C $(BIN) --strip-components=3 ./usr/bin/promtool
	@touch $@
