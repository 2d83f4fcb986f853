# deps.mk - where the libraries are. Every one is a Debian package installed by tools/setup.
PKGS := jansson yaml-0.1 libpcre2-8 libutf8proc libzstd zlib libxxhash liblz4 libbrotlidec libcurl libprotobuf-c \
        libturbojpeg libpng libwebp libmicrohttpd
DEP_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
DEP_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lsnappy
HAVE_NVCC := $(shell command -v nvcc 2>/dev/null)
DEP_BANNER := maxc: $(shell $(CC) --version | head -n 1), OpenMP, $(if $(HAVE_NVCC),CUDA plug-in with $(HAVE_NVCC),no nvcc: CPU only)
# libbacktrace ships with gcc; without it, stack traces have symbols but no lines.
LIBBACKTRACE := $(wildcard $(shell $(CC) -print-file-name=libbacktrace.a))
ifneq ($(LIBBACKTRACE),)
  DEP_CFLAGS += -DMX_HAVE_BACKTRACE
  DEP_LIBS += $(LIBBACKTRACE)
endif
# libgomp, statically where gcc brings it so: src/base/threads.c has a word before it begins.
OPENMP := $(or $(wildcard $(shell $(CC) -print-file-name=libgomp.a)),-fopenmp)
