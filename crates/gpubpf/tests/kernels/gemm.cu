// Products of matrices, row by row.
extern "C" __global__ void gemm_naive(float *c, const float *a, const float *b, int m, int n, int k) {
  int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || col >= n) return;
  float sum = 0;
  for (int i = 0; i < k; i++) sum += a[row * k + i] * b[i * n + col];
  c[row * n + col] = sum;
}
extern "C" __global__ void gemm_tiled(float *c, const float *a, const float *b, int m, int n, int k) {
  __shared__ float ta[16][16], tb[16][17];
  int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 16 + ty, col = blockIdx.x * 16 + tx;
  float sum = 0;
  for (int t = 0; t < k; t += 16) {
    ta[ty][tx] = row < m && t + tx < k ? a[row * k + t + tx] : 0;
    tb[ty][tx] = col < n && t + ty < k ? b[(t + ty) * n + col] : 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; i++) sum += ta[ty][i] * tb[i][tx];
    __syncthreads();
  }
  if (row < m && col < n) c[row * n + col] = sum;
}
// 4 x 4 results for each of 64 threads.
extern "C" __global__ void gemm_registers(float *c, const float *a, const float *b, int n, int k) {
  __shared__ float ta[8][32], tb[8][32];
  int t = threadIdx.x, tx = t % 8, ty = t / 8;
  float sum[4][4] = {};
  for (int base = 0; base < k; base += 8) {
    for (int i = t; i < 256; i += 64) {
      ta[i % 8][i / 8] = a[(blockIdx.y * 32 + i / 8) * k + base + i % 8];
      tb[i / 32][i % 32] = b[(base + i / 32) * n + blockIdx.x * 32 + i % 32];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float4 x = *(float4 *)&ta[i][ty * 4], y = *(float4 *)&tb[i][tx * 4];
      float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int r = 0; r < 4; r++)
#pragma unroll
        for (int s = 0; s < 4; s++) sum[r][s] += xs[r] * ys[s];
    }
    __syncthreads();
  }
  for (int r = 0; r < 4; r++)
    *(float4 *)&c[(blockIdx.y * 32 + ty * 4 + r) * n + blockIdx.x * 32 + tx * 4] =
        make_float4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
}
#define MMA(shape, types, d, a0, a1, a2, a3, b0, b1)                                                              \
  asm volatile("mma.sync.aligned." shape ".row.col." types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                    \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
// One warp, 16 x 8 results; a is 16 x k row by row, b is k x 8 column by column, halves in pairs.
#define MMA_KERNEL(name, types)                                                                       \
  extern "C" __global__ void name(float *c, const unsigned *a, const unsigned *b, int k) {            \
    int g = threadIdx.x / 4, t = threadIdx.x % 4, w = k / 2;                                          \
    float d[4] = {};                                                                                  \
    for (int s = 0; s < w; s += 8)                                                                    \
      MMA("m16n8k16", types, d, a[g * w + s + t], a[(g + 8) * w + s + t], a[g * w + s + t + 4],       \
          a[(g + 8) * w + s + t + 4], b[g * w + s + t], b[g * w + s + t + 4]);                        \
    c[g * 8 + 2 * t] = d[0], c[g * 8 + 2 * t + 1] = d[1];                                             \
    c[(g + 8) * 8 + 2 * t] = d[2], c[(g + 8) * 8 + 2 * t + 1] = d[3];                                 \
  }
MMA_KERNEL(mma_f16, "f32.f16.f16.f32")
MMA_KERNEL(mma_bf16, "f32.bf16.bf16.f32")
extern "C" __global__ void mma_tf32(float *c, const float *a, const float *b, int k) {
  int g = threadIdx.x / 4, t = threadIdx.x % 4;
  float d[4] = {};
  for (int s = 0; s < k; s += 8) {
    unsigned r[6];
    float v[6] = {a[g * k + s + t], a[(g + 8) * k + s + t], a[g * k + s + t + 4],
                  a[(g + 8) * k + s + t + 4], b[g * k + s + t], b[g * k + s + t + 4]};
    for (int i = 0; i < 6; i++) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r[i]) : "f"(v[i]));
    MMA("m16n8k8", "f32.tf32.tf32.f32", d, r[0], r[1], r[2], r[3], r[4], r[5]);
  }
  c[g * 8 + 2 * t] = d[0], c[g * 8 + 2 * t + 1] = d[1];
  c[(g + 8) * 8 + 2 * t] = d[2], c[(g + 8) * 8 + 2 * t + 1] = d[3];
}
extern "C" __global__ void mma_s8(int *c, const int *a, const int *b, int k) {
  int g = threadIdx.x / 4, t = threadIdx.x % 4, w = k / 4;
  int d[4] = {};
  for (int s = 0; s < w; s += 8)
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[g * w + s + t]), "r"(a[(g + 8) * w + s + t]), "r"(a[g * w + s + t + 4]),
                   "r"(a[(g + 8) * w + s + t + 4]), "r"(b[g * w + s + t]), "r"(b[g * w + s + t + 4]));
  c[g * 8 + 2 * t] = d[0], c[g * 8 + 2 * t + 1] = d[1];
  c[(g + 8) * 8 + 2 * t] = d[2], c[(g + 8) * 8 + 2 * t + 1] = d[3];
}
// Tiles come by cp.async, fragments by ldmatrix; b is 16 x 8 row by row, so it is transposed.
extern "C" __global__ void mma_ldmatrix(float *c, const unsigned short *a, const unsigned short *b, int k) {
  __shared__ __align__(16) unsigned short ta[2][16][16], tb[2][16][8];
  int l = threadIdx.x, g = l / 4, t = l % 4;
  float d[4] = {};
  auto fetch = [&](int s, int slot) {
    unsigned pa = (unsigned)__cvta_generic_to_shared(&ta[slot][l / 2][l % 2 * 8]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(pa), "l"(a + (l / 2) * k + s + l % 2 * 8));
    if (l < 16) {
      unsigned pb = (unsigned)__cvta_generic_to_shared(&tb[slot][l][0]);
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(pb), "l"(b + (s + l) * 8));
    }
    asm volatile("cp.async.commit_group;");
  };
  fetch(0, 0);
  for (int s = 0, slot = 0; s < k; s += 16, slot ^= 1) {
    if (s + 16 < k) {
      fetch(s + 16, slot ^ 1);
      asm volatile("cp.async.wait_group 1;");
    } else {
      asm volatile("cp.async.wait_group 0;");
    }
    __syncthreads();
    unsigned ra[4], rb[2];
    unsigned pa = (unsigned)__cvta_generic_to_shared(&ta[slot][l % 16][l / 16 * 8]);
    unsigned pb = (unsigned)__cvta_generic_to_shared(&tb[slot][l % 16][0]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(pa));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(rb[0]), "=r"(rb[1]) : "r"(pb));
    MMA("m16n8k16", "f32.f16.f16.f32", d, ra[0], ra[1], ra[2], ra[3], rb[0], rb[1]);
    __syncthreads();
  }
  c[g * 8 + 2 * t] = d[0], c[g * 8 + 2 * t + 1] = d[1];
  c[(g + 8) * 8 + 2 * t] = d[2], c[(g + 8) * 8 + 2 * t + 1] = d[3];
}
extern "C" __global__ void dp4a(int *out, const int *a, const int *b, int n, int k) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n) return;
  int sum = 0;
  for (int i = 0; i < k; i++) sum = __dp4a(a[row * k + i], b[i], sum);
  out[row] = sum;
}
