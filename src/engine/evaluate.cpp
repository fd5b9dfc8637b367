#include "src/engine/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "src/base/error.h"
#include "src/engine/logprobs.h"
#include "src/ops/readback.h"

namespace m3::engine {

Evaluation evaluate(LoadedModel& model, std::span<const std::int32_t> ids, std::int64_t window, std::int64_t stride,
                    const std::function<void(std::int64_t)>& progress) {
  const auto total = static_cast<std::int64_t>(ids.size());
  if (total < 2) fail_usage("the text has {} token(s); at least two are needed, one to predict from", total);
  if (window < 2 || stride < 1 || stride >= window)
    fail_usage("a window of {} and a stride of {}: give 2 <= window and 1 <= stride < window", window, stride);
  Evaluation result;
  model::RaggedBatch batch;
  std::vector<std::byte> buffer;
  std::int64_t predicted_to = 1;  // the next token to predict
  for (std::int64_t begin = 0; predicted_to < total; begin += stride) {
    const std::int64_t end = std::min(begin + window, total);
    kv::SequencePages sequence(model.pages());
    for (std::int64_t first = begin; first < end - 1; first += model.max_batched_tokens()) {
      const std::int64_t count =
          std::min(model.max_batched_tokens(), end - 1 - first);  // the last one predicts nothing here
      if (!sequence.extend(count)) fail_internal("evaluate: the pool ran out of pages");
      // Rows whose next token is still to be predicted.
      const std::int64_t from = std::clamp(predicted_to - 1 - first, std::int64_t{0}, count);
      std::vector<std::int32_t> rows(static_cast<std::size_t>(count - from));
      std::iota(rows.begin(), rows.end(), static_cast<std::int32_t>(from));
      batch.clear();
      batch.add(ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), first - begin,
                sequence.pages());
      const ops::Tensor logits = ops::read_back(model.backend(), model.forward(batch, rows), buffer);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::span<const float> row(reinterpret_cast<const float*>(logits.row(static_cast<std::int64_t>(i))),
                                         static_cast<std::size_t>(logits.columns));
        const std::int32_t next = ids[static_cast<std::size_t>(first + rows[i] + 1)];
        const double nll = log_sum_exp(row) - static_cast<double>(row[static_cast<std::size_t>(next)]);
        if (!std::isfinite(nll))
          fail(
              "the logits at token {} are not finite; the checkpoint's weights or scales are damaged (m3 inspect "
              "--deep looks for the cause)",
              first + rows[i]);
        result.nll += nll;
        ++result.tokens;
      }
      predicted_to = std::max(predicted_to, first + count + 1);
      if (progress) progress(result.tokens);
    }
  }
  return result;
}

}  // namespace m3::engine
