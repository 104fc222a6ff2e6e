#include <nanobind/ndarray.h>

#include <stdexcept>

#include "bindings.hpp"
#include "elementwise.hpp"

namespace nb = nanobind;

namespace modulm {
namespace {

using In = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void rms_norm(In x, Vector weight, Out out, float eps) {
  const int64_t rows = int64_t(x.shape(0)), size = int64_t(x.shape(1));
  if (int64_t(weight.shape(0)) != size || int64_t(out.shape(0)) != rows || int64_t(out.shape(1)) != size) {
    throw std::invalid_argument("rms_norm: x and out must be [rows, size], weight [size]");
  }
  const float *from = x.data(), *scale = weight.data();
  float* to = out.data();
  pool().run(rows, 8, [=](int64_t begin, int64_t end) { elementwise().rms_norm(from, scale, to, begin, end, size, eps); });
}

}  // namespace

void bind_elementwise(nb::module_& m) {
  m.def("rms_norm", &rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("out"), nb::arg("eps"),
        nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace modulm
