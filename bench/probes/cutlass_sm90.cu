// Matrix products of CUTLASS 3 (BSD-3-Clause) for Hopper: wgmma, TMA and mbarriers, three schedules.
#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

using namespace cute;

template <typename In, typename Tile, typename Schedule, typename Store>
struct Matmul {
	using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
		cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Shape<_1, _1, _1>,
		cutlass::epilogue::collective::EpilogueTileAuto, float, float, cutlass::half_t, cutlass::layout::RowMajor, 8,
		cutlass::half_t, cutlass::layout::RowMajor, 8, Store>::CollectiveOp;
	using Main = typename cutlass::gemm::collective::CollectiveBuilder<
		cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, In, cutlass::layout::RowMajor, 16 / sizeof(In), In,
		cutlass::layout::ColumnMajor, 16 / sizeof(In), float, Tile, Shape<_1, _1, _1>,
		cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
			sizeof(typename Epilogue::SharedStorage))>,
		Schedule>::CollectiveOp;
	using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Main, Epilogue>;
};

using Plain = Matmul<cutlass::half_t, Shape<_128, _128, _64>, cutlass::gemm::KernelTmaWarpSpecialized,
		      cutlass::epilogue::TmaWarpSpecialized>::Kernel;
using PingPong = Matmul<cutlass::half_t, Shape<_64, _128, _64>, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
			 cutlass::epilogue::TmaWarpSpecialized>::Kernel;
using Cooperative = Matmul<cutlass::float_e4m3_t, Shape<_128, _256, _128>,
			    cutlass::gemm::KernelTmaWarpSpecializedCooperative,
			    cutlass::epilogue::TmaWarpSpecializedCooperative>::Kernel;

#define KERNEL(K) template __global__ void cutlass::device_kernel<K>(const __grid_constant__ K::Params);
KERNEL(Plain)
KERNEL(PingPong)
KERNEL(Cooperative)
