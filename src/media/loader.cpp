#include "src/media/loader.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "src/base/error.h"
#include "src/base/memory_size.h"

namespace m3::media {
namespace {

std::string hex_sha256(std::span<const std::byte> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1)
    fail_internal("hashing a picture failed");
  std::string out;
  for (unsigned i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

std::string describe(const vision::SizeOptions& size) {
  if (size.rule == vision::SizeRule::area) return fmt::format("area {} {}", size.min_pixels, size.max_pixels);
  return fmt::format("long {} {}", size.max_long_side, size.min_short_side);
}

// All that decides the values beside the bytes.
std::string options_key(const Reference& reference, const vision::PatchShape& shape) {
  const std::string patches = fmt::format("{} {} {}", shape.temporal, shape.patch, shape.merge);
  if (reference.kind == Media::Kind::image) return fmt::format("image {} {}", describe(reference.image.size), patches);
  const vision::SamplingOptions& sampling = reference.video.sampling;
  return fmt::format("video {} {} {} {} {} {}", describe(reference.video.size), patches, sampling.fps,
                     sampling.min_frames, sampling.max_frames, reference.video.total_pixels);
}

vision::PatchShape shape_of(const MediaInfo& model) {
  return {.channels = 3, .temporal = model.temporal_patch_size, .patch = model.patch_size, .merge = model.merge_size};
}

constexpr std::int64_t least_memory = std::int64_t{1} << 30;

// Values whose bytes go back when nobody holds them any more.
struct Held {
  Held(std::vector<float> given, std::shared_ptr<MemoryBudget> from)
      : values(std::move(given)), budget(std::move(from)), bytes(std::ssize(values) * std::int64_t{sizeof(float)}) {}
  ~Held() { budget->give_back(bytes); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  std::vector<float> values;
  std::shared_ptr<MemoryBudget> budget;
  std::int64_t bytes;
};

// What was taken for values that are not there yet.
class Reservation {
 public:
  Reservation(MemoryBudget& budget, std::int64_t values) : budget_(budget), values_(values) {}
  ~Reservation() { budget_.give_back(values_ * static_cast<std::int64_t>(sizeof(float))); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  // They are there; whoever holds them gives them back.
  void spend(std::int64_t values) { values_ -= values; }

 private:
  MemoryBudget& budget_;
  std::int64_t values_;
};

}  // namespace

bool MemoryBudget::take(std::int64_t bytes) {
  std::int64_t used = used_;
  do {
    if (bytes > limit_ - used) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return true;
}

MediaLoader::MediaLoader(const MediaOptions& options) : options_(options) {
  if (options_.memory_bytes == 0) options_.memory_bytes = std::max(total_memory_bytes() / 4, least_memory);
  budget_ = std::make_shared<MemoryBudget>(options_.memory_bytes);
  const int threads = options_.threads > 0 ? options_.threads
                                           : static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 8u));
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

void MediaLoader::stop() {
  std::deque<std::shared_ptr<Job>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(jobs_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

std::size_t MediaLoader::waiting() const {
  const std::lock_guard lock(mutex_);
  return open_;
}

std::shared_ptr<MediaLoader::Job> MediaLoader::load(std::vector<Reference> references, const MediaInfo& model,
                                                    std::int64_t most_tokens, Done done) {
  auto job = std::make_shared<Job>();
  job->references_ = std::move(references);
  job->model_ = model;
  job->most_tokens_ = most_tokens;
  job->done_ = std::move(done);
  job->prepared_.resize(job->references_.size());
  job->problems_.resize(job->references_.size());
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) throw Error(ErrorKind::busy, "pictures are not loaded any more: this is the end");
    if (static_cast<std::int64_t>(open_) >= options_.most_waiting) {
      throw Error(ErrorKind::busy, fmt::format("{} requests with pictures wait already; try again later", open_));
    }
    ++open_;
    job->queued_ = true;
    jobs_.push_back(job);
  }
  wake_.notify_all();
  return job;
}

std::vector<Prepared> MediaLoader::load_now(std::vector<Reference> references, const MediaInfo& model,
                                            std::int64_t most_tokens, const std::function<bool()>& stop) {
  if (references.empty()) return {};
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::vector<Prepared> prepared;
  std::exception_ptr problem;
  const auto job =
      load(std::move(references), model, most_tokens, [&](std::vector<Prepared> results, std::exception_ptr error) {
        const std::lock_guard lock(mutex);
        prepared = std::move(results);
        problem = std::move(error);
        over = true;
        changed.notify_all();
      });
  std::unique_lock lock(mutex);
  while (!changed.wait_for(lock, std::chrono::milliseconds(50), [&] { return over; })) {
    if (stop && stop()) job->cancel();
  }
  if (problem) std::rethrow_exception(problem);
  return prepared;
}

void MediaLoader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    const std::shared_ptr<Job> job = jobs_.front();
    jobs_.pop_front();
    job->queued_ = false;
    if (job->next_ == job->references_.size() || job->failed_ || stopped(*job)) {
      if (job->running_ == 0) finish(job, lock);  // else who runs the last one does
      continue;
    }
    const std::size_t i = job->next_++;
    ++job->running_;
    // Behind the others, so that a request with many pictures holds nobody up.
    if (job->next_ < job->references_.size()) {
      job->queued_ = true;
      jobs_.push_back(job);
      wake_.notify_one();
    }
    lock.unlock();
    std::exception_ptr problem;
    Prepared prepared;
    try {
      prepared = prepare(*job, job->references_[i]);
    } catch (...) {
      problem = std::current_exception();
      job->failed_ = true;
    }
    job->references_[i].url = {};  // may be large
    lock.lock();
    job->prepared_[i] = std::move(prepared);
    job->problems_[i] = problem;
    if (--job->running_ == 0 && !job->queued_) finish(job, lock);
  }
}

// Of a job that is in nobody's hands any more.
void MediaLoader::finish(const std::shared_ptr<Job>& job, std::unique_lock<std::mutex>& lock) {
  --open_;
  lock.unlock();
  // Pictures begin in their order and run to their end, so the first that fails is the same whatever the threads do.
  std::exception_ptr problem;
  for (const std::exception_ptr& one : job->problems_) {
    if (one && !problem) problem = one;
  }
  if (job->cancelled_ || (problem == nullptr && stopping_)) {
    problem = std::make_exception_ptr(Error(ErrorKind::internal, "the request was cancelled"));
  }
  Done done = std::move(job->done_);
  if (!stopping_) done(problem ? std::vector<Prepared>() : std::move(job->prepared_), problem);
  done = nullptr;
  lock.lock();
}

Prepared MediaLoader::prepare(Job& job, const Reference& reference) try {
  const auto stop = [&] { return stopped(job); };
  const bool image = reference.kind == Media::Kind::image;
  const std::int64_t limit = image ? reference.image.limits.bytes : reference.video.limits.bytes;
  vision::SourceOptions sources = options_.sources;
  sources.fetch.stop = stop;
  const std::vector<std::byte> bytes = vision::load_source(reference.url, sources, limit);
  if (stop()) throw Error(ErrorKind::internal, "nobody waits for it any more");
  const std::string key = hex_sha256(bytes) + " " + options_key(reference, shape_of(job.model_));
  Prepared prepared;
  if (find(key, prepared)) {
    const Media& media = prepared.media;
    admit(job, {media.t, media.h, media.w}, 0);
    return prepared;
  }
  prepared = image ? prepare_image(job, reference, bytes) : prepare_video(job, reference, bytes);
  prepared.media.key = key;
  keep(key, prepared);
  return prepared;
} catch (const Error& error) {
  throw Error(error.kind(), fmt::format("{}: {}", reference.path, error.what()));
} catch (const std::bad_alloc&) {
  throw Error(ErrorKind::busy, fmt::format("{}: out of memory", reference.path));
}

void MediaLoader::admit(Job& job, const vision::Grid& grid, std::int64_t values) {
  const MediaInfo& model = job.model_;
  const std::int64_t together = std::min<std::int64_t>(grid.t, model.segment_groups) * grid.h * grid.w;
  if (together > model.max_patches) {
    fail(
        "{} patches attend to each other, but memory was planned for {}; make it smaller or raise "
        "--max-picture-patches",
        together, model.max_patches);
  }
  const std::int64_t tokens = grid.tokens(model.merge_size);
  if (job.tokens_ += tokens; job.tokens_ > job.most_tokens_) {
    fail("with its {} tokens the pictures take more than the context's {}; make them smaller or fewer", tokens,
         job.most_tokens_);
  }
  const std::int64_t bytes = values * static_cast<std::int64_t>(sizeof(float));
  if (bytes > budget_->limit()) {
    fail("needs {} bytes, more than the {} for all pictures (--media-memory-bytes)", bytes, budget_->limit());
  }
  while (!budget_->take(bytes)) {
    if (!forget_one()) {
      throw Error(ErrorKind::busy, "pictures of other requests hold the memory for them; try again later");
    }
  }
}

// `budget_` has the bytes of pixels.values taken already.
Prepared MediaLoader::hold(vision::Pixels pixels) {
  Prepared out;
  out.timestamps = std::move(pixels.timestamps);
  const auto held = std::make_shared<const Held>(std::move(pixels.values), budget_);
  out.media = {.kind = pixels.video ? Media::Kind::video : Media::Kind::image,
               .t = pixels.grid.t,
               .h = pixels.grid.h,
               .w = pixels.grid.w,
               .pixels = std::shared_ptr<const std::vector<float>>(held, &held->values),
               .features = nullptr,
               .key = {}};
  return out;
}

Prepared MediaLoader::prepare_image(Job& job, const Reference& reference, std::span<const std::byte> bytes) {
  vision::ImageOptions options = reference.image;
  options.shape = shape_of(job.model_);
  const vision::DecodedImage image = vision::decode_image(bytes, options.limits);
  const vision::Size size =
      vision::resized_size({image.picture.width, image.picture.height}, options.size, options.shape);
  const vision::Grid grid = vision::grid_of(size, 1, options.shape);
  const std::int64_t values = grid.patches() * options.shape.values();
  admit(job, grid, values);
  Reservation reservation(*budget_, values);
  vision::Pixels pixels = vision::image_pixels(image.picture, options);
  reservation.spend(std::ssize(pixels.values));
  return hold(std::move(pixels));
}

Prepared MediaLoader::prepare_video(Job& job, const Reference& reference, std::span<const std::byte> bytes) {
  vision::VideoOptions options = reference.video;
  options.shape = shape_of(job.model_);
  vision::VideoReader reader(bytes, options.limits);
  const vision::VideoPlan plan = vision::plan_video(reader, options);
  const std::int64_t values = plan.grid.patches() * options.shape.values();
  admit(job, plan.grid, values);
  Reservation reservation(*budget_, values);
  vision::Pixels pixels = vision::video_pixels(reader, plan, options, [&] {
    if (stopped(job)) throw Error(ErrorKind::internal, "nobody waits for it any more");
  });
  reservation.spend(std::ssize(pixels.values));
  return hold(std::move(pixels));
}

bool MediaLoader::find(const std::string& key, Prepared& out) {
  const std::lock_guard lock(cache_mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return false;
  entries_.splice(entries_.begin(), entries_, found->second);
  out = found->second->prepared;
  return true;
}

void MediaLoader::keep(const std::string& key, const Prepared& prepared) {
  const std::int64_t bytes = std::ssize(*prepared.media.pixels) * std::int64_t{sizeof(float)};
  if (bytes > options_.cache_bytes) return;
  const std::lock_guard lock(cache_mutex_);
  if (by_key_.contains(key)) return;
  entries_.push_front({key, prepared, bytes});
  by_key_.emplace(key, entries_.begin());
  cached_bytes_ += bytes;
  while (cached_bytes_ > options_.cache_bytes) drop_last();
}

bool MediaLoader::forget_one() {
  const std::lock_guard lock(cache_mutex_);
  if (entries_.empty()) return false;
  drop_last();
  return true;
}

// Below the cache's lock.
void MediaLoader::drop_last() {
  cached_bytes_ -= entries_.back().bytes;
  by_key_.erase(entries_.back().key);
  entries_.pop_back();
}

}  // namespace m3::media
