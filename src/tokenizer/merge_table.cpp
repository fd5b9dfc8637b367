#include "src/tokenizer/merge_table.h"

#include <algorithm>
#include <bit>

namespace m3 {

MergeTable::MergeTable(std::span<const Merge> merges) {
  const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(16, 2 * merges.size()));
  slots_.assign(capacity, empty);
  results_.reserve(merges.size());
  mask_ = capacity - 1;
  shift_ = 64U - static_cast<unsigned>(std::countr_zero(capacity));
  for (const Merge& merge : merges) {
    const std::uint64_t pair = (static_cast<std::uint64_t>(merge.left) << 21) | merge.right;
    const std::size_t position = results_.size();
    results_.push_back(merge.result);
    std::size_t slot = home(pair);
    while (slots_[slot] != empty && slots_[slot] >> 22 != pair) slot = (slot + 1) & mask_;
    if (slots_[slot] != empty) {
      if (!duplicate_) duplicate_ = Duplicate{position, static_cast<std::size_t>(slots_[slot] & merge_limit)};
      continue;
    }
    slots_[slot] = (pair << 22) | position;
  }
}

}  // namespace m3
