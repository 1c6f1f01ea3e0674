// Calls NCCL without a GPU: opens the library by dlopen and calls it with arguments that it refuses
// at once.
//
//   nccl_actor LIBRARY calls   one round of calls every 20 ms, until it is killed
//   nccl_actor LIBRARY cost    for each line read, the name of a function, repeats that call and
//                              writes its cost: the least and the median, in ns of CPU time

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct { char internal[128]; } Id;

static int (*all_reduce)(const void*, void*, size_t, int, int, void*, void*);
static int (*reduce)(const void*, void*, size_t, int, int, int, void*, void*);
static int (*send_to)(const void*, size_t, int, int, void*, void*);
static int (*group_start)(void), (*group_end)(void);
static int (*init_rank)(void**, int, Id, int);
static const char* (*error_string)(int);

static int64_t cpu(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int by_size(const void* a, const void* b) {
  double x = *(double*)a, y = *(double*)b;
  return x < y ? -1 : x > y;
}

static void cost(const char* function) {
  enum { BURSTS = 200, CALLS = 100 };
  double each[BURSTS];
  for (int i = 0; i < BURSTS; i++) {
    int64_t from = cpu();
    for (int k = 0; k < CALLS; k++) {
      if (!strcmp(function, "ncclGetErrorString")) error_string(k & 3);
      else if (!strcmp(function, "ncclGroupStart")) group_start(), group_end();
      else all_reduce(0, 0, 4, 7, 0, 0, 0);
    }
    each[i] = (cpu() - from) / (double)CALLS;
    // Stays below the recorder's limit of calls a second.
    usleep(12000);
  }
  qsort(each, BURSTS, sizeof *each, by_size);
  printf("%.1f %.1f\n", each[0], each[BURSTS / 2]);
  fflush(stdout);
}

static void* rounds(void* argument) {
  Id id;
  for (int i = 0; i < 128; i++) id.internal[i] = (char)i;
  void* comm = 0;
  // The real library refuses without a GPU; the stand-in succeeds.
  init_rank(&comm, 4, id, 1);
  for (;;) {
    group_start();
    all_reduce(0, 0, 1024, 7, 0, comm, 0);
    group_end();
    reduce(0, 0, 16, 8, 0, 2, comm, 0);
    send_to(0, 99, 0, 3, comm, 0);
    usleep(20000);
  }
  return argument;
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  *(void**)&all_reduce = dlsym(library, "ncclAllReduce");
  *(void**)&reduce = dlsym(library, "ncclReduce");
  *(void**)&send_to = dlsym(library, "ncclSend");
  *(void**)&group_start = dlsym(library, "ncclGroupStart");
  *(void**)&group_end = dlsym(library, "ncclGroupEnd");
  *(void**)&init_rank = dlsym(library, "ncclCommInitRank");
  *(void**)&error_string = dlsym(library, "ncclGetErrorString");
  printf("ready\n");
  fflush(stdout);
  char line[64];
  if (!strcmp(argv[2], "cost")) {
    while (fgets(line, sizeof line, stdin)) {
      line[strcspn(line, "\n")] = 0;
      cost(line);
    }
    return 0;
  }
  if (!fgets(line, sizeof line, stdin)) return 0;
  pthread_t second;
  pthread_create(&second, 0, rounds, 0);
  pthread_join(second, 0);
}
