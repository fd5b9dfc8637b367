#include "src/engine/step.h"

#include <algorithm>
#include <bit>

#include "src/base/error.h"
#include "src/engine/logprobs.h"
#include "src/engine/stopwatch.h"

namespace m3::engine {

namespace {

constexpr std::int64_t worth_threads = 1 << 16;  // logits; below, waking threads costs more than it saves

std::span<float> logits_row(const ops::Tensor& logits, std::size_t row) {
  return {reinterpret_cast<float*>(logits.row(static_cast<std::int64_t>(row))),
          static_cast<std::size_t>(logits.columns)};
}

// By exponent bits, without an early exit, so that the compiler vectorises.
bool all_finite(std::span<const float> values) {
  std::uint32_t broken = 0;
  for (const float value : values) {
    const std::uint32_t exponent = std::bit_cast<std::uint32_t>(value) & 0x7f800000u;
    broken |= exponent == 0x7f800000u ? 1u : 0u;
  }
  return broken == 0;
}

// Logits of -inf where an upstream overflowed would be drawn around quietly.
std::string damaged(std::int64_t position) {
  return fmt::format(
      "the logits at position {} are not finite; the checkpoint's weights or scales are damaged (m3 inspect --deep "
      "looks for the cause)",
      position);
}

}  // namespace

template <typename Work>
void Step::each_row(std::size_t count, const Work& work) {
  if (static_cast<std::int64_t>(count) * model_.config().vocab_size < worth_threads) {
    for (std::size_t row = 0; row < count; ++row) work(row);
    return;
  }
  model_.threads().each(static_cast<std::int64_t>(count),
                        [&](std::int64_t row, int) { work(static_cast<std::size_t>(row)); });
}

// The batch, and the rows whose logits are needed: of draws first.
void Step::collect(const Plan& plan) {
  batch_.clear();
  draws_.clear();
  prompt_rows_.clear();
  rows_.clear();
  rows_of_prompts_.clear();
  for (const Chunk& chunk : plan.chunks) {
    auto& sequence = static_cast<Sequence&>(*chunk.item);
    const std::int64_t first = chunk.first();
    const std::int32_t row = add_chunk(sequence, first, chunk.count);
    const auto& samples = sequence.request().samples;
    for (int i = 0; i < chunk.draws; ++i) {
      Sequence* drawing = samples[static_cast<std::size_t>(sequence.rank.sample) + static_cast<std::size_t>(i)].get();
      if (i > 0) drawing->take_prompt();
      draws_.push_back({.sequence = drawing, .token = {}, .error = {}, .complete = false});
      rows_.push_back(row + static_cast<std::int32_t>(chunk.count) - 1);
    }
    const std::int64_t end = std::min(first + chunk.count, sequence.rows_end);
    for (; sequence.rows_done < end; ++sequence.rows_done) {
      prompt_rows_.push_back({&sequence, sequence.rows_done});
      rows_of_prompts_.push_back(row + static_cast<std::int32_t>(sequence.rows_done - first));
    }
  }
  rows_.insert(rows_.end(), rows_of_prompts_.begin(), rows_of_prompts_.end());
}

// A chunk's rows, with the features of the pictures that stand in it.
std::int32_t Step::add_chunk(Sequence& sequence, std::int64_t first, std::int64_t count) {
  const auto ids = std::span(sequence.tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  std::vector<Picture>& pictures = sequence.request().pictures;
  if (pictures.empty()) return batch_.add(ids, first, sequence.pages.pages());
  features_.clear();
  {
    const Stopwatch watch(forward_seconds_);
    pictures_.collect(pictures, first, count, features_);
  }
  const auto row_bytes =
      model_.config().hidden_size * static_cast<std::int64_t>(dtype_size(model_.backend().activation_dtype()));
  const std::int32_t row = batch_.add(ids, first, sequence.pages.pages(), features_, row_bytes);
  PictureEncoder::release(pictures, first + count);
  return row;
}

std::vector<Draw>& Step::run(const Plan& plan) {
  forward_seconds_ = sampling_seconds_ = mask_seconds_ = 0;
  collect(plan);
  std::vector<Sequence*> masked;
  for (const Draw& draw : draws_) {
    if (draw.sequence->needs_mask()) masked.push_back(draw.sequence);
  }
  masks_.begin(std::move(masked));
  ops::Tensor logits;
  {
    const Stopwatch watch(forward_seconds_);
    try {
      logits = model_.forward(batch_, rows_);
    } catch (...) {
      masks_.wait();  // the sequences are theirs until then
      throw;
    }
  }
  const Stopwatch watch(sampling_seconds_);
  {
    const Stopwatch mask_watch(mask_seconds_);
    masks_.wait();
  }
  each_row(prompt_rows_.size(),
           [&](std::size_t row) { note_prompt_row(prompt_rows_[row], logits_row(logits, draws_.size() + row)); });
  logits.rows = static_cast<std::int64_t>(draws_.size());
  if (!draws_.empty()) sample(logits);
  return draws_;
}

// The logits at a position say how probable the next token was.
void Step::note_prompt_row(const PromptRow& row, std::span<const float> logits) {
  ActiveRequest& request = row.sequence->request();
  const auto next = static_cast<std::size_t>(row.position + 1);
  request.prompt_logprobs[next] = logprob_of(logits, request.request.prompt_ids[next]);
  request.prompt_top_logprobs[next] = top_logprobs(logits, request.request.prompt_logprobs);
}

void Step::sample(const ops::Tensor& logits) {
  const std::size_t count = draws_.size();
  if (raw_.size() < count) raw_.resize(count);
  each_row(count, [&](std::size_t row) {
    Draw& draw = draws_[row];
    const std::span<const float> values = logits_row(logits, row);
    if (!all_finite(values)) draw.error = damaged(static_cast<std::int64_t>(draw.sequence->tokens.size()) - 1);
    if (draw.sequence->request().request.logprobs >= 0) raw_[row].assign(values.begin(), values.end());
  });
  sampling_.clear();
  for (const Draw& draw : draws_) sampling_.push_back(draw.sequence->sampling_row());
  ids_.assign(count, -1);
  model_.backend().sample(logits, sampling_, ids_);
  each_row(count, [&](std::size_t row) {
    Draw& draw = draws_[row];
    if (!draw.error.empty()) return;
    draw.token.id = ids_[row];
    if (draw.token.id < 0 && draw.sequence->needs_mask() && draw.sequence->is_complete()) {
      draw.complete = true;
      return;
    }
    if (draw.token.id < 0) {
      if (draw.sequence->needs_mask()) {
        draw.error = draw.sequence->mask_error();
        draw.refused = draw.sequence->mask_refused();
      }
      if (!draw.error.empty()) return;
      draw.refused = true;
      draw.error = "no token may follow: every id is masked out by the parameters of the request";
      return;
    }
    const int wanted = draw.sequence->request().request.logprobs;
    if (wanted < 0) return;
    draw.token.logprob = logprob_of(raw_[row], draw.token.id).logprob;
    draw.token.top = top_logprobs(raw_[row], wanted);
  });
}

}  // namespace m3::engine
