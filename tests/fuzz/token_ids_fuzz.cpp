// Id lists as text or .npy: any bytes give ids or one m3::Error.
#include <cstddef>
#include <cstdint>

#include "m3/error.h"
#include "src/cli/common.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    for (const std::int32_t id : m3::cli::parse_token_ids({reinterpret_cast<const char*>(data), size}, "fuzz")) {
      if (id < 0) __builtin_trap();
    }
  } catch (const m3::Error&) {}
  return 0;
}
