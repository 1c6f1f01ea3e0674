// Sorting, searching, graphs, numbers: where threads go different ways.
extern "C" __global__ void bitonic(int *data) {
  __shared__ int s[512];
  int t = threadIdx.x;
  s[t] = data[t];
  for (int k = 2; k <= 512; k *= 2)
    for (int j = k / 2; j; j /= 2) {
      __syncthreads();
      int other = t ^ j;
      if (other > t) {
        bool up = (t & k) == 0;
        if ((s[t] > s[other]) == up) { int x = s[t]; s[t] = s[other], s[other] = x; }
      }
    }
  __syncthreads();
  data[t] = s[t];
}
extern "C" __global__ void search_text(int *found, unsigned *count, const char *text, const char *word, int n, int m) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i + m > n) return;
  int j = 0;
  while (j < m && text[i + j] == word[j]) j++;
  found[i] = j == m;
  if (j == m) atomicInc(count, 1000);
}
extern "C" __global__ void lower_bound(int *out, const int *sorted, const int *keys, int n, int m) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= m) return;
  int low = 0, high = n;
  while (low < high) {
    int mid = (low + high) / 2;
    if (sorted[mid] < keys[i]) low = mid + 1; else high = mid;
  }
  out[i] = low;
}
extern "C" __global__ void collatz(unsigned *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned long long x = i + 1;
  unsigned steps = 0;
  while (x != 1) x = x & 1 ? 3 * x + 1 : x / 2, steps++;
  out[i] = steps;
}
extern "C" __global__ void mandelbrot(int *out, int w, int h, int limit) {
  int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
  double cx = -2.0 + px * (3.0 / w), cy = -1.0 + py * (2.0 / h), x = 0, y = 0;
  int i = 0;
  for (; i < limit && x * x + y * y <= 4.0; i++) {
    double t = __dadd_rn(__dsub_rn(__dmul_rn(x, x), __dmul_rn(y, y)), cx);
    y = __dadd_rn(__dmul_rn(__dmul_rn(2.0, x), y), cy), x = t;
  }
  out[py * w + px] = i;
}
extern "C" __global__ void life(unsigned char *out, const unsigned char *in, int w, int h) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, n = 0;
  for (int j = -1; j <= 1; j++)
    for (int i = -1; i <= 1; i++)
      if (i || j) n += in[((y + j + h) % h) * w + (x + i + w) % w];
  out[y * w + x] = n == 3 || (n == 2 && in[y * w + x]);
}
extern "C" __global__ void stencil(float *out, const float *in, int n) {
  __shared__ float s[128 + 6];
  int g = blockIdx.x * 128 + threadIdx.x, l = threadIdx.x + 3;
  s[l] = g < n ? in[g] : 0;
  if (threadIdx.x < 3) {
    s[l - 3] = g >= 3 ? in[g - 3] : 0;
    s[l + 128] = g + 128 < n ? in[g + 128] : 0;
  }
  __syncthreads();
  float sum = 0;
  for (int i = -3; i <= 3; i++) sum += s[l + i];
  if (g < n) out[g] = sum / 7.0f;
}
extern "C" __global__ void jacobi(float *out, const float *in, int w, int h) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= w || y >= h) return;
  bool edge = !x || !y || x == w - 1 || y == h - 1;
  const float *p = in + y * w + x;
  out[y * w + x] = edge ? *p : 0.25f * (p[-1] + p[1] + p[-w] + p[w]);
}
extern "C" __global__ void sparse(float *y, const int *rows, const int *cols, const float *values, const float *x, int n) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= n) return;
  float sum = 0;
  for (int i = rows[row] + lane; i < rows[row + 1]; i += 32) sum += values[i] * x[cols[i]];
  for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
  if (lane == 0) y[row] = sum;
}
extern "C" __global__ void bfs(int *distance, const int *rows, const int *cols, int n) {
  __shared__ int changed;
  for (int level = 0;; level++) {
    __syncthreads();
    if (threadIdx.x == 0) changed = 0;
    __syncthreads();
    for (int v = threadIdx.x; v < n; v += blockDim.x)
      if (distance[v] == level)
        for (int e = rows[v]; e < rows[v + 1]; e++)
          if (atomicCAS(&distance[cols[e]], -1, level + 1) == -1) changed = 1;
    __syncthreads();
    if (!changed) return;
  }
}
extern "C" __global__ void floyd(int *d, int n) {
  for (int k = 0; k < n; k++) {
    for (int i = threadIdx.x; i < n * n; i += blockDim.x) {
      int through = d[i / n * n + k] + d[k * n + i % n];
      if (through < d[i]) d[i] = through;
    }
    __syncthreads();
  }
}
extern "C" __global__ void levenshtein(int *out, const char *a, const char *b, int n) {
  __shared__ int line[3][65];
  int t = threadIdx.x;
  for (int s = 0; s <= 2 * n; s++) {
    int i = t, j = s - t;
    if (i <= n && j >= 0 && j <= n) {
      int v = i == 0 ? j : j == 0 ? i : min(min(line[(s + 2) % 3][i] + 1, line[(s + 2) % 3][i - 1] + 1),
                                            line[(s + 1) % 3][i - 1] + (a[i - 1] != b[j - 1]));
      line[s % 3][i] = v;
      if (i == n && j == n) *out = v;
    }
    __syncthreads();
  }
}
extern "C" __global__ void nbody(float4 *force, const float4 *body, int n) {
  __shared__ float4 tile[64];
  float4 me = body[blockIdx.x * 64 + threadIdx.x];
  float fx = 0, fy = 0, fz = 0;
  for (int base = 0; base < n; base += 64) {
    tile[threadIdx.x] = body[base + threadIdx.x];
    __syncthreads();
    for (int j = 0; j < 64; j++) {
      float dx = tile[j].x - me.x, dy = tile[j].y - me.y, dz = tile[j].z - me.z;
      float inv = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f), s = tile[j].w * inv * inv * inv;
      fx += s * dx, fy += s * dy, fz += s * dz;
    }
    __syncthreads();
  }
  force[blockIdx.x * 64 + threadIdx.x] = make_float4(fx, fy, fz, 0);
}
// A transform of 256 points, in place, with its bits reversed before.
extern "C" __global__ void fft(float2 *data) {
  __shared__ float2 s[256];
  int t = threadIdx.x;
  for (int i = t; i < 256; i += 128) s[__brev(i) >> 24] = data[i];
  for (int half = 1; half < 256; half *= 2) {
    __syncthreads();
    int k = t & (half - 1), at = (t - k) * 2 + k;
    float sn, cs;
    sincosf(-3.14159265f * k / half, &sn, &cs);
    float2 a = s[at], b = s[at + half], w = make_float2(b.x * cs - b.y * sn, b.x * sn + b.y * cs);
    s[at] = make_float2(a.x + w.x, a.y + w.y), s[at + half] = make_float2(a.x - w.x, a.y - w.y);
  }
  __syncthreads();
  for (int i = t; i < 256; i += 128) data[i] = s[i];
}
