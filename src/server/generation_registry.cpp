#include "src/server/generation_registry.h"

namespace m3::server {

std::uint64_t GenerationRegistry::add(const std::string& id, std::function<void()> cancel) {
  const std::lock_guard lock(mutex_);
  entries_.emplace(next_, Entry{id, std::move(cancel)});
  return next_++;
}

void GenerationRegistry::remove(std::uint64_t key) {
  const std::lock_guard lock(mutex_);
  entries_.erase(key);
  if (entries_.empty()) emptied_.notify_all();
}

std::size_t GenerationRegistry::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::size_t GenerationRegistry::cancel(const std::string& id) {
  std::vector<std::function<void()>> found;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, entry] : entries_) {
      if (entry.id == id) found.push_back(entry.cancel);
    }
  }
  for (const auto& call : found) call();
  return found.size();
}

std::size_t GenerationRegistry::cancel_all() {
  std::vector<std::function<void()>> found;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, entry] : entries_) found.push_back(entry.cancel);
  }
  for (const auto& call : found) call();
  return found.size();
}

bool GenerationRegistry::wait_until_empty(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  return emptied_.wait_until(lock, until, [&] { return entries_.empty(); });
}

}  // namespace m3::server
