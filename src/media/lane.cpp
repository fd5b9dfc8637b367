#include "src/media/lane.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "src/base/error.h"

namespace m3::media {

Lane::Lane(int threads, std::function<int(const std::string& kind)> bound)
    : most_threads_(static_cast<std::size_t>(std::max(1, threads))), bound_(std::move(bound)) {}

void Lane::post(const void* owner, const std::string& kind, std::size_t order, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (idle_ == 0 && threads_.size() < most_threads_) {
      try {
        threads_.emplace_back([this] { this->work(); });
      } catch (const std::system_error& error) {  // those that are there do it
        if (threads_.empty()) fail_resource("cannot start a thread that loads pictures: {}", error.what());
      }
    }
    auto found = std::ranges::find(owners_, owner, &Owner::id);
    if (found == owners_.end()) found = owners_.insert(owners_.end(), Owner{owner, {}});
    found->kinds[kind].push_back({order, std::move(work)});
  }
  wake_.notify_one();
}

std::vector<std::size_t> Lane::drop(const void* owner, std::size_t from) {
  std::vector<std::size_t> dropped;
  std::vector<Piece> gone;  // destroyed outside of the lock
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(owners_, owner, &Owner::id);
  if (found == owners_.end()) return dropped;
  for (auto kind = found->kinds.begin(); kind != found->kinds.end();) {
    std::deque<Piece>& pieces = kind->second;
    const auto kept =
        std::stable_partition(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.order < from; });
    for (auto piece = kept; piece != pieces.end(); ++piece) {
      dropped.push_back(piece->order);
      gone.push_back(std::move(*piece));
    }
    pieces.erase(kept, pieces.end());
    kind = pieces.empty() ? found->kinds.erase(kind) : std::next(kind);
  }
  if (found->kinds.empty()) owners_.erase(found);
  return dropped;
}

void Lane::stop() {
  std::deque<Owner> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(owners_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool Lane::pick(std::string& kind, Piece& piece) {
  for (auto owner = owners_.begin(); owner != owners_.end(); ++owner) {
    auto best = owner->kinds.end();
    for (auto one = owner->kinds.begin(); one != owner->kinds.end(); ++one) {
      const auto running = running_.find(one->first);
      if (running != running_.end() && running->second >= bound_(one->first)) continue;
      if (best == owner->kinds.end() || one->second.front().order < best->second.front().order) best = one;
    }
    if (best == owner->kinds.end()) continue;
    kind = best->first;
    piece = std::move(best->second.front());
    best->second.pop_front();
    if (best->second.empty()) owner->kinds.erase(best);
    // Behind the others, so that an owner with much work holds nobody up.
    Owner moved = std::move(*owner);
    owners_.erase(owner);
    if (!moved.kinds.empty()) owners_.push_back(std::move(moved));
    return true;
  }
  return false;
}

void Lane::work() {
  std::unique_lock lock(mutex_);
  std::string kind;
  Piece piece;
  while (true) {
    ++idle_;
    wake_.wait(lock, [&] { return stopping_ || pick(kind, piece); });
    --idle_;
    if (stopping_) return;
    ++running_[kind];
    lock.unlock();
    piece.work();
    piece = {};
    lock.lock();
    if (--running_[kind] == 0) running_.erase(kind);
  }
}

}  // namespace m3::media
