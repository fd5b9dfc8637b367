// GCC 12 takes the "undefined" registers of its own AVX-512 headers for a mistake (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "src/ops/cpu/kernels.h"
#include "src/ops/cpu/simd_avx512.h"

// Compiled for the instruction set above, which must come first.
#include "src/ops/cpu/attention_kernels.h"
#include "src/ops/cpu/matmul_kernels.h"
#include "src/ops/cpu/row_kernels.h"
#include "src/ops/cpu/vision_kernels.h"

namespace m3::ops::cpu {

const Kernels& avx512_kernels() {
  static constexpr Kernels kernels = {
      .name = Simd::name,
      .lanes = Simd::lanes,
      .panel_rows = Simd::panel_rows,
      .interleaved = interleaved,
      .matmul = matmul,
      .widen_bf16 = widen_bf16,
      .interleave = interleave,
      .round_bf16 = round_bf16,
      .add_norm = add_norm,
      .norm_rotate = norm_rotate,
      .swigluoai = swigluoai,
      .accumulate = accumulate,
      .attention_begin = attention_begin,
      .widen_rows = widen_rows,
      .attend_page = attend_page,
      .attention_merge = attention_merge,
      .attention_finish = attention_finish,
      .score_page = score_page,
      .add_bias = add_bias,
      .add_bias_gelu = add_bias_gelu,
      .layer_norm = layer_norm,
      .rotate_pairs = rotate_pairs,
      .attend_segment = attend_segment,
  };
  return kernels;
}

}  // namespace m3::ops::cpu
