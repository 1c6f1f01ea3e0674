// Sums, scans and counts.
extern "C" __global__ void reduce_sum(float *out, const float *in, int n) {
  __shared__ float part[32];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
  for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x == 0) atomicAdd(out, sum);
  }
}
extern "C" __global__ void reduce_tree(int *out, const int *in, int n) {
  extern __shared__ int tree[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  tree[threadIdx.x] = i < n ? in[i] : 0;
  for (int d = blockDim.x / 2; d; d /= 2) {
    __syncthreads();
    if (threadIdx.x < d) tree[threadIdx.x] += tree[threadIdx.x + d];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = tree[0];
}
extern "C" __global__ void extremes(int *most, unsigned *least, long long *sum, const int *in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  atomicMax(most, in[i]);
  atomicMin(least, (unsigned)in[i]);
  atomicAdd((unsigned long long *)sum, (unsigned long long)(long long)in[i]);
}
extern "C" __global__ void scan_hillis(int *out, const int *in) {
  __shared__ int buffer[2][256];
  int t = threadIdx.x, now = 0;
  buffer[0][t] = in[t];
  for (int d = 1; d < 256; d *= 2) {
    __syncthreads();
    buffer[1 - now][t] = buffer[now][t] + (t >= d ? buffer[now][t - d] : 0);
    now = 1 - now;
  }
  out[t] = buffer[now][t];
}
extern "C" __global__ void scan_blelloch(unsigned *out, const unsigned *in) {
  __shared__ unsigned s[512];
  int t = threadIdx.x;
  s[2 * t] = in[2 * t], s[2 * t + 1] = in[2 * t + 1];
  int offset = 1;
  for (int d = 256; d > 0; d /= 2) {
    __syncthreads();
    if (t < d) s[offset * (2 * t + 2) - 1] += s[offset * (2 * t + 1) - 1];
    offset *= 2;
  }
  if (t == 0) s[511] = 0;
  for (int d = 1; d < 512; d *= 2) {
    offset /= 2;
    __syncthreads();
    if (t < d) {
      int a = offset * (2 * t + 1) - 1, b = offset * (2 * t + 2) - 1;
      unsigned old = s[a];
      s[a] = s[b], s[b] += old;
    }
  }
  __syncthreads();
  out[2 * t] = s[2 * t], out[2 * t + 1] = s[2 * t + 1];
}
extern "C" __global__ void scan_warp(int *out, const int *in) {
  int lane = threadIdx.x % 32, value = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (int d = 1; d < 32; d *= 2) {
    int other = __shfl_up_sync(~0u, value, d);
    if (lane >= d) value += other;
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = value;
}
extern "C" __global__ void histogram_shared(unsigned *bins, const unsigned char *in, int n) {
  __shared__ unsigned local[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[in[i]], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local[i]);
}
extern "C" __global__ void histogram_aggregated(unsigned *bins, const int *in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int key = in[i] & 7;
  unsigned same = __match_any_sync(__activemask(), key);
  if ((threadIdx.x & 31) == __ffs(same) - 1) atomicAdd(&bins[key], __popc(same));
}
extern "C" __global__ void compact(int *out, unsigned *count, const int *in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
  bool keep = i < n && in[i] % 3 == 0;
  unsigned votes = __ballot_sync(~0u, keep);
  unsigned base = 0;
  if (lane == 0) base = atomicAdd(count, __popc(votes));
  base = __shfl_sync(~0u, base, 0);
  if (keep) out[base + __popc(votes & ((1u << lane) - 1))] = in[i];
}
extern "C" __global__ void count_block(int *out, const int *in) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int odd = __syncthreads_count(in[i] & 1);
  int all = __syncthreads_and(in[i] > 0), any = __syncthreads_or(in[i] > 90);
  if (threadIdx.x == 0) out[3 * blockIdx.x] = odd, out[3 * blockIdx.x + 1] = all != 0, out[3 * blockIdx.x + 2] = any != 0;
}
extern "C" __global__ void redux(unsigned *out, const unsigned *in) {
  unsigned v = in[threadIdx.x];
  unsigned sum = __reduce_add_sync(~0u, v), least = __reduce_min_sync(~0u, v), ors = __reduce_or_sync(~0u, v);
  if (threadIdx.x == 0) out[0] = sum, out[1] = least, out[2] = ors;
}
extern "C" __global__ void dot_double(double *out, const double *a, const double *b, int n) {
  double sum = 0;
  for (int i = threadIdx.x; i < n; i += 32) sum = fma(a[i], b[i], sum);
  for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
  if (threadIdx.x == 0) *out = sqrt(sum) / 3.0;
}
