// Our own kernels: what people write first, and one with tracepoints.
#include "gpuwhy_tracepoint.h"

extern "C" __global__ void vector_add(const float *a, const float *b, float *c, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		c[i] = a[i] + b[i];
}

extern "C" __global__ void tiled_multiply(const float *a, const float *b, float *c, int n)
{
	__shared__ float x[32][33], y[32][33];
	int row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
	float sum = 0;
	for (int tile = 0; tile < n / 32; tile++) {
		x[threadIdx.y][threadIdx.x] = a[row * n + tile * 32 + threadIdx.x];
		y[threadIdx.y][threadIdx.x] = b[(tile * 32 + threadIdx.y) * n + column];
		__syncthreads();
		GPUWHY_TP2(tile, tile, sum);
		for (int k = 0; k < 32; k++)
			sum += x[threadIdx.y][k] * y[k][threadIdx.x];
		__syncthreads();
	}
	c[row * n + column] = sum;
}

extern "C" __global__ void histogram(const unsigned char *data, unsigned *bins, long n)
{
	__shared__ unsigned local[256];
	local[threadIdx.x] = 0;
	__syncthreads();
	for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (long)blockDim.x)
		atomicAdd(&local[data[i]], 1);
	__syncthreads();
	atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

extern "C" __global__ void n_bodies(const float4 *bodies, float4 *forces, int n)
{
	__shared__ float4 tile[256];
	float4 me = bodies[blockIdx.x * 256 + threadIdx.x], force = {0, 0, 0, 0};
	for (int first = 0; first < n; first += 256) {
		tile[threadIdx.x] = bodies[first + threadIdx.x];
		__syncthreads();
#pragma unroll 16
		for (int k = 0; k < 256; k++) {
			float4 it = tile[k];
			float x = it.x - me.x, y = it.y - me.y, z = it.z - me.z;
			float square = x * x + y * y + z * z + 1e-6f;
			float by = it.w * rsqrtf(square * square * square);
			force.x += x * by, force.y += y * by, force.z += z * by;
		}
		__syncthreads();
	}
	forces[blockIdx.x * 256 + threadIdx.x] = force;
}

// Threads return at different places, as in real kernels with bounds and early results.
extern "C" __global__ void early_returns(const int *data, int *found, int n, int wanted)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n)
		return;
	for (int k = i; k < n; k += 1024) {
		if (data[k] == wanted) {
			found[i] = k;
			return;
		}
		if (data[k] < 0)
			asm volatile("exit;");
	}
	found[i] = -1;
}
