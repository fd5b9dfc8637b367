#include "src/engine/local_engine.h"

#include <algorithm>
#include <bit>
#include <random>
#include <set>
#include <utility>

#include "src/base/error.h"
#include "src/engine/request_check.h"
#include "src/engine/stopwatch.h"

namespace m3::engine {

namespace {

constexpr std::int64_t most_prompt_rows = 64;  // logits of prompt positions in one step

std::uint64_t fresh_seed() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

}  // namespace

std::int64_t running_limit(std::int64_t max_num_seqs, std::int64_t max_batched_tokens) {
  if (max_num_seqs < 1) fail_usage("--max-num-seqs {}: give a number from 1", max_num_seqs);
  if (max_batched_tokens < 0) fail_usage("--max-num-batched-tokens {}: give a number from 1", max_batched_tokens);
  return max_batched_tokens == 0 ? max_num_seqs : std::min(max_num_seqs, max_batched_tokens);
}

std::int64_t logits_rows(std::int64_t max_num_seqs, std::int64_t max_batched_tokens) {
  return running_limit(max_num_seqs, max_batched_tokens) +
         (max_batched_tokens == 0 ? most_prompt_rows : std::min(max_batched_tokens, most_prompt_rows));
}

LocalEngine::LocalEngine(std::shared_ptr<LoadedModel> model, Tokenizer tokenizer, GenerationConfig defaults,
                         LocalEngineOptions options)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      defaults_(std::move(defaults)),
      options_(std::move(options)),
      vocabulary_(make_vocabulary(tokenizer_, defaults_, model_->config().vocab_size)),
      context_{tokenizer_, vocabulary_, defaults_, model_->max_model_len(), model_->pages()},
      cache_(options_.enable_prefix_caching
                 ? std::make_optional<kv::PrefixTree>(model_->pages(), model_->pages().layout().fingerprint)
                 : std::nullopt),
      scheduler_({.tokens = model_->max_batched_tokens(),
                  .sequences = running_limit(options_.max_num_seqs, model_->max_batched_tokens()),
                  .prompt_rows = std::min(model_->max_batched_tokens(), most_prompt_rows)},
                 model_->pages(), cache_ ? &*cache_ : nullptr),
      pictures_(*model_, options_.feature_cache_bytes, options_.picture_piece),
      step_(*model_, pictures_),
      constraints_(tokenizer_, model_->config().vocab_size, vocabulary_.end_ids) {
  if (options_.max_queued_requests < 0)
    fail_usage("--max-queued-requests {}: give a number from 0", options_.max_queued_requests);
  fill_info();
  scheduler_.on_begin([this](Schedulable& item) {
    pictures_.look_up({&static_cast<Sequence&>(item).request().pictures, item.pages.length()});
  });
  thread_ = std::thread([this] { loop(); });
}

LocalEngine::~LocalEngine() {
  {
    const std::lock_guard lock(mutex_);
    inbox_.stop = true;
  }
  wake_.notify_all();
  thread_.join();
}

void LocalEngine::fill_info() {
  const kv::PagePool& pages = model_->pages();
  info_.name = model_->checkpoint().directory().filename().string();
  info_.max_model_len = model_->max_model_len();
  info_.vocab_size = model_->config().vocab_size;
  info_.weight_bytes = model_->checkpoint().text_weight_bytes();
  info_.active_weight_bytes = model_->model().active_weight_bytes();
  info_.cache_token_bytes = pages.layout().token_bytes();
  info_.cache_pages = pages.pages();
  info_.cache_tokens = info_.cache_pages * 128;
  const std::int64_t context_pages = (info_.max_model_len + 127) / 128;
  info_.max_concurrency = static_cast<double>(info_.cache_pages) / static_cast<double>(context_pages);
  info_.max_num_seqs = running_limit(options_.max_num_seqs, model_->max_batched_tokens());
  info_.device = model_->backend().name();
  info_.backend = model_->description();
  info_.end_ids = vocabulary_.end_ids;
  info_.media.unavailable = model_->no_pictures();
  if (model_->tower() != nullptr) {
    const VisionConfig& vision = *model_->config().vision;
    info_.media.image_id = vision.image_token_id;
    info_.media.video_id = vision.video_token_id;
    info_.media.patch_size = vision.patch_size;
    info_.media.temporal_patch_size = vision.temporal_patch_size;
    info_.media.merge_size = vision.spatial_merge_size;
    info_.media.segment_groups = vision.segment_max_frames;
    info_.media.max_patches = model_->vision_patches();
  }
  published_.pages_total = counts_.pages_total = pages.pages();
}

RequestId LocalEngine::submit(Request request, EventSink sink) {
  if (request.prompt_ids.empty()) request.prompt_ids = encode(request.prompt, request.parse_special);
  check_request(request, info_, model_->config().max_context());
  std::vector<Picture> pictures = take_pictures(request, *model_);
  const std::uint64_t seed = request.sampling.seed.value_or(fresh_seed());
  const RequestId id = next_id_++;
  auto active =
      std::make_unique<ActiveRequest>(id, std::move(request), std::move(pictures), std::move(sink), seed, context_);
  active->tags = tags_of(active->request);
  if (active->request.constraint.kind != Constraint::Kind::none) {
    active->constraint = constraints_.compile(active->request.constraint, [this, id] {
      const std::lock_guard lock(mutex_);
      inbox_.compiled.push_back(id);
      wake_.notify_one();
    });
  }
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw Error(ErrorKind::internal, "the engine has stopped: " + failure_);
  const std::int64_t waiting = published_.waiting + static_cast<std::int64_t>(inbox_.arrivals.size());
  const std::int64_t free_places = std::max<std::int64_t>(0, info_.max_num_seqs - places_taken_);
  if (waiting >= options_.max_queued_requests + free_places) {
    throw Error(ErrorKind::busy,
                fmt::format("{} requests wait already, as many as may (--max-queued-requests {}); try again later",
                            waiting, options_.max_queued_requests));
  }
  inbox_.arrivals.push_back(std::move(active));
  wake_.notify_one();
  return id;
}

std::shared_ptr<const ThinkTags> LocalEngine::tags_of(const Request& request) {
  const Reasoning& reasoning = request.reasoning;
  const bool needed = request.constraint.kind != Constraint::Kind::none || reasoning.budget;
  if (reasoning.start == Reasoning::Start::outside || !needed) return nullptr;
  const std::lock_guard lock(mutex_);
  if (!tags_ || tags_->begin_id() != reasoning.begin_id || tags_->end_id() != reasoning.end_id) {
    tags_ = std::make_shared<ThinkTags>(tokenizer_, info_.vocab_size, reasoning.begin_id, reasoning.end_id);
  }
  return tags_;
}

void LocalEngine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return;
  inbox_.cancelled.push_back(id);
  wake_.notify_one();
}

Statistics LocalEngine::statistics() const {
  const std::lock_guard lock(mutex_);
  Statistics statistics = published_;
  statistics.waiting += static_cast<std::int64_t>(inbox_.arrivals.size());
  return statistics;
}

bool LocalEngine::healthy() const {
  const std::lock_guard lock(mutex_);
  return failure_.empty();
}

void LocalEngine::reset_prefix_cache() {
  const std::lock_guard lock(mutex_);
  inbox_.reset_prefix_cache = true;
  wake_.notify_one();
}

std::vector<TokenId> LocalEngine::encode(std::string_view text, bool parse_special) const {
  return tokenizer_.encode(text, {.parse_special = parse_special});
}

std::string LocalEngine::decode(std::span<const TokenId> ids, bool skip_special) const {
  return tokenizer_.decode(ids, skip_special);
}

void LocalEngine::loop() {
  try {
    while (take_inbox()) {
      if (!requests_.empty()) {
        step();
      } else {
        pictures_.work({}, false);  // nobody wants what was begun
      }
    }
    requests_.merge(compiling_);
    for (auto& [id, request] : requests_) end_request(*request, FinishReason::cancelled);
    settle();
  } catch (const std::exception& error) {
    die(error.what());
  } catch (...) {
    die("an exception of an unknown kind");
  }
}

// Waits for something to do. False: stop.
bool LocalEngine::take_inbox() {
  Inbox inbox;
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return !inbox_.empty() || !requests_.empty(); });
    inbox = std::exchange(inbox_, {});
    published_.waiting += static_cast<std::int64_t>(inbox.arrivals.size());
  }
  if (inbox.reset_prefix_cache && cache_) cache_->clear();
  for (auto& arrival : inbox.arrivals) take_arrival(std::move(arrival));
  for (const RequestId id : inbox.compiled) {
    if (compiling_.contains(id)) admit(id);
  }
  for (const RequestId id : inbox.cancelled) {
    if (auto waiting = compiling_.extract(id)) requests_.insert(std::move(waiting));
    const auto found = requests_.find(id);
    if (found != requests_.end()) end_request(*found->second, FinishReason::cancelled);
  }
  if (!inbox.empty()) settle();
  return !inbox.stop;
}

void LocalEngine::take_arrival(std::unique_ptr<ActiveRequest> arrival) {
  const RequestId id = arrival->id;
  const bool waits = arrival->constraint && arrival->constraint->state() == CompiledConstraint::State::waiting;
  compiling_.emplace(id, std::move(arrival));
  ++open_requests_;
  if (!waits) admit(id);
}

// A request whose constraint is compiled, if it has one.
void LocalEngine::admit(RequestId id) {
  ActiveRequest& request = *compiling_.at(id);
  requests_.insert(compiling_.extract(id));
  if (request.constraint && request.constraint->state() == CompiledConstraint::State::failed) {
    end_request(
        request, FinishReason::error,
        fmt::format("{}: it cannot be compiled: {}", request.request.constraint.name, request.constraint->error()));
    for (Outgoing& out : outgoing_) out.event.refused = out.event.refused || out.request == &request;
    return;
  }
  request.open_gates(constraints_);
  scheduler_.enqueue(*request.begin_next());
}

void LocalEngine::step() {
  if (options_.before_step) options_.before_step(counts_.steps);
  double unused = 0;
  const Stopwatch watch(unused);
  for (const PictureNeed& need : picture_needs()) pictures_.look_up(need);
  const Plan plan = scheduler_.plan();
  counts_.preemptions += plan.preempted;
  note_admitted(plan);
  const bool nothing_else = plan.chunks.empty();
  // On a device it runs beside the step.
  const std::optional<double> picture_seconds = work_on_pictures(nothing_else);
  if (nothing_else) {
    if (plan.preempted == 0 && !picture_seconds)
      fail_internal("a step with {} requests and nothing to do", requests_.size());
    counts_.prefill_seconds += picture_seconds.value_or(0);
    return publish();
  }
  std::vector<Draw>& draws = step_.run(plan);
  for (const Chunk& chunk : plan.chunks) scheduler_.computed(chunk);
  accept(draws);
  fork(plan);
  count_step(plan, watch.seconds() - picture_seconds.value_or(0));
  counts_.prefill_seconds += picture_seconds.value_or(0);
  settle();
  const double whole = watch.seconds() - picture_seconds.value_or(0);
  counts_.step_seconds += whole;
  counts_.scheduler_seconds += whole - step_.forward_seconds() - step_.sampling_seconds();
}

// Those of the running sequences, by rank.
std::vector<PictureNeed> LocalEngine::picture_needs() {
  std::vector<PictureNeed> needs;
  for (Schedulable* item : scheduler_.running()) {
    std::vector<Picture>& pictures = static_cast<Sequence&>(*item).request().pictures;
    if (!pictures.empty()) needs.push_back({&pictures, item->pages.length()});
  }
  return needs;
}

// A piece of a picture. Returns the host's time for it; nothing where no picture is missing.
std::optional<double> LocalEngine::work_on_pictures(bool wait) {
  double unused = 0;
  const Stopwatch watch(unused);
  if (!pictures_.work(picture_needs(), wait)) return std::nullopt;
  return watch.seconds();
}

void LocalEngine::note_admitted(const Plan& plan) {
  for (const Schedulable* item : plan.admitted) {
    ActiveRequest& request = static_cast<const Sequence&>(*item).request();
    if (request.cached_tokens >= 0) continue;
    const auto prompt = static_cast<std::int64_t>(request.request.prompt_ids.size());
    request.cached_tokens = item->cached_tokens;
    request.queue_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - request.submitted).count();
    counts_.prompt_tokens += prompt;
    if (cache_ && request.request.prompt_logprobs < 0) counts_.prefix_queries += prompt;
    counts_.prefix_hits += item->cached_tokens;
  }
}

void LocalEngine::accept(std::vector<Draw>& draws) {
  for (Draw& draw : draws) {
    Sequence& sequence = *draw.sequence;
    if (draw.complete) {
      outgoing_.push_back({&sequence.request(), sequence.end(FinishReason::stop)});
      continue;
    }
    if (draw.error.empty()) {
      try {
        outgoing_.push_back({&sequence.request(), sequence.accept(std::move(draw.token))});
        ++counts_.generated_tokens;
        continue;
      } catch (const std::exception& error) {
        draw.error = error.what();
        draw.refused = is_refusal(error);
      }
    }
    outgoing_.push_back({&sequence.request(), sequence.end(FinishReason::error, draw.error, draw.refused)});
  }
}

// Samples that drew beside another one's prompt go on with its pages; whom there was no place for comes later.
void LocalEngine::fork(const Plan& plan) {
  std::vector<kv::SequencePages::Copy> copies;
  for (const Chunk& chunk : plan.chunks) {
    if (chunk.draws == 0 || chunk.item->followers == 0) continue;
    ActiveRequest& request = static_cast<Sequence&>(*chunk.item).request();
    for (int i = 1; i < chunk.draws; ++i) {
      Sequence& follower = *request.samples[request.begun++];
      if (!follower.finished()) scheduler_.fork(*chunk.item, follower, copies);
    }
    chunk.item->followers = 0;
    if (Sequence* next = request.begin_next()) scheduler_.enqueue(*next);
  }
  if (!copies.empty()) model_->copy_pages(copies);
}

void LocalEngine::end_request(ActiveRequest& request, FinishReason reason, const std::string& error) {
  for (const auto& sample : request.samples) {
    if (!sample->finished()) outgoing_.push_back({&request, sample->end(reason, error)});
  }
}

void LocalEngine::count_step(const Plan& plan, double seconds) {
  std::int64_t decoded = 0, prefilled = 0;
  for (const Chunk& chunk : plan.chunks) {
    const bool reply = chunk.count == 1 && chunk.first() >= static_cast<Sequence&>(*chunk.item).prompt_tokens();
    (reply ? decoded : prefilled) += chunk.count;
  }
  ++counts_.steps;
  counts_.step_sequences += static_cast<std::int64_t>(plan.chunks.size());
  counts_.step_tokens += decoded + prefilled;
  const auto size = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(decoded + prefilled - 1)));
  ++counts_.step_sizes[std::min(size, counts_.step_sizes.size() - 1)];
  counts_.prefilled_tokens += prefilled;
  const double share = static_cast<double>(prefilled) / static_cast<double>(decoded + prefilled);
  counts_.prefill_seconds += seconds * share;
  counts_.decode_seconds += seconds * (1 - share);
}

// Sends the events out, once all that they say is true: pages free, counts whole.
void LocalEngine::settle() {
  for (const Outgoing& out : outgoing_) {
    if (out.event.finish == FinishReason::none) continue;
    ++counts_.finished.at(static_cast<std::size_t>(out.event.finish));
    if (--out.request->open == 0) --open_requests_;
    scheduler_.remove(*out.request->samples[static_cast<std::size_t>(out.event.sample)]);
  }
  publish();
  std::vector<Outgoing> outgoing = std::exchange(outgoing_, {});
  for (const Outgoing& out : outgoing) {
    if (!out.request->sink) continue;
    try {
      out.request->sink(out.event);
    } catch (...) {  // nobody listens any more
      out.request->sink = nullptr;
      end_request(*out.request, FinishReason::cancelled);
    }
  }
  std::erase_if(requests_, [](const auto& entry) { return entry.second->open == 0; });
  if (!outgoing_.empty()) settle();
}

void LocalEngine::publish() {
  counts_.media_encoded = pictures_.encoded();
  counts_.media_reused = pictures_.reused();
  counts_.media_pieces = pictures_.pieces();
  counts_.media_given_up = pictures_.given_up();
  std::set<RequestId> running;
  for (const Schedulable* item : scheduler_.running()) running.insert(item->rank.request);
  counts_.running = std::ssize(running);
  counts_.waiting = std::max<std::int64_t>(0, open_requests_ - counts_.running);
  const kv::PagePool& pages = model_->pages();
  counts_.pages_cached = cache_ ? cache_->idle() : 0;
  counts_.pages_used = pages.pages() - pages.free_pages() - counts_.pages_cached;
  const std::lock_guard lock(mutex_);
  published_ = counts_;
  places_taken_ = static_cast<std::int64_t>(scheduler_.running().size());
}

// The thread cannot go on: everybody is told, at once.
void LocalEngine::die(const std::string& error) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = error;
    for (auto& arrival : inbox_.arrivals) requests_.emplace(arrival->id, std::move(arrival));
    inbox_ = {};
  }
  requests_.merge(compiling_);
  // Replies that the last step had finished are whole; the others get the error.
  for (auto& [id, request] : requests_) end_request(*request, FinishReason::error, "the engine has stopped: " + error);
  try {
    for (auto& [id, request] : requests_) {
      for (const auto& sample : request->samples) scheduler_.remove(*sample);
    }
  } catch (const std::exception&) {  // its state may be what failed; the events matter more
  }
  open_requests_ = 0;
  for (const Outgoing& out : outgoing_) {
    if (out.event.finish != FinishReason::none) ++counts_.finished.at(static_cast<std::size_t>(out.event.finish));
  }
  publish();
  for (const Outgoing& out : outgoing_) {
    try {
      if (out.request->sink) out.request->sink(out.event);
    } catch (...) {  // nobody listens any more
      out.request->sink = nullptr;
    }
  }
}

}  // namespace m3::engine
