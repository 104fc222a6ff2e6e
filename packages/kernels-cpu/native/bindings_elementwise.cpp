#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "bindings.hpp"
#include "elementwise.hpp"

namespace nb = nanobind;

namespace modulm {
namespace {

constexpr int64_t kNumbersAtOnce = 8192;  // about a microsecond; less is not worth waking a thread

template <class T, size_t kDimensions>
using Host = nb::ndarray<T, nb::ndim<kDimensions>, nb::c_contig, nb::device::cpu>;
using In = Host<const float, 2>;
using Out = Host<float, 2>;
using Vector = Host<const float, 1>;
using Strided = nb::ndarray<float, nb::ndim<3>, nb::device::cpu>;

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

// Whether a and b have a number in common, unless they begin alike.
bool overlap_apart(const float* a, int64_t a_count, const float* b, int64_t b_count) {
  return a != b && a < b + b_count && b < a + a_count;
}

template <class Body>
void over_rows(int64_t rows, int64_t size, const Body& body) {
  pool().run(rows, std::max<int64_t>(1, kNumbersAtOnce / std::max<int64_t>(1, size)), body);
}

void rms_norm(const In& x, const Vector& weight, const Out& out, double eps, bool unit_offset, const std::string& isa) {
  const int64_t rows = int64_t(x.shape(0)), size = int64_t(x.shape(1));
  require(int64_t(weight.shape(0)) == size && int64_t(out.shape(0)) == rows && int64_t(out.shape(1)) == size,
          "rms_norm: x and out must be [rows, size], weight [size]");
  require(std::isfinite(eps) && eps >= 0.0, "rms_norm: eps must be finite and not negative");
  require(!overlap_apart(x.data(), rows * size, out.data(), rows * size), "rms_norm: out must be x or apart from it");
  const ElementwiseKernels& kernels = elementwise(isa_named(isa));
  nb::gil_scoped_release release;
  over_rows(rows, size, [&](int64_t begin, int64_t end) {
    kernels.rms_norm(x.data(), weight.data(), out.data(), begin, end, size, float(eps), unit_offset ? 1.0f : 0.0f);
  });
}

void gated_activation(const In& x, const Out& out, const std::string& name, const std::string& isa) {
  const int64_t rows = int64_t(x.shape(0)), size = int64_t(x.shape(1)) / 2;
  require(x.shape(1) % 2 == 0 && int64_t(out.shape(0)) == rows && int64_t(out.shape(1)) == size,
          "gated_activation: gate_up must be [rows, 2 * size], out [rows, size]");
  require(name == "silu" || name == "gelu_tanh", "gated_activation: activation must be silu or gelu_tanh");
  require(x.data() != out.data() && !overlap_apart(x.data(), rows * 2 * size, out.data(), rows * size),
          "gated_activation: out must be apart from gate_up");
  const Activation act = name == "silu" ? Activation::silu : Activation::gelu_tanh;
  const ElementwiseKernels& kernels = elementwise(isa_named(isa));
  nb::gil_scoped_release release;
  over_rows(rows, 4 * size, [&](int64_t begin, int64_t end) {
    kernels.gated_activation(x.data(), 2 * size, out.data(), size, begin, end, size, act);
  });
}

void rotary(const Strided& x, const In& cos, const In& sin, const std::string& isa) {
  const int64_t tokens = int64_t(x.shape(0)), width = int64_t(cos.shape(1));
  const Heads heads{x.data(), int64_t(x.shape(1)), int64_t(x.shape(2)), x.stride(0), x.stride(1)};
  require(heads.head_size <= 1 || x.stride(2) == 1, "rotary: numbers of a head must be adjacent");
  require(int64_t(cos.shape(0)) == tokens && int64_t(sin.shape(0)) == tokens && sin.shape(1) == cos.shape(1) &&
              width % 2 == 0 && width <= heads.head_size,
          "rotary: cos and sin must be [num_tokens, an even width up to head_size]");
  require((heads.num_heads <= 1 || heads.head_stride >= heads.head_size) &&
              (tokens <= 1 || heads.token_stride >= (heads.num_heads - 1) * heads.head_stride + heads.head_size),
          "rotary: heads and tokens must not share memory");
  const ElementwiseKernels& kernels = elementwise(isa_named(isa));
  nb::gil_scoped_release release;
  over_rows(tokens, heads.num_heads * width,
            [&](int64_t begin, int64_t end) { kernels.rotary(heads, cos.data(), sin.data(), width, begin, end); });
}

void add(const In& a, const In& b, const Out& out, const std::string& isa) {
  const int64_t count = int64_t(a.shape(0) * a.shape(1));
  require(
      a.shape(0) == b.shape(0) && a.shape(1) == b.shape(1) && a.shape(0) == out.shape(0) && a.shape(1) == out.shape(1),
      "add: a, b and out must have one shape");
  require(!overlap_apart(a.data(), count, out.data(), count) && !overlap_apart(b.data(), count, out.data(), count),
          "add: out must be an operand or apart from both");
  const ElementwiseKernels& kernels = elementwise(isa_named(isa));
  nb::gil_scoped_release release;
  pool().run(count, 4 * kNumbersAtOnce,
             [&](int64_t begin, int64_t end) { kernels.add(a.data(), b.data(), out.data(), begin, end); });
}

}  // namespace

void bind_elementwise(nb::module_& m) {
  // Or nanobind would copy an array of another type or layout, and what is written to a copy is lost.
  const auto exact = [](const char* name) { return nb::arg(name).noconvert(); };
  m.def("rms_norm", &rms_norm, exact("x"), exact("weight"), exact("out"), nb::arg("eps"),
        nb::arg("unit_offset") = false, nb::arg("isa") = "",
        "out = x / rms(x) * weight, or * (1 + weight) with unit_offset; out may be x.");
  m.def("gated_activation", &gated_activation, exact("gate_up"), exact("out"), nb::arg("activation"),
        nb::arg("isa") = "", "out = activation(gate) * up; gate and up stand side by side.");
  m.def("rotary", &rotary, exact("x"), exact("cos"), exact("sin"), nb::arg("isa") = "",
        "Turn x [num_tokens, heads, head_size] in place, halves paired; heads and tokens may be strided.");
  m.def("add", &add, exact("a"), exact("b"), exact("out"), nb::arg("isa") = "", "out = a + b; out may be either.");
}

}  // namespace modulm
