# Strata: thin wrapper around meson and ninja. "make demo" builds and runs the demo model, "make check" runs all tests.
#
#   make                      build/strata and build/strata-device
#   make check                all tests, then unit, golden and fault tests again under address and undefined sanitizers
#   make check SAN=thread     all tests under the named sanitizers only
#   make check-all FIXTURES=DIR   also the tests whose weights are too large to commit, and the portable build
#   make fuzz FUZZ_SECONDS=60 searches for inputs that break a parser
#   make deps DEPS=1          installs missing packages (Debian, Ubuntu)
BUILD ?= build
SAN ?=
FIXTURES ?=
FUZZ_SECONDS ?= 60
MESON_FLAGS ?=
DEMO_PROMPT ?= What is gimp?

.PHONY: all deps deps-check deps-lint deps-fuzz demo check check-all portable fuzz format lint clean

all: deps $(BUILD)/build.ninja
	ninja -C $(BUILD) src/cli/strata src/cli/strata-device
	@ln -sf src/cli/strata src/cli/strata-device $(BUILD)

deps:
	@sh scripts/deps.sh build

deps-check:
	@sh scripts/deps.sh build check

deps-lint:
	@sh scripts/deps.sh build lint

deps-fuzz:
	@sh scripts/deps.sh build fuzz

$(BUILD)/build.ninja: | deps
	meson setup $(BUILD) $(MESON_FLAGS)

demo: deps $(BUILD)/build.ninja
	ninja -C $(BUILD) src/cli/strata
	$(BUILD)/src/cli/strata run -m models/demo.gguf -p "$(DEMO_PROMPT)" --temp 0

check: deps-check
	@BUILD="$(BUILD)" SAN="$(SAN)" MESON_FLAGS="$(MESON_FLAGS)" bash scripts/check.sh

check-all: deps-check
	@BUILD="$(BUILD)" SAN="$(SAN)" MESON_FLAGS="$(MESON_FLAGS)" ALL=1 FIXTURES="$(FIXTURES)" bash scripts/check.sh

portable: deps
	@MESON_FLAGS="$(MESON_FLAGS)" bash scripts/portable.sh

fuzz: deps-fuzz
	@FUZZ_SECONDS="$(FUZZ_SECONDS)" bash scripts/fuzz.sh

format:
	git ls-files 'src/*.[ch]' 'include/*.h' 'tests/*.[ch]' | xargs clang-format -i

lint: deps-lint $(BUILD)/build.ninja
	@BUILD="$(BUILD)" bash scripts/lint.sh

clean:
	rm -rf build build-*
