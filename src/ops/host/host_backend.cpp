#include "src/ops/host/host_backend.h"

#include "src/base/error.h"

namespace m3::ops {

void HostBackend::bind_workspace(std::span<std::byte> workspace, const Limits& limits) {
  if (reinterpret_cast<std::uintptr_t>(workspace.data()) % 64 != 0)
    fail_internal("the workspace is not 64-byte aligned");
  const std::int64_t needed = workspace_bytes(limits);
  if (static_cast<std::int64_t>(workspace.size()) < needed) {
    fail_internal("a workspace of {} bytes was bound where {} are needed", workspace.size(), needed);
  }
  workspace_ = workspace;
  limits_ = limits;
  sampled_.resize(static_cast<std::size_t>(limits.logits_rows));
}

void refuse_communicator(const Communicator* communicator) {
  if (communicator != nullptr) fail_internal("this backend runs alone and got a communicator");
}

void check_tensor(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t columns, const char* what) {
  if (tensor.dtype != dtype) {
    fail_internal("{}: {} where {} is expected", what, dtype_name(tensor.dtype), dtype_name(dtype));
  }
  if (tensor.rows < rows || tensor.columns < columns || tensor.row_stride < tensor.columns) {
    fail_internal("{}: [{}, {}] (stride {}) where [{}, {}] is expected", what, tensor.rows, tensor.columns,
                  tensor.row_stride, rows, columns);
  }
}

}  // namespace m3::ops
