#include "src/ops/backends.h"

#include "src/base/error.h"
#include "src/ops/scalar/scalar_backend.h"

namespace m3::ops {

std::unique_ptr<Backend> make_backend(const BackendOptions& options, ThreadPool& pool) {
  if (options.name == "scalar") return std::make_unique<scalar::ScalarBackend>(options.numerics, pool);
  fail_usage("unknown backend \"{}\": known are scalar and cpu", options.name);
}

bool cpu_backend_available() { return false; }

}  // namespace m3::ops
