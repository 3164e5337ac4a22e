# Peregrine. `make demo` shows it at work, `make test` proves it; both install what they need.
.PHONY: demo test workers kills interop bench record counts tidy build setup setup-test golden

# Everything the demonstration writes goes here.
OUT ?= demo

# First strongSwan negotiates a handful of tunnels, then comes the published load over 500.
demo: setup build
	target/release/peregrine lab run bf3-test1 --keys ike --show-sas --tunnels 5 --directions both \
		--steps 3 --step-time 2s --max 50mbps --out $(OUT)/negotiated
	target/release/peregrine lab run bf3-test1 --tunnels 500 --directions both \
		--steps 20 --step-time 5s --out $(OUT)

# Most tests wait for a daemon or a clock rather than for the processor: on two cores four at a time take three fifths of the time of two.
export RUST_TEST_THREADS ?= $(shell cores=$$(nproc); echo $$((cores < 4 ? 4 : cores)))

test: setup-test
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	cargo test --workspace --quiet --no-run
	cargo test --workspace

# The same tests, where the number of workers is not theirs to choose on two that share their queues.
workers: setup-test
	cargo test --package peregrine --quiet --no-run
	PEREGRINE_TEST_CORES=0,1 cargo test --package peregrine --no-fail-fast

# Every peer that is not Peregrine: kernels booted in QEMU, and the daemons inside; one that cannot be had is a failure. The
# results are printed as a table, and written to target/interop/results.json.
interop: setup-test
	cargo test --workspace --test interop -- --all

# A hundred times kill -9 under load, with 1000 tunnels and a daemon that only asks, then at both ends
# with strongSwan negotiating; and what became of every packet.
kills: setup-test build
	PEREGRINE_KILLS=100 PEREGRINE_KILL_TUNNELS=1000 \
		cargo test --release --test journal -- --nocapture killed_again
	PEREGRINE_KILLS=100 \
		cargo test --release --test strongswan -- --nocapture --exact v6_1::gateway_is_killed

# Measures everything and prints which aims are met; the page with the charts is $(BENCH)/bench.html. Where others
# use the machine, more passes find more quiet moments: make bench PASSES=6.
BENCH ?= target/bench
PASSES ?= 2
bench: setup build
	target/release/peregrine bench all --out $(BENCH) --passes $(PASSES)

# Puts the table of the last `make bench` into the docs.
record: build
	target/release/peregrine bench all --from $(BENCH) --out $(BENCH) --record docs/measurements.md

# Records anew how many instructions a packet may take; `make test` holds the path to it.
counts: setup-test
	PEREGRINE_RECORD_COUNTS=1 cargo test --package dataplane --test instructions -- --nocapture no_more_instructions

# Formatting, lints and the rules of STYLE.md that a machine can hold.
tidy: setup-test
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --test tidy

# Records again what a real Debian kernel answers to `ip xfrm`, in QEMU.
golden: setup-test
	tests/golden/record

# The members that Cargo.toml names as default: the binary, its crates and the preload library, not what tests alone use.
build:
	cargo build --release --bins --lib

setup:
	@./setup

setup-test:
	@./setup test
