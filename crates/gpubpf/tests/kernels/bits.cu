// Integers and bits: hashes, random numbers, wide products.
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
