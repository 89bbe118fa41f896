# perigee - Lua decides, C computes.
#
#   make            build build/perigee (installs missing packages first)
#   make help       every target
#
# Settings: CC=clang, SAN=address,undefined or SAN=thread, V=1, BUILD=folder, PREFIX=/usr/local.

SAN    ?=
HOSTCC ?= $(CC)
empty  :=
comma  := ,
BUILD  ?= build$(if $(SAN),/san-$(subst $(comma),-,$(SAN)))
PREFIX ?= /usr/local
PORT   ?= 8080
MINUTES ?= 2
FUZZ_SECONDS ?= 60
N      ?= 60
SEED   ?= 1
V      ?= 0
Q      := $(if $(filter 1,$(V)),,@)
UNAME  := $(shell uname -s)
say     = @printf '  %-6s %s\n'

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.PHONY: all help test test-metal test-cuda test-clients test-arm check-macos bench bench-peer \
        bench-peer-http bench-mlx bench-grammar fuzz soak mutate install clean lint packages peer \
        tests fuzzers serve print-flags FORCE

# ---- packages ----------------------------------------------------------------------------------
# pkg-config can answer only when they are installed, so compilation happens in a second make. It
# believes that they are, or `make -n`, which installs nothing, would start a third and so on.
PACKAGES := $(BUILD)/.packages
READY    := $(or $(AGAIN),$(shell test -f $(PACKAGES) && \
              test ! .ci/packages -nt $(PACKAGES) && echo yes))
# Homebrew does not link lua@5.4 into its prefix. Older versions of make do not export variables to
# $(shell), so the path is part of the command.
ifeq ($(UNAME),Darwin)
  LUA_KEG := $(shell brew --prefix lua@5.4 2>/dev/null)
  PKG     := PKG_CONFIG_PATH="$(LUA_KEG)/lib/pkgconfig:$$PKG_CONFIG_PATH" pkg-config
else
  PKG     := pkg-config
endif

ifneq ($(READY),)
  ROCKS    := $(if $(filter Darwin,$(UNAME)),$(abspath build/rocks))
  known     = $(if $(shell $(PKG) --exists $(1) && echo y),$(1))
  LUA_PC   := $(firstword $(foreach p,lua5.4 lua-5.4 lua54 lua,$(call known,$(p))))
  LUA_PCS  := $(LUA_PC) libuv $(if $(ROCKS),,lua5.4-luv lua5.4-cjson)
  LIB_PCS  := libpcre2-8 libutf8proc libxxhash libwebp zlib libzstd
  LUA_CF   := $(shell $(PKG) --cflags $(LUA_PCS)) $(if $(ROCKS),-I$(ROCKS)/include)
  LIB_CF   := $(shell $(PKG) --cflags $(LIB_PCS)) $(if $(ROCKS),-I$(ROCKS)/include)
  LIB_LD   := $(shell $(PKG) --libs libpcre2-8 libutf8proc libwebp zlib libzstd)
  # One executable: Lua, luv and cjson are linked statically if the distribution has archives.
  LIBDIR   := $(if $(ROCKS),,$(shell $(PKG) --variable=libdir $(LUA_PC)))
  archive   = $(or $(wildcard $(LIBDIR)/lib$(1).a),-l$(1))
  LUA_LD   := $(if $(ROCKS),$(ROCKS)/luv.a $(ROCKS)/cjson.a $(shell $(PKG) --libs $(LUA_PC) libuv),\
                $(call archive,lua5.4-luv) $(call archive,lua5.4-cjson) $(call archive,lua5.4) -luv)
endif

# ---- flags -------------------------------------------------------------------------------------
OPT      ?= -O2
CFLAGS   ?= -g
WARN     := -std=c11 -Wall -Wextra -Werror
POSIX    := -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -D_DARWIN_C_SOURCE
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
# A fused multiply-add where the source has none would make sums depend on the compiler.
CF       := $(WARN) $(POSIX) $(OPT) $(CFLAGS) -ffp-contract=off -fno-math-errno $(SANFLAGS) \
            -I. -MMD -MP
LD        = $(CC) $(SANFLAGS) $(LDFLAGS)
# make fuzz with clang: the fuzzers' driver sees which edges of the runtime an input reaches.
COVER    ?=
# The inner loops, once per instruction set; which of them runs is decided at run time. Loops start
# on a cache line: otherwise their speed changes by 10 % with the code in front of them.
MACHINE  := $(shell $(CC) -dumpmachine)
FLAGS_kernels/cpu/prim_scalar.c := -O3
FLAGS_kernels/cpu/prim_neon.c   := -O3
FLAGS_kernels/cpu/probe.c       := -O3
FLAGS_kernels/kv_row.c          := -O3
FLAGS_kernels/pack.c            := -O3
FLAGS_kernels/pack_stored.c     := -O3
FLAGS_kernels/cpu/fast_attention.c := -O3
FLAGS_kernels/cpu/fast_attention_emulated.c := -O3 -Wno-psabi
ifneq ($(filter x86_64%,$(MACHINE)),)
FLAGS_kernels/cpu/prim_avx2.c   := -O3 -falign-loops=64 -falign-functions=64 -mavx2 -mfma -mf16c
FLAGS_kernels/cpu/prim_avx512.c := $(FLAGS_kernels/cpu/prim_avx2.c) -mavx512f -mavx512bw \
            -mavx512vl -mavx512dq -mprefer-vector-width=512
# Every form of weights times every number of rows is inlined: at -O3 a sanitizer takes minutes, and
# clang takes them at -O1 too. Models of the fuzzers run in `exact`, so they do not come here.
FLAGS_int16 := $(if $(SAN),-O1 $(if $(COVER),-fno-sanitize=all))
FLAGS_kernels/cpu/int16_avx2.c   := $(FLAGS_kernels/cpu/prim_avx2.c) $(FLAGS_int16)
FLAGS_kernels/cpu/int16_avx512.c := $(FLAGS_kernels/cpu/prim_avx512.c) $(FLAGS_int16)
FLAGS_kernels/cpu/int16_vnni.c   := $(FLAGS_kernels/cpu/int16_avx512.c) -mavx512vnni
FLAGS_kernels/cpu/int16_vnni_row.c := $(FLAGS_kernels/cpu/int16_vnni.c)
FLAGS_kernels/cpu/int16_amx.c    := $(FLAGS_kernels/cpu/int16_vnni.c) -mgfni -mamx-tile -mamx-int8
FLAGS_kernels/cpu/amx16_tiles.c  := $(FLAGS_kernels/cpu/prim_avx512.c) -mamx-tile -mamx-bf16
FLAGS_kernels/cpu/fast_attention_amx.c := $(FLAGS_kernels/cpu/amx16_tiles.c)
endif
ifneq ($(filter aarch64% arm64%,$(MACHINE)),)
FLAGS_kernels/cpu/int16_neon.c    := -O3
DOTPROD  := -march=armv8.2-a+dotprod
FLAGS_kernels/cpu/int16_dotprod.c := -O3 $(DOTPROD)
FLAGS_kernels/cpu/int16_i8mm.c    := -O3 $(DOTPROD)+i8mm
endif
# What numbers depend on: a part of the identity of saved caches (kernels/host.h).
NUMBERS  := $(wildcard kernels/*.[ch] kernels/*/*.[ch] runtime/graph/*.[ch] runtime/device/*.[ch])
FLAGS_kernels/cpu/host.c := -DPE_BUILD='"$(shell cat $(NUMBERS) | cksum) $(OPT)"'
LIBS      = $(LIB_LD) -lm -lpthread $(if $(filter Linux,$(UNAME)),-ldl -lrt)

# ---- sources -----------------------------------------------------------------------------------
LIB_SRC  := $(wildcard kernels/*.c kernels/*/*.c runtime/*.c runtime/*/*.c)
LUA_SRC  := $(wildcard lua/*.c)
SCRIPTS  := $(shell find scripts -name '*.lua' -o -path '*/web/*' -type f 2>/dev/null | sort)
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o) $(BUILD)/metal_source.o $(BUILD)/metal_tiles.o
LUA_OBJ  := $(LUA_SRC:%.c=$(BUILD)/%.o)
TEST_SRC := $(wildcard tests/c/test_*.c)
TEST_BIN := $(TEST_SRC:tests/c/%.c=$(BUILD)/tests/%)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_BIN := $(FUZZ_SRC:tests/fuzz/%.c=$(BUILD)/tests/%)
BENCH_SRC := $(wildcard tests/bench/*.c)
BENCH_BIN := $(BENCH_SRC:tests/bench/%.c=$(BUILD)/bench/%)
METAL_SRC := $(wildcard kernels/metal/*.metal)
METAL_DEP := $(METAL_SRC) kernels/metal/args.h kernels/op_args.h kernels/quant.h kernels/dtype.h
FAKE_METAL := $(BUILD)/tests/fake-metal.so
# A Mac has the real one; the thread sanitizer does not know the executor's fibres.
FAKE_TEST := $(if $(filter Darwin,$(UNAME))$(findstring thread,$(SAN)),,$(FAKE_METAL) \
            $(addprefix $(BUILD)/tests/test_metal_,host steps batch))
LIBRARY  := $(BUILD)/libperigee.a
PROGRAM  := $(BUILD)/perigee

# ---- targets for people ------------------------------------------------------------------------
ifeq ($(READY),)
.NOTPARALLEL:
all test test-metal test-cuda test-clients bench bench-peer bench-peer-http bench-mlx \
bench-grammar fuzz soak mutate install tests fuzzers serve: packages
	$(Q)$(MAKE) --no-print-directory $@ AGAIN=yes
else
all: $(PROGRAM)

tests: $(PROGRAM) $(TEST_BIN) $(FUZZ_BIN) $(BENCH_BIN) $(FAKE_TEST)

test: tests  ## build and run every test
	$(Q)BUILD=$(BUILD) $(if $(SAN),SAN=$(SAN)) sh tests/run.sh

test-clients: $(PROGRAM)  ## the official OpenAI clients and a real browser against a running server
	$(Q)sh .ci/packages clients
	$(Q)BUILD=$(BUILD) sh tests/clients/run.sh

serve: $(PROGRAM)  ## serve examples/moonlet (PORT=8080) and say what to try
	$(Q)$(PROGRAM) serve examples/moonlet --port $(PORT)

bench: $(PROGRAM) $(BENCH_BIN)  ## run the benchmarks and print their tables
	$(Q)BUILD=$(BUILD) sh tests/bench/run.sh

PEER    ?=
PEER_RUN = PEER_FOLDER=$(BUILD)/peer $(PROGRAM) run tests/bench/$(1).lua $(PEER)
peer: $(PROGRAM)
	$(Q)sh .ci/packages peer
	$(Q)BUILD=$(BUILD) sh tests/bench/peer_build.sh

bench-peer: peer  ## against llama.cpp, built once (PEER='rounds=5 rows=decode threads=2 quick=1')
	$(Q)$(call PEER_RUN,peer)

bench-peer-http: peer  ## the same over HTTP (PEER='rounds=3 tests=gap,prefix,moonlet')
	$(Q)$(call PEER_RUN,peer_http)

MLX     ?=
bench-mlx: $(PROGRAM)  ## against mlx-lm, where it is installed (MLX='python=PATH rounds=5')
	@mkdir -p $(BUILD)/mlx
	$(Q)MLX_FOLDER=$(BUILD)/mlx $(PROGRAM) run tests/bench/mlx.lua $(MLX)

GRAMMAR ?=
bench-grammar: $(PROGRAM)  ## masks against llguidance, if installed (GRAMMAR='python=PATH')
	@mkdir -p $(BUILD)/peer
	$(Q)PEER_FOLDER=$(BUILD)/peer $(PROGRAM) run tests/bench/grammar.lua $(GRAMMAR)

soak: $(PROGRAM)  ## mixed traffic for MINUTES=2, every answer compared, memory and handles watched
	$(Q)sh .ci/packages clients
	$(Q)python3 tests/clients/soak.py --bin $(PROGRAM) --minutes $(MINUTES) $(SOAK)

mutate: tests  ## change N=60 things one at a time (SEED=1) and list what no test notices
	$(Q)python3 tests/mutate.py --count $(N) --seed $(SEED) $(MUTATE)

fuzzers: $(PROGRAM) $(FUZZ_BIN)

fuzz:  ## every fuzzer for FUZZ_SECONDS=60 under sanitizers, with coverage if there is clang
	$(Q)sh .ci/packages fuzz || echo 'fuzz: without clang the mutations are blind'
	$(Q)FUZZ_SECONDS=$(FUZZ_SECONDS) sh tests/fuzz/run.sh $(FUZZ)

install: $(PROGRAM)  ## copy the program to PREFIX/bin
	$(Q)install -d $(DESTDIR)$(PREFIX)/bin
	$(Q)install -m 755 $(PROGRAM) $(DESTDIR)$(PREFIX)/bin/perigee
endif

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' \
	  $(MAKEFILE_LIST) | sort -u
	@printf '  settings: CC=clang  SAN=address,undefined|thread  V=1  BUILD=folder  %s\n' \
	  'PREFIX=/usr/local  PORT=8080'

test-arm:  ## build for aarch64 with the cross compiler and run the libc-only tests under qemu
	$(Q)sh .ci/packages arm
	$(Q)sh tests/arm.sh

check-macos:  ## link for macOS (arm64) on Linux and look at the executable
	$(Q)sh .ci/packages macos
	$(Q)BUILD=$(BUILD) sh tests/macos.sh

lint:  ## form: luacheck, 100 columns, the C format
	$(Q)sh .ci/packages lint
	$(Q)CLANG='$(WARN) $(POSIX) $(LIB_CF) $(LUA_CF) -I. -Itests/c' sh tests/lint.sh

clean:  ## remove build/
	$(Q)rm -rf build

packages:  ## install what the build needs (apt-get or brew)
	$(Q)BUILD=$(BUILD) sh .ci/packages
	$(Q)mkdir -p $(BUILD) && touch $(PACKAGES)

# ---- rules -------------------------------------------------------------------------------------
# Files that change only when the compiler, a flag or the list of sources does.
remember = @mkdir -p $(@D); echo '$(1)' | cmp -s - $@ || echo '$(1)' > $@
$(BUILD)/.flags: FORCE
	$(call remember,$(CC) $(CF) $(COVER) $(LIB_CF) $(LUA_CF) $(LDFLAGS))
$(BUILD)/.files: FORCE
	$(call remember,$(LIB_SRC) $(LUA_SRC) $(SCRIPTS))

$(BUILD)/%.o: %.c $(BUILD)/.flags
	$(say) CC $<
	@mkdir -p $(@D)
	$(Q)$(CC) $(CF) $(LIB_CF) $(if $(filter lua/%,$<),$(LUA_CF)) \
	  $(if $(filter runtime/%,$<),$(COVER)) $(FLAGS_$<) -c -o $@ $<

$(BUILD)/kernels/cpu/host.o: $(NUMBERS)

# Rebuilt whole, so that a deleted source leaves no member behind.
$(LIBRARY): $(LIB_OBJ) $(BUILD)/.files
	$(say) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $(LIB_OBJ)

# The kernels of Metal as one text.
$(BUILD)/metal_source.c: kernels/metal/amalgamate.awk $(METAL_DEP)
	$(say) EMBED $@
	@mkdir -p $(@D)
	$(Q)awk -f $< $(METAL_SRC) > $@

# The list of tiles and their defaults, of which the scripts have the meaning.
$(BUILD)/metal_tiles.c: kernels/metal/tiles.awk scripts/engine/tiles.lua
	$(say) EMBED $@
	@mkdir -p $(@D)
	$(Q)awk -f $^ > $@

$(BUILD)/metal_source.o $(BUILD)/metal_tiles.o: $(BUILD)/%.o: $(BUILD)/%.c $(BUILD)/.flags
	$(Q)$(CC) $(CF) -c -o $@ $<

$(BUILD)/mkembed: lua/embed/mkembed.c
	@mkdir -p $(@D)
	$(Q)$(HOSTCC) $(WARN) $(POSIX) -O1 -o $@ $<

$(BUILD)/embed.c: $(BUILD)/mkembed $(SCRIPTS) $(BUILD)/.files
	$(say) EMBED $@
	$(Q)$(BUILD)/mkembed scripts $(SCRIPTS) > $@

$(BUILD)/embed.o: $(BUILD)/embed.c $(BUILD)/.flags
	$(Q)$(CC) $(CF) -c -o $@ $<

$(PROGRAM): $(LUA_OBJ) $(BUILD)/embed.o $(LIBRARY)
	$(say) LINK $@
	$(Q)$(LD) -o $@ $(LUA_OBJ) $(BUILD)/embed.o $(LIBRARY) $(LUA_LD) $(LIBS)

# Objects of their own: a change of the library only links the suites again.
$(TEST_BIN:=.o): $(BUILD)/tests/%.o: tests/c/%.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(CF) $(LIB_CF) -Itests/c -c -o $@ $<
$(TEST_BIN): %: %.o $(LIBRARY)
	$(say) TEST $@
	$(Q)$(CC) $(CF) -o $@ $< $(LIBRARY) $(LDFLAGS) $(LIBS)

# The kernels of Metal as C++ for tests/metal/exec, as they are (metal/host) and for the checker
# (metal/check), which implements what -fsanitize=thread calls.
CXX      ?= g++
METAL_KERNELS := $(basename $(notdir $(shell grep -l 'kernel void' $(METAL_SRC))))
METAL_TOOLS := tests/metal/mslx.lua $(wildcard tests/metal/shim/*.h) tests/metal/exec/exec.h
# A file does not use all that it includes, of which clang complains.
METAL_CF := -std=c++17 -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-const-variable \
            -fsigned-char -ffp-contract=off -fno-exceptions -fno-rtti -fPIC -I.
METAL_EXEC_OBJ := $(METAL_KERNELS:%=$(BUILD)/metal/host/%.o) $(BUILD)/metal/host/init.o \
            $(BUILD)/metal/host/exec.o
METAL_CHECK_OBJ := $(METAL_KERNELS:%=$(BUILD)/metal/check/%.o) $(BUILD)/metal/host/init.o \
            $(BUILD)/metal/host/exec.o $(BUILD)/metal/host/check.o
METAL_SUITES := kernels memory joined joined_experts shortlist
METAL_TEST := $(METAL_SUITES:%=$(BUILD)/tests/metal_%)
METAL_CHECKED := $(METAL_SUITES:%=$(BUILD)/tests/checked_%)
METAL_CUDA := $(METAL_SUITES:%=$(BUILD)/tests/cuda_%) $(BUILD)/tests/cuda_speed

$(BUILD)/metal/%.cpp: kernels/metal/%.metal $(METAL_DEP) tests/metal/mslx.lua | $(PROGRAM)
	$(say) MSLX $<
	@mkdir -p $(@D)
	$(Q)$(CXX) -E -x c++ -nostdinc -D__METAL_VERSION__=310 -Itests/metal/stub -I. $< > $@.in
	$(Q)$(PROGRAM) run tests/metal/mslx.lua host $* < $@.in > $@

$(BUILD)/metal/init.c: Makefile $(METAL_SRC)
	@mkdir -p $(@D)
	$(Q){ echo '#include "tests/metal/exec/exec.h"'; \
	  for k in $(METAL_KERNELS); do echo "void msl_init_$$k(void);"; done; \
	  echo 'void msl_init_all(void) {'; \
	  for k in $(METAL_KERNELS); do echo "  msl_init_$$k();"; done; echo '}'; } > $@

.SECONDARY: $(METAL_KERNELS:%=$(BUILD)/metal/%.cpp)
$(BUILD)/metal/host/%.o: $(BUILD)/metal/%.cpp $(METAL_TOOLS)
	$(say) C++ $<
	@mkdir -p $(@D)
	$(Q)$(CXX) $(METAL_CF) -O2 -c -o $@ $<
$(BUILD)/metal/check/%.o: $(BUILD)/metal/%.cpp $(METAL_TOOLS)
	$(say) C++ $<
	@mkdir -p $(@D)
	$(Q)$(CXX) $(METAL_CF) -O1 -g -fsanitize=thread -c -o $@ $<
$(BUILD)/metal/host/init.o: $(BUILD)/metal/init.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CF) -fPIC -c -o $@ $<
$(BUILD)/metal/host/%.o: tests/metal/exec/%.c tests/metal/exec/exec.h
	$(say) CC $<
	@mkdir -p $(@D)
	$(Q)$(CC) $(WARN) $(POSIX) -O2 -g -fPIC -I. -c -o $@ $<

METAL_TEST_DEP := $(wildcard tests/metal/*.h) tests/c/kernels.h tests/c/kernels_step.h $(LIBRARY)
$(METAL_TEST): $(BUILD)/tests/metal_%: tests/metal/test_%.c $(METAL_TEST_DEP) $(METAL_EXEC_OBJ)
	$(say) TEST $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CF) $(LIB_CF) -Itests/c -Itests/metal -o $@ $< $(METAL_EXEC_OBJ) $(LIBRARY) \
	  $(LDFLAGS) $(LIBS)
$(METAL_CHECKED): $(BUILD)/tests/checked_%: tests/metal/test_%.c $(METAL_TEST_DEP) \
  $(METAL_CHECK_OBJ)
	$(say) TEST $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CF) $(LIB_CF) -Itests/c -Itests/metal -DCHECKED -o $@ $< $(METAL_CHECK_OBJ) \
	  $(LIBRARY) $(LDFLAGS) $(LIBS)

$(BUILD)/tests/cuda_speed: tests/metal/speed.c
$(METAL_SUITES:%=$(BUILD)/tests/cuda_%): $(BUILD)/tests/cuda_%: tests/metal/test_%.c
$(METAL_CUDA): $(METAL_TEST_DEP) $(METAL_EXEC_OBJ) $(BUILD)/metal/host/cuda.o
	$(say) TEST $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CF) $(LIB_CF) -Itests/c -Itests/metal -DCUDA -o $@ $(filter %.c,$^) $(METAL_EXEC_OBJ) \
	  $(BUILD)/metal/host/cuda.o $(LIBRARY) $(LDFLAGS) $(LIBS)

# A fake Metal around the kernels (PERIGEE_METAL), also with the checker, and the tests of the host.
FAKE_SRC := $(wildcard tests/metal/fake/*.c)
FAKE_OBJ := $(FAKE_SRC:tests/metal/fake/%.c=$(BUILD)/metal/fake/%.o)
FAKE_DEP := $(wildcard tests/metal/fake/*.h) tests/metal/exec/exec.h
$(BUILD)/metal/fake/%.o: tests/metal/fake/%.c $(FAKE_DEP)
	$(say) CC $<
	@mkdir -p $(@D)
	$(Q)$(CC) $(WARN) $(POSIX) -O1 -g -fPIC -I. -c -o $@ $<
$(BUILD)/metal/fake/source.o: $(BUILD)/metal_source.c
	$(Q)$(CC) $(WARN) -fPIC -I. -c -o $@ $<
$(FAKE_METAL): $(FAKE_OBJ) $(BUILD)/metal/fake/source.o $(METAL_EXEC_OBJ)
	$(say) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CXX) -shared -o $@ $^ -lpthread
$(BUILD)/tests/fake-metal-checked.so: $(FAKE_OBJ) $(BUILD)/metal/fake/source.o $(METAL_CHECK_OBJ)
	$(say) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CXX) -shared -o $@ $^ -lpthread
METAL_HOST = -Itests/c -Itests/metal tests/metal/test_metal_$(1).c $(LIBRARY) $(LDFLAGS) $(LIBS)
$(BUILD)/tests/test_metal_%: tests/metal/test_metal_%.c tests/metal/fake_help.h \
  tests/metal/little_metal.h $(FAKE_DEP) $(LIBRARY) | $(FAKE_METAL)
	$(say) TEST $@
	$(Q)$(CC) $(CF) $(LIB_CF) -o $@ $(call METAL_HOST,$*)
ifneq ($(READY),)
METAL_ALL := $(FAKE_TEST) $(BUILD)/tests/fake-metal-checked.so $(METAL_TEST) $(METAL_CHECKED)
test-metal: $(METAL_ALL)  ## Metal's kernels and host on Linux (QUICK=1: no seeded mistakes)
	$(Q)sh .ci/packages metal
	$(Q)BUILD=$(BUILD) CC='$(CC)' CXX='$(CXX)' sh tests/metal/run.sh
test-cuda: $(METAL_CUDA) $(PROGRAM)  ## Metal's kernels as PTX, run where there is an NVIDIA GPU
	$(Q)BUILD=$(BUILD) sh tests/metal/cuda.sh
endif

# For tests/metal/mutants.py: how to compile a file, and to link the test of the host and perigee.
print-flags:
	@echo '$(filter-out -MMD -MP,$(CF)) $(LIB_CF)'
	@echo '$(filter-out -MMD -MP,$(CF)) $(call METAL_HOST,host)'
	@echo '$(filter-out -MMD -MP,$(CF)) $(call METAL_HOST,steps)'
	@echo '$(filter-out -MMD -MP,$(CF)) $(call METAL_HOST,batch)'
	@echo '$(LUA_OBJ) $(BUILD)/embed.o $(LIBRARY) $(LUA_LD) $(LIBS)'

.SECONDARY: $(BUILD)/tests/fuzz/driver.o
$(BUILD)/tests/fuzz_%: tests/fuzz/fuzz_%.c $(BUILD)/tests/fuzz/driver.o $(LIBRARY)
	$(say) FUZZ $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CF) $(LIB_CF) -o $@ $< $(BUILD)/tests/fuzz/driver.o $(LIBRARY) $(LDFLAGS) $(LIBS)

$(BUILD)/bench/%: tests/bench/%.c $(LIBRARY)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CF) $(LIB_CF) -o $@ $< $(LIBRARY) $(LDFLAGS) $(LIBS)

-include $(LIB_OBJ:.o=.d) $(LUA_OBJ:.o=.d) $(TEST_BIN:=.d) $(FUZZ_BIN:=.d) $(BENCH_BIN:=.d) \
  $(BUILD)/tests/fuzz/driver.d
