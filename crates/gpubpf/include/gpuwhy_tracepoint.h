/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tracepoints in CUDA kernels, for device programs of gpuwhy (section gpu/tp/NAME).
 *
 *   GPUWHY_TP(phase);              GPUWHY_TP2(tile, row, column);
 *
 * A tracepoint is a pragma that ptxas does not know: it stays in the PTX with the registers that hold
 * its arguments, and becomes no instruction. ptxas says of each place that the pragma is unsupported; that is
 * harmless. A name is an identifier and no string. Arguments are numbers and pointers, of 64 bits at most;
 * a float or double arrives as its bits. They are computed where the tracepoint stands, so an argument that
 * the kernel does not need otherwise is dropped by ptxas with the rest.
 */
#ifndef GPUWHY_TRACEPOINT_H
#define GPUWHY_TRACEPOINT_H

#ifdef __CUDA_ARCH__

template <typename T> __device__ __forceinline__ unsigned long long gpuwhy_tp_word(T value)
{
	return (unsigned long long)value;
}
template <typename T> __device__ __forceinline__ unsigned long long gpuwhy_tp_word(T *value)
{
	return (unsigned long long)value;
}
__device__ __forceinline__ unsigned long long gpuwhy_tp_word(float value)
{
	return __float_as_uint(value);
}
__device__ __forceinline__ unsigned long long gpuwhy_tp_word(double value)
{
	return (unsigned long long)__double_as_longlong(value);
}

#define GPUWHY_TP(name) asm volatile(".pragma \"gpuwhy_tp " #name "\";")
#define GPUWHY_TP1(name, a) \
	asm volatile(".pragma \"gpuwhy_tp " #name " %0\";" ::"l"(gpuwhy_tp_word(a)))
#define GPUWHY_TP2(name, a, b) \
	asm volatile(".pragma \"gpuwhy_tp " #name " %0 %1\";" ::"l"(gpuwhy_tp_word(a)), \
		     "l"(gpuwhy_tp_word(b)))
#define GPUWHY_TP3(name, a, b, c) \
	asm volatile(".pragma \"gpuwhy_tp " #name " %0 %1 %2\";" ::"l"(gpuwhy_tp_word(a)), \
		     "l"(gpuwhy_tp_word(b)), "l"(gpuwhy_tp_word(c)))
#define GPUWHY_TP4(name, a, b, c, d) \
	asm volatile(".pragma \"gpuwhy_tp " #name " %0 %1 %2 %3\";" ::"l"(gpuwhy_tp_word(a)), \
		     "l"(gpuwhy_tp_word(b)), "l"(gpuwhy_tp_word(c)), "l"(gpuwhy_tp_word(d)))

#else /* the host's pass */

#define GPUWHY_TP(name)
#define GPUWHY_TP1(name, a)
#define GPUWHY_TP2(name, a, b)
#define GPUWHY_TP3(name, a, b, c)
#define GPUWHY_TP4(name, a, b, c, d)

#endif
#endif
