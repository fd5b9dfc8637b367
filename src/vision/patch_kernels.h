// The arithmetic of patches, for one channel of one patch at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace m3::vision::detail {

// Pixels that normalise_channel_avx2() takes at once: it reads whole ones, and writes their values, behind the end of
// each row of the patch.
inline constexpr int patch_step = 16;
inline constexpr int patch_slack = (patch_step - 1) * 3;  // bytes that it reads there at most

// (level - shift) / scale in fp32 of `side` x `side` RGB pixels whose rows lie `row_bytes` apart.
void normalise_channel_avx2(const std::uint8_t* rgb, std::ptrdiff_t row_bytes, int side, int channel, float shift,
                            float scale, float* out);

}  // namespace m3::vision::detail
