// Masks that were computed once, by what they depend on.
//
// A mask follows from the parser's newest states and, through the positions where their rules began, from what may
// follow those rules. That is written down with every position replaced by the number of its content, so that two
// places of two texts have equal keys exactly if nothing that may follow tells them apart: no hash decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <xgrammar/matcher.h>

namespace xgrammar {

// Shared by the matchers of many grammars. Thread-safe where it says so.
class MaskMemory {
 public:
  using Key = std::vector<std::int32_t>;

  // Forgets what was not used for longest beyond `max_bytes`. `longest_token`: in bytes, of the vocabulary.
  MaskMemory(std::size_t max_bytes, std::size_t longest_token) : max_bytes_(max_bytes), longest_token_(longest_token) {}

  std::size_t longest_token() const { return longest_token_; }

  // A number for a grammar, for keys.
  std::int32_t next_grammar() {
    const std::lock_guard<std::mutex> lock(mutex);
    return grammars_++;
  }
  std::size_t bytes() {
    const std::lock_guard<std::mutex> lock(mutex);
    return mask_bytes_ + content_bytes_;
  }

  std::mutex mutex;  // held by who calls what follows

  // Before the numbers of a key are asked for: they hold as long as the epoch that it returns is the same. Contents
  // have no order of use, so where they take too much room, all begins anew.
  std::int64_t epoch();
  // The same number for equal contents, and only for them.
  std::int32_t number_of(const Key& content);
  // Copies a mask of `words` words out; false where there is none.
  bool recall(const Key& key, std::int32_t* mask, std::size_t words);
  void remember(const Key& key, const std::int32_t* mask, std::size_t words);

 private:
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };
  struct Mask {
    const Key* key;
    std::vector<std::int32_t> words;
  };
  std::size_t max_bytes_;
  std::size_t longest_token_;
  std::size_t mask_bytes_ = 0;
  std::size_t content_bytes_ = 0;
  std::int32_t grammars_ = 0;
  std::int64_t epoch_ = 0;
  std::unordered_map<Key, std::int32_t, Hash> numbers_;
  std::unordered_map<Key, std::list<Mask>::iterator, Hash> masks_;
  std::list<Mask> used_;  // the newest first
};

// From now on the matcher looks its masks up in `memory`, where its grammar has the number `grammar`.
void use_mask_memory(GrammarMatcher& matcher, std::shared_ptr<MaskMemory> memory, std::int32_t grammar);

}  // namespace xgrammar
