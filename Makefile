# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# One setting for everything that is built here, the local Kubernetes included, so
# that all of it shares one build cache; and the binaries are static.
export CGO_ENABLED := 0
export GOFLAGS := -buildvcs=false -trimpath
# What Go builds for when nobody says anything, so that the same sources give the same programs.
export GOAMD64 := v1
export GOARM64 := v8.0

BIN := $(CURDIR)/_output/bin
RESULTS := $(CURDIR)/_output/results
IMAGE := $(CURDIR)/_output/image/rukpak-apiserver
GOTESTSUM := go tool -modfile=hack/tools/go.mod gotestsum --format pkgname
VERSION ?= v0.1.0
export LDFLAGS := -s -w -X rukpak.io/apiserver/pkg/cmd/server.version=$(VERSION) -X rukpak.io/apiserver/pkg/cmd/bundle.release=$(VERSION)
# Where the scripts of hack/cluster keep the local cluster.
CLUSTER := $(or $(RUKPAK_CLUSTER_DIR),$(CURDIR)/_output/cluster)
# What the image is built for.
PLATFORMS ?= linux/amd64 linux/arm64
# More for go test, as in: make unit TESTFLAGS='-run TestWriter -v'
TESTFLAGS ?=
FUZZTIME ?= 30s
LARGE_BYTES ?= 1073741824
KREW_URL ?= https://rukpak.io/apiserver/releases/$(VERSION)

export PATH := $(BIN):$(PATH)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# gotestsum NAME, FLAGS, PACKAGES: the results are kept, and .ci/run counts them.
define gotestsum
	mkdir -p $(RESULTS)
	$(GOTESTSUM) --jsonfile $(RESULTS)/$(1).json --junitfile $(RESULTS)/$(1).xml -- $(2) $(TESTFLAGS) $(3)
endef

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build our static programs into _output/bin
	mkdir -p $(BIN)
	go build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...

.PHONY: run
run: build ## Run the server alone, without a cluster, and do the main job once in front of you
	hack/run.sh

# At once: the integration tests wait more than they work.
.PHONY: test
test: ## Run the unit and the integration tests
	$(MAKE) --no-print-directory -j2 unit integration

.PHONY: alerts
alerts: export RUKPAK_PROMTOOL = $(BIN)/promtool
alerts: export RUKPAK_PROMETHEUS = $(BIN)/prometheus
alerts: $(BIN)/promtool $(BIN)/prometheus ## Have promtool check and test the alerts, and Prometheus load them and scrape a server: `make test` does not (builds both: minutes the first time)
	go test -count=1 -v $(TESTFLAGS) ./test/monitoring

$(BIN)/promtool $(BIN)/prometheus: hack/prometheus/go.mod hack/prometheus/go.sum
	mkdir -p $(BIN)
	cd hack/prometheus && go build -tags remove_all_sd -ldflags '-s -w' -o $@ github.com/prometheus/prometheus/cmd/$(@F)
	touch $@ # go leaves alone what it would write the same

.PHONY: s3
s3: $(BIN)/versitygw ## Build the S3 server that the tests of the content stores use

$(BIN)/versitygw: hack/s3/go.mod hack/s3/go.sum
	mkdir -p $(BIN)
	cd hack/s3 && go build -ldflags '-s -w' -o $@ github.com/versity/versitygw/cmd/versitygw
	touch $@ # go leaves alone what it would write the same

.PHONY: gs
gs: $(BIN)/fake-gcs-server ## Run the tests of the content stores against an emulator of Google Cloud Storage: `make test` does not (builds it: minutes the first time)
	RUKPAK_GS_SERVER=$< go test -count=1 -timeout=20m -run '^TestGS$$' $(TESTFLAGS) ./pkg/content/bucket

$(BIN)/fake-gcs-server: hack/gs/go.mod hack/gs/go.sum
	mkdir -p $(BIN)
	cd hack/gs && go build -ldflags '-s -w' -o $@ github.com/fsouza/fake-gcs-server
	touch $@ # as above

# Azurite is no program in Go, so its version stands here.
AZURITE := _output/azurite/node_modules/.bin/azurite-blob

.PHONY: azure
azure: $(AZURITE) ## Run the same against an emulator of Azure Blob Storage (needs npm)
	RUKPAK_AZURE_SERVER=$(CURDIR)/$< go test -tags failpoints -count=1 -timeout=20m -run '^TestAzure$$' $(TESTFLAGS) ./pkg/content/bucket

$(AZURITE):
	npm install --prefix _output/azurite --no-package-lock --no-audit --no-fund azurite@3.37.0

$(BIN)/helm: hack/helm/go.mod hack/helm/go.sum
	mkdir -p $(BIN)
	cd hack/helm && go build -ldflags '-s -w' -o $@ helm.sh/helm/v4/cmd/helm
	touch $@ # as above

.PHONY: chart
chart: kube-binaries ## Write the templates of the Helm chart from the kustomizations anew
	hack/update-chart.sh

# What keeps content is tested once, with the points at which its tests kill it.
.PHONY: unit
unit: s3 ## Run the tests that need nothing but Go
	$(call gotestsum,unit,,$$(go list ./pkg/... ./cmd/... ./hack/demo ./test/monitoring ./test/readme | grep -v /pkg/content))
	$(call gotestsum,failpoints,-tags failpoints,./pkg/content/... ./pkg/failpoint/...)

# Its packages wait more than they work, so one more than there may be processors runs at a time.
.PHONY: integration
integration: kube-binaries s3 $(BIN)/helm ## Run the tests behind a real kube-apiserver (builds it: 15 minutes the first time)
	$(call gotestsum,integration,-count=1 -p 3 -timeout=30m,./test/integration/...)

.PHONY: e2e
e2e: export KUBECONFIG = $(CLUSTER)/kubeconfig
e2e: cluster ## Run the tests on a real cluster (root; brings it up)
	$(call gotestsum,e2e,-count=1 -p 1 -timeout=60m,./test/e2e/...)

.PHONY: e2e-chart
e2e-chart: export RUKPAK_CHART_KUBECONFIG = $(CLUSTER)/kubeconfig
e2e-chart: cluster $(BIN)/helm ## Install, upgrade and uninstall the Helm chart on the real cluster, in place of what is there
	hack/cluster/undeploy.sh
	go test -count=1 -v -timeout=30m $(TESTFLAGS) ./test/chart

.PHONY: large
large: export KUBECONFIG = $(CLUSTER)/kubeconfig
large: export RUKPAK_LARGE_BYTES = $(LARGE_BYTES)
large: cluster s3 ## Run the tests of large content at its full size, 1 GiB (LARGE_BYTES): each store, and the real cluster
	go test -count=1 -v -timeout=60m -run '/^a_large_blob$$' $(TESTFLAGS) ./pkg/content/...
	go test -count=1 -v -timeout=60m -run '^TestLarge' $(TESTFLAGS) ./test/e2e/...

.PHONY: chaos
chaos: export KUBECONFIG = $(CLUSTER)/kubeconfig
chaos: export RUKPAK_CHAOS = 5m
chaos: cluster ## Kill parts of the real cluster at random for 5 minutes, under 100 bundles
	go test -count=1 -v -timeout=60m -run '^(TestChaos|TestClusterAway)$$' $(TESTFLAGS) ./test/e2e/

.PHONY: bench
bench: export KUBECONFIG = $(CLUSTER)/kubeconfig
bench: cluster ## Measure, on the real cluster, and print the figures as a table
	go test -count=1 -v -timeout=60m $(TESTFLAGS) ./test/bench

.PHONY: bench-sizes
bench-sizes: export KUBECONFIG = $(CLUSTER)/kubeconfig
bench-sizes: export RUKPAK_BENCH_SIZES = 20Ki,1Mi,5Mi,64Mi,256Mi
bench-sizes: export RUKPAK_BENCH_ROUNDS = 20
bench-sizes: cluster ## Measure bundles of images of 20 KiB to 256 MiB, present and pulled, 20 times each: about an hour
	go test -count=1 -v -timeout=180m -run '^TestFigures$$/^sizes$$' $(TESTFLAGS) ./test/bench

.PHONY: bench-many
bench-many: export KUBECONFIG = $(CLUSTER)/kubeconfig
bench-many: export RUKPAK_BENCH_AT_ONCE = 50,200
bench-many: export RUKPAK_BENCH_ROUNDS = 3
bench-many: cluster ## Measure 50 and 200 bundles at once, 3 times each: about half an hour
	go test -count=1 -v -timeout=180m -run '^TestFigures$$/^many$$' $(TESTFLAGS) ./test/bench

.PHONY: bench-queue
bench-queue: export KUBECONFIG = $(CLUSTER)/kubeconfig
bench-queue: export RUKPAK_BENCH_QUEUE = 10000
bench-queue: cluster ## Let 10,000 bundles wait for their turn for two minutes, and delete them: about a quarter of an hour
	go test -count=1 -v -timeout=60m -run '^TestFigures$$/^queue$$' $(TESTFLAGS) ./test/bench

.PHONY: bench-stores
bench-stores: kube-binaries ## Measure each content store, and many bundles, behind a kube-apiserver (STORESFLAGS=-full for 1 GiB and 10,000)
	go test -count=1 -v -timeout=120m $(TESTFLAGS) ./test/bench/stores $(STORESFLAGS)

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (30s)
	@set -e; for package in $$(go list ./pkg/...); do \
	  for target in $$(go test -list '^Fuzz' "$$package" | grep '^Fuzz' || true); do \
	    echo "$$package $$target"; \
	    go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) "$$package"; \
	  done; \
	done

.PHONY: generate
generate: ## Generate code, clients and OpenAPI models anew
	hack/update-codegen.sh

.PHONY: verify
verify: ## Fail when anything generated is stale, unformatted, or fails vet or staticcheck
	hack/verify.sh

.PHONY: image
image: build $(BIN)/sbom ## Build the container image, without Docker, into _output/image (PLATFORMS: linux/amd64 linux/arm64)
	hack/image/image.sh $(IMAGE) $(VERSION) $(PLATFORMS)

.PHONY: image-check
image-check: image ## Check the image's SBOM against what is in it, and that the image is the same built elsewhere
	cd hack/sbom && RUKPAK_IMAGE_LAYOUT=$(abspath $(IMAGE)) go test -count=1 ./...
	hack/image/check.sh $(IMAGE) $(VERSION) $(PLATFORMS)

$(BIN)/sbom: $(wildcard hack/sbom/*)
	mkdir -p $(BIN)
	cd hack/sbom && go build -ldflags '-s -w' -o $@ .
	touch $@ # as above

.PHONY: krew
krew: ## Build the kubectl plugin for all platforms, with its krew manifest, into _output/krew (KREW_URL: where it will be)
	hack/krew.sh $(CURDIR)/_output/krew $(VERSION) $(KREW_URL)

.PHONY: kube-binaries
kube-binaries: ## Build kube-apiserver, etcd, kubectl and crane into _output/bin
	hack/cluster/build.sh kube

.PHONY: cluster
cluster: ## Bring up a single-node Kubernetes with our server in it (root)
	hack/cluster/up.sh
	$(MAKE) --no-print-directory image PLATFORMS=linux/$$(go env GOARCH)
	hack/cluster/deploy.sh

.PHONY: cluster-ha
cluster-ha: ## Bring up the same with three replicas and an etcd of three members (root)
	hack/cluster/up.sh
	$(MAKE) --no-print-directory image PLATFORMS=linux/$$(go env GOARCH)
	hack/cluster/deploy.sh ha

.PHONY: cluster-check
cluster-check: ## Check that the node of the local cluster does what our tests expect of one
	hack/cluster/check.sh

.PHONY: undeploy
undeploy: ## Take our server and its data out of the local cluster again
	hack/cluster/undeploy.sh

.PHONY: cluster-down
cluster-down: ## Stop the local cluster and undo all that it changed on the machine
	hack/cluster/down.sh

.PHONY: clean
clean: ## Remove all that was built (not while the local cluster is up)
	@test ! -e $(CLUSTER) || { echo "the local cluster is up: make cluster-down first" >&2; exit 1; }
	rm -rf _output
