// Matrix products of CUTLASS 3 (BSD-3-Clause) for tensor cores without wgmma, and without tensor cores.
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm.h>

using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using Half = cutlass::half_t;
using Brain = cutlass::bfloat16_t;

template <typename In, typename Out, int M, int N, int K, int WM, int WN, int S>
using Tensor = cutlass::gemm::device::Gemm<
	In, Row, In, Column, Out, Row, float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
	cutlass::gemm::GemmShape<M, N, K>, cutlass::gemm::GemmShape<WM, WN, K>, cutlass::gemm::GemmShape<16, 8, 16>,
	cutlass::epilogue::thread::LinearCombination<Out, 8, float, float>,
	cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, S>;

using Big = Tensor<Half, Half, 128, 128, 32, 64, 64, 4>;
using Long = Tensor<Brain, Brain, 128, 256, 32, 64, 64, 3>;
using Small = Tensor<Half, Half, 64, 64, 32, 32, 32, 5>;
using Simt = cutlass::gemm::device::Gemm<float, Row, float, Row, float, Row>;
using Double = cutlass::gemm::device::Gemm<
	double, Row, double, Column, double, Row, double, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
	cutlass::gemm::GemmShape<64, 64, 16>, cutlass::gemm::GemmShape<32, 32, 16>, cutlass::gemm::GemmShape<8, 8, 4>,
	cutlass::epilogue::thread::LinearCombination<double, 1, double, double>,
	cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, 4>;

#define KERNEL(G) template __global__ void cutlass::Kernel<G::GemmKernel>(G::GemmKernel::Params);
KERNEL(Big)
KERNEL(Long)
KERNEL(Small)
KERNEL(Simt)
KERNEL(Double)
