// Another profiler plug-in, for the test of two at once: counts its calls into a file.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef VERSION
#error "which version?"
#endif

static int starts[16], stops, states, inits, finals;
static uintptr_t last = 0x100;

static int bit(uint64_t type) {
  int n = 0;
  while (type > 1 && n < 15) type >>= 1, n++;
  return n;
}

#if VERSION == 4
static int init(void** ctx, int* mask, const char* name, uint64_t id, int nodes, int ranks,
                int rank, void* log) {
#else
static int init(void** ctx, uint64_t id, int* mask, const char* name, int nodes, int ranks,
                int rank, void* log) {
#endif
  if (id != 0xfeed && id != 0xbeef) abort();
  *ctx = (void*)id;
  *mask = 0x6; // Coll | P2p
  inits++;
  return 0;
}

static int start(void* ctx, void** handle, void* descr) {
#if VERSION == 4
  uint64_t type = *(uint8_t*)descr;
#else
  uint64_t type = *(uint64_t*)descr;
#endif
  uintptr_t parent = (uintptr_t)((void**)descr)[1];
  // Only handles of our own may come back.
  if (parent && (parent & 0xff || parent > last)) abort();
  if (ctx != (void*)0xfeed && ctx != (void*)0xbeef) abort();
  starts[bit(type)]++;
  *handle = (void*)(last += 0x100);
  return 0;
}

static int stop(void* handle) {
  if ((uintptr_t)handle & 0xff || (uintptr_t)handle > last) abort();
  stops++;
  return 0;
}

static int state(void* handle, int state, void* args) { states++; return 0; }

static int finalize(void* ctx) {
  FILE* f = fopen(getenv("COUNTS_FILE"), "w");
  finals++;
  fprintf(f, "init %d final %d group %d coll %d p2p %d proxyop %d kernelch %d groupapi %d "
          "collapi %d launch %d phase %d stop %d state %d\n",
          inits, finals, starts[0], starts[1], starts[2], starts[3], starts[6], starts[8],
          starts[9], starts[11], starts[15], stops, states);
  fclose(f);
  return 0;
}

struct table { const char* name; void *init, *start, *stop, *state, *finalize; };
#define GLUE2(a, b) a##b
#define GLUE(a, b) GLUE2(a, b)
struct table GLUE(ncclProfiler_v, VERSION) = {"counts", init, start, stop, state, finalize};
