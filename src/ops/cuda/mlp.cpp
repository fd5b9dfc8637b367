// The gated MLPs: routed experts, the shared one and dense layers as grouped products.
#include <algorithm>
#include <optional>

#include "src/base/error.h"
#include "src/ops/cuda/backend.h"
#include "src/ops/cuda/experts_sm90.h"
#include "src/ops/cuda/matmul_decode_sm90.h"
#include "src/ops/cuda/matmul_narrow_sm90.h"
#include "src/ops/host/host_backend.h"

namespace m3::ops::cuda {

namespace {

bool same_matrix(const WeightMatrix& a, const WeightMatrix& b) {
  return a.values == b.values && a.scales == b.scales && a.row_scales == b.row_scales && a.format == b.format &&
         a.rows == b.rows && a.columns == b.columns && a.tensor_scale == b.tensor_scale &&
         a.quantized_activations == b.quantized_activations;
}

bool same_mlp(const MlpWeights& a, const MlpWeights& b) {
  return same_matrix(a.gate, b.gate) && same_matrix(a.up, b.up) && same_matrix(a.down, b.down);
}

bool same_kind(const WeightMatrix& a, const WeightMatrix& b) {
  return a.format == b.format && a.rows == b.rows && a.columns == b.columns &&
         a.quantized_activations == b.quantized_activations;
}

bool same_class(const MlpWeights& a, const MlpWeights& b) {
  return same_kind(a.gate, b.gate) && same_kind(a.up, b.up) && same_kind(a.down, b.down);
}

void check_mlp(const MlpWeights& weights, std::int64_t hidden) {
  const std::int64_t width = weights.gate.rows;
  if (weights.gate.columns != hidden || weights.up.columns != hidden || weights.up.rows != width ||
      weights.down.columns != width || weights.down.rows != hidden) {
    fail_internal("an MLP of gate [{}, {}], up [{}, {}], down [{}, {}] on a hidden size of {}", width,
                  weights.gate.columns, weights.up.rows, weights.up.columns, weights.down.rows, weights.down.columns,
                  hidden);
  }
}

// The scratch memory of one MLP over `pairs` rows.
struct MlpScratch {
  MlpScratch(Arena& arena, std::int64_t pairs, std::int64_t hidden, std::int64_t width)
      : packed(arena.take<std::uint16_t>(pairs * std::max(2 * width, hidden))),
        inner(arena.take<std::uint16_t>(pairs * width)),
        sums(arena.take<float>(pairs * hidden)) {}
  std::uint16_t* packed;  // [pairs, 2 · width] gate | up, or [pairs, hidden] the input gathered
  std::uint16_t* inner;   // [pairs, width]
  float* sums;            // [pairs, hidden], weighted
};

GroupLists take_lists(Arena& arena, std::int64_t pairs, std::int64_t groups) {
  GroupLists lists;
  lists.list = arena.take<std::int32_t>(pairs);
  lists.group_begin = arena.take<std::int32_t>(groups + 1);
  lists.active = arena.take<std::int32_t>(std::min(pairs, groups));
  const int tiles = prefill_tiles(static_cast<int>(pairs), static_cast<int>(groups));
  lists.tile_group = arena.take<std::int32_t>(tiles);
  lists.tile_begin = arena.take<std::int32_t>(tiles);
  lists.position = arena.take<std::int32_t>(pairs);
  return lists;
}

// What `tokens` rows need at most: routed and shared parts of the given widths.
std::int64_t scratch_for(std::int64_t tokens, std::int64_t k, std::int64_t groups, std::int64_t hidden,
                         std::int64_t width, std::int64_t shared_width) {
  Arena arena;
  MlpScratch(arena, tokens * k, hidden, width);
  MlpScratch(arena, shared_width > 0 ? tokens : 0, hidden, shared_width);
  take_lists(arena, tokens * k, groups);
  // Quantised rows of the input, then of the inner width, of routed and shared.
  arena.take<std::uint16_t>(tokens * hidden);
  arena.take<float>(tokens);
  arena.take<std::uint16_t>(tokens * std::max<std::int64_t>(k, 1) * std::max(width, shared_width));
  arena.take<float>(tokens * std::max<std::int64_t>(k, 1));
  arena.take<float>(tokens * k);  // the input's scales, gathered
  return arena.used();
}

// How the experts' matrices are copied by the kernels of many rows, or (`tall`) those of matmul_narrow_sm90.h: gate and up in
// turn, then down. False, and nothing added, where they do not take one.
bool describe(std::span<const MlpWeights* const> experts, std::vector<WeightMaps>& copies, bool tall) {
  if (tall ? !has_narrow_kernels() : !has_wide_kernels()) return false;
  const std::size_t before = copies.size();
  const auto add = [&](const WeightMatrix& weight) {
    return (tall ? encode_tall_weight : encode_weight)(copies.emplace_back(), part_of(weight, 0),
                                                       static_cast<int>(weight.columns));
  };
  bool all = true;
  for (const MlpWeights* expert : experts) all = all && add(expert->gate) && add(expert->up);
  for (const MlpWeights* expert : experts) all = all && add(expert->down);
  if (!all) copies.resize(before);
  return all;
}

// Scratch memory is planned up to here; more tokens than fit are taken in turns.
constexpr std::int64_t enough_scratch = std::int64_t{2} << 30;

}  // namespace

std::int64_t CudaBackend::experts_scratch_bytes(const Limits& limits) const {
  const auto bytes = [&](std::int64_t tokens) {
    return scratch_for(tokens, limits.experts_per_token, limits.experts, limits.hidden, limits.intermediate,
                       limits.intermediate);
  };
  return std::max(bytes(1), std::min(bytes(limits.tokens), enough_scratch));
}

const ExpertTable& CudaBackend::table_of(std::span<const MlpWeights> experts) {
  std::unique_ptr<ExpertTable>& entry = tables_[experts.data()];
  if (entry != nullptr &&
      std::equal(experts.begin(), experts.end(), entry->experts.begin(), entry->experts.end(), same_mlp)) {
    return *entry;
  }
  if (recording_ != 0) fail_internal("experts: new weights inside a pass that is recorded");
  if (entry != nullptr) {  // the old table may be in use, and recordings hold its place
    synchronize();
    drop_recordings();
  }
  entry = std::make_unique<ExpertTable>();
  entry->experts.assign(experts.begin(), experts.end());
  std::vector<std::vector<std::int32_t>> maps;
  std::vector<WeightPart> parts;
  std::vector<WeightMaps> copies;    // of gate and up, then of down
  std::vector<std::size_t> offsets;  // of each class's four tables
  std::vector<std::optional<std::size_t>> copy_offsets, tall_offsets;
  for (const MlpWeights& expert : experts) {
    const auto known =
        std::ranges::find_if(entry->classes, [&](const ExpertClass& other) { return same_class(other.shape, expert); });
    if (known == entry->classes.end()) entry->classes.push_back({.shape = expert});
  }
  for (ExpertClass& kind : entry->classes) {
    std::vector<std::int32_t>& map = maps.emplace_back(experts.size(), -1);
    std::vector<const MlpWeights*> members;
    for (std::size_t e = 0; e < experts.size(); ++e) {
      if (!same_class(kind.shape, experts[e])) continue;
      map[e] = kind.groups++;
      members.push_back(&experts[e]);
    }
    offsets.push_back(parts.size());
    for (const MlpWeights* member : members) {
      parts.push_back(part_of(member->gate, 0));
      parts.push_back(part_of(member->up, member->gate.rows));
    }
    for (const MlpWeights* member : members) parts.push_back(part_of(member->gate, 0));
    for (const MlpWeights* member : members) parts.push_back(part_of(member->up, member->gate.rows));
    for (const MlpWeights* member : members) parts.push_back(part_of(member->down, 0));
    for (const bool tall : {false, true}) {
      (tall ? tall_offsets : copy_offsets)
          .push_back(describe(members, copies, tall) ? std::optional(copies.size() - 3 * members.size())
                                                     : std::nullopt);
    }
  }
  const std::size_t part_bytes = parts.size() * sizeof(WeightPart);
  const std::size_t map_bytes = experts.size() * sizeof(std::int32_t);
  const std::size_t copy_bytes = copies.size() * sizeof(WeightMaps);
  std::byte* const described = entry->memory.reserve(copy_bytes + part_bytes + maps.size() * map_bytes);
  std::byte* const memory = described + copy_bytes;
  upload(described, std::as_bytes(std::span(copies)));
  upload(memory, std::as_bytes(std::span(parts)));
  for (std::size_t i = 0; i < maps.size(); ++i) {
    std::byte* map = memory + part_bytes + i * map_bytes;
    upload(map, std::as_bytes(std::span(maps[i])));
    ExpertClass& kind = entry->classes[i];
    const auto groups = static_cast<std::size_t>(kind.groups);
    const auto* table = reinterpret_cast<const WeightPart*>(memory) + offsets[i];
    if (kind.shape.gate.format == kind.shape.up.format &&
        kind.shape.gate.quantized_activations == kind.shape.up.quantized_activations) {
      kind.gate_up = table;
    }
    kind.gate = table + 2 * groups;
    kind.up = table + 3 * groups;
    kind.down = table + 4 * groups;
    if (copy_offsets[i]) {
      kind.gate_up_maps = reinterpret_cast<const WeightMaps*>(described) + *copy_offsets[i];
      kind.down_maps = kind.gate_up_maps + 2 * groups;
    }
    if (tall_offsets[i]) {
      kind.gate_up_tall_maps = reinterpret_cast<const WeightMaps*>(described) + *tall_offsets[i];
      kind.down_tall_maps = kind.gate_up_tall_maps + 2 * groups;
    }
    kind.group_of_expert = reinterpret_cast<const std::int32_t*>(map);
  }
  return *entry;
}

namespace {

bool takes_fast_kernels(const MlpWeights& shape, const Tensor& hidden) {
  MatmulArgs args;
  args.parts = 3;
  args.inline_parts[0] = part_of(shape.gate, 0);
  args.inline_parts[1] = part_of(shape.up, 0);
  args.inline_parts[2] = part_of(shape.down, 0);
  args.columns = static_cast<int>(shape.gate.columns);
  args.x = reinterpret_cast<const std::uint16_t*>(hidden.data);
  args.x_stride = hidden.row_stride;
  return fits_tensor_cores(args) && shape.gate.rows % step_columns == 0;
}

// gate | up, activation and down of one class of experts or of one MLP.
struct MlpRun {
  MatmulArgs args;  // list and groups
  const MlpWeights* shape = nullptr;
  const WeightPart *gate_up = nullptr, *gate = nullptr, *up = nullptr, *down = nullptr;  // groups' tables
  const WeightMaps *gate_up_maps = nullptr, *down_maps = nullptr;
  const WeightMaps *gate_up_tall_maps = nullptr, *down_tall_maps = nullptr;
  std::int64_t rows = 0;                                                              // of packed, inner and sums
  bool old_x = false, old_inner = false, old_routing = false, routing_older = false;  // as MatmulArgs has them
};

bool quantised(const MlpWeights& shape) {
  return shape.gate.quantized_activations || shape.up.quantized_activations || shape.down.quantized_activations;
}

// Whether both products are matmul_decode_sm90.h's, without another kernel between them.
bool takes_decode(const MlpRun& mlp, const Tensor& hidden) {
  if (quantised(*mlp.shape)) return false;
  MatmulArgs args = mlp.args;
  args.parts = 2;
  args.inline_parts[0] = part_of(mlp.shape->gate, 0);
  args.inline_parts[1] = part_of(mlp.shape->up, mlp.shape->gate.rows);
  args.columns = static_cast<int>(mlp.shape->gate.columns);
  args.x = reinterpret_cast<const std::uint16_t*>(hidden.data);
  args.x_stride = hidden.row_stride;
  args.store = Store::activated;
  if (!decode_takes_sm90(args)) return false;
  args.parts = 1;
  args.inline_parts[0] = part_of(mlp.shape->down, 0);
  args.columns = static_cast<int>(mlp.shape->down.columns);
  args.x_stride = args.columns;
  args.store = Store::f32;
  return decode_takes_sm90(args);
}

// What a class of experts is in one launch, but for x, results and the activation.
ExpertsArgs experts_args(const MlpRun& mlp) {
  ExpertsArgs args;
  args.format = mlp.shape->gate.format;
  args.gate_up = mlp.gate_up;
  args.down = mlp.down;
  args.hidden = static_cast<int>(mlp.shape->gate.columns);
  args.width = static_cast<int>(mlp.shape->gate.rows);
  args.items = mlp.args.items;
  args.groups = mlp.args.groups;
  args.list_divisor = mlp.args.list_divisor;
  args.expert_ids = mlp.args.expert_ids;
  args.group_of_expert = mlp.args.group_of_expert;
  args.first_expert = mlp.args.first_expert;
  args.expert_count = mlp.args.expert_count;
  args.pair_weights = mlp.args.pair_weights;
  args.scaling = mlp.args.scaling;
  return args;
}

bool takes_at_once(const ExpertsArgs& args, const MlpWeights& shape) {
  return !quantised(shape) &&
         experts_take_sm90(args, part_of(shape.gate, 0), part_of(shape.up, 0), part_of(shape.down, 0));
}

// Whether a class of experts is better left to matmul_narrow_sm90.h than to the kernels of few rows.
bool prefers_narrow(const MlpRun& mlp) {
  const MlpWeights& shape = *mlp.shape;
  return !mlp.args.fixed_order && mlp.gate_up_tall_maps != nullptr && !quantised(shape) &&
         shape.gate.format == shape.up.format &&
         narrow_takes_groups(shape.gate.format, mlp.args.items, mlp.args.groups, shape.gate.columns) &&
         narrow_takes_groups(shape.down.format, mlp.args.items, mlp.args.groups, shape.down.columns);
}

// Whether gate, up and activation are one launch.
bool takes_activated(const MlpRun& mlp, const Tensor& hidden) {
  if (takes_decode(mlp, hidden)) return true;
  const bool few = mlp.args.groups > 0 ? mlp.args.expert_ids != nullptr : mlp.args.items <= activated_items;
  return few && takes_fast_kernels(*mlp.shape, hidden);
}

}  // namespace

void CudaBackend::run_experts(const Tensor& hidden, const Routing& routing, int first, const ExpertTable* table,
                              const MlpWeights* shared, float scaling, const Activation& activation,
                              const Tensor& out) {
  const std::int64_t tokens = hidden.rows;
  const std::int64_t columns = hidden.columns;
  const std::int64_t k = table != nullptr ? routing.experts_per_token : 0;
  std::int64_t width = 0;
  std::int64_t groups = 0;
  if (table != nullptr) {
    for (const ExpertClass& kind : table->classes) {
      width = std::max(width, kind.shape.gate.rows);
      groups = std::max<std::int64_t>(groups, kind.groups);
    }
  }
  const std::int64_t shared_width = shared != nullptr ? shared->gate.rows : 0;
  Arena arena = scratch();
  const MlpScratch routed(arena, tokens * k, columns, width);
  const MlpScratch alone(arena, shared != nullptr ? tokens : 0, columns, shared_width);
  const GroupLists lists = take_lists(arena, tokens * k, groups);
  const auto* x = reinterpret_cast<const std::uint16_t*>(hidden.data);

  CombineArgs combine;
  combine.tokens = static_cast<int>(tokens);
  combine.columns = static_cast<int>(columns);
  combine.per_token = static_cast<int>(k);
  combine.first = first;
  combine.count = table != nullptr ? static_cast<int>(table->experts.size()) : 0;
  combine.expert_ids = routing.expert_ids;
  combine.parts = routed.sums;
  combine.shared = shared != nullptr ? alone.sums : nullptr;
  combine.out = reinterpret_cast<std::uint16_t*>(out.data);
  combine.stride = out.row_stride;
  // By the kernels of many rows, where they take it. The experts' parts are rounded then, as products are (spec §3.16):
  // half as much to write and to read again.
  const auto run_wide = [&](const MlpRun& mlp, const MlpScratch& memory) {
    const MlpWeights& shape = *mlp.shape;
    const bool grouped = mlp.args.groups > 0;
    if (shape.gate.format != shape.up.format || shape.gate.quantized_activations != shape.up.quantized_activations ||
        (grouped && mlp.args.list == nullptr)) {
      return false;
    }
    MatmulArgs inner = mlp.args;
    inner.fixed_order = deterministic_;
    inner.partials = partials_;
    inner.counters = counters_;
    inner.x_by_list = inner.result_by_list = false;
    inner.x = grouped ? memory.packed : x;
    inner.x_stride = grouped ? columns : hidden.row_stride;
    inner.table = mlp.gate_up;
    inner.maps = mlp.gate_up_maps;
    inner.tall_maps = mlp.gate_up_tall_maps;
    inner.inline_parts[inner.parts++] = part_of(shape.gate, 0);
    inner.inline_parts[inner.parts++] = part_of(shape.up, shape.gate.rows);
    inner.columns = static_cast<int>(columns);
    inner.store = Store::activated;
    inner.out = memory.inner;
    inner.out_stride = shape.gate.rows;
    inner.alpha = activation.alpha;
    inner.limit = activation.limit;
    inner.beta = activation.beta;
    MatmulArgs outer = inner;
    outer.table = mlp.down;
    outer.maps = mlp.down_maps;
    outer.tall_maps = mlp.down_tall_maps;
    outer.parts = 1;
    outer.inline_parts[0] = part_of(shape.down, 0);
    outer.columns = static_cast<int>(shape.gate.rows);
    outer.x = memory.inner;
    outer.x_stride = shape.gate.rows;
    outer.result_by_list = grouped;
    outer.store = mlp.args.pair_weights != nullptr ? Store::weighted : Store::f32;
    outer.out = memory.sums;
    outer.out_stride = columns;
    const bool round_parts = grouped && table->classes.size() == 1 && takes_combine_many(combine);
    if (round_parts) outer.store = Store::weighted_halves;
    inner.arranged = outer.arranged =
        round_parts && !quantised(shape) && takes_arranged(shape.gate.format) && takes_arranged(shape.down.format);
    const auto takes = [](const MatmulArgs& args) { return takes_narrow(args) || takes_wide(args); };
    if (!takes(inner) || !takes(outer) || (grouped && hidden.row_stride % 8 != 0)) return false;

    Arena own = arena;
    const Activations rows =
        activations_for(shape.gate.quantized_activations, x, hidden.row_stride, tokens, columns, own);
    inner.token_scales = rows.scales;
    if (grouped) {
      GatherArgs gather;
      gather.tokens = static_cast<int>(tokens);
      gather.columns = static_cast<int>(columns);
      gather.per_token = static_cast<int>(k);
      gather.position = lists.position;
      gather.x = rows.data;
      gather.x_stride = rows.stride;
      gather.out = memory.packed;
      gather.scales = rows.scales;
      gather.arranged = inner.arranged;
      if (rows.scales != nullptr) inner.token_scales = gather.out_scales = own.take<float>(mlp.rows);
      check(launch_gather(gather, stream_), "experts: gathering rows");
    } else {
      inner.x = rows.data;
      inner.x_stride = rows.stride;
    }
    check(matmul(inner, stream_), "experts");
    own = arena;
    const Activations inner_rows = activations_for(shape.down.quantized_activations, memory.inner, shape.gate.rows,
                                                   mlp.rows, shape.gate.rows, own);
    outer.x = inner_rows.data;
    outer.token_scales = inner_rows.scales;
    check(matmul(outer, stream_), "experts");
    if (round_parts) combine.rounded_parts = reinterpret_cast<const std::uint16_t*>(routed.sums);
    return true;
  };

  const auto product = [&](MatmulArgs& args, std::span<const WeightMatrix> weights, const WeightPart* group_table,
                           std::int64_t first_column, const std::uint16_t* from, std::int64_t stride,
                           std::int64_t rows) {
    args.table = group_table;
    args.parts = 0;
    for (const WeightMatrix& weight : weights) {
      args.inline_parts[args.parts++] = part_of(weight, first_column);
      first_column += weight.rows;
    }
    Arena own = arena;  // each product's, in turn
    const Activations activations =
        activations_for(weights.front().quantized_activations, from, stride, rows, weights.front().columns, own);
    args.x = activations.data;
    args.x_stride = activations.stride;
    args.token_scales = activations.scales;
    check(matmul(args, stream_), "experts");
  };
  const auto gate_and_up = [&](const MlpRun& mlp, const MlpScratch& memory) {
    const MlpWeights& shape = *mlp.shape;
    MatmulArgs args = mlp.args;
    args.columns = static_cast<int>(columns);
    args.store = Store::bf16;
    args.out = memory.packed;
    args.out_stride = 2 * shape.gate.rows;
    args.old_x = mlp.old_x;
    args.old_routing = mlp.old_routing;
    const bool together = mlp.args.groups == 0 ? shape.gate.quantized_activations == shape.up.quantized_activations
                                               : mlp.gate_up != nullptr;
    const WeightMatrix both[] = {shape.gate, shape.up};
    if (together && takes_activated(mlp, hidden)) {
      args.store = Store::activated;
      args.out = memory.inner;
      args.out_stride = shape.gate.rows;
      args.alpha = activation.alpha;
      args.limit = activation.limit;
      args.beta = activation.beta;
      return product(args, both, mlp.gate_up, 0, x, hidden.row_stride, tokens);
    }
    if (together) {
      product(args, both, mlp.gate_up, 0, x, hidden.row_stride, tokens);
    } else {
      product(args, {&shape.gate, 1}, mlp.gate, 0, x, hidden.row_stride, tokens);
      product(args, {&shape.up, 1}, mlp.up, shape.gate.rows, x, hidden.row_stride, tokens);
    }
    check(launch_activate(memory.packed, static_cast<int>(mlp.rows), static_cast<int>(shape.gate.rows), activation,
                          memory.inner, stream_),
          "experts: activation");
  };
  const auto down = [&](const MlpRun& mlp, const MlpScratch& memory) {
    MatmulArgs args = mlp.args;
    args.list_divisor = 1;
    args.columns = static_cast<int>(mlp.shape->gate.rows);
    args.store = mlp.args.pair_weights != nullptr ? Store::weighted : Store::f32;
    args.out = memory.sums;
    args.out_stride = columns;
    args.old_x = mlp.old_inner;
    args.old_routing = mlp.routing_older;
    product(args, {&mlp.shape->down, 1}, mlp.down, 0, memory.inner, mlp.shape->gate.rows, mlp.rows);
  };

  MlpRun of_shared;
  if (shared != nullptr) {
    of_shared.shape = shared;
    of_shared.rows = tokens;
    of_shared.args.items = static_cast<std::int32_t>(tokens);
    of_shared.args.fixed_order = deterministic_;
  }
  bool shared_left = shared != nullptr;
  if (k > 0) {
    for (const ExpertClass& kind : table->classes) {
      const ExpertGroups kinds{first, static_cast<int>(table->experts.size()), kind.groups, kind.group_of_expert};
      MlpRun mlp;
      mlp.shape = &kind.shape;
      mlp.gate_up = kind.gate_up;
      mlp.gate = kind.gate;
      mlp.up = kind.up;
      mlp.down = kind.down;
      mlp.gate_up_maps = kind.gate_up_maps;
      mlp.down_maps = kind.down_maps;
      mlp.gate_up_tall_maps = kind.gate_up_tall_maps;
      mlp.down_tall_maps = kind.down_tall_maps;
      mlp.rows = tokens * k;
      mlp.args.items = static_cast<std::int32_t>(tokens * k);
      mlp.args.groups = kind.groups;
      mlp.args.list_divisor = static_cast<int>(k);
      mlp.args.pair_weights = routing.expert_weights;
      mlp.args.scaling = scaling;
      mlp.args.fixed_order = deterministic_;
      mlp.args.expert_ids = routing.expert_ids;
      mlp.args.group_of_expert = table->classes.size() > 1 ? kind.group_of_expert : nullptr;
      mlp.args.first_expert = first;
      mlp.args.expert_count = kinds.count;
      // Shared and routed in turn, so that each product's rows are there before the one ahead of it begins.
      const bool shared_decode = shared_left && takes_decode(of_shared, hidden);
      ExpertsArgs at_once = experts_args(mlp);
      at_once.x = x;
      at_once.x_stride = hidden.row_stride;
      at_once.inner = routed.inner;
      at_once.sums = routed.sums;
      at_once.alpha = activation.alpha;
      at_once.limit = activation.limit;
      at_once.beta = activation.beta;
      at_once.counters = counters_;
      const bool narrow = prefers_narrow(mlp);
      if (meets_ && !deterministic_ && !narrow && kind.gate_up != nullptr && takes_at_once(at_once, kind.shape)) {
        if (shared_decode) gate_and_up(of_shared, alone);
        at_once.old_routing = shared_decode;
        check(launch_experts_sm90(at_once, stream_), "experts");
        combine.old_ids = true;  // lets the next begin behind its own wait
        of_shared.old_inner = shared_decode;
        if (shared_decode) down(of_shared, alone);
        shared_left = shared_left && !shared_decode;
        continue;
      }
      const bool decode = !narrow && kind.gate_up != nullptr && takes_decode(mlp, hidden);
      if (!decode && (narrow || tokens * k > direct_worth || !takes_fast_kernels(kind.shape, hidden))) {
        check(launch_group_pairs(routing, static_cast<int>(tokens), kinds, lists, stream_), "experts: lists");
        mlp.args.expert_ids = nullptr;
        mlp.args.list = lists.list;
        mlp.args.result_by_list = true;
        mlp.args.group_begin = lists.group_begin;
        mlp.args.active = lists.active;
        mlp.args.tile_group = lists.tile_group;
        mlp.args.tile_begin = lists.tile_begin;
      }
      const bool in_turn = decode && shared_decode;
      if (in_turn) gate_and_up(of_shared, alone);
      mlp.old_x = mlp.old_routing = in_turn;
      if (!decode && run_wide(mlp, routed)) continue;
      gate_and_up(mlp, routed);
      combine.old_ids = combine.old_ids || decode;
      of_shared.old_inner = in_turn;
      if (in_turn) down(of_shared, alone);
      mlp.old_inner = in_turn;
      mlp.routing_older = decode;
      down(mlp, routed);
      shared_left = shared_left && !in_turn;
    }
  }
  if (shared_left && (takes_decode(of_shared, hidden) || !run_wide(of_shared, alone))) {
    gate_and_up(of_shared, alone);
    down(of_shared, alone);
  }
  check(launch_combine(combine, stream_), "experts: sum");
}

void CudaBackend::experts(const Tensor& hidden, const Routing& routing, int first, std::span<const MlpWeights> experts,
                          const MlpWeights* shared, float routed_scaling_factor, const Activation& activation,
                          const Tensor& out) {
  check_tensor(hidden, DType::bf16, hidden.rows, hidden.columns, "experts: hidden");
  check_tensor(out, DType::bf16, hidden.rows, hidden.columns, "experts: out");
  std::int64_t width = 0;
  for (const MlpWeights& expert : experts) {
    check_mlp(expert, hidden.columns);
    width = std::max(width, expert.gate.rows);
  }
  if (shared != nullptr) check_mlp(*shared, hidden.columns);
  const std::int64_t k = experts.empty() ? 0 : routing.experts_per_token;
  const ExpertTable* table = k > 0 ? &table_of(experts) : nullptr;
  // As many tokens at a time as the scratch memory holds.
  const auto bytes = [&](std::int64_t tokens) {
    return scratch_for(tokens, k, std::ssize(experts), hidden.columns, width,
                       shared != nullptr ? shared->gate.rows : 0);
  };
  std::int64_t turn = hidden.rows;
  while (turn > 1 && bytes(turn) > std::ssize(scratch_)) turn = (turn + 1) / 2;
  for (std::int64_t begin = 0; begin < hidden.rows; begin += turn) {
    const std::int64_t count = std::min(turn, hidden.rows - begin);
    Tensor rows = hidden, results = out;
    rows.data = hidden.row(begin);
    results.data = out.row(begin);
    rows.rows = results.rows = count;
    Routing part = routing;
    if (k > 0) {
      part.expert_ids += begin * k;
      part.expert_weights += begin * k;
    }
    run_experts(rows, part, first, table, shared, routed_scaling_factor, activation, results);
  }
}

// A dense layer's MLP is a shared expert without routed ones.
void CudaBackend::mlp(const Tensor& hidden, const MlpWeights& weights, const Activation& activation,
                      const Tensor& out) {
  experts(hidden, Routing{}, 0, {}, &weights, 1.0f, activation, out);
}

}  // namespace m3::ops::cuda
