// Products with a matrix of several parts. Where all of them multiply panel by panel, activations are packed once for all.
#include "program_operations.hpp"

namespace modulm {

// What all parts want, and each begins with a panel of its own; or null.
const TokenPacker* Matrix::packer(int64_t rows) const {
  const TokenPacker* common = nullptr;
  for (const Part& part : parts) {
    const TokenPacker* wanted = part.weight->packer(rows, part.exact);
    if (wanted == nullptr || (common != nullptr && wanted != common)) return nullptr;
    if (&part != &parts.back() && part.weight->out_features() % kPanelRows != 0) return nullptr;
    common = wanted;
  }
  return common;
}

// body(part, begin, end, from) for panels [begin, end) of all parts, as panels of each: its first one is panel `from`.
template <class Body>
void Matrix::over_parts(int64_t begin, int64_t end, const Body& body) const {
  int64_t from = 0;
  for (const Part& part : parts) {
    const int64_t count = panels_of(part.weight->out_features());
    const int64_t first = begin > from ? begin - from : 0, last = end - from < count ? end - from : count;
    if (first < last) body(part, first, last, from);
    from += count;
  }
}

void Matrix::multiply(const Frame& frame, const float* x, int64_t stride, int64_t rows, float* out,
                      int64_t out_stride) const {
  if (const TokenPacker* common = packer(rows)) {
    const int64_t inputs = parts.front().weight->in_features();
    over_panels(*common, x, Float::f32, stride, rows, inputs, panels_of(out_features), *frame.pool,
                [&](const Activations& packed, int64_t begin, int64_t end, int64_t first, int64_t last) {
                  over_parts(begin, end, [&](const Part& part, int64_t some, int64_t stop, int64_t from) {
                    const Output to{out + from * kPanelRows, Float::f32, part.weight->out_features(), out_stride};
                    part.weight->multiply_panels(packed, to, some, stop, first, last, part.exact);
                  });
                });
  } else {
    float* to = out;
    for (const Part& part : parts) {
      part.weight->multiply(x, stride, rows, to, out_stride, part.exact);
      to += part.weight->out_features();
    }
  }
  if (bias.empty()) return;
  const auto add = elementwise().add;
  over_rows(frame, rows, out_features, [&, add](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      add(out + row * out_stride, bias.data(), out + row * out_stride, 0, out_features);
    }
  });
}

bool Matrix::multiply_gated(const Frame& frame, const float* x, int64_t stride, int64_t rows, Activation function,
                            float* out, int64_t out_stride) const {
  const int64_t size = out_features / 2, panels = size / kPanelRows;
  const TokenPacker* common = size % kPanelRows == 0 && bias.empty() ? packer(rows) : nullptr;
  if (common == nullptr) return false;
  const auto gate = elementwise().gated_activation;
  const auto body = [&](const Activations& packed, int64_t begin, int64_t end, int64_t first, int64_t last) {
    thread_local std::vector<float> room;  // [token][gates and ups of a panel]
    constexpr int64_t wide = 2 * kPanelRows;
    room.resize(size_t((last - first) * wide));
    for (int64_t panel = begin; panel < end; ++panel) {
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t at = panel + half * panels;
        over_parts(at, at + 1, [&](const Part& part, int64_t some, int64_t stop, int64_t) {
          float* to = room.data() + half * kPanelRows - some * kPanelRows - first * wide;
          const Output sums{to, Float::f32, part.weight->out_features(), wide};
          part.weight->multiply_panels(packed, sums, some, stop, first, last, part.exact);
        });
      }
      gate(room.data(), wide, out + first * out_stride + panel * kPanelRows, out_stride, 0, last - first, kPanelRows,
           function);
    }
  };
  over_panels(*common, x, Float::f32, stride, rows, parts.front().weight->in_features(), panels, *frame.pool, body);
  return true;
}

}  // namespace modulm
