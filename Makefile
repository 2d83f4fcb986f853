# maxc - one program, built from every .c file under src/.
#
#   make            build/maxc, for the CPU
#   make cuda       the CUDA plug-in beside it, where nvcc is found
#   make mpi        the MPI plug-in beside it; make does so by itself where mpicc is found
#   make demo       train a small model and let it write, in a few minutes
#   make demo-grpo  the same model learns to add, by reward alone
#   make test       everything that must hold, under ASan + UBSan; ends with "N passed, N failed"
#   make test-crash 1,000 times kill -9 of a save and of a whole run, and power losses
#   make test-memory  every single request for memory fails once and for ever, in loading, saving, training and writing
#   make test-kills  ranks of meshes, over TCP and MPI, are killed, stopped and hung at 100 random instants
#   make test-ranks a rank is stopped, killed or hung at 500 random instants, of calls and of whole runs
#   make test-extend every extension of docs/extending.md, its CUDA kernel too
#   make test-slurm a run of two tasks through a real Slurm on this machine; needs root and Debian's Slurm
#   make test-roundtrip  decode(encode(x)) = x on ten million random texts for each byte-level tokenizer
#   make test-clients  the clients of OpenAI and Anthropic and lm-eval of PYTHON against a server, where PYTHON has them
#   make test-page  the page in a headless Chromium, where there is one; SHOT=FILE.png takes a picture
#   make fuzz-http  a server under requests and schemas that are nearly right, for FUZZ_SECONDS
#   make screenshot docs/page.png, the page with the model MODEL
#   make test-serve-families  every family's golden through a server, 64 requests at a time
#   make soak-serve a server under mixed load for SOAK_SECONDS (3600), with SOAK_CONNECTIONS (2000)
#   make fuzz       every fuzz target for FUZZ_SECONDS (60), with clang's libFuzzer
#   make bench      the measurements behind docs/performance.md
#   make lint       the limits of STYLE.md
#   make readme     the table of model families in README.md, from the program's own
#   make test-meshes  five kinds of model on 144 meshes of virtual ranks; memory of two processes against its plan
#   make base-yml   configs/base.yml, from the tables of keys
#   make fuzz-keys  N (3000) random settings of all keys, a few steps each, under ASan
#   make install    PREFIX (/usr/local), DESTDIR: the program, configs, library, manual pages, completion; also uninstall
#   make deb        build/*.deb: maxc and libmaxc-dev
#   make test-bare  make demo, make test and make deb in a bare Debian made by mmdebstrap; needs root
#
# There are no lists of files here: directories are scanned, and the op, model, verb and test tables are
# scanned out of the sources by tools/scan.

# All cores unless -j says otherwise (which wins); a make inside this one shares its jobs.
ifeq ($(MAKELEVEL),0)
  MAKEFLAGS += -j$(shell nproc)
endif
# Several goals (make clean all) are made in the order given, one after the other.
ifneq ($(word 2,$(MAKECMDGOALS)),)
.NOTPARALLEL:
.PHONY: $(MAKECMDGOALS)
$(MAKECMDGOALS):
	@$(MAKE) --no-print-directory $@
else

.DEFAULT_GOAL := all
MODE ?= release
BUILD := build
ifeq ($(MODE),test)
  B := $(BUILD)/test
  OPT := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -DMX_TEST_BUILD
  LDOPT := -fsanitize=address,undefined
else ifeq ($(MODE),plain) # tests without sanitizers, which GPU drivers do not go together with
  B := $(BUILD)/plain
  OPT := -O2 -DMX_TEST_BUILD
  LDOPT :=
else ifeq ($(MODE),tsan) # for tests of threads; setarch -R where the kernel lays out memory too randomly for it
  B := $(BUILD)/tsan
  OPT := -O1 -fsanitize=thread -DMX_TEST_BUILD
  LDOPT := -fsanitize=thread
else ifeq ($(MODE),fuzz)
  B := $(BUILD)/fuzz
  CC := clang
  OPT := -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -DMX_TEST_BUILD
  LDOPT := -fsanitize=fuzzer,address,undefined
  EXTRA_CFLAGS += -Wno-error -Wno-unknown-warning-option -Wno-psabi -Wno-pass-failed
else
  B := $(BUILD)/release
  OPT := -O3
  LDOPT :=
endif

CC ?= cc
# libgomp, statically where gcc brings it so: src/base/threads.c has a word before it begins.
OPENMP = $(or $(wildcard $(shell $(CC) -print-file-name=libgomp.a)),-fopenmp)
# A warning is an error with the compiler that the tests are run with; another one may know more of them, which is no
# reason for the program not to be built.
WERROR ?= $(if $(filter 12,$(shell $(CC) -dumpversion 2> /dev/null | cut -d. -f1)),-Werror)
WARN := -Wall -Wextra $(WERROR) -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unknown-pragmas -Wno-missing-field-initializers -Wno-format-zero-length -Wno-maybe-uninitialized -Wno-format-zero-length
CFLAGS := -std=gnu11 $(OPT) -g $(WARN) -fopenmp -fno-math-errno -fno-trapping-math -mprefer-vector-width=512 \
          -D_GNU_SOURCE -Isrc -Iinclude -I$(B)/gen $(EXTRA_CFLAGS)

# Libraries (tools/packages). make reads build/deps.mk, finds that it is to be made, installs what is missing, and
# starts over: pkg-config is asked once everything is there, and again when packages have changed.
ifeq ($(filter clean format lint uninstall test-bare,$(MAKECMDGOALS)),)
include $(BUILD)/deps.mk
endif
$(BUILD)/deps.mk: tools/packages tools/setup tools/deps $(wildcard /var/lib/dpkg/status)
	@tools/setup --quiet
	@mkdir -p $(@D) && tools/deps > $@.tmp && mv $@.tmp $@
HAVE_NVCC := $(shell command -v nvcc 2> /dev/null)
MPICC ?= mpicc
HAVE_MPICC := $(shell command -v $(MPICC) 2> /dev/null)
BANNER := maxc: $(notdir $(CC)) $(shell $(CC) -dumpfullversion 2> /dev/null), OpenMP; \
          $(if $(HAVE_NVCC),nvcc found: make cuda builds the GPU plug-in,no nvcc: CPU only)
# libbacktrace comes with gcc; without it, stack traces have symbols but no lines.
LIBBACKTRACE := $(wildcard $(shell $(CC) -print-file-name=libbacktrace.a 2> /dev/null))
CFLAGS += $(DEP_CFLAGS) $(if $(LIBBACKTRACE),-DMX_HAVE_BACKTRACE)
LDLIBS := $(DEP_LIBS) $(LIBBACKTRACE) -lm -lpthread -ldl

SRC := $(shell find src -name '*.c' | LC_ALL=C sort)
PLUGINS := $(filter src/device/cuda/% src/dist/mpi/%,$(SRC))
LIB_SRC := $(filter-out src/cmd/main.c $(PLUGINS),$(SRC))
LIB_OBJ := $(LIB_SRC:%.c=$(B)/%.o)
TABLES := ops models verbs keys objectives rewards device_kinds tokenizer_formats optimizer_rules passes $(if $(wildcard src/data/formats/source.h),sources benches)
TABLE_OBJ := $(TABLES:%=$(B)/gen/%_table.o)
TEST_SRC := $(shell find tests -maxdepth 2 -name '*.c' -not -path 'tests/fuzz/*' | LC_ALL=C sort)
TEST_OBJ := $(TEST_SRC:%.c=$(B)/%.o)

.PHONY: all release demo demo-grpo test test-bin test-crash test-memory test-ranks test-roundtrip fuzz fuzz-bin fuzz-keys bench bench-mixtures lint readme base-yml format clean banner
all: banner $(B)/maxc $(if $(HAVE_MPICC),$(if $(filter release,$(MODE)),mpi))
	@ln -sf $(abspath $(B)/maxc) $(BUILD)/maxc
banner:
	@echo "$(BANNER)"

# --- tables scanned out of the sources ---
$(B)/gen/%_table.c: tools/scan FORCE
	@mkdir -p $(@D)
	@tools/scan $* > $@.tmp; cmp -s $@.tmp $@ && rm $@.tmp || mv $@.tmp $@
$(B)/gen/ops.h: tools/scan FORCE
	@mkdir -p $(@D)
	@tools/scan builders > $@.tmp; cmp -s $@.tmp $@ && rm $@.tmp || mv $@.tmp $@
$(B)/gen/interface.h: tools/scan FORCE
	@mkdir -p $(@D)
	@tools/scan interface > $@.tmp; cmp -s $@.tmp $@ && rm $@.tmp || mv $@.tmp $@
FORCE:
.PHONY: FORCE
.SECONDARY: $(TABLES:%=$(B)/gen/%_table.c) $(B)/gen/tests_table.c

# --- the letters of pictures, rendered from a font when the program is built ---
FONT ?= $(shell find /usr/share/fonts -name DejaVuSans.ttf 2> /dev/null | head -n 1)
$(B)/gen/font_maker: tools/font.c
	@mkdir -p $(@D)
	@$(CC) -O1 $(WARN) $< $$(pkg-config --cflags --libs freetype2) -o $@
$(B)/gen/font.c: $(B)/gen/font_maker
	@$< $(FONT) > $@.tmp && mv $@.tmp $@

# --- the page that `maxc serve` shows, as bytes ---
$(B)/gen/page.c: src/serve/page.html
	@mkdir -p $(@D)
	@{ echo '#include "serve/page.h"'; echo 'const unsigned char mx_page[] = {'; od -An -v -tx1 $< | sed 's/ \(..\)/0x\1,/g'; \
	   echo '};'; echo 'const size_t mx_page_bytes = sizeof mx_page;'; } > $@.tmp && mv $@.tmp $@

$(B)/gen/%.o: $(B)/gen/%.c
	@$(CC) $(CFLAGS) -MMD -MP -c $< -o $@
$(B)/%.o: %.c | $(B)/gen/ops.h $(B)/gen/interface.h
	@mkdir -p $(@D)
	@echo "  CC  $<"
	@$(CC) $(CFLAGS) -MMD -MP -c $< -o $@

# clang takes half an hour for the unrolled kernels with sanitizers; gcc checks them in make test.
$(BUILD)/fuzz/src/ops/cpu/gemm_levels.o: CFLAGS += -fno-sanitize=all

$(B)/src/cmd/version.o: CFLAGS += -DMX_BUILD_FLAGS='"$(MODE): $(OPT)"'

$(B)/libmaxc.a: $(LIB_OBJ) $(TABLE_OBJ) $(B)/gen/font.o $(B)/gen/page.o
	@rm -f $@ && ar rcs $@ $^
$(B)/maxc: $(B)/src/cmd/main.o $(B)/libmaxc.a
	@echo "  LD  $@"
	@$(CC) $(LDOPT) -rdynamic $^ $(LDLIBS) $(OPENMP) -o $@

# --- the MPI plug-in; of another MPI than mpicc's: make mpi MPICC=mpicc.mpich ---
.PHONY: mpi
mpi: $(BUILD)/release/libmaxc_mpi.so
$(BUILD)/release/libmaxc_mpi.so: $(wildcard src/dist/mpi/*) src/dist/mpi.h src/dist/comm.h src/dist/coord.h $(BUILD)/mpicc.txt
	@mkdir -p $(@D)
	@echo "  MPICC $@"
	@$(MPICC) -std=gnu11 -O2 -g -fPIC -shared $(WARN) -D_GNU_SOURCE -Isrc $(filter %.c,$^) -o $@
$(BUILD)/mpicc.txt: FORCE
	@mkdir -p $(@D); echo "$(HAVE_MPICC)" | cmp -s - $@ || echo "$(HAVE_MPICC)" > $@

# --- tests ---
$(B)/tests_run: $(TEST_OBJ) $(B)/gen/tests_table.o $(B)/libmaxc.a
	@echo "  LD  $@"
	@$(CC) $(LDOPT) -rdynamic $^ $(LDLIBS) $(TEST_LIBS) $(OPENMP) -o $@
.PHONY: test-programs
test-programs: $(B)/tests_run $(B)/maxc
test-bin:
	@$(MAKE) --no-print-directory MODE=test test-programs
test: all
	@$(MAKE) --no-print-directory MODE=test test-programs
	@tools/run-tests

KILLS ?= 1000
test-crash: all test-bin
	@MX_KILLS=$(KILLS) MX_POWER_ROUNDS=40 MX_TEST_SECONDS=36000 build/test/tests_run '*kill*' '*power*'
	@KILLS=$(KILLS) sh tests/cli/run.sh

EVERY ?= 1
test-memory: test-bin
	@MX_EVERY_ALLOCATION=$(EVERY) MX_TEST_SECONDS=360000 build/test/tests_run 'memory_that*'

RANK_FAULTS ?= 500
test-ranks: all test-bin
	@MX_RANK_FAULTS=$(RANK_FAULTS) MX_TEST_SECONDS=36000 build/test/tests_run 'heartbeat_*'
	@RANK_FAULTS=$(RANK_FAULTS) sh tests/cli/ranks.sh

# Ranks of meshes, over TCP and MPI, killed, stopped and hung at so many instants.
.PHONY: test-kills
KILLS_OF_RANKS ?= 100
test-kills: all
	@tools/test-kills $(KILLS_OF_RANKS)

# Five kinds of model on all meshes of 8 ranks and 60 of 16.
.PHONY: test-meshes
test-meshes: all
	@$(MAKE) --no-print-directory MODE=plain build/plain/tests_run
	@[ build/meshes.txt -nt build/plain/tests_run ] || rm -f build/meshes.txt
	@MX_MESHES=all MX_MESHES_FILE=build/meshes.txt MX_TEST_SECONDS=36000 build/plain/tests_run 'meshes_of*'
	@tools/test-mesh-memory

.PHONY: test-clients test-page screenshot fuzz-http soak-serve test-serve-families
test-clients: all
	@sh tests/clients/run.sh
test-page: all
	@SHOT=$(SHOT) sh tests/clients/page.sh
screenshot: all
	@SHOT=docs/page.png sh tests/clients/page.sh
fuzz-http: test-bin
	@FUZZ_SECONDS=$(FUZZ_SECONDS) sh tests/clients/http_fuzz.sh
SOAK_SECONDS ?= 3600
SOAK_CONNECTIONS ?= 2000
test-serve-families: test-bin
	@MX_SERVE_FAMILIES=all MX_SERVE_REQUESTS=64 MX_TEST_SECONDS=3600 build/test/tests_run serve_gives_goldens
soak-serve: test-bin
	@MX_SOAK_SECONDS=$(SOAK_SECONDS) MX_SOAK_CONNECTIONS=$(SOAK_CONNECTIONS) MX_TEST_SECONDS=360000 build/test/tests_run soak_serve

.PHONY: test-extend
test-extend: test-bin
	@EXTEND_CUDA=1 sh tests/cli/extend.sh

ROUND_TRIPS ?= 10000000
.PHONY: test-slurm
test-slurm: all
	@tools/test-slurm
test-roundtrip: test-bin
	@MX_ROUND_TRIPS=$(ROUND_TRIPS) MX_TEST_SECONDS=36000 build/test/tests_run byte_level_kinds_round_trip

FUZZ_SECONDS ?= 60
FUZZ_BIN := $(patsubst tests/fuzz/%.c,$(B)/%,$(wildcard tests/fuzz/fuzz_*.c))
$(B)/fuzz_%: tests/fuzz/fuzz_%.c $(B)/libmaxc.a
	@$(CC) $(CFLAGS) $(LDOPT) -rdynamic $^ $(LDLIBS) -o $@
fuzz-bin: $(FUZZ_BIN)
fuzz:
	@$(MAKE) --no-print-directory MODE=fuzz fuzz-bin
	@for t in $(FUZZ_BIN:$(B)/fuzz_%=%); do mkdir -p build/fuzz/corpus/$$t; echo "fuzz $$t"; \
	    build/fuzz/fuzz_$$t -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096 -verbosity=0 \
	        -artifact_prefix=build/fuzz/$$t- -print_final_stats=1 build/fuzz/corpus/$$t $$(ls -d tests/fuzz/corpus/$$t 2> /dev/null) \
	        || exit 1; done

# N random settings of all keys, a few steps each; SEED=... repeats them
N ?= 3000
SEED ?= $(shell date +%s)
fuzz-keys: test-bin
	@MX_KEY_CASES=$(N) MX_KEY_SEED=$(SEED) MX_TEST_SECONDS=360000 build/test/tests_run 'keys_at_random*'

# Stopped on request (75) is no failure.
demo: all
	@tools/demo || [ $$? = 75 ]
demo-grpo: all
	@tools/demo-grpo || [ $$? = 75 ]
# one measurement program per file: make build/release/bench/kernels_bench
$(B)/bench/%: $(B)/bench/%.o $(B)/libmaxc.a
	@$(CC) $(LDOPT) -rdynamic $^ $(LDLIBS) $(OPENMP) -o $@
bench: all
	@bench/run
	@bench/ranks
bench-mixtures: all $(B)/bench/kernels_bench
	@bench/mixtures

# --- installing ---
PREFIX ?= /usr/local
export PREFIX DESTDIR
.PHONY: install uninstall deb test-bare
$(B)/share: export REQUIRES = $(LINKED)
$(B)/share: export LIBS = $(if $(LIBBACKTRACE),-lbacktrace) -rdynamic -fopenmp -lm -lpthread -ldl
# The man pages, completion and maxc.pc; maxc.pc names PREFIX, so that they are written each time.
$(B)/share: $(B)/maxc FORCE
	@tools/share $(B)/maxc $@
install: all $(B)/share
	@tools/install install
uninstall:
	@tools/install uninstall
deb: PREFIX := /usr
deb: all $(B)/share
	@tools/deb
test-bare:
	@tools/test-bare

lint:
	@tools/lint
readme: all
	@tools/readme
base-yml: all
	@$(B)/maxc help base.yml > $(BUILD)/base.yml && mv $(BUILD)/base.yml configs/base.yml
format:
	@find src tests bench -name '*.[ch]' -o -name '*.cu' | xargs clang-format -i
clean:
	@rm -rf $(BUILD)
# make print-CFLAGS: what a variable is, for scripts that compile something beside the program
print-%:
	@echo '$($*)'

-include $(shell find $(B) -name '*.d' 2>/dev/null)
-include src/device/cuda/cuda.mk
endif
