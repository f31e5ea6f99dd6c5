# Every target does its own set-up: what it needs is built, and on Debian what
# is missing is installed, as root, or named with the command that installs it.
# "make help" lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

GO ?= go
# Static binaries: the same file runs on every Linux, and in every box.
export CGO_ENABLED := 0

HOST_ARCH := $(shell $(GO) env GOARCH)
VERSION ?= $(shell git describe --tags --match 'v*' --dirty 2>/dev/null || echo "0.1.0-dev+$$(git rev-parse --short HEAD 2>/dev/null || echo unknown)")
# "make build RELEASE=1" leaves this machine's paths out of the binaries.
RELEASE ?=
BUILD_FLAGS := $(if $(RELEASE),-trimpath)
# What runs in a box is to be small: functions start at every 16 bytes, not 32,
# and nothing is inlined in packages that are linked but hardly ever run there.
# cmd/hutch-guest/size_test.go has the same.
BOX_LDFLAGS := -s -w -funcalign=16
BOX_GCFLAGS := -gcflags='crypto/...=-l' -gcflags='regexp/...=-l' -gcflags='google.golang.org/protobuf/encoding/...=-l'

# Engines whose absence makes the tests fail.
REQUIRE_ENGINES ?= gvisor,vm

# As root, the local driver is tested as this ordinary user too.
TEST_USER ?= hutch-test

# Packages whose tests run under the race detector. It needs cgo, and so builds
# all they import a second time: gVisor's kernel is not worth that, and what links it is
# tested without.
RACE := ./agent/... ./workspace ./workspace/sandbox ./box ./box/boxtest ./internal/boxdir ./internal/boxfake ./internal/cli/... ./internal/egress \
	./internal/guest/... ./internal/helper ./internal/image/... ./internal/x/...
# Packages that must compile where no box can run, for a program on another
# system that will talk to a server.
PORTABLE := ./api/... ./box ./box/boxtest ./internal/guest/boot ./internal/guest/client ./internal/guest/wire ./internal/cli/hosttar \
	./internal/vmboot ./internal/engine/vm/... ./internal/x/erofs

.PHONY: help
help: ## list the targets
	@echo "targets of Hutch's Makefile; each does its own set-up:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

.PHONY: quickstart
quickstart: build ## build, boot a box, compute primes in it, let an agent do it; needs only Go, no root
	@home=$$(mktemp -d); \
	trap 'chmod -R u+rwX "$$home" 2>/dev/null || true; rm -rf "$$home"' EXIT; \
	export HUTCH_HOME="$$home" HUTCH_HELPER="$(CURDIR)/bin/hutch"; \
	$(GO) run ./examples/primes; \
	echo "and by an agent (its model is a script, so that no key is needed):"; \
	$(GO) run ./examples/agent-primes

.PHONY: build
build: ## bin/hutch for this machine, with the programs that run in boxes
	@$(MAKE) build-arch ARCH=$(HOST_ARCH) OUT=bin/hutch

.PHONY: build-all
build-all: ## bin/hutch-linux-amd64 and bin/hutch-linux-arm64
	@for arch in amd64 arm64; do $(MAKE) build-arch ARCH=$$arch OUT=bin/hutch-linux-$$arch; done
	@$(MAKE) build

# The programs that run in boxes, and the one that knows the providers of models,
# are embedded in the hutch command, compressed; see internal/payload. They come first, and only those of one architecture, or
# the command would carry both. The go command knows what is up to date.
.PHONY: build-arch
build-arch:
	@mkdir -p bin
	@find internal/payload/files -name '*.zst*' ! -name '*-$(ARCH).zst*' -delete
	@for program in hutch-guest hutch-userland hutch-agent; do \
		GOOS=linux GOARCH=$(ARCH) $(GO) build $(BUILD_FLAGS) $(BOX_GCFLAGS) -ldflags='$(BOX_LDFLAGS)' -o bin/$$program-$(ARCH) ./cmd/$$program; \
		packed=internal/payload/files/$$program-$(ARCH).zst; \
		sum=$$(sha256sum < bin/$$program-$(ARCH)); \
		if [ ! -f "$$packed" ] || [ ! -f "$$packed.key" ] || [ "$$(cat bin/$$program-$(ARCH).sum 2>/dev/null)" != "$$sum $$(sha256sum < "$$packed")" ]; then \
			$(GO) run ./internal/payload/pack bin/$$program-$(ARCH) bin/$$program.zst; \
			mv bin/$$program.zst.key "$$packed.key"; \
			mv bin/$$program.zst "$$packed"; \
			echo "$$sum $$(sha256sum < "$$packed")" > bin/$$program-$(ARCH).sum; \
		fi; \
	done
	@gvisor=$$($(GO) list -m -f '{{.Version}}' gvisor.dev/gvisor); \
	GOOS=linux GOARCH=$(ARCH) $(GO) build $(BUILD_FLAGS) -ldflags="-s -w \
		-X github.com/hutch-sandbox/hutch/internal/helper.version=$(VERSION) \
		-X gvisor.dev/gvisor/runsc/version.version=$$gvisor" -o $(OUT) ./cmd/hutch
	@ls -l $(OUT) | awk '{ printf "%s  %.1f MB\n", $$NF, $$5 / 1e6 }'

.PHONY: test
test: test-packages build .bin/buf ## everything that can run on this machine; ends with what ran
	$(GO) vet ./...
	GOOS=darwin GOARCH=arm64 $(GO) build $(PORTABLE)
	GOOS=linux GOARCH=arm64 $(GO) build ./...
	@GO="$(GO)" RACE="$(RACE)" REQUIRE_ENGINES="$(REQUIRE_ENGINES)" TEST_USER="$(TEST_USER)" bash internal/x/testcount/all.sh

# QEMU, as Debian packs it for this machine's architecture.
need-qemu := $(if $(filter arm64,$(HOST_ARCH)),need qemu-system-aarch64 qemu-system-arm,need qemu-system-x86_64 qemu-system-x86)

# What the tests need beside Go.
.PHONY: test-packages
test-packages:
	@missing=(); PATH=$$PATH:/usr/sbin:/sbin; \
	need() { command -v "$$1" >/dev/null || missing+=("$$2"); }; \
	need gcc gcc; need newuidmap uidmap; need mmdebstrap mmdebstrap; need mkfs.ext4 e2fsprogs; need rg ripgrep; need git git; \
	$(need-qemu); need fsck.erofs erofs-utils; \
	[ -e /usr/include/stdio.h ] || missing+=(libc6-dev); \
	$(call apt-install)

# Installs what the shell array "missing" names.
define apt-install
if [ $${#missing[@]} -gt 0 ]; then \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "missing: $${missing[*]}; install them and try again: sudo apt-get install -y $${missing[*]}" >&2; exit 1; \
	fi; \
	apt-get update -q; \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$${missing[@]}"; \
fi
endef

.PHONY: lint
lint: .bin/golangci-lint ## go vet, golangci-lint and the module's own rules
	$(GO) vet ./...
	.bin/golangci-lint run ./...
	$(GO) test .

.PHONY: bench
bench: build ## measure beside runsc and podman; writes docs/benchmarks.md
	@missing=(); need() { command -v "$$1" >/dev/null || missing+=("$$2"); }; \
	need podman podman; need crun crun; need slirp4netns slirp4netns; need pasta passt; need mmdebstrap mmdebstrap; need git git; \
	need mkfs.ext4 e2fsprogs; $(need-qemu); \
	if [ "$$(id -u)" = 0 ]; then $(call apt-install); \
	elif [ $${#missing[@]} -gt 0 ]; then echo "not measured for want of: $${missing[*]}"; fi
	HUTCH_HELPER="$(CURDIR)/bin/hutch" $(GO) run ./internal/bench

.PHONY: proto
proto: .bin/buf ## check the proto files and generate api/hutchv1
	cd api && PATH="$(CURDIR)/.bin:$$PATH" buf lint
	cd api && PATH="$(CURDIR)/.bin:$$PATH" buf generate

# The tools have modules of their own, so that what they import is nobody's.
.bin/buf: tools/go.mod tools/go.sum
	@mkdir -p .bin
	cd tools && GOBIN="$(CURDIR)/.bin" $(GO) install tool

.bin/golangci-lint: tools/lint/go.mod tools/lint/go.sum
	@mkdir -p .bin
	cd tools/lint && GOBIN="$(CURDIR)/.bin" $(GO) install tool

.PHONY: clean
clean: ## remove all that was built
	rm -rf bin .bin
	rm -f internal/payload/files/*.zst internal/payload/files/*.key
