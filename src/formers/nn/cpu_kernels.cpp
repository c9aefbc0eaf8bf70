// Kernels for inference on an x86-64 CPU with AVX2 or AVX-512 VNNI, called through ctypes (nn/cpu_kernels.py).
// Numbers are fp32 and lie in rows; sizes and strides count elements. No kernel allocates in a parallel region but
// attention, whose scores need room.

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <vector>

namespace {

constexpr int64_t PANEL = 64;  // outputs whose weights lie together
constexpr int64_t GROUP = 4;   // inputs of one output that lie together

// e^x to about 2 ulp for x ≤ 88; NaN stays NaN.
inline float exp_approx(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    const float n = nearbyintf(x * 1.44269504088896341f);
    const float f = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    return p * __builtin_bit_cast(float, (static_cast<int32_t>(n) + 127) << 23);
}

// Rounds a row to whole numbers of 8 bits; returns its scale, and 128 times the sum of the numbers. NaN and infinity
// give a scale of NaN.
float quantise_row(const float* x, int64_t size, int64_t padded, int8_t* whole, int32_t* correction) {
    uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < size; i++) {
        const uint32_t bits = __builtin_bit_cast(uint32_t, x[i]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    const float scale = __builtin_bit_cast(float, largest) * (1.0f / 127.0f);
    *correction = 0;
    if (largest >= 0x7f800000u || scale == 0.0f) {
        memset(whole, 0, padded);
        return largest >= 0x7f800000u ? NAN : 0.0f;
    }
    int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) {
        const int32_t number = static_cast<int32_t>(nearbyintf(x[i] / scale));
        whole[i] = static_cast<int8_t>(number);
        sum += number;
    }
    memset(whole + size, 0, padded - size);
    *correction = 128 * sum;
    return scale;
}

// Sums of products of ROWS rows of whole numbers with one panel of weights (stored + 128), in ROWS × PANEL numbers.
#ifdef __AVX512VNNI__
constexpr int MOST_ROWS = 6;  // 24 sums, 4 vectors of weights

template <int ROWS>
void multiply_panel(const int8_t* x, int64_t stride, const uint8_t* weight, int64_t groups, int32_t* sums) {
    __m512i total[ROWS][4];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < 4; c++) total[r][c] = _mm512_setzero_si512();
    for (int64_t g = 0; g < groups; g++, weight += PANEL * GROUP) {
        __m512i w[4];
        for (int c = 0; c < 4; c++) w[c] = _mm512_loadu_si512(weight + 64 * c);
        if (ROWS == 1) _mm_prefetch(reinterpret_cast<const char*>(weight + 4096), _MM_HINT_T0);
        for (int r = 0; r < ROWS; r++) {
            int32_t four;
            memcpy(&four, x + r * stride + g * GROUP, 4);
            const __m512i b = _mm512_set1_epi32(four);
            for (int c = 0; c < 4; c++) total[r][c] = _mm512_dpbusd_epi32(total[r][c], w[c], b);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < 4; c++) _mm512_storeu_si512(sums + r * PANEL + 16 * c, total[r][c]);
}
#else
constexpr int MOST_ROWS = 4;  // 8 sums, as many halves of the rows, two of the weights

// Pairs of bytes become 16 bits first, so that no sum of products is cut off at 16 bits.
template <int ROWS>
void multiply_panel(const int8_t* x, int64_t stride, const uint8_t* weight, int64_t groups, int32_t* sums) {
    constexpr int VECTORS = ROWS == 1 ? 8 : ROWS == 2 ? 4 : 2;  // of 8 outputs each, in one pass
    const __m256i low = _mm256_set1_epi16(0xff);
    for (int part = 0; part < PANEL / 8; part += VECTORS) {
        __m256i total[ROWS][VECTORS];
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < VECTORS; c++) total[r][c] = _mm256_setzero_si256();
        const uint8_t* w = weight + part * 8 * GROUP;
        for (int64_t g = 0; g < groups; g++, w += PANEL * GROUP) {
            __m256i even[ROWS], odd[ROWS];
            for (int r = 0; r < ROWS; r++) {
                int32_t four;
                memcpy(&four, x + r * stride + g * GROUP, 4);
                const __m256i b = _mm256_set1_epi32(four);
                even[r] = _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8);
                odd[r] = _mm256_srai_epi16(b, 8);
            }
            if (ROWS == 1) _mm_prefetch(reinterpret_cast<const char*>(w + 4096), _MM_HINT_T0);
            for (int c = 0; c < VECTORS; c++) {
                const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32 * c));
                const __m256i w_even = _mm256_and_si256(both, low), w_odd = _mm256_srli_epi16(both, 8);
                for (int r = 0; r < ROWS; r++) {
                    const __m256i pair = _mm256_add_epi32(
                        _mm256_madd_epi16(w_even, even[r]), _mm256_madd_epi16(w_odd, odd[r]));
                    total[r][c] = _mm256_add_epi32(total[r][c], pair);
                }
            }
        }
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < VECTORS; c++)
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + r * PANEL + (part + c) * 8), total[r][c]);
    }
}
#endif

template <int ROWS>
void multiply_rows(
    int rows, const int8_t* x, int64_t stride, const uint8_t* weight, int64_t groups, int32_t* sums) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return multiply_rows<ROWS - 1>(rows, x, stride, weight, groups, sums);
    }
    multiply_panel<ROWS>(x, stride, weight, groups, sums);
}

inline float dot(const float* a, const float* b, int64_t size) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) sum += a[i] * b[i];
    return sum;
}

}  // namespace

extern "C" {

// y = x·wᵀ·scales + bias, x rounded to 8 bits row by row. The packed weight is (panels, groups, PANEL, GROUP) bytes,
// each + 128; scale and bias (or null) are filled up to whole panels.
void formers_linear(
    const float* x, int64_t x_stride, int64_t rows, int64_t inputs, const uint8_t* weight, const float* scale,
    const float* bias, int64_t outputs, float* y, int32_t threads) {
    const int64_t groups = (inputs + GROUP - 1) / GROUP, stride = groups * GROUP;
    const int64_t panels = (outputs + PANEL - 1) / PANEL;
    static thread_local std::vector<int8_t> whole_store;
    static thread_local std::vector<float> scale_store;
    static thread_local std::vector<int32_t> correction_store;
    whole_store.resize(rows * stride);
    scale_store.resize(rows);
    correction_store.resize(rows);
    int8_t* const whole = whole_store.data();
    float* const row_scale = scale_store.data();
    int32_t* const correction = correction_store.data();
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        if (rows < 4) {  // sooner done by one thread
#pragma omp single
            for (int64_t r = 0; r < rows; r++)
                row_scale[r] = quantise_row(x + r * x_stride, inputs, stride, whole + r * stride, correction + r);
        } else {
#pragma omp for schedule(static)
            for (int64_t r = 0; r < rows; r++)
                row_scale[r] = quantise_row(x + r * x_stride, inputs, stride, whole + r * stride, correction + r);
        }
#pragma omp for schedule(static) nowait
        for (int64_t p = 0; p < panels; p++) {
            alignas(64) int32_t sums[MOST_ROWS * PANEL];
            const uint8_t* panel = weight + p * groups * PANEL * GROUP;
            const int64_t first = p * PANEL, count = std::min(PANEL, outputs - first);
            for (int64_t r = 0; r < rows; r += MOST_ROWS) {
                const int block = static_cast<int>(std::min<int64_t>(MOST_ROWS, rows - r));
                multiply_rows<MOST_ROWS>(block, whole + r * stride, stride, panel, groups, sums);
                for (int i = 0; i < block; i++) {
                    const float by = row_scale[r + i];
                    const int32_t off = correction[r + i], *sum = sums + i * PANEL;
                    float* out = y + (r + i) * outputs + first;
                    if (bias == nullptr) {
#pragma omp simd
                        for (int64_t o = 0; o < count; o++)
                            out[o] = static_cast<float>(sum[o] - off) * scale[first + o] * by;
                    } else {
#pragma omp simd
                        for (int64_t o = 0; o < count; o++)
                            out[o] = bias[first + o] + static_cast<float>(sum[o] - off) * scale[first + o] * by;
                    }
                }
            }
        }
    }
}

// total = x + y and normed = its layer norm, or without `has_mean` its RMS norm; no y: the norm of x alone.
void formers_add_norm(
    const float* x, const float* y, const float* weight, const float* bias, float eps, int32_t has_mean, int64_t rows,
    int64_t dim, float* total, float* normed) {
    for (int64_t r = 0; r < rows; r++, x += dim, y += dim, total += dim, normed += dim) {
        float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < dim; i++) {
            const float both = x[i] + y[i];
            total[i] = both;
            sum += both;
        }
        const float mean = has_mean ? sum / static_cast<float>(dim) : 0.0f;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < dim; i++) squares += (total[i] - mean) * (total[i] - mean);
        const float by = 1.0f / sqrtf(squares / static_cast<float>(dim) + eps);
        if (bias == nullptr) {
#pragma omp simd
            for (int64_t i = 0; i < dim; i++) normed[i] = (total[i] - mean) * by * weight[i];
        } else {
#pragma omp simd
            for (int64_t i = 0; i < dim; i++) normed[i] = (total[i] - mean) * by * weight[i] + bias[i];
        }
    }
}

// GELU's tanh form, x·σ(2u).
void formers_gelu_tanh(const float* x, float* y, int64_t size, int32_t threads) {
#pragma omp parallel for simd num_threads(threads) if (parallel : threads > 1 && size > 16384)
    for (int64_t i = 0; i < size; i++) {
        const float v = x[i], u = v * (1.5957691216057308f + 0.07135481627159628f * v * v);
        y[i] = v / (1.0f + exp_approx(-u));
    }
}

struct Attention {
    const float *q, *fresh_k, *fresh_v;  // fresh: null, or of each row's last slot, yet to be written
    float *k, *v, *out;
    const int64_t* lengths;
    int64_t* table;     // null, or (rows, slots): the row that holds each slot
    const float* bias;  // null, or (heads, …): of the last slot that is seen, then of the one before
    int64_t queries, rows, heads, dim, slots, width;
    int64_t q_row, q_head, k_row, k_slot, k_head, v_row, v_slot, v_head, fk_row, fk_head, fv_row, fv_head;
    int64_t table_row, bias_head;
    float scale;
    int32_t threads;
};

// Attention of single queries over rows of a cache, slot after slot, which reads the cache in the order it lies in.
void formers_attend(const Attention* given) {
    const Attention a = *given;
    const int64_t parts = a.queries >= a.threads ? 1 : std::min<int64_t>(a.heads, (a.threads + a.queries - 1) / a.queries);
    const int64_t each = (a.heads + parts - 1) / parts, per_row = a.queries / a.rows;
#pragma omp parallel for collapse(2) schedule(static) num_threads(a.threads) if (a.threads > 1)
    for (int64_t n = 0; n < a.queries; n++) {
        for (int64_t part = 0; part < parts; part++) {
            const int64_t row = n / per_row, h0 = part * each, h1 = std::min(a.heads, h0 + each);
            const int64_t end = std::min(a.lengths[row], a.slots);
            const int64_t begin = a.width > 0 ? std::max<int64_t>(0, end - a.width) : 0, seen = end - begin;
            const float* q = a.q + n * a.q_row;
            float* out = a.out + n * a.heads * a.dim;
            if (a.fresh_k != nullptr && end > 0) {
                for (int64_t h = h0; h < h1; h++) {
                    float* k = a.k + row * a.k_row + (end - 1) * a.k_slot + h * a.k_head;
                    float* v = a.v + row * a.v_row + (end - 1) * a.v_slot + h * a.v_head;
                    memcpy(k, a.fresh_k + n * a.fk_row + h * a.fk_head, a.dim * 4);
                    memcpy(v, a.fresh_v + n * a.fv_row + h * a.fv_head, a.dim * 4);
                }
                if (a.table != nullptr && part == 0) a.table[row * a.table_row + end - 1] = row;
            }
            for (int64_t i = h0 * a.dim; i < h1 * a.dim; i++) out[i] = 0;
            if (seen <= 0) continue;
            static thread_local std::vector<float> store;
            store.resize(each * seen);
            float* const scores = store.data();
            for (int64_t t = 0; t < seen; t++) {
                const int64_t slot = begin + t;
                const bool own = a.table == nullptr || (a.fresh_k != nullptr && slot == end - 1);
                const int64_t holder = own ? row : a.table[row * a.table_row + slot];
                const float* k = a.k + holder * a.k_row + slot * a.k_slot;
                for (int64_t h = h0; h < h1; h++) {
                    float score = a.scale * dot(q + h * a.q_head, k + h * a.k_head, a.dim);
                    if (a.bias != nullptr) score += a.bias[h * a.bias_head + end - 1 - slot];
                    scores[(h - h0) * seen + t] = score;
                }
            }
            for (int64_t h = h0; h < h1; h++) {
                float* s = scores + (h - h0) * seen;
                float top = -INFINITY, sum = 0;
#pragma omp simd reduction(max : top)
                for (int64_t t = 0; t < seen; t++) top = s[t] > top ? s[t] : top;
                top = top == -INFINITY ? 0.0f : top;
#pragma omp simd reduction(+ : sum)
                for (int64_t t = 0; t < seen; t++) {
                    s[t] = exp_approx(s[t] - top);
                    sum += s[t];
                }
                const float by = 1.0f / sum;
#pragma omp simd
                for (int64_t t = 0; t < seen; t++) s[t] *= by;
            }
            for (int64_t t = 0; t < seen; t++) {
                const int64_t slot = begin + t;
                const bool own = a.table == nullptr || (a.fresh_k != nullptr && slot == end - 1);
                const int64_t holder = own ? row : a.table[row * a.table_row + slot];
                const float* v = a.v + holder * a.v_row + slot * a.v_slot;
                for (int64_t h = h0; h < h1; h++) {
                    const float weight = scores[(h - h0) * seen + t];
                    const float* from = v + h * a.v_head;
                    float* to = out + h * a.dim;
#pragma omp simd
                    for (int64_t i = 0; i < a.dim; i++) to[i] += weight * from[i];
                }
            }
        }
    }
}

}  // extern "C"
