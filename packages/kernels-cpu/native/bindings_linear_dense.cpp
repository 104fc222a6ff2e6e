#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bindings.hpp"
#include "linear_dense.hpp"
#include "linear_dense_arguments.hpp"
#include "linear_dense_memory.hpp"
#include "packed_weight.hpp"

namespace nb = nanobind;

namespace modulm {
namespace {

// Where input `input` of panel row `row` lies, in numbers from the panel's beginning.
int64_t place(Element element, int64_t row, int64_t input) {
  if (!in_pairs(element)) return input * kPanelRows + row;
  return (input / 2 * kPanelRows + row) * 2 + input % 2;
}

template <class Number>
void pack_panel(const void* data, int64_t stride, int64_t panel, const DensePanels& weight, void* packed) {
  const Number* from = static_cast<const Number*>(data);
  Number* to = static_cast<Number*>(packed);
  const int64_t first = panel * kPanelRows, left = weight.rows - first, count = left < kPanelRows ? left : kPanelRows;
  if (count < kPanelRows || weight.inputs % 4 != 0) std::memset(to, 0, size_t(weight.panel_bytes()));
  for (int64_t input = 0; input < weight.inputs; ++input) {
    for (int64_t row = 0; row < count; ++row) {
      to[place(weight.element, row, input)] = from[(first + row) * stride + input];
    }
  }
}

float widened(Element element, const uint8_t* panel, int64_t at) {
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel);
  switch (element) {
    case Element::f32: return reinterpret_cast<const float*>(panel)[at];
    case Element::f16: return from_f16(halves[at]);
    case Element::bf16: return from_bf16(halves[at]);
    case Element::e5m2: return from_e5m2(panel[at]);
    case Element::e4m3: break;
  }
  return from_e4m3(panel[at]);
}

// A matrix of plain numbers in panels, and what can be asked of it.
class DenseWeight : public PackedWeight {
 public:
  // `data` is [rows, inputs], rows `stride` numbers apart. `scales` is for 8-bit floats: float32, one for each block of
  // block_rows x block_inputs, row-major.
  DenseWeight(uintptr_t data, int element, int64_t rows, int64_t inputs, int64_t stride, uintptr_t scales,
              int64_t num_scales, int64_t block_rows, int64_t block_inputs) {
    require(element >= 0 && element <= 4, "The weight has no known type");
    require_shape(rows, inputs);
    require(stride >= inputs && stride <= kMostNumbers / rows, "The weight has rows that overlap");
    weight_ = {Element(element), rows, inputs, nullptr, {}, nullptr};
    if (weight_.element >= Element::e4m3) copy_scales(scales, num_scales, block_rows, block_inputs);
    const int64_t bytes = bytes_of(weight_.element);
    const uint8_t* from = pointer<const uint8_t>(data, bytes, "The weight");
    data_ = Bytes::beside_others(panels_of(rows) * weight_.panel_bytes());
    weight_.data = data_.data();
    pool().run(panels_of(rows), 1, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) pack(from, stride, panel);
    });
    if (weight_.element >= Element::e4m3) find_special_numbers();
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

  int64_t out_features() const override { return weight_.rows; }
  int64_t in_features() const override { return weight_.inputs; }

  void multiply(const float* x, int64_t stride, int64_t tokens, float* out, int64_t out_stride,
                bool exact) const override {
    product(x, Float::f32, stride, tokens, {out, Float::f32, weight_.rows, out_stride}, isa(), exact);
  }

  const TokenPacker* packer(int64_t, bool exact) const override {
    return &dense_for(weight_.element, exact, isa()).tokens;
  }

  void multiply_panels(const Activations& x, const Output& out, int64_t begin, int64_t end, int64_t first, int64_t last,
                       bool exact) const override {
    dense_for(weight_.element, exact, isa()).multiply(weight_, x, out, begin, end, first, last);
  }

  WidenRows widener(int64_t block, bool exact) const override {
    if (dense_for(weight_.element, exact, isa()).widen == nullptr) return nullptr;
    return [this, block](int64_t begin, int64_t end, uint8_t* to) {
      return dense_for(weight_.element, false, isa()).widen(weight_, block, begin, end, to);
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

  int64_t size_bytes() const { return data_.size() + scales_.size() + nan_rows_.size() + small_steps_.size(); }

 private:
  void product(const void* from, Float from_type, int64_t stride, int64_t tokens, const Output& to, Isa isa,
               bool exact) const {
    const DenseKernels& kernels = dense_for(weight_.element, exact, isa);
    modulm::multiply_panels(kernels, weight_, from, from_type, stride, tokens, weight_.inputs, to, pool());
  }

  void put_rows(const int64_t* chosen, int64_t count, void* to, Float type, int64_t stride) const {
    pool().run(count, 1 + (1 << 14) / weight_.inputs, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) put_row(chosen[i], to, type, i * stride);
    });
  }

  // Blocks of less than a panel's rows become one scale for each row; powers of two become their exponents.
  void copy_scales(uintptr_t scales, int64_t num_scales, int64_t block_rows, int64_t block_inputs) {
    require(block_rows > 0 && block_inputs > 0, "A block of scales needs at least one row and one input");
    const int64_t high = (weight_.rows + block_rows - 1) / block_rows;
    const int64_t wide = (weight_.inputs + block_inputs - 1) / block_inputs;
    require(num_scales == high * wide, "There must be one scale for each block");
    require(wide == 1 || block_inputs % 32 == 0, "A block of scales has a multiple of 32 inputs, or whole rows");
    const float* from = pointer<const float>(scales, 4, "The scales");
    BlockScales& to = weight_.scales;
    to.by_row = high > 1 && block_rows % kPanelRows != 0;
    to.rows = high == 1 ? panels_of(weight_.rows) * kPanelRows : block_rows;
    to.inputs = block_inputs;
    to.columns = wide;
    const int64_t count = to.by_row ? panels_of(weight_.rows) * wide * kPanelRows : num_scales;
    const auto value = [&](int64_t at) {
      if (!to.by_row) return from[at];
      const int64_t row = at / (wide * kPanelRows) * kPanelRows + at % kPanelRows;
      return row < weight_.rows ? from[row / block_rows * wide + at / kPanelRows % wide] : 1.0f;
    };
    const bool are_powers = std::all_of(from, from + num_scales, [](float scale) {
      const uint32_t bits = __builtin_bit_cast(uint32_t, scale);
      return bits << 9 == 0 && bits >= 1u << 23 && bits < 255u << 23;
    });
    scales_ = Bytes::beside_others(count * (are_powers ? 1 : 4));
    float* numbers = reinterpret_cast<float*>(scales_.data());
    for (int64_t at = 0; at < count; ++at) {
      if (!are_powers) numbers[at] = value(at);
      if (are_powers) scales_.data()[at] = uint8_t(__builtin_bit_cast(uint32_t, value(at)) >> 23);
    }
    to.are_small = are_powers && std::all_of(from, from + num_scales, [](float scale) {
      return scale >= 0x1p-100f && scale <= 0x1p100f;
    });
    to.numbers = are_powers ? nullptr : numbers;
    to.exponents = are_powers ? scales_.data() : nullptr;
  }

  // Of 8-bit floats: rows that have what is not finite, and where numbers are subnormal or 0.
  void find_special_numbers() {
    const bool is_e4m3 = weight_.element == Element::e4m3;
    const int finite = is_e4m3 ? 0x7e : 0x7b, normal = is_e4m3 ? 0x08 : 0x04;  // the largest and the smallest magnitude
    const int64_t panels = panels_of(weight_.rows), bytes = weight_.panel_bytes(), steps = weight_.small_steps_of_panel();
    std::vector<uint32_t> found(size_t(panels), 0u);
    small_steps_ = Bytes::beside_others(panels * steps);
    pool().run(panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin * bytes; at < end * bytes; ++at) {
        const uint32_t row = uint32_t(at / 2 % kPanelRows);
        if ((weight_.data[at] & 0x7f) > finite) found[size_t(at / bytes)] |= 1u << row;
      }
      for (int64_t at = begin * steps; at < end * steps; ++at) {
        const int64_t from = at % steps * kStepNumbers;
        const uint8_t* step = weight_.data + at / steps * bytes + from;
        int smallest = normal;
        for (int64_t i = 0; i < std::min(kStepNumbers, bytes - from); ++i) smallest = std::min(smallest, step[i] & 0x7f);
        small_steps_.data()[at] = smallest < normal;
      }
    });
    weight_.small_steps = small_steps_.data();
    if (std::all_of(found.begin(), found.end(), [](uint32_t rows) { return rows == 0; })) return;
    nan_rows_ = Bytes::beside_others(panels * 4);
    std::memcpy(nan_rows_.data(), found.data(), size_t(panels) * 4);
    weight_.nan_rows = reinterpret_cast<const uint32_t*>(nan_rows_.data());
  }

  void pack(const uint8_t* from, int64_t stride, int64_t panel) {
    uint8_t* to = data_.data() + panel * weight_.panel_bytes();
    switch (bytes_of(weight_.element)) {
      case 4: return pack_panel<uint32_t>(from, stride, panel, weight_, to);
      case 2: return pack_panel<uint16_t>(from, stride, panel, weight_, to);
      default: return pack_panel<uint8_t>(from, stride, panel, weight_, to);
    }
  }

  void put_row(int64_t row, void* to, Float type, int64_t at) const {
    const uint8_t* panel = weight_.data + row / kPanelRows * weight_.panel_bytes();
    const bool is_scaled = weight_.element >= Element::e4m3;
    for (int64_t input = 0; input < weight_.inputs; ++input) {
      float value = widened(weight_.element, panel, place(weight_.element, row % kPanelRows, input));
      if (is_scaled) {
        value *= scale_of(weight_.scales, row / kPanelRows, row % kPanelRows, input / weight_.scales.inputs);
      }
      put(value, to, type, at + input);
    }
  }

  Bytes data_, scales_, nan_rows_, small_steps_;
  DensePanels weight_;
};

}  // namespace

void bind_linear_dense(nb::module_& m) {
  using Unlocked = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<DenseWeight, PackedWeight>(m, "DenseWeight", "A matrix of plain numbers in panels; see packed_dense.py.")
      .def(nb::init<uintptr_t, int, int64_t, int64_t, int64_t, uintptr_t, int64_t, int64_t, int64_t>(), nb::arg("data"),
           nb::arg("element"), nb::arg("rows"), nb::arg("inputs"), nb::arg("stride"), nb::arg("scales") = 0,
           nb::arg("num_scales") = 0, nb::arg("block_rows") = 1, nb::arg("block_inputs") = 1, Unlocked())
      .def("linear", &DenseWeight::linear, nb::arg("x"), nb::arg("x_type"), nb::arg("stride"), nb::arg("tokens"),
           nb::arg("out"), nb::arg("out_type"), nb::arg("isa") = "", nb::arg("exact") = false, Unlocked())
      .def("rows", &DenseWeight::rows, nb::arg("index"), nb::arg("count"), nb::arg("out"), nb::arg("out_type"),
           Unlocked())
      .def_prop_ro("size_bytes", &DenseWeight::size_bytes)
      .def_static("rounds", [](int element) {
        return &dense_for(Element(element), false, isa()) != &dense(isa());
      }, nb::arg("element"), "Whether activations are rounded to bfloat16 unless a product is to be exact.");
}

}  // namespace modulm
