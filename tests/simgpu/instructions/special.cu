// The approximate functions, held to the error that PTX states: ex2, lg2, sin, cos, tanh, rcp, rsqrt, sqrt, div.approx and
// div.full for f32, ex2 and tanh for f16 and bf16, rcp and rsqrt for f64.
#include "reference_float.h"

// What an approximation may give for exact result `want`: a relative error, or an absolute one.
struct bound {
    double relative, absolute;
};
struct approximation {
    const char *name;
    void (*kernel)(u64 *d, const u64 *a, const u64 *b, const u64 *c);
    enum input_kind kind;
    const struct format *format; // NULL: f64
    int width;                   // bits of one element of the register
    bool ftz;
    double low, high; // half of the inputs are uniform here; others come from `draw`
    struct bound (*bound)(double x, double y);
    double (*exact)(double x, double y);
    struct approximation *next;
};
static struct approximation *first_approximation;
static bool approximation_add(struct approximation *a)
{
    a->next = first_approximation;
    first_approximation = a;
    return true;
}

#define APPROXIMATION(NAME, T, KIND, FORMAT, WIDTH, IS_FTZ, LOW, HIGH, BOUND, PTX, EXACT)                \
    __global__ void NAME##_kernel(u64 *d, const u64 *a, const u64 *b, const u64 *)                       \
    {                                                                                                    \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;                                             \
        T r;                                                                                             \
        asm volatile(PTX : "=" REG_##T(r) : REG_##T((T)a[i]), REG_##T((T)b[i]));                         \
        d[i] = r;                                                                                        \
    }                                                                                                    \
    static void NAME##_launch(u64 *d, const u64 *a, const u64 *b, const u64 *c)                          \
    {                                                                                                    \
        NAME##_kernel<<<OP_COUNT / 128, 128>>>(d, a, b, c);                                              \
    }                                                                                                    \
    static double NAME##_exact(double x, double y)                                                       \
    {                                                                                                    \
        (void)y;                                                                                         \
        return EXACT;                                                                                    \
    }                                                                                                    \
    static struct bound NAME##_bound(double x, double y)                                                 \
    {                                                                                                    \
        (void)x, (void)y;                                                                                \
        return BOUND;                                                                                    \
    }                                                                                                    \
    static struct approximation NAME##_entry = {                                                         \
        #NAME, NAME##_launch, KIND, FORMAT, WIDTH, IS_FTZ, LOW, HIGH, NAME##_bound, NAME##_exact, NULL}; \
    static const bool NAME##_added = approximation_add(&NAME##_entry);

#define RELATIVE(x) ((struct bound){x, 0})
#define ABSOLUTE(x) ((struct bound){0, x})
#define ULP(n)      ((struct bound){(n)*ldexp(1, -23), 0})
// An f32 function, plain and with .ftz.
#define BOTH(NAME, LOW, HIGH, BOUND, OPERANDS, EXACT)                                   \
    APPROXIMATION(NAME##_approx, u32, F32, &format_f32, 32, false, LOW, HIGH, BOUND,    \
                  #NAME ".approx.f32 " OPERANDS ";", EXACT)                             \
    APPROXIMATION(NAME##_approx_ftz, u32, F32, &format_f32, 32, true, LOW, HIGH, BOUND, \
                  #NAME ".approx.ftz.f32 " OPERANDS ";", EXACT)

BOTH(rcp, -4, 4, ULP(1), "%0, %1", 1 / x)
BOTH(sqrt, 0, 8, ULP(1), "%0, %1", sqrt(x))
BOTH(rsqrt, 0, 8, RELATIVE(ldexp(1, -22.9)), "%0, %1", 1 / sqrt(x))
BOTH(ex2, -150, 130, ULP(2.1), "%0, %1", exp2(x)) // 2^-22 in PTX's table; an H200 reaches 2.055 units
BOTH(lg2, 0, 4, (x > 0.5 && x < 2 ? ABSOLUTE(ldexp(1, -22)) : RELATIVE(ldexp(1, -22))), "%0, %1", log2(x))
#define TRIGONOMETRIC                                \
    (fabs(x) <= 6.283186 ? ABSOLUTE(ldexp(1, -20.4)) \
     : fabs(x) <= 314.2  ? ABSOLUTE(ldexp(1, -14.7)) \
                         : ABSOLUTE(2))
BOTH(sin, -7, 7, TRIGONOMETRIC, "%0, %1", sin(x))
BOTH(cos, -7, 7, TRIGONOMETRIC, "%0, %1", cos(x))
APPROXIMATION(tanh_approx, u32, F32, &format_f32, 32, false, -4, 4, RELATIVE(ldexp(1, -11)),
              "tanh.approx.f32 %0, %1;", tanh(x))

// div.approx gives 0 for a divisor beyond 2^126, and NaN for an infinity over one; div.full is good everywhere.
static double divide_approx(double x, double y)
{
    if (fabs(y) > ldexp(1, 126) && !isinf(y) && x == x) return isinf(x) ? nan("") : 0 * x / y;
    return x / y;
}
BOTH(div, -4, 4, ULP(2), "%0, %1, %2", divide_approx(x, y))
APPROXIMATION(div_full, u32, F32, &format_f32, 32, false, -4, 4, ULP(2), "div.full.f32 %0, %1, %2;", x / y)
APPROXIMATION(div_full_ftz, u32, F32, &format_f32, 32, true, -4, 4, ULP(2), "div.full.ftz.f32 %0, %1, %2;",
              x / y)

APPROXIMATION(ex2_f16, u16, F16, &format_f16, 16, false, -25, 16, RELATIVE(ldexp(1, -9.9)),
              "ex2.approx.f16 %0, %1;", exp2(x))
APPROXIMATION(ex2_f16x2, u32, F16X2, &format_f16, 16, false, -25, 16, RELATIVE(ldexp(1, -9.9)),
              "ex2.approx.f16x2 %0, %1;", exp2(x))
APPROXIMATION(ex2_bf16, u16, BF16, &format_bf16, 16, true, -130, 128, RELATIVE(ldexp(1, -7)),
              "ex2.approx.ftz.bf16 %0, %1;", exp2(x))
APPROXIMATION(ex2_bf16x2, u32, BF16X2, &format_bf16, 16, true, -130, 128, RELATIVE(ldexp(1, -7)),
              "ex2.approx.ftz.bf16x2 %0, %1;", exp2(x))
APPROXIMATION(tanh_f16, u16, F16, &format_f16, 16, false, -4, 4, ABSOLUTE(ldexp(1, -10.987)),
              "tanh.approx.f16 %0, %1;", tanh(x))
APPROXIMATION(tanh_f16x2, u32, F16X2, &format_f16, 16, false, -4, 4, ABSOLUTE(ldexp(1, -10.987)),
              "tanh.approx.f16x2 %0, %1;", tanh(x))
APPROXIMATION(tanh_bf16, u16, BF16, &format_bf16, 16, false, -4, 4, ABSOLUTE(ldexp(1.02, -8)),
              "tanh.approx.bf16 %0, %1;", tanh(x))
APPROXIMATION(tanh_bf16x2, u32, BF16X2, &format_bf16, 16, false, -4, 4, ABSOLUTE(ldexp(1.02, -8)),
              "tanh.approx.bf16x2 %0, %1;", tanh(x))

// f64's are seeds for Newton's method: 20 good bits. With .ftz the upper half of the operand is all that is looked at, even
// of a NaN.
static double upper_half(double x)
{
    u64 bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= ~0xffffffffull;
    memcpy(&x, &bits, sizeof x);
    return x;
}
APPROXIMATION(rcp_ftz_f64, u64, F64, NULL, 64, true, -4, 4, RELATIVE(ldexp(1, -19.9)),
              "rcp.approx.ftz.f64 %0, %1;", 1 / upper_half(x))
APPROXIMATION(rsqrt_ftz_f64, u64, F64, NULL, 64, true, 0, 8, RELATIVE(ldexp(1, -19.9)),
              "rsqrt.approx.ftz.f64 %0, %1;", 1 / sqrt(upper_half(x)))
APPROXIMATION(rsqrt_f64, u64, F64, NULL, 64, false, 0, 8, RELATIVE(ldexp(1, -19.9)),
              "rsqrt.approx.f64 %0, %1;", 1 / sqrt(x))

static double element(const struct approximation *f, u64 bits, int shift)
{
    if (f->format) return decode(f->format, (u32)(bits >> shift & (f->width == 32 ? 0xffffffff : 0xffff)));
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static double smallest_normal(const struct approximation *f)
{
    return !f->format ? ldexp(1, -1022) : f->format->exponent_bits == 8 ? ldexp(1, -126) : ldexp(1, -14);
}
static double smallest_subnormal(const struct approximation *f)
{
    return smallest_normal(f) * ldexp(1, f->format ? -f->format->mantissa_bits : -52);
}
static double largest(const struct approximation *f)
{
    return !f->format ? 1.7976931348623157e308 : decode(f->format, infinity_bits(f->format) - 1);
}

static bool acceptable(const struct approximation *f, double x, double y, double got)
{
    if (f->ftz && fabs(x) < smallest_normal(f)) x = copysign(0, x);
    if (f->ftz && fabs(y) < smallest_normal(f)) y = copysign(0, y);
    const double want = f->exact(x, y);
    const struct bound bound = f->bound(x, y);
    if (want != want) return got != got;
    if (isinf(want)) return got == want;
    const double slack = fabs(want) * bound.relative + bound.absolute + (f->ftz ? 0 : smallest_subnormal(f));
    if (isinf(got)) return fabs(want) + slack >= largest(f) && (got > 0) == (want > 0);
    if (f->ftz && got == 0 && fabs(want) - slack < smallest_normal(f)) return true;
    return fabs(got - want) <= slack;
}

static u64 uniform(const struct approximation *f)
{
    const double x = f->low + (f->high - f->low) * ldexp((double)(random_u64() >> 11), -53);
    if (f->format) return encode(f->format, x, RN);
    u64 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void run(const struct approximation *f)
{
    const int rounds = 4; // of OP_COUNT inputs
    static u64 a[OP_COUNT], b[OP_COUNT], got[OP_COUNT];
    u64 *a_gmem, *b_gmem, *d;
    CUDA_CHECK(cudaMalloc((void **)&a_gmem, sizeof a));
    CUDA_CHECK(cudaMalloc((void **)&b_gmem, sizeof b));
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    check_begin(f->name);
    u64 wrong = 0;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < OP_COUNT; i++) {
            u64 *const operands[2] = {&a[i], &b[i]};
            for (int k = 0; k < 2; k++) {
                *operands[k] = draw(f->kind);
                if (random_u64() % 2) {
                    *operands[k] = uniform(f);
                    if (f->kind == F16X2 || f->kind == BF16X2) *operands[k] |= uniform(f) << 16;
                }
            }
        }
        CUDA_CHECK(cudaMemcpy(a_gmem, a, sizeof a, cudaMemcpyHostToDevice));
        CUDA_CHECK(cudaMemcpy(b_gmem, b, sizeof b, cudaMemcpyHostToDevice));
        f->kernel(d, a_gmem, b_gmem, NULL);
        if (!launched(f->name)) break;
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        for (int i = 0; i < OP_COUNT; i++) {
            const int end = f->kind == F16X2 || f->kind == BF16X2 ? 32 : 1;
            for (int shift = 0; shift < end; shift += 16) {
                const double x = element(f, a[i], shift), y = element(f, b[i], shift),
                             z = element(f, got[i], shift);
                checks_done++;
                if (acceptable(f, x, y, z)) continue;
                if (!wrong++)
                    printf("%s: x=%a (0x%llx) y=%a: got %a, exactly %a\n", f->name, x,
                           (unsigned long long)a[i], y, z, f->exact(x, y));
            }
        }
    }
    if (wrong) printf("%s: %llu of %d wrong\n", f->name, (unsigned long long)wrong, rounds * OP_COUNT);
    checks_failed += wrong;
    CUDA_CHECK(cudaFree(a_gmem));
    CUDA_CHECK(cudaFree(b_gmem));
    CUDA_CHECK(cudaFree(d));
}

int main(int argc, char **argv)
{
    for (const struct approximation *f = first_approximation; f; f = f->next)
        if (argc < 2 || !strcmp(argv[1], f->name)) run(f);
    return check_end("special");
}
