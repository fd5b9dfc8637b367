#include "src/engine/step.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/engine/logprobs.h"
#include "src/engine/stopwatch.h"
#include "src/ops/readback.h"

namespace m3::engine {

namespace {

constexpr std::int64_t worth_threads = 1 << 16;  // logits; below, waking threads costs more than it saves

std::span<const float> logits_row(const ops::Tensor& logits, std::size_t row) {
  return {reinterpret_cast<const float*>(logits.row(static_cast<std::int64_t>(row))),
          static_cast<std::size_t>(logits.columns)};
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

// Whether anything of the plan was begun by the step before, and the other rows of logits have room behind it.
bool Step::started(const Plan& plan) const {
  bool any = false;
  std::int64_t rows = next_.rows();
  for (const Chunk& chunk : plan.chunks) {
    if (next_.find(chunk) >= 0) {
      any = true;
    } else {
      const auto& sequence = static_cast<const Sequence&>(*chunk.item);
      const std::int64_t end = std::min(chunk.first() + chunk.count, sequence.rows_end);
      rows += chunk.draws + std::max<std::int64_t>(0, end - sequence.rows_done);
    }
  }
  return any && rows <= model_.max_logits_rows();
}

// The batch, and the rows whose logits are needed: of draws first. What the step before began is not in the batch.
void Step::collect(const Plan& plan) {
  batch_.clear();
  draws_.clear();
  prompt_rows_.clear();
  rows_.clear();
  rows_of_prompts_.clear();
  const bool any_started = started(plan);
  started_rows_ = any_started ? next_.rows() : 0;
  for (const Chunk& chunk : plan.chunks) {
    auto& sequence = static_cast<Sequence&>(*chunk.item);
    const std::int32_t started = any_started ? next_.find(chunk) : -1;
    if (started >= 0) {
      draws_.push_back({.sequence = &sequence, .token = {}, .error = {}, .row = started});
      continue;
    }
    const std::int64_t first = chunk.first();
    const std::int32_t row = add_chunk(sequence, first, chunk.count);
    const auto& samples = sequence.request().samples;
    for (int i = 0; i < chunk.draws; ++i) {
      Sequence* drawing = samples[static_cast<std::size_t>(sequence.rank.sample) + static_cast<std::size_t>(i)].get();
      if (i > 0) drawing->take_prompt();
      const std::int32_t own = started_rows_ + static_cast<std::int32_t>(rows_.size());
      draws_.push_back({.sequence = drawing, .token = {}, .error = {}, .row = own});
      rows_.push_back(row + static_cast<std::int32_t>(chunk.count) - 1);
    }
    const std::int64_t end = std::min(first + chunk.count, sequence.rows_end);
    for (; sequence.rows_done < end; ++sequence.rows_done) {
      prompt_rows_.push_back({&sequence, sequence.rows_done});
      rows_of_prompts_.push_back(row + static_cast<std::int32_t>(sequence.rows_done - first));
    }
  }
  for (const Chunk& chunk : plan.chunks) {
    std::vector<Picture>& pictures = static_cast<Sequence&>(*chunk.item).request().pictures;
    if (!pictures.empty()) PictureEncoder::release(pictures, chunk.first() + chunk.count);
  }
  drawn_rows_ = started_rows_ + static_cast<std::int32_t>(rows_.size());
  rows_.insert(rows_.end(), rows_of_prompts_.begin(), rows_of_prompts_.end());
}

// A chunk's rows, with the features of the pictures that stand in it.
std::int32_t Step::add_chunk(Sequence& sequence, std::int64_t first, std::int64_t count) {
  const auto ids = std::span(sequence.tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  const std::vector<Picture>& pictures = sequence.request().pictures;
  if (pictures.empty()) return batch_.add(ids, first, sequence.pages.pages());
  features_.clear();
  pictures_.collect(pictures, first, count, features_);
  const auto row_bytes =
      model_.config().hidden_size * static_cast<std::int64_t>(dtype_size(model_.backend().activation_dtype()));
  return batch_.add(ids, first, sequence.pages.pages(), features_, row_bytes);
}

std::vector<Draw>& Step::run(const Plan& plan) {
  forward_seconds_ = sampling_seconds_ = 0;
  collect(plan);
  std::vector<Sequence*> masked;
  for (const Draw& draw : draws_) {
    if (draw.sequence->needs_mask()) masked.push_back(draw.sequence);
  }
  masks_.begin(std::move(masked));
  try {
    compute();
  } catch (...) {
    masks_.wait();  // the sequences are theirs until then
    throw;
  }
  {
    const Stopwatch watch(sampling_seconds_);
    masks_.wait();
    if (!prompt_rows_.empty()) note_prompt_rows();
    if (!draws_.empty()) begin_sample();
  }
  begin_next(plan);
  const Stopwatch watch(sampling_seconds_);
  if (!draws_.empty()) end_sample();
  return draws_;
}

// The forward pass, but for what the step before has queued.
void Step::compute() {
  const Stopwatch watch(forward_seconds_);
  next_.drop();
  if (batch_.tokens() > 0) model_.forward(batch_, rows_, {}, {}, {.logits_row = started_rows_});
}

// On a device: the next step's pass, while this one's tokens are drawn. Not beside prompts that go on, with which the
// next step is one pass.
void Step::begin_next(const Plan& plan) {
  if (model_.backend().has_host_memory() || draws_.empty()) return;
  const bool prompts = std::ranges::any_of(plan.chunks, [](const Chunk& chunk) { return chunk.draws == 0; });
  if (prompts) return;
  std::vector<Sequence*> sequences;
  std::vector<std::int32_t> rows;
  for (const Draw& draw : draws_) {
    const Sequence& sequence = *draw.sequence;
    if (sequence.pages.length() != std::ssize(sequence.tokens) || sequence.at_limit()) continue;
    sequences.push_back(draw.sequence);
    rows.push_back(draw.row);
  }
  const Stopwatch watch(forward_seconds_);
  next_.begin(sequences, rows);
}

// Their logits stand behind those of the draws.
void Step::note_prompt_rows() {
  ops::Tensor rows = model_.logits(drawn_rows_ + std::ssize(prompt_rows_));
  rows.data = rows.row(drawn_rows_);
  rows.rows = std::ssize(prompt_rows_);
  rows = ops::read_back(model_.backend(), rows, prompt_logits_);
  each_row(prompt_rows_.size(), [&](std::size_t row) { note_prompt_row(prompt_rows_[row], logits_row(rows, row)); });
}

// The logits at a position say how probable the next token was.
void Step::note_prompt_row(const PromptRow& row, std::span<const float> logits) {
  ActiveRequest& request = row.sequence->request();
  const auto next = static_cast<std::size_t>(row.position + 1);
  const double total = log_sum_exp(logits);
  request.prompt_logprobs[next] = logprob_of(logits, request.request.prompt_ids[next], total);
  request.prompt_top_logprobs[next] = top_logprobs(logits, request.request.prompt_logprobs, total);
}

void Step::begin_sample() {
  // Rows of sequences that ended before their pass was needed are drawn from too, and nobody asks what.
  ops::SamplingRow greedy;
  greedy.temperature = 0;
  sampling_.assign(static_cast<std::size_t>(drawn_rows_), greedy);
  for (const Draw& draw : draws_) {
    ops::SamplingRow& row = sampling_[static_cast<std::size_t>(draw.row)];
    row = draw.sequence->sampling_row();
    row.keep_raw = draw.sequence->request().request.logprobs >= 0;
  }
  model_.backend().begin_sample(model_.logits(drawn_rows_), sampling_);
}

void Step::end_sample() {
  ids_.assign(static_cast<std::size_t>(drawn_rows_), -1);
  finite_.assign(static_cast<std::size_t>(drawn_rows_), 1);
  model_.backend().end_sample(ids_, finite_);
  each_row(draws_.size(), [&](std::size_t index) {
    Draw& draw = draws_[index];
    const auto row = static_cast<std::size_t>(draw.row);
    if (finite_[row] == 0) {
      draw.error = damaged(static_cast<std::int64_t>(draw.sequence->tokens.size()) - 1);
      return;
    }
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
    const std::span<const float> raw = model_.backend().raw_logits(draw.row);
    const double total = log_sum_exp(raw);
    draw.token.logprob = logprob_of(raw, draw.token.id, total).logprob;
    draw.token.top = top_logprobs(raw, wanted, total);
  });
}

}  // namespace m3::engine
