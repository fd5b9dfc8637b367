// How fast weights go up: a file in the page cache through upload_all, beside the two limits of the way.
#pragma once

#include <cstdint>

namespace m3::ops {
class Backend;
}

struct UploadTimes {
  double seconds = 0;     // mapped file to device memory
  double cache_rate = 0;  // bytes/s that as many threads read from the page cache into memory of their own
  double bus_rate = 0;    // bytes/s from pinned memory to the device
};

// Writes a file of `bytes` to the folder for temporary files, and removes it. Errors: no room for it.
UploadTimes time_upload(m3::ops::Backend& backend, std::int64_t bytes);
