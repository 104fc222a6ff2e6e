// Products with a matrix of several parts. Where all of them multiply panel by panel, activations are packed once for all.
#include <algorithm>

#include "program_operations.hpp"

namespace modulm {
namespace {

constexpr int64_t kBoth = 2 * kPanelRows;  // gates and ups of a panel
constexpr int64_t kFewTokens = 32;         // for which widening goes beside products

}  // namespace

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

Activations Matrix::packed(const Frame& frame, const TokenPacker& by, const float* x, int64_t stride, int64_t rows) const {
  return packed_by(by, x, Float::f32, stride, rows, in_features(), *frame.pool);
}

void Matrix::multiply(const Frame& frame, const float* x, int64_t stride, int64_t rows, float* out,
                      int64_t out_stride) const {
  if (const TokenPacker* common = packer(rows)) {
    return multiply(frame, *common, packed(frame, *common, x, stride, rows), rows, out, out_stride);
  }
  float* to = out;
  for (const Part& part : parts) {
    part.weight->multiply(x, stride, rows, to, out_stride, part.exact);
    to += part.weight->out_features();
  }
  add_bias(frame, rows, out, out_stride);
}

bool Matrix::adds(int64_t rows) const {
  const auto whole = [&](const Part& part) {
    return part.weight->adds(rows, part.exact) && part.weight->out_features() % kPanelRows == 0;
  };
  return bias.empty() && std::all_of(parts.begin(), parts.end(), whole);
}

void Matrix::multiply(const Frame& frame, const TokenPacker& by, const Activations& x, int64_t rows, float* out,
                      int64_t out_stride, const float* added, int64_t added_stride) const {
  over_panels(by, x, rows, panels_of(out_features), *frame.pool,
              [&](int64_t begin, int64_t end, int64_t first, int64_t last) {
                over_parts(begin, end, [&](const Part& part, int64_t some, int64_t stop, int64_t from) {
                  Output to{out + from * kPanelRows, Float::f32, part.weight->out_features(), out_stride};
                  if (added != nullptr) to.added = added + from * kPanelRows, to.added_stride = added_stride;
                  part.weight->multiply_panels(x, to, some, stop, first, last, part.exact);
                });
              });
  add_bias(frame, rows, out, out_stride);
}

void Matrix::add_bias(const Frame& frame, int64_t rows, float* out, int64_t out_stride) const {
  if (bias.empty()) return;
  const auto add = elementwise().add;
  over_rows(frame, rows, out_features, [&, add](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      add(out + row * out_stride, bias.data(), out + row * out_stride, 0, out_features);
    }
  });
}

// How 16 rows become tiles; null where their weight has no way.
WidenRows Matrix::widener(int64_t block) const {
  int64_t panel = block / 2;
  for (const Part& part : parts) {
    const int64_t count = panels_of(part.weight->out_features());
    if (panel < count) return part.weight->widener(2 * panel + block % 2, part.exact);
    panel -= count;
  }
  return nullptr;
}

const TokenPacker* Matrix::gate_packer(int64_t rows) const {
  return out_features % kBoth == 0 && bias.empty() ? packer(rows) : nullptr;
}

// put(both, panel, first, last) for the gates of a panel and their ups, [token][2][32], of tokens [first, last), unless
// directly(panel, first, last) has done it all.
template <class Put, class Directly>
void Matrix::over_gates(const Frame& frame, const TokenPacker& common, const Activations& x, int64_t rows, const Put& put,
                        const Directly& directly) const {
  const int64_t panels = out_features / 2 / kPanelRows;
  over_panels(common, x, rows, panels, *frame.pool, [&](int64_t begin, int64_t end, int64_t first, int64_t last) {
    thread_local std::vector<float> room;
    for (int64_t panel = begin; panel < end; ++panel) {
      if (directly(panel, first, last)) continue;
      room.resize(size_t((last - first) * kBoth));
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t at = panel + half * panels;
        over_parts(at, at + 1, [&](const Part& part, int64_t some, int64_t stop, int64_t) {
          float* to = room.data() + half * kPanelRows - some * kPanelRows - first * kBoth;
          const Output sums{to, Float::f32, part.weight->out_features(), kBoth};
          part.weight->multiply_panels(x, sums, some, stop, first, last, part.exact);
        });
      }
      put(room.data(), panel, first, last);
    }
  });
}

bool Matrix::multiply_gated(const Frame& frame, const float* x, int64_t stride, int64_t rows, Activation function,
                            float* out, int64_t out_stride) const {
  const TokenPacker* common = gate_packer(rows);
  if (common == nullptr) return false;
  const auto gate = elementwise().gated_activation;
  const auto put = [&, gate](const float* both, int64_t panel, int64_t first, int64_t last) {
    gate(both, kBoth, out + first * out_stride + panel * kPanelRows, out_stride, 0, last - first, kPanelRows, function);
  };
  over_gates(frame, *common, packed(frame, *common, x, stride, rows), rows, put, [](auto&&...) { return false; });
  return true;
}

void Matrix::multiply_gated(const Frame& frame, const TokenPacker& common, const Activations& x, int64_t rows,
                            Activation function, const TokenPacker& by, const Activations& out) const {
  const auto gate = elementwise().gated_activation;
  const auto put = [&, gate](const float* both, int64_t panel, int64_t first, int64_t last) {
    constexpr int64_t kSome = 64;  // tokens whose results stay in the L1 cache until they are packed
    float results[kSome * kPanelRows];
    const Activations to = out.slice(panel * kPanelRows, (panel + 1) * kPanelRows);
    for (int64_t token = first; token < last; token += kSome) {
      const int64_t end = last - token < kSome ? last : token + kSome;
      gate(both + (token - first) * kBoth, kBoth, results, kPanelRows, 0, end - token, kPanelRows, function);
      by.pack(results - token * kPanelRows, Float::f32, kPanelRows, token, end, to);
    }
  };
  const auto in_tiles = [&](int64_t panel, int64_t first, int64_t last) {
    if (last - first <= kFewTokens || by.multiply_gated == nullptr || &common != &by) return false;
    for (int64_t block = 2 * panel; block < 2 * (panel + 1); ++block) {
      const WidenRows gates = widener(block), ups = widener(block + out_features / kPanelRows);
      if (gates == nullptr || ups == nullptr) return false;
      by.multiply_gated(gates, ups, function, x, first, last, block, out);
    }
    return true;
  };
  over_gates(frame, common, x, rows, put, in_tiles);
}

}  // namespace modulm
