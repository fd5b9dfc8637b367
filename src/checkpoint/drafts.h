// Recognising draft models' checkpoints (EAGLE3, DSpark, MTP), which are refused by name (spec §6, addenda §4, §7).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace m3 {

// What kind of draft a config describes, for a sentence that starts "this is"; "" for any other model.
std::string draft_description(const std::vector<std::string>& architectures, std::string_view model_type);

// The same for a tensor's name that only drafts have (fc.weight, midlayer.…, dspark.…); "" for any other.
std::string draft_tensor(std::string_view name);

}  // namespace m3
