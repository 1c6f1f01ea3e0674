// Element by element, and through shared memory.
extern "C" __global__ void saxpy(float *y, const float *x, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" __global__ void add_float4(float4 *out, const float4 *a, const float4 *b, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float4 x = a[i], y = b[i];
    out[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
  }
}
extern "C" __global__ void transpose(float *out, const float *in, int w, int h) {
  __shared__ float tile[32][33];
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    if (x < w && y + j < h) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * w + x];
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    if (x < h && y + j < w) out[(y + j) * h + x] = tile[threadIdx.x][threadIdx.y + j];
}
// The same without the padding: every access of a column meets one bank.
extern "C" __global__ void transpose_conflicts(float *out, const float *in, int w, int h) {
  __shared__ float tile[32][32];
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    if (x < w && y + j < h) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * w + x];
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    if (x < h && y + j < w) out[(y + j) * h + x] = tile[threadIdx.x][threadIdx.y + j];
}
extern "C" __global__ void gelu(float *out, const float *in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = in[i];
  out[i] = 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}
extern "C" __global__ void rounding(float *out, int *whole, const float *a, const float *b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[8 * i] = __fadd_rd(a[i], b[i]), out[8 * i + 1] = __fadd_ru(a[i], b[i]);
  out[8 * i + 2] = __fmul_rz(a[i], b[i]), out[8 * i + 3] = __fdiv_rn(a[i], b[i]);
  out[8 * i + 4] = __fsqrt_ru(fabsf(a[i])), out[8 * i + 5] = fmaf(a[i], b[i], 1.0f);
  out[8 * i + 6] = fmodf(a[i], b[i]), out[8 * i + 7] = copysignf(fminf(a[i], b[i]), b[i]);
  whole[3 * i] = __float2int_rd(a[i]), whole[3 * i + 1] = __float2int_rn(b[i]);
  whole[3 * i + 2] = (int)floorf(a[i] * 10.0f);
}
