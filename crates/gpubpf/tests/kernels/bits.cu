// Integers and bits: hashes, random numbers, wide products, calls.
extern "C" __global__ void xorshift(unsigned *out, int rounds) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned x = i * 2654435761u + 1;
  for (int r = 0; r < rounds; r++) x ^= x << 13, x ^= x >> 17, x ^= x << 5;
  out[i] = x;
}
extern "C" __global__ void philox(uint4 *out, unsigned key0, unsigned key1) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned c0 = i, c1 = 0, c2 = 7, c3 = 0;
  for (int r = 0; r < 10; r++) {
    unsigned h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0, h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
    c0 = h1 ^ c1 ^ key0, c1 = l1, c2 = h0 ^ c3 ^ key1, c3 = l0;
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  out[i] = make_uint4(c0, c1, c2, c3);
}
extern "C" __global__ void crc32(unsigned *out, const unsigned char *in, int length) {
  const unsigned char *p = in + (blockIdx.x * blockDim.x + threadIdx.x) * length;
  unsigned crc = ~0u;
  for (int i = 0; i < length; i++) {
    crc ^= p[i];
    for (int b = 0; b < 8; b++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = ~crc;
}
__constant__ unsigned sha_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
__device__ __forceinline__ unsigned rotr(unsigned x, int n) { return __funnelshift_r(x, x, n); }
// One padded block of 64 bytes for each thread.
extern "C" __global__ void sha256(unsigned *out, const unsigned *in) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned w[64], h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  for (int i = 0; i < 16; i++) w[i] = __byte_perm(in[t * 16 + i], 0, 0x0123);
  for (int i = 16; i < 64; i++)
    w[i] = w[i - 16] + w[i - 7] + (rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ w[i - 15] >> 3) +
           (rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ w[i - 2] >> 10);
  unsigned a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], k = h[7];
  for (int i = 0; i < 64; i++) {
    unsigned t1 = k + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + (e & f ^ ~e & g) + sha_k[i] + w[i];
    unsigned t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + (a & b ^ a & c ^ b & c);
    k = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  unsigned s[8] = {a, b, c, d, e, f, g, k};
  for (int i = 0; i < 8; i++) out[t * 8 + i] = h[i] + s[i];
}
extern "C" __global__ void wide_product(unsigned long long *out, const unsigned long long *a, const unsigned long long *b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned __int128 p = (unsigned __int128)a[i] * b[i] + a[i];
  out[4 * i] = (unsigned long long)p, out[4 * i + 1] = (unsigned long long)(p >> 64);
  out[4 * i + 2] = b[i] ? a[i] / b[i] : 0, out[4 * i + 3] = b[i] ? a[i] % (b[i] >> 33 | 1) : 0;
}
extern "C" __global__ void counting(int *out, const unsigned *in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned x = in[i];
  out[6 * i] = __popc(x), out[6 * i + 1] = __clz(x), out[6 * i + 2] = __ffs(x), out[6 * i + 3] = __brev(x);
  out[6 * i + 4] = __vadd4(x, 0x01ff7f80), out[6 * i + 5] = __sad(x, 77, 3);
}
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
