/* What each instruction of PTX does: add.rn.f32 is the function add_rn_f32.

   Registers hold bits, so a function takes and returns unsigned integers, but signed ones where a
   narrow result is to be extended with its sign. An instruction that has no function here keeps a
   kernel from being compiled. Floats give the one NaN of a GPU. */
#pragma once
#include "machine.h"
#include <math.h>

/* Floats and their bits. */
static inline float F(u32 bits) { float f; memcpy(&f, &bits, 4); return f; }
static inline double D(u64 bits) { double d; memcpy(&d, &bits, 8); return d; }
static inline float H(u16 bits) { _Float16 h; memcpy(&h, &bits, 2); return (float)h; }
static inline float B(u16 bits) { return F((u32)bits << 16); }
static inline u32 raw_f32(float f) { u32 bits; memcpy(&bits, &f, 4); return bits; }
static inline u32 f32_of(float f) { return f != f ? 0x7fffffffu : raw_f32(f); }
static inline u64 f64_of(double d) { u64 bits; memcpy(&bits, &d, 8); return bits; }
static inline u16 f16_of(double d) {
    _Float16 h = (_Float16)d; u16 bits; memcpy(&bits, &h, 2); return d != d ? 0x7fff : bits; }
static inline u16 bf16_of(float f) {
    u32 bits = raw_f32(f); return f != f ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16; }
static inline float ftz(float f) { return fabsf(f) < 0x1p-126f ? copysignf(0, f) : f; }
static inline u32 approximate(double d) { note(APPROXIMATE, 0); return f32_of((float)d); }
static inline u32 fusible(float f) { note(FUSIBLE, 0); return f32_of(f); }

/* Moves, and bits without a sign. */
#define BITS(N, kind) \
static inline u##N mov_##kind##N(u##N a) { return a; } \
static inline u##N selp_##kind##N(u##N a, u##N b, u8 p) { return p ? a : b; } \
static inline u8 setp_eq_##kind##N(u##N a, u##N b) { return a == b; } \
static inline u8 setp_ne_##kind##N(u##N a, u##N b) { return a != b; }
#define LOGIC(N) \
static inline u##N and_b##N(u##N a, u##N b) { return a & b; } \
static inline u##N or_b##N(u##N a, u##N b) { return a | b; } \
static inline u##N xor_b##N(u##N a, u##N b) { return a ^ b; } \
static inline u##N not_b##N(u##N a) { return ~a; } \
static inline u##N shl_b##N(u##N a, u32 n) { return n >= N ? 0 : (u##N)(a << n); } \
static inline u##N shr_u##N(u##N a, u32 n) { return n >= N ? 0 : (u##N)(a >> n); } \
static inline u##N shr_b##N(u##N a, u32 n) { return n >= N ? 0 : (u##N)(a >> n); } \
static inline u##N shr_s##N(u##N a, u32 n) { return (u##N)((i##N)a >> (n >= N ? N - 1 : n)); }
#define ALL_BITS(N) BITS(N, b) BITS(N, u) BITS(N, s) LOGIC(N)
ALL_BITS(16) ALL_BITS(32) ALL_BITS(64)
static inline u8 mov_pred(u8 a) { return a; }
static inline u8 and_pred(u8 a, u8 b) { return a & b; }
static inline u8 or_pred(u8 a, u8 b) { return a | b; }
static inline u8 xor_pred(u8 a, u8 b) { return a ^ b; }
static inline u8 not_pred(u8 a) { return !a; }
static inline u32 mov_f32(u32 a) { return a; }
static inline u64 mov_f64(u64 a) { return a; }
static inline u32 selp_f32(u32 a, u32 b, u8 p) { return p ? a : b; }
static inline u64 selp_f64(u64 a, u64 b, u8 p) { return p ? a : b; }
static inline u64 cvta_global_u64(u64 a) { return a; }
static inline u64 cvta_to_global_u64(u64 a) { return a; }

/* Integers. Division by zero is unspecified on a GPU. */
#define COMPARE(type, kind) \
static inline u8 setp_lt_##kind(type a, type b) { return a < b; } \
static inline u8 setp_le_##kind(type a, type b) { return a <= b; } \
static inline u8 setp_gt_##kind(type a, type b) { return a > b; } \
static inline u8 setp_ge_##kind(type a, type b) { return a >= b; }
#define INTEGERS(type, kind, bits) COMPARE(type, kind) \
static inline type add_##kind(type a, type b) { return (type)(a + b); } \
static inline type sub_##kind(type a, type b) { return (type)(a - b); } \
static inline type mul_lo_##kind(type a, type b) { return (type)((u64)a * (u64)b); } \
static inline type mad_lo_##kind(type a, type b, type c) { return (type)((u64)a * (u64)b + (u64)c); } \
static inline type mul_hi_##kind(type a, type b) { return (type)((i128)a * (i128)b >> bits); } \
static inline type mad_hi_##kind(type a, type b, type c) { return (type)(mul_hi_##kind(a, b) + c); } \
static inline type min_##kind(type a, type b) { return a < b ? a : b; } \
static inline type max_##kind(type a, type b) { return a > b ? a : b; } \
static inline type div_##kind(type a, type b) { \
    if (!b) note(ZERO_DIVISION, (u64)a); \
    return !b ? (type)-1 : b == (type)-1 && (type)-1 < 0 ? (type)-(u64)a : a / b; } \
static inline type rem_##kind(type a, type b) { \
    if (!b) note(ZERO_DIVISION, (u64)a); \
    return !b ? a : b == (type)-1 && (type)-1 < 0 ? 0 : a % b; }
INTEGERS(i16, s16, 16) INTEGERS(i32, s32, 32) INTEGERS(i64, s64, 64)
INTEGERS(u16, u16, 16) INTEGERS(u32, u32, 32) INTEGERS(u64, u64, 64)
#define SIGNED(type, kind) \
static inline type neg_##kind(type a) { return (type)-(u64)a; } \
static inline type abs_##kind(type a) { return a < 0 ? (type)-(u64)a : a; } \
static inline type min_relu_##kind(type a, type b) { a = a < b ? a : b; return a < 0 ? 0 : a; } \
static inline type max_relu_##kind(type a, type b) { a = a > b ? a : b; return a < 0 ? 0 : a; }
SIGNED(i16, s16) SIGNED(i32, s32) SIGNED(i64, s64)
#define WIDE(type, kind, wide) \
static inline wide mul_wide_##kind(type a, type b) { return (wide)a * (wide)b; } \
static inline wide mad_wide_##kind(type a, type b, wide c) { return (wide)((u64)a * (u64)b + (u64)c); }
WIDE(i16, s16, i32) WIDE(u16, u16, u32) WIDE(i32, s32, i64) WIDE(u32, u32, u64)
#define PAIRS(name, type, kind) \
static inline u32 name##_##kind##x2(u32 a, u32 b) { \
    u16 low = (u16)name##_##kind((type)a, (type)b); \
    return (u32)(u16)name##_##kind((type)(a >> 16), (type)(b >> 16)) << 16 | low; }
PAIRS(add, i16, s16) PAIRS(sub, i16, s16) PAIRS(min, i16, s16) PAIRS(max, i16, s16)
PAIRS(add, u16, u16) PAIRS(sub, u16, u16) PAIRS(min, u16, u16) PAIRS(max, u16, u16)

static inline u64 field(u64 a, u32 place, u32 length, u32 bits, int is_signed) {
    u64 sign = 0, result = 0;
    place &= 255; length &= 255;
    if (is_signed && length) sign = a >> (place + length > bits ? bits - 1 : place + length - 1) & 1;
    for (u32 k = 0; k < bits; k++)
        result |= (k < length && place + k < bits ? a >> (place + k) & 1 : sign) << k;
    return result;
}
static inline u32 bfe_u32(u32 a, u32 place, u32 length) { return field(a, place, length, 32, 0); }
static inline u32 bfe_s32(u32 a, u32 place, u32 length) { return field(a, place, length, 32, 1); }
static inline u64 bfe_u64(u64 a, u32 place, u32 length) { return field(a, place, length, 64, 0); }
static inline u64 bfe_s64(u64 a, u32 place, u32 length) { return field(a, place, length, 64, 1); }
static inline u64 bfi_b64(u64 a, u64 b, u32 place, u32 length) {
    place &= 255; length &= 255;
    for (u32 k = 0; k < length && place + k < 64; k++)
        b = (b & ~(1ull << (place + k))) | (a >> k & 1) << (place + k);
    return b;
}
static inline u32 bfi_b32(u32 a, u32 b, u32 place, u32 length) { return bfi_b64(a, b, place, length); }
static inline u32 prmt_b32(u32 a, u32 b, u32 selector) {
    u32 result = 0;
    for (int k = 0; k < 4; k++) {
        u32 select = selector >> 4 * k & 15, byte = ((u64)b << 32 | a) >> 8 * (select & 7) & 255;
        if (select & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * k;
    }
    return result;
}
static inline u32 lop3_b32(u32 a, u32 b, u32 c, u32 table) {
    u32 result = 0;
    for (int k = 0; k < 8; k++)
        if (table >> k & 1) result |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
    return result;
}
static inline u32 shift_left(u32 a, u32 b, u32 n) { return ((u64)b << 32 | a) << n >> 32; }
static inline u32 shift_right(u32 a, u32 b, u32 n) { return (u32)(((u64)b << 32 | a) >> n); }
static inline u32 shf_l_wrap_b32(u32 a, u32 b, u32 n) { return shift_left(a, b, n & 31); }
static inline u32 shf_r_wrap_b32(u32 a, u32 b, u32 n) { return shift_right(a, b, n & 31); }
static inline u32 shf_l_clamp_b32(u32 a, u32 b, u32 n) { return shift_left(a, b, n > 32 ? 32 : n); }
static inline u32 shf_r_clamp_b32(u32 a, u32 b, u32 n) { return shift_right(a, b, n > 32 ? 32 : n); }
static inline u32 popc_b32(u32 a) { return __builtin_popcount(a); }
static inline u32 popc_b64(u64 a) { return __builtin_popcountll(a); }
static inline u32 clz_b32(u32 a) { return a ? __builtin_clz(a) : 32; }
static inline u32 clz_b64(u64 a) { return a ? __builtin_clzll(a) : 64; }
static inline u32 bfind_u32(u32 a) { return a ? 31 - __builtin_clz(a) : ~0u; }
static inline u32 bfind_u64(u64 a) { return a ? 63 - __builtin_clzll(a) : ~0u; }
static inline u64 brev_b64(u64 a) {
    u64 result = 0;
    for (int k = 0; k < 64; k++) result |= (a >> k & 1) << (63 - k);
    return result;
}
static inline u32 brev_b32(u32 a) { return brev_b64(a) >> 32; }

/* Floats: one rounding. ptxas may fuse what does not say .rn. */
#define ARITHMETIC(name, operator) \
static inline u32 name##_rn_f32(u32 a, u32 b) { return f32_of(F(a) operator F(b)); } \
static inline u32 name##_rn_ftz_f32(u32 a, u32 b) { return f32_of(ftz(ftz(F(a)) operator ftz(F(b)))); } \
static inline u32 name##_f32(u32 a, u32 b) { return fusible(F(a) operator F(b)); } \
static inline u64 name##_rn_f64(u64 a, u64 b) { return f64_of(D(a) operator D(b)); } \
static inline u64 name##_f64(u64 a, u64 b) { note(FUSIBLE, 0); return f64_of(D(a) operator D(b)); }
ARITHMETIC(add, +) ARITHMETIC(sub, -) ARITHMETIC(mul, *)
static inline u32 fma_rn_f32(u32 a, u32 b, u32 c) { return f32_of(__builtin_fmaf(F(a), F(b), F(c))); }
static inline u64 fma_rn_f64(u64 a, u64 b, u64 c) { return f64_of(__builtin_fma(D(a), D(b), D(c))); }
static inline u32 div_rn_f32(u32 a, u32 b) { return f32_of(F(a) / F(b)); }
static inline u64 div_rn_f64(u64 a, u64 b) { return f64_of(D(a) / D(b)); }
static inline u32 div_full_f32(u32 a, u32 b) { return approximate((double)F(a) / F(b)); }
static inline u32 sqrt_rn_f32(u32 a) { return f32_of(__builtin_sqrtf(F(a))); }
static inline u64 sqrt_rn_f64(u64 a) { return f64_of(__builtin_sqrt(D(a))); }
static inline u32 rcp_rn_f32(u32 a) { return f32_of(1 / F(a)); }
static inline u64 rcp_rn_f64(u64 a) { return f64_of(1 / D(a)); }
static inline u32 rcp_approx_f32(u32 a) { return approximate(1.0 / F(a)); }
static inline u32 sqrt_approx_f32(u32 a) { return approximate(sqrt(F(a))); }
static inline u32 rsqrt_approx_f32(u32 a) { return approximate(1.0 / sqrt(F(a))); }
static inline u32 ex2_approx_f32(u32 a) { return approximate(exp2(F(a))); }
static inline u32 lg2_approx_f32(u32 a) { return approximate(log2(F(a))); }
static inline u32 one_nan(u32 a) { return F(a) != F(a) ? 0x7fffffffu : a; }   /* PTX leaves its bits open */
static inline u32 abs_f32(u32 a) { return one_nan(a & 0x7fffffffu); }
static inline u32 neg_f32(u32 a) { return one_nan(a ^ 0x80000000u); }
static inline u64 abs_f64(u64 a) { return a & ~(1ull << 63); }
static inline u64 neg_f64(u64 a) { return a ^ 1ull << 63; }
static inline u16 abs_f16(u16 a) { return a & 0x7fff; }
static inline u32 abs_f16x2(u32 a) { return a & 0x7fff7fffu; }
#define EXTREME(name, type, bits, kind, value, is_less) \
static inline bits name##_##kind(bits x, bits y) { \
    type a = value(x), b = value(y); \
    if (a != a || b != b) return kind##_of(a != a ? b : a); \
    return (a == b ? (!signbit(a)) != is_less : is_less ? a < b : a > b) ? x : y; }
EXTREME(min, float, u32, f32, F, 1) EXTREME(max, float, u32, f32, F, 0)
EXTREME(min, double, u64, f64, D, 1) EXTREME(max, double, u64, f64, D, 0)
static inline int has_nan(u32 a, u32 b) { return F(a) != F(a) || F(b) != F(b); }
static inline u32 min_NaN_f32(u32 a, u32 b) { return has_nan(a, b) ? f32_of(NAN) : min_f32(a, b); }
static inline u32 max_NaN_f32(u32 a, u32 b) { return has_nan(a, b) ? f32_of(NAN) : max_f32(a, b); }
#define FLOAT_COMPARE(name, bits, kind, value, expression) \
static inline u8 setp_##name##_##kind(bits x, bits y) { \
    __typeof__(value(x)) a = value(x), b = value(y); \
    int is_nan = a != a || b != b; (void)is_nan; return expression; }
#define FLOAT_COMPARES(bits, kind, value) \
    FLOAT_COMPARE(eq, bits, kind, value, a == b) FLOAT_COMPARE(equ, bits, kind, value, is_nan || a == b) \
    FLOAT_COMPARE(ne, bits, kind, value, !is_nan && a != b) FLOAT_COMPARE(neu, bits, kind, value, a != b) \
    FLOAT_COMPARE(lt, bits, kind, value, a < b) FLOAT_COMPARE(ltu, bits, kind, value, !(a >= b)) \
    FLOAT_COMPARE(le, bits, kind, value, a <= b) FLOAT_COMPARE(leu, bits, kind, value, !(a > b)) \
    FLOAT_COMPARE(gt, bits, kind, value, a > b) FLOAT_COMPARE(gtu, bits, kind, value, !(a <= b)) \
    FLOAT_COMPARE(ge, bits, kind, value, a >= b) FLOAT_COMPARE(geu, bits, kind, value, !(a < b)) \
    FLOAT_COMPARE(num, bits, kind, value, !is_nan) FLOAT_COMPARE(nan, bits, kind, value, is_nan)
FLOAT_COMPARES(u32, f32, F) FLOAT_COMPARES(u64, f64, D) FLOAT_COMPARES(u16, f16, H) FLOAT_COMPARES(u16, bf16, B)

/* Conversions: integers to integers, floats to floats, and between them. */
#define TO_INTEGER(to, to_kind, from, from_kind) \
static inline to cvt_##to_kind##_##from_kind(from a) { return (to)a; }
#define TO_INTEGERS(from, kind) \
    TO_INTEGER(i8, s8, from, kind) TO_INTEGER(i16, s16, from, kind) TO_INTEGER(i32, s32, from, kind) \
    TO_INTEGER(i64, s64, from, kind) TO_INTEGER(u8, u8, from, kind) TO_INTEGER(u16, u16, from, kind) \
    TO_INTEGER(u32, u32, from, kind) TO_INTEGER(u64, u64, from, kind)
TO_INTEGERS(i8, s8) TO_INTEGERS(i16, s16) TO_INTEGERS(i32, s32) TO_INTEGERS(i64, s64)
TO_INTEGERS(u8, u8) TO_INTEGERS(u16, u16) TO_INTEGERS(u32, u32) TO_INTEGERS(u64, u64)
#define FROM_INTEGER(from, kind) \
static inline u32 cvt_rn_f32_##kind(from a) { return f32_of((float)a); } \
static inline u64 cvt_rn_f64_##kind(from a) { return f64_of((double)a); }
FROM_INTEGER(i8, s8) FROM_INTEGER(i16, s16) FROM_INTEGER(i32, s32) FROM_INTEGER(i64, s64)
FROM_INTEGER(u8, u8) FROM_INTEGER(u16, u16) FROM_INTEGER(u32, u32) FROM_INTEGER(u64, u64)
static inline u32 cvt_rn_f32_f64(u64 a) { return f32_of((float)D(a)); }
static inline u64 cvt_f64_f32(u32 a) { return f64_of(F(a)); }
static inline u32 cvt_f32_f16(u16 a) { return f32_of(H(a)); }
static inline u32 cvt_f32_bf16(u16 a) { return f32_of(B(a)); }
static inline u64 cvt_f64_f16(u16 a) { return f64_of(H(a)); }
static inline u16 cvt_rn_f16_f32(u32 a) { return f16_of(F(a)); }
static inline u16 cvt_rn_f16_f64(u64 a) { return f16_of(D(a)); }
static inline u16 cvt_rn_bf16_f32(u32 a) { return bf16_of(F(a)); }
static inline u32 cvt_rn_f16x2_f32(u32 high, u32 low) { return f16_of(F(low)) | (u32)f16_of(F(high)) << 16; }
static inline u32 cvt_rn_bf16x2_f32(u32 high, u32 low) { return bf16_of(F(low)) | (u32)bf16_of(F(high)) << 16; }
/* To integer: saturated; NaN is 0 for f32 to at most 32 bits, otherwise the top bit. */
static inline i64 integer_of(double rounded, int bits, int is_signed, int is_f64) {
    double low = is_signed ? -ldexp(1, bits - 1) : 0, high = ldexp(1, is_signed ? bits - 1 : bits);
    i64 most = is_signed ? (i64)(~0ull >> (65 - bits)) : (i64)(~0ull >> (64 - bits));
    if (rounded != rounded) return bits < 64 && !is_f64 ? 0 : (i64)(1ull << (bits - 1));
    if (rounded <= low) return is_signed ? -most - 1 : 0;
    return rounded >= high ? most : is_signed ? (i64)rounded : (i64)(u64)rounded;
}
#define ROUNDED(mode, round) \
static inline u32 cvt_##mode##_f32_f32(u32 a) { return f32_of(round(F(a))); } \
static inline u64 cvt_##mode##_f64_f64(u64 a) { return f64_of(round(D(a))); } \
FLOAT_TO_INTEGER(mode, round, i16, s16, 16, 1) FLOAT_TO_INTEGER(mode, round, u16, u16, 16, 0) \
FLOAT_TO_INTEGER(mode, round, i32, s32, 32, 1) FLOAT_TO_INTEGER(mode, round, u32, u32, 32, 0) \
FLOAT_TO_INTEGER(mode, round, i64, s64, 64, 1) FLOAT_TO_INTEGER(mode, round, u64, u64, 64, 0)
#define FLOAT_TO_INTEGER(mode, round, to, kind, bits, is_signed) \
static inline to cvt_##mode##_##kind##_f32(u32 a) { return (to)integer_of(round(F(a)), bits, is_signed, 0); } \
static inline to cvt_##mode##_##kind##_f64(u64 a) { return (to)integer_of(round(D(a)), bits, is_signed, 1); }
ROUNDED(rni, rint) ROUNDED(rzi, trunc) ROUNDED(rmi, floor) ROUNDED(rpi, ceil)

/* What atomic operations store, and redux reduces by. */
#define UPDATE(name, type, kind, expression) \
static u64 atom_##name##_##kind(u64 old, u64 operand, u64 other) { \
    type a = (type)old, b = (type)operand, c = (type)other; (void)a; (void)b; (void)c; \
    return (u64)(expression); }
#define UPDATES(type, kind) \
    UPDATE(add, type, kind, a + b) UPDATE(min, type, kind, a < b ? a : b) UPDATE(max, type, kind, a > b ? a : b) \
    UPDATE(inc, type, kind, a >= b ? 0 : a + 1) UPDATE(dec, type, kind, !a || a > b ? b : a - 1)
#define BIT_UPDATES(type, kind) \
    UPDATE(and, type, kind, a & b) UPDATE(or, type, kind, a | b) UPDATE(xor, type, kind, a ^ b) \
    UPDATE(exch, type, kind, b) UPDATE(cas, type, kind, a == b ? c : a)
UPDATES(i32, s32) UPDATES(u32, u32) UPDATES(i64, s64) UPDATES(u64, u64)
BIT_UPDATES(u16, b16) BIT_UPDATES(u32, b32) BIT_UPDATES(u64, b64)
UPDATE(add, u32, f32, f32_of(F(a) + F(b))) UPDATE(add, u64, f64, f64_of(D(a) + D(b)))

/* What lanes of a warp, or all threads of a CTA, do together. */
static inline u32 shuffle_lanes(u32 how, u32 value, u32 operand, u32 clamp, u32 mask) {
    running->how = how; running->value = value; running->operand = operand; running->clamp = clamp;
    wait_for(SHUFFLE, mask);
    return running->result;
}
static inline u32 shfl_sync_up_b32(u32 a, u32 b, u32 c, u32 mask) { return shuffle_lanes(UP, a, b, c, mask); }
static inline u32 shfl_sync_down_b32(u32 a, u32 b, u32 c, u32 mask) { return shuffle_lanes(DOWN, a, b, c, mask); }
static inline u32 shfl_sync_bfly_b32(u32 a, u32 b, u32 c, u32 mask) { return shuffle_lanes(BUTTERFLY, a, b, c, mask); }
static inline u32 shfl_sync_idx_b32(u32 a, u32 b, u32 c, u32 mask) { return shuffle_lanes(INDEX, a, b, c, mask); }
static inline u32 vote(u32 how, u32 value, u32 mask) {
    running->how = how; running->value = value; wait_for(VOTE, mask); return running->result; }
static inline u32 vote_sync_ballot_b32(u8 a, u32 mask) { return vote(BALLOT, a, mask); }
static inline u8 vote_sync_any_pred(u8 a, u32 mask) { return vote(ANY, a, mask); }
static inline u8 vote_sync_all_pred(u8 a, u32 mask) { return vote(ALL, a, mask); }
static inline u8 vote_sync_uni_pred(u8 a, u32 mask) { return vote(UNI, a, mask); }
static inline u32 redux(Update update, u32 value, u32 mask) {
    running->update = update; running->value = value; wait_for(REDUX, mask); return running->result; }
#define REDUCE(name) \
static inline u32 redux_sync_##name(u32 a, u32 mask) { return redux(atom_##name, a, mask); }
REDUCE(add_s32) REDUCE(add_u32) REDUCE(min_s32) REDUCE(min_u32) REDUCE(max_s32) REDUCE(max_u32)
REDUCE(and_b32) REDUCE(or_b32) REDUCE(xor_b32)
static inline void bar_sync(u32 number) { if (number) note(TRAP, number); wait_for(AT_BARRIER, 0); }
static inline void barrier_sync(u32 number) { bar_sync(number); }
static inline void bar_warp_sync(u32 mask) { wait_for(AT_WARP_BARRIER, mask); }
static inline void trap(void) { note(TRAP, 0); }
static inline void membar_gl(void) {}
static inline void membar_cta(void) {}
static inline void fence_acq_rel_gpu(void) {}
static inline void fence_acq_rel_cta(void) {}
static inline void fence_sc_gpu(void) {}
static inline void backward(void) { if (!--running->fuel) note(ENDLESS, 0); }
