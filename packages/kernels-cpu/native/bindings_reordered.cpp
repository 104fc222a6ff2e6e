// A packed weight whose inputs are stored in another order, for step programs: activations are brought into it first.
// What Python multiplies eagerly it reorders itself, in packed_reordered.py.
#include <nanobind/ndarray.h>

#include <algorithm>
#include <vector>

#include "bindings.hpp"
#include "linear_dense_arguments.hpp"
#include "linear_dense_memory.hpp"
#include "packed_weight.hpp"

namespace nb = nanobind;

namespace modulm {
namespace {

using Order = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

class ReorderedWeight : public PackedWeight {
 public:
  ReorderedWeight(PackedWeight* inner, const Order& order) : inner_(inner) {
    require(int64_t(order.shape(0)) == inner->in_features(), "order must have a place for each input");
    order_.assign(order.data(), order.data() + order.shape(0));
    std::vector<bool> seen(order_.size());
    for (const int32_t place : order_) {
      require(place >= 0 && size_t(place) < order_.size() && !seen[size_t(place)], "order must be a permutation");
      seen[size_t(place)] = true;
    }
  }

  Stream stream() const override { return inner_->stream(); }
  void set_next(const Stream& next) override { inner_->set_next(next); }
  int64_t out_features() const override { return inner_->out_features(); }
  int64_t in_features() const override { return inner_->in_features(); }

  void multiply(const float* x, int64_t stride, int64_t tokens, float* out, int64_t out_stride,
                bool exact) const override {
    const int64_t size = in_features();
    float* stored = room(tokens * size);
    pool().run(tokens, std::max<int64_t>(1, kInlineNumbers / size), [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const float* from = x + token * stride;
        float* to = stored + token * size;
        for (int64_t i = 0; i < size; ++i) to[i] = from[order_[size_t(i)]];
      }
    });
    inner_->multiply(stored, size, tokens, out, out_stride, exact);
  }

  void gather(const int64_t* index, int64_t count, float* out, int64_t out_stride) const override {
    const int64_t size = in_features();
    float* stored = room(count * size);
    inner_->gather(index, count, stored, size);
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t i = 0; i < size; ++i) out[row * out_stride + order_[size_t(i)]] = stored[row * size + i];
    }
  }

 private:
  static constexpr int64_t kInlineNumbers = 4 << 10;  // so many are moved faster than a worker wakes

  // Apart from `scratch`, which the inner weight uses meanwhile.
  static float* room(int64_t numbers) {
    thread_local Bytes bytes;
    if (bytes.size() < numbers * 4) {
      bytes = Bytes();
      bytes = Bytes(numbers * 4);
    }
    return reinterpret_cast<float*>(bytes.data());
  }

  PackedWeight* inner_;  // kept alive by Python
  std::vector<int32_t> order_;
};

}  // namespace

void bind_reordered(nb::module_& m) {
  nb::class_<ReorderedWeight, PackedWeight>(m, "ReorderedWeight", "Column j of `inner` belongs to input order[j].")
      .def(nb::init<PackedWeight*, const Order&>(), nb::arg("inner"), nb::arg("order"), nb::keep_alive<1, 2>());
}

}  // namespace modulm
