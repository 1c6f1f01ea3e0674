// What networks are made of.
__device__ float warp_sum(float v) { for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d); return v; }
__device__ float warp_max(float v) { for (int d = 16; d; d /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, d)); return v; }
extern "C" __global__ void softmax(float *out, const float *in, int cols) {
  const float *row = in + blockIdx.x * cols;
  __shared__ float part[8];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float most = -3.4e38f, sum = 0;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) most = fmaxf(most, row[i]);
  most = warp_max(most);
  if (lane == 0) part[warp] = most;
  __syncthreads();
  for (int w = 0; w < blockDim.x / 32; w++) most = fmaxf(most, part[w]);
  __syncthreads();
  for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += __expf(row[i] - most);
  sum = warp_sum(sum);
  if (lane == 0) part[warp] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < blockDim.x / 32; w++) sum += part[w];
  for (int i = threadIdx.x; i < cols; i += blockDim.x) out[blockIdx.x * cols + i] = __expf(row[i] - most) / sum;
}
extern "C" __global__ void layer_norm(float *out, const float *in, const float *gain, const float *bias, int cols, float eps) {
  const float *row = in + blockIdx.x * cols;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < cols; i += 32) sum += row[i];
  float mean = warp_sum(sum) / cols;
  for (int i = threadIdx.x; i < cols; i += 32) squares += (row[i] - mean) * (row[i] - mean);
  float scale = rsqrtf(warp_sum(squares) / cols + eps);
  for (int i = threadIdx.x; i < cols; i += 32) out[blockIdx.x * cols + i] = (row[i] - mean) * scale * gain[i] + bias[i];
}
extern "C" __global__ void rms_norm(float *out, const float *in, const float *gain, int cols) {
  float squares = 0;
  for (int i = threadIdx.x; i < cols; i += 32) squares += in[blockIdx.x * cols + i] * in[blockIdx.x * cols + i];
  float scale = 1.0f / sqrtf(warp_sum(squares) / cols + 1e-5f);
  for (int i = threadIdx.x; i < cols; i += 32) out[blockIdx.x * cols + i] = in[blockIdx.x * cols + i] * scale * gain[i];
}
// One warp for each query; 32 dimensions, one for each lane.
extern "C" __global__ void attention(float *out, const float *q, const float *k, const float *v, int n) {
  int row = blockIdx.x, lane = threadIdx.x;
  float x = q[row * 32 + lane] * 0.17677669f, most = -3.4e38f, sum = 0, acc = 0;
  for (int j = 0; j <= row; j++) {
    float s = warp_sum(x * k[j * 32 + lane]);
    float now = fmaxf(most, s), keep = expf(most - now), p = expf(s - now);
    sum = sum * keep + p, acc = acc * keep + p * v[j * 32 + lane], most = now;
  }
  out[row * 32 + lane] = acc / sum;
}
__constant__ float filter[25] = {1, 4, 6, 4, 1, 4, 16, 24, 16, 4, 6, 24, 36, 24, 6, 4, 16, 24, 16, 4, 1, 4, 6, 4, 1};
extern "C" __global__ void convolution(float *out, const float *in, int w, int h) {
  int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
  if (x >= w || y >= h) return;
  float sum = 0;
  for (int j = -2; j <= 2; j++)
    for (int i = -2; i <= 2; i++) {
      int u = min(max(x + i, 0), w - 1), v = min(max(y + j, 0), h - 1);
      sum += filter[(j + 2) * 5 + i + 2] * in[v * w + u];
    }
  out[y * w + x] = sum / 256.0f;
}
extern "C" __global__ void half_axpy(unsigned *y, const unsigned *x, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned scale, r = y[i];
  asm("cvt.rn.f16x2.f32 %0, %1, %1;" : "=r"(scale) : "f"(a));
  asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(r) : "r"(scale), "r"(x[i]));
  y[i] = r;
}
extern "C" __global__ void kmeans(int *nearest, float *sums, int *counts, const float2 *points, const float2 *centres, int n, int k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float2 p = points[i];
  float least = 3.4e38f;
  int best = 0;
  for (int c = 0; c < k; c++) {
    float dx = p.x - centres[c].x, dy = p.y - centres[c].y, d = dx * dx + dy * dy;
    if (d < least) least = d, best = c;
  }
  nearest[i] = best;
  atomicAdd(&sums[2 * best], p.x), atomicAdd(&sums[2 * best + 1], p.y), atomicAdd(&counts[best], 1);
}
