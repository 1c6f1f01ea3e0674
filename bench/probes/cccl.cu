// Kernels of CUB (nvidia-cuda-cccl; Apache-2.0 with LLVM exception and BSD-3-Clause), as its dispatchers make them.
#include <cub/cub.cuh>

#define INSTANCE __attribute__((used)) static

INSTANCE void sort_pairs(void *t, size_t &b, unsigned *k, unsigned *v, int n)
{
	cub::DeviceRadixSort::SortPairs(t, b, k, k, v, v, n);
}
INSTANCE void sort_keys(void *t, size_t &b, double *k, int n)
{
	cub::DeviceRadixSort::SortKeys(t, b, k, k, n);
}
INSTANCE void reduce(void *t, size_t &b, float *in, float *out, int n)
{
	cub::DeviceReduce::Sum(t, b, in, out, n);
}
INSTANCE void argmin(void *t, size_t &b, double *in, cub::KeyValuePair<int, double> *out, int n)
{
	cub::DeviceReduce::ArgMin(t, b, in, out, n);
}
INSTANCE void scan(void *t, size_t &b, long long *in, long long *out, int n)
{
	cub::DeviceScan::InclusiveSum(t, b, in, out, n);
}
INSTANCE void select(void *t, size_t &b, int *in, char *flags, int *out, int *count, int n)
{
	cub::DeviceSelect::Flagged(t, b, in, flags, out, count, n);
}
INSTANCE void histogram(void *t, size_t &b, unsigned char *in, int *out, int n)
{
	cub::DeviceHistogram::HistogramEven(t, b, in, out, 257, 0, 256, n);
}
INSTANCE void encode(void *t, size_t &b, int *in, int *out, int *counts, int *runs, int n)
{
	cub::DeviceRunLengthEncode::Encode(t, b, in, out, counts, runs, n);
}
struct Less {
	__host__ __device__ bool operator()(float a, float b) const { return a < b; }
};
INSTANCE void merge_sort(void *t, size_t &b, float *k, int *v, int n)
{
	cub::DeviceMergeSort::SortPairs(t, b, k, v, n, Less());
}
