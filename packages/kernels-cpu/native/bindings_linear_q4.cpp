// Packed 4-bit weights for Python. Tensors of activations come as addresses with their shapes, because wrapping them in
// an ndarray would cost more than a small product; the caller in packed_q4.py made or checked them.
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "bindings.hpp"
#include "linear_dense_arguments.hpp"
#include "linear_q4_weight.hpp"

namespace nb = nanobind;

namespace modulm {
namespace {

using Codes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Scales = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Values = std::array<float, 16>;
using Steps = std::array<int8_t, 16>;

Float type_of(const Scales& scales) {
  if (scales.dtype() == nb::dtype<float>()) return Float::f32;
  require(scales.dtype().code == uint8_t(nb::dlpack::dtype_code::Float) && scales.dtype().bits == 16,
          "Scales and minimums must be float32 or float16.");
  return Float::f16;
}

// A unit of 32 inputs, or 16 where groups are no multiple of 32; a group that is a whole row is filled up.
Q4View view_of(int64_t out_features, int64_t in_features, int64_t group_size) {
  require(out_features > 0 && in_features > 0 && in_features % 2 == 0, "Codes must have rows of whole bytes.");
  require(group_size > 0 && in_features % group_size == 0, "group_size must divide in_features.");
  require(group_size % 16 == 0 || group_size == in_features, "group_size must be a multiple of 16 or a whole row.");
  Q4View view{};
  view.out_features = out_features;
  view.in_features = in_features;
  view.unit = group_size % 32 == 16 ? 16 : 32;
  view.units_per_group = (group_size + view.unit - 1) / view.unit;
  view.groups = in_features / group_size;
  return view;
}

void check_scales(const Scales& scales, const Q4View& view, const char* message) {
  require(int64_t(scales.shape(0)) == view.out_features && int64_t(scales.shape(1)) == view.groups, message);
}

std::unique_ptr<Q4Weight> finish(Q4View view, const Codes& codes, const Scales& scales, const void* minimums,
                                 int scale_type, bool exact, const std::string& isa) {
  const Q4Source source{codes.data(), scales.data(), minimums, type_of(scales)};
  const bool are_bytes = scale_type > int(ScaleType::f16);
  require(scale_type >= 0 && scale_type <= int(ScaleType::exponent), "scale_type is unknown.");
  require(!are_bytes || view.kind != Q4Kind::minimums, "Scales beside minimums must have 16 or 32 bits.");
  view.scale_type = ScaleType(scale_type);
  const Isa which = isa_named(isa);
  check_scales(scales, view, "scales must be [out_features, in_features / group_size].");
  nb::gil_scoped_release release;
  return std::make_unique<Q4Weight>(view, source, which, exact, pool());
}

std::unique_ptr<Q4Weight> grouped(Codes codes, Scales scales, std::optional<Scales> minimums,
                                  std::optional<Codes> zero_points, int64_t group_size, int offset, int scale_type,
                                  bool exact, const std::string& isa) {
  Q4View view = view_of(int64_t(codes.shape(0)), 2 * int64_t(codes.shape(1)), group_size);
  require(!minimums || !zero_points, "There are minimums or zero_points, not both.");
  view.kind = minimums || zero_points ? Q4Kind::minimums : Q4Kind::offset;
  view.zero_points = zero_points.has_value();
  require(offset >= 0 && offset <= 15, "offset must be a code.");
  view.offset = offset;
  if (minimums) {
    check_scales(*minimums, view, "minimums must have the shape of scales.");
    require(type_of(*minimums) == type_of(scales), "minimums must have the type of scales.");
  }
  if (zero_points) {
    require(zero_points->shape(0) == scales.shape(0) && zero_points->shape(1) == scales.shape(1),
            "zero_points must have the shape of scales.");
    return finish(view, codes, scales, zero_points->data(), scale_type, exact, isa);
  }
  return finish(view, codes, scales, minimums ? minimums->data() : nullptr, scale_type, exact, isa);
}

std::unique_ptr<Q4Weight> codebook(Codes codes, Scales scales, const Values& values, const Steps& steps, float step,
                                   int64_t group_size, int scale_type, bool exact, const std::string& isa) {
  Q4View view = view_of(int64_t(codes.shape(0)), 2 * int64_t(codes.shape(1)), group_size);
  view.kind = Q4Kind::codebook;
  for (int i = 0; i < 16; ++i) {
    require(steps[size_t(i)] >= -127, "steps must be -127 to 127.");
    view.values[i] = values[size_t(i)];
    view.steps[i] = steps[size_t(i)];
  }
  view.step = step;
  return finish(view, codes, scales, nullptr, scale_type, exact, isa);
}

void linear(const Q4Weight& self, uintptr_t x, int x_type, int64_t stride, int64_t tokens, uintptr_t out, int out_type,
            const std::string& isa) {
  const Q4View& view = self.view();
  const Float from = float_type(x_type, "x"), to = float_type(out_type, "out");
  require_tokens(tokens, stride, view.in_features);
  require(tokens <= kMostNumbers / view.out_features, "There are more than 2^40 results");
  require(isa.empty() || isa == name_of(self.isa()), "This weight is packed for another instruction set");
  const Q4Out results{pointer<void>(out, bytes_of(to), "out"), to, view.out_features};
  self.linear(pointer<const void>(x, bytes_of(from), "x"), from, stride, tokens, results, pool());
}

void rows(const Q4Weight& self, uintptr_t index, int64_t count, uintptr_t out, int out_type) {
  const Q4View& view = self.view();
  const Float to = float_type(out_type, "out");
  require(count > 0, "There must be at least one index");
  const int64_t* from = pointer<const int64_t>(index, 8, "index");
  require_indices(from, count, view.out_features);
  self.rows(from, count, Q4Out{pointer<void>(out, bytes_of(to), "out"), to, view.in_features}, pool());
}

// For tests: rows of x quantised as the kernels see them.
template <class Number>
using Rows = nb::ndarray<Number, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void quantize(Rows<const float> x, Rows<int8_t> codes, Rows<int8_t> high, Rows<float> scales, Rows<float> sums,
              Rows<int32_t> code_sums, int64_t group, const std::string& isa) {
  require(group == 16 || group == 32, "group must be 16 or 32.");
  const size_t rows = x.shape(0), size = x.shape(1), groups = (size + size_t(group) - 1) / size_t(group);
  const auto check = [&](const auto& array, size_t columns, const char* message) {
    require(array.shape(0) == rows && array.shape(1) == columns, message);
  };
  check(codes, groups * size_t(group), "codes must be [rows, groups * group].");
  check(high, groups * size_t(group), "high must have the shape of codes.");
  check(scales, groups, "scales must be [rows, groups].");
  check(sums, groups, "sums must have the shape of scales.");
  check(code_sums, groups, "code_sums must have the shape of scales.");
  std::vector<HighQuad> quads(rows * groups);
  std::vector<int32_t> num_high(rows);
  const QuantizedRows out{int64_t(groups), group,            codes.data(), scales.data(),
                          sums.data(),     code_sums.data(), quads.data(), num_high.data()};
  activations(isa_named(isa)).quantize_rows(x.data(), Float::f32, int64_t(size), 0, int64_t(rows), int64_t(size), out);
  std::fill_n(high.data(), rows * groups * size_t(group), int8_t(0));
  for (size_t row = 0; row < rows; ++row) {
    for (int32_t i = 0; i < num_high[row]; ++i) {
      const HighQuad& quad = quads[row * groups + size_t(i)];
      std::copy_n(quad.codes, 4, high.data() + (row * groups + size_t(quad.unit)) * size_t(group) + 4 * quad.quad);
    }
  }
}

}  // namespace

void bind_linear_q4(nb::module_& m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Q4Weight, PackedWeight>(m, "Q4Weight")
      .def_static("grouped", &grouped, nb::arg("codes"), nb::arg("scales"), nb::arg("minimums").none(),
                  nb::arg("zero_points").none(), nb::arg("group_size"), nb::arg("offset"), nb::arg("scale_type"), nb::arg("exact"), nb::arg("isa") = "")
      .def_static("codebook", &codebook, nb::arg("codes"), nb::arg("scales"), nb::arg("values"), nb::arg("steps"),
                  nb::arg("step"), nb::arg("group_size"), nb::arg("scale_type"), nb::arg("exact"), nb::arg("isa") = "")
      .def("linear", &linear, release(), nb::arg("x"), nb::arg("x_type"), nb::arg("stride"), nb::arg("tokens"),
           nb::arg("out"), nb::arg("out_type"), nb::arg("isa") = "")
      .def("rows", &rows, release(), nb::arg("index"), nb::arg("count"), nb::arg("out"),
           nb::arg("out_type"))
      .def_prop_ro("size_bytes", &Q4Weight::size_bytes);
  m.def("quantize_activations", &quantize, nb::arg("x"), nb::arg("codes"), nb::arg("high"), nb::arg("scales"),
        nb::arg("sums"), nb::arg("code_sums"), nb::arg("group"), nb::arg("isa") = "");
}

}  // namespace modulm
