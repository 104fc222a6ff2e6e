#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <tuple>

#include "bindings.hpp"
#include "linear_dense_memory.hpp"
#include "linear_int8_pack.hpp"
#include "packed_weight.hpp"
#include "scale_steps.hpp"

namespace nb = nanobind;

namespace modulm {
namespace {

// Of scales that are multiples: groups per coarse scale, how multiples lie (`Multiples`), their unit, and the addresses of
// coarse scales and minimums (see `Steps`).
using StepArguments = std::tuple<int64_t, int, float, uintptr_t, uintptr_t>;
using Table = std::array<uint8_t, 16>;
// Of codes that are vectors (see `Vectors`): addresses of signs and of the table, its places, the inputs of a vector, bits of
// signs, the shift, and whether a bit of it is for 32 inputs.
using VectorArguments = std::tuple<uintptr_t, uintptr_t, int64_t, int, int, int, bool>;

// A matrix of codes of 2 to 8 bits in panels, and what can be asked of it.
class Int8Weight : public PackedWeight {
 public:
  // `codes` is [rows, inputs] bytes, rows `stride` apart; signed ones have zero 128. `bits` is a `Codes`; up
  // to 4 two codes are in a byte of `codes`, the first in the low nibble. `scales` and, where `kind` wants them, `minimums`
  // are [rows, inputs / group_size] of `scale_type`, or bytes (`Zero::points`, and all where there are `steps`); group_size
  // is a multiple of 16, or all inputs. `kind` is a `Zero`. `table` is for codes that are places in one.
  Int8Weight(uintptr_t codes, bool is_signed, int64_t rows, int64_t inputs, int64_t stride, int bits,
             int64_t group_size, uintptr_t scales, uintptr_t minimums, int scale_type, int kind, int zero,
             const StepArguments& steps, const Table& table, const VectorArguments& vectors) {
    require_shape(rows, inputs);
    const bool are_vectors = bits == int(Codes::vectors);
    require((bits >= 2 && bits <= 8 && bits != 7) || bits == int(Codes::table3) || bits == int(Codes::table4) || are_vectors,
            "Codes are stored in 2 to 6 or 8 bits, or as vectors");
    require(!are_vectors || inputs % 8 == 0, "Vectors are for inputs in eights");
    const bool in_pairs = !are_vectors && bits_of(Codes(bits)) <= 4;
    require(!in_pairs || inputs % 2 == 0, "Codes in pairs are no whole number of bytes");
    require(stride >= (are_vectors ? 0 : in_pairs ? inputs / 2 : inputs) && stride <= kMostNumbers / rows,
            "The codes have rows that overlap");
    require(!is_signed || bits == 8, "Signed codes are stored in 8 bits");
    require(group_size > 0 && inputs % group_size == 0, "The group does not divide the inputs");
    require(group_size % 16 == 0 || group_size == inputs, "A group is a multiple of 16 inputs, or the whole row");
    const bool small = group_size % kBlockInputs == 16 && group_size != inputs;
    require(kind >= 0 && kind <= 3 && zero >= 0 && zero <= 255, "The codes have no known zero");
    const Float type = float_type(scale_type, "The scales");
    require(type != Float::bf16, "Scales are float32 or float16");
    const int64_t unit = small ? 16 : 32, group = group_size == inputs ? (inputs + unit - 1) / unit : group_size / unit;
    weight_ = {Codes(bits), Zero(kind), zero, rows, inputs, unit, group, nullptr, type, nullptr, nullptr, {}, {}, {}};
    std::copy(table.begin(), table.end(), weight_.table);
    set_steps(steps);
    VectorSource places{nullptr, nullptr, 0};
    if (are_vectors) places = set_vectors(codes, vectors);
    const CodeSource source{pointer<const uint8_t>(codes, 1, "The codes"), stride, is_signed};
    const int64_t size = weight_.steps.span > 0 ? 1 : bytes_of(type);
    const void* factors = pointer<const void>(scales, size, "The scales");
    const void* low = nullptr;
    if (has_own_minimums()) low = pointer<const void>(minimums, kind == int(Zero::points) ? 1 : size, "The minimums");
    pack(source, places, factors, low);
  }

  void linear(uintptr_t x, int x_type, int64_t stride, int64_t tokens, uintptr_t out, int out_type,
              const std::string& isa_name, bool exact) const {
    require_tokens(tokens, stride, weight_.inputs);
    require(tokens <= kMostNumbers / weight_.rows, "There are more than 2^40 results");
    const Float from_type = float_type(x_type, "x"), to_type = float_type(out_type, "out");
    const void* from = pointer<const void>(x, bytes_of(from_type), "x");
    const Output to{pointer<void>(out, bytes_of(to_type), "out"), to_type, weight_.rows, weight_.rows};
    product(from, from_type, stride, tokens, to, isa_named(isa_name), exact);
  }

  Stream stream() const override { return {weight_.data, panels_of(weight_.rows), weight_.panel_bytes()}; }

  int64_t out_features() const override { return weight_.rows; }
  int64_t in_features() const override { return weight_.inputs; }

  void multiply(const float* x, int64_t stride, int64_t tokens, float* out, int64_t out_stride,
                bool exact) const override {
    product(x, Float::f32, stride, tokens, {out, Float::f32, weight_.rows, out_stride}, isa(), exact);
  }

  const TokenPacker* packer(int64_t tokens, bool exact) const override {
    const PanelKernels<Int8Panels>* kernels = exact ? nullptr : widened(isa(), tokens);
    return kernels == nullptr ? nullptr : &kernels->tokens;
  }

  void multiply_panels(const Activations& x, const Output& out, int64_t begin, int64_t end, int64_t first, int64_t last,
                       bool) const override {
    widened_int8(isa(), kFewestTiled)->multiply(weight_, x, out, begin, end, first, last);
  }

  bool adds(int64_t tokens, bool exact) const override { return tokens > kFewTiled && packer(tokens, exact) != nullptr; }

  WidenRows widener(int64_t block, bool) const override {
    return [this, block](int64_t begin, int64_t end, uint8_t* to) {
      return widened_int8(isa(), kFewestTiled)->widen(weight_, block, begin, end, to);
    };
  }

  void gather(const int64_t* index, int64_t count, float* out, int64_t out_stride) const override {
    put_rows(index, count, out, Float::f32, out_stride);
  }

  void rows(uintptr_t index, int64_t count, uintptr_t out, int out_type) const {
    require(count > 0 && count <= kMostNumbers / weight_.inputs, "There must be 1 to 2^40 results");
    const Float type = float_type(out_type, "out");
    const int64_t* chosen = pointer<const int64_t>(index, 8, "index");
    void* to = pointer<void>(out, bytes_of(type), "out");
    require_indices(chosen, count, weight_.rows);
    put_rows(chosen, count, to, type, weight_.inputs);
  }

  int64_t size_bytes() const {
    return codes_.size() + scales_.size() + minimums_.size() + coarse_.size() + coarse_minimums_.size();
  }

 private:
  const PanelKernels<Int8Panels>* widened(Isa isa, int64_t tokens) const {
    return int8_tiles(weight_, isa, tokens) == nullptr ? widened_int8(isa, tokens) : nullptr;
  }

  void product(const void* from, Float from_type, int64_t stride, int64_t tokens, const Output& to, Isa isa,
               bool exact) const {
    if (exact) return multiply_exactly(from, from_type, stride, tokens, to, isa);
    if (const PanelKernels<Int8Panels>* kernels = widened(isa, tokens)) {
      return modulm::multiply_panels(*kernels, weight_, from, from_type, stride, tokens, weight_.inputs, to, pool());
    }
    const Int8Kernels* tiles = int8_tiles(weight_, isa, tokens);
    const Int8Kernels& kernels = tiles == nullptr ? int8(isa) : *tiles;
    const ActivationKernels& quantizer = activations(isa);
    const int64_t tile = tiles == nullptr ? 1 : tiles->tile;
    const int64_t bytes = QuantizedRows::bytes_for(tokens, weight_.inputs, weight_.unit, tile);
    uint8_t* memory = scratch(bytes);
    const QuantizedRows quantized = QuantizedRows::in(memory, tokens, weight_.inputs, weight_.unit, tile);
    pool().run(tokens, grain(), [&](int64_t begin, int64_t end) {
      quantizer.quantize_rows(from, from_type, stride, begin, end, weight_.inputs, quantized);
    });
    share_out(pool(), panels_of(weight_.rows), tokens, kernels.most_tokens, kernels.tile, {memory, bytes},
              [&](int64_t begin, int64_t end, int64_t first, int64_t last) {
                kernels.fast(weight_, quantized, to, begin, end, first, last);
              });
  }

  void put_rows(const int64_t* chosen, int64_t count, void* to, Float type, int64_t stride) const {
    pool().run(count, grain(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) put_int8_row(weight_, chosen[i], to, type, i * stride);
    });
  }

  int64_t grain() const { return 1 + (1 << 14) / weight_.inputs; }

  // Minimums that do not lie in one byte with scales.
  bool has_own_minimums() const { return weight_.has_minimums() && weight_.steps.multiples != Multiples::both; }

  VectorSource set_vectors(uintptr_t places, const VectorArguments& arguments) {
    const auto [signs, table, count, length, sign_bits, shift, has_wide_shifts] = arguments;
    require((length == 4 || length == 8) && count > 0 && count <= 256 << 3, "Vectors are up to 2,048 of 4 or 8 inputs");
    require(sign_bits == 0 || sign_bits == 7 || sign_bits == 8, "Signs have 7 or 8 bits for 8 inputs");
    require(shift >= 0 && shift < 256 && (shift == 0 || (length == 8 && sign_bits == 0)),
            "Shifts are bytes, of vectors of 8 inputs without signs");
    require(!has_wide_shifts || shift > 0, "There are no shifts that could be for 32 inputs");
    int planes = 0;
    while (count > int64_t(256) << planes) ++planes;
    const uint8_t* from = pointer<const uint8_t>(table, 1, "The table");
    weight_.vectors = {shared_table(from, count * length), length, planes, sign_bits, shift, has_wide_shifts};
    return {pointer<const uint16_t>(places, 2, "The places"),
            sign_bits == 0 ? nullptr : pointer<const uint8_t>(signs, 1, "The signs"), count};
  }

  // Tables that many weights have, which are few: one copy for all, and for good.
  static const uint8_t* shared_table(const uint8_t* from, int64_t bytes) {
    static std::mutex mutex;
    static std::set<std::string> tables;
    const std::lock_guard<std::mutex> guard(mutex);
    return reinterpret_cast<const uint8_t*>(tables.emplace(from, from + bytes).first->data());
  }

  void set_steps(const StepArguments& arguments) {
    const auto [span, multiples, unit, scales, minimums] = arguments;
    require(span >= 0, "A coarse scale has a number of groups");
    if (span == 0) return;
    require(span * weight_.group * weight_.unit == kChunkBlocks * kBlockInputs, "Coarse scales are of 256 inputs");
    require(weight_.kind != Zero::points, "Zero points have scales of their own");
    require(multiples >= 0 && multiples <= 2, "Multiples lie in no known way");
    const Multiples how = Multiples(multiples);
    require(how != Multiples::both || weight_.kind == Zero::minimums, "Scales in nibbles have minimums beside them");
    require(how != Multiples::odd || !weight_.has_minimums(), "Odd multiples have no minimums");
    weight_.steps = {span, how, unit, nullptr, nullptr};
    coarse_ = packed(pointer<const void>(scales, 2, "The coarse scales"));
    weight_.steps.scales = coarse_.data();
    if (!weight_.has_minimums()) return;
    coarse_minimums_ = packed(pointer<const void>(minimums, 2, "The coarse minimums"));
    weight_.steps.minimums = coarse_minimums_.data();
  }

  Bytes packed(const void* coarse) const {
    const int64_t panels = panels_of(weight_.rows), columns = weight_.coarse_groups();
    Bytes to = Bytes::beside_others(panels * columns * kPanelRows * 2);
    for (int64_t panel = 0; panel < panels; ++panel) {
      pack_numbers<uint16_t>(coarse, weight_.rows, columns, panel, to.data());
    }
    return to;
  }

  void pack(const CodeSource& source, const VectorSource& vectors, const void* scales, const void* minimums) {
    const int64_t panels = panels_of(weight_.rows);
    codes_ = Bytes::beside_others(panels * weight_.panel_bytes());
    scales_ = Bytes::beside_others(weight_.scale_at(panels, 0));
    if (minimums != nullptr) minimums_ = Bytes::beside_others(weight_.minimum_at(panels, 0));
    std::atomic<bool> fit{true};
    pool().run(panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) {
        uint8_t* codes = codes_.data() + panel * weight_.panel_bytes();
        if (vectors.places == nullptr ? !pack_codes(weight_, source, panel, codes)
                                      : !pack_vectors(weight_, vectors, panel, codes)) {
          fit = false;
        }
        pack_scales(scales, panel, scales_.data(), weight_.steps.span > 0);
        if (minimums == nullptr) continue;
        pack_scales(minimums, panel, minimums_.data(), weight_.steps.span > 0 || weight_.kind == Zero::points);
      }
    });
    require(fit, "There are codes that need more bits than the weight says");
    weight_.data = codes_.data();
    weight_.scales = scales_.data();
    weight_.minimums = weight_.steps.multiples == Multiples::both ? scales_.data() : minimums_.data();
  }

  void pack_scales(const void* from, int64_t panel, uint8_t* to, bool are_bytes) const {
    const int64_t bytes = weight_.steps.multiples == Multiples::odd ? weight_.groups() / 2 : weight_.groups();
    if (are_bytes) return pack_numbers<uint8_t>(from, weight_.rows, bytes, panel, to);
    if (weight_.scale_type == Float::f32) return pack_numbers<float>(from, weight_.rows, weight_.groups(), panel, to);
    pack_numbers<uint16_t>(from, weight_.rows, weight_.groups(), panel, to);
  }

  void multiply_exactly(const void* x, Float type, int64_t stride, int64_t tokens, const Output& to, Isa isa) const {
    const DenseKernels& widener = dense(isa);
    const Int8Kernels& kernels = int8(isa);
    const int64_t inputs = weight_.inputs;
    const Activations packed = Activations::in(scratch(Activations::bytes_for(tokens, inputs)), tokens, inputs);
    pool().run(tokens, grain(), [&](int64_t begin, int64_t end) {
      widener.tokens.pack(x, type, stride, begin, end, packed);
    });
    share_out(pool(), panels_of(weight_.rows), tokens, kernels.most_tokens, widener.tokens.tile, Prepared::of(packed),
              [&](int64_t begin, int64_t end, int64_t first, int64_t last) {
                kernels.exact(weight_, packed, to, begin, end, first, last);
              });
  }

  Bytes codes_, scales_, minimums_, coarse_, coarse_minimums_;
  Int8Panels weight_;
};

// Scales float32 [rows, groups] as multiples int8 of the same shape of coarse ones, float32 [rows, groups / span]. Returns
// whether all are such.
bool steps_of_scales(uintptr_t scales, int64_t rows, int64_t groups, int64_t span, uintptr_t steps, uintptr_t coarse) {
  require_shape(rows, groups);
  require(span > 0 && groups % span == 0, "Spans do not divide the groups");
  const float* from = pointer<const float>(scales, 4, "The scales");
  int8_t* times = pointer<int8_t>(steps, 1, "The multiples");
  float* to = pointer<float>(coarse, 4, "The coarse scales");
  std::atomic<bool> found{true};
  pool().run(rows * groups / span, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end && found; ++i) {
      to[i] = coarse_scale(from + i * span, span, times + i * span);
      if (std::isnan(to[i])) found = false;
    }
  });
  return found;
}

}  // namespace

void bind_linear_int8(nb::module_& m) {
  using Unlocked = nb::call_guard<nb::gil_scoped_release>;
  m.def("steps_of_scales", &steps_of_scales, nb::arg("scales"), nb::arg("rows"), nb::arg("groups"), nb::arg("span"),
        nb::arg("steps"), nb::arg("coarse"), Unlocked());
  nb::class_<Int8Weight, PackedWeight>(m, "Int8Weight", "A matrix of codes in panels; see packed_int8.py.")
      .def(nb::init<uintptr_t, bool, int64_t, int64_t, int64_t, int, int64_t, uintptr_t, uintptr_t, int, int, int,
                    const StepArguments&, const Table&, const VectorArguments&>(),
           nb::arg("codes"), nb::arg("is_signed"), nb::arg("rows"), nb::arg("inputs"), nb::arg("stride"),
           nb::arg("bits"), nb::arg("group_size"), nb::arg("scales"), nb::arg("minimums"), nb::arg("scale_type"),
           nb::arg("kind"), nb::arg("zero"), nb::arg("steps") = StepArguments(0, false, 1.0f, 0, 0),
           nb::arg("table") = Table{}, nb::arg("vectors") = VectorArguments(0, 0, 0, 0, 0, 0, false), Unlocked())
      .def("linear", &Int8Weight::linear, nb::arg("x"), nb::arg("x_type"), nb::arg("stride"), nb::arg("tokens"),
           nb::arg("out"), nb::arg("out_type"), nb::arg("isa") = "", nb::arg("exact") = false, Unlocked())
      .def("rows", &Int8Weight::rows, nb::arg("index"), nb::arg("count"), nb::arg("out"), nb::arg("out_type"),
           Unlocked())
      .def_prop_ro("size_bytes", &Int8Weight::size_bytes);
}

}  // namespace modulm
