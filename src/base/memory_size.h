// How much memory this process may have, and sizes for people.
#pragma once

#include <cstdint>
#include <string>

namespace m3 {

// That this process may still take: MemAvailable, or less under a cgroup limit.
std::int64_t available_memory_bytes();
// That the machine has, or the cgroup allows.
std::int64_t total_memory_bytes();

// "1.5 GiB"
std::string human_bytes(std::int64_t bytes);

}  // namespace m3
