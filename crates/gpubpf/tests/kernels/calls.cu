// Calls, choices, and threads that wait for each other.
__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
extern "C" __global__ void recursion(int *out) { out[threadIdx.x] = fibonacci(threadIdx.x % 11); }
__device__ __noinline__ int op_add(int a, int b) { return a + b; }
__device__ __noinline__ int op_mul(int a, int b) { return a * b; }
__device__ __noinline__ int op_xor(int a, int b) { return a ^ b; }
__device__ int (*const table[3])(int, int) = {op_add, op_mul, op_xor};
extern "C" __global__ void pointers(int *out, const int *in) {
  int t = threadIdx.x;
  out[t] = table[in[t] % 3](in[t], t);
}
struct Pair { long long a; int b, c; };
__device__ __noinline__ Pair swap_pair(Pair p, int by) { return Pair{p.b + p.a * by, p.c, p.b - by}; }
extern "C" __global__ void structures(long long *out, Pair p) {
  Pair q = swap_pair(swap_pair(p, threadIdx.x), 3);
  out[threadIdx.x] = q.a * 1000 + q.b * 10 + q.c;
}
extern "C" __global__ void choices(int *out, const int *in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int x = in[i], r;
  switch (x % 12) {
    case 0: r = x * 3; break;
    case 1: r = x - 7; break;
    case 2: r = x / 3; break;
    case 3: r = ~x; break;
    case 4: r = x << 2; break;
    case 5: r = x * x; break;
    case 6: r = x ^ 0x55; break;
    case 7: r = x % 5; break;
    case 8: r = -x; break;
    case 9: r = x | 0x100; break;
    default: r = 1; break;
  }
  out[i] = r;
}
// Threads of one warp take a lock in turn, which needs that they go on by themselves.
extern "C" __global__ void lock(int *lock, int *value) {
  bool done = false;
  while (!done)
    if (atomicCAS(lock, 0, 1) == 0) {
      *(volatile int *)value = *(volatile int *)value + 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
}
// Two warps hand tiles to two others through named barriers.
extern "C" __global__ void pipeline(int *out, const int *in, int rounds) {
  __shared__ int tile[64];
  int t = threadIdx.x;
  if (t < 64) {
    for (int r = 0; r < rounds; r++) {
      asm volatile("bar.sync 1, 128;");
      tile[t] = in[r * 64 + t] * 2;
      asm volatile("bar.arrive 2, 128;");
    }
  } else {
    for (int r = 0; r < rounds; r++) {
      asm volatile("bar.arrive 1, 128;");
      asm volatile("bar.sync 2, 128;");
      out[r * 64 + t - 64] = tile[127 - t] + r;
    }
  }
}
__device__ int last = 5;
extern "C" __global__ void ticket(int *out) {
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    out[blockIdx.x] = blockIdx.x * blockIdx.x;
    __threadfence();
    is_last = atomicAdd(&last, 1) == 5 + gridDim.x - 1;
  }
  __syncthreads();
  if (is_last && threadIdx.x == 0) {
    int sum = 0;
    for (int i = 0; i < gridDim.x; i++) sum += out[i];
    out[gridDim.x] = sum;
  }
}
