#include "src/server/request_id.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace m3::server {
namespace {

std::uint64_t random_word() {
  thread_local std::mt19937_64 engine = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return engine();
}

bool is_allowed(unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == ':'; }

}  // namespace

std::string request_id(std::optional<std::string_view> given) {
  if (given && !given->empty() && given->size() <= 128 && std::ranges::all_of(*given, is_allowed)) {
    return std::string(*given);
  }
  return fmt::format("{:016x}{:016x}", random_word(), random_word());
}

std::string random_id() { return fmt::format("{:016x}{:08x}", random_word(), random_word() & 0xffffffffu); }

}  // namespace m3::server
