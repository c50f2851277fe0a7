# Strata: thin wrapper around meson and ninja. "make" builds, "make demo" runs the demo model, "make check" runs all tests.
BUILD ?= build
SAN ?=
MESON_FLAGS ?=

.PHONY: all deps demo check check-all format lint clean

all: deps $(BUILD)/build.ninja
	ninja -C $(BUILD)

deps:
	@sh scripts/deps.sh

$(BUILD)/build.ninja:
	meson setup $(BUILD) $(MESON_FLAGS)

clean:
	rm -rf build build-*
