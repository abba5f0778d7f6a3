// What a real GPU computes, instruction by instruction, and whether this device computes the same.
//
//     conformance --record DIR [WHICH]  run every variant and write its output bits to DIR/NAME.bin
//     conformance --check DIR [WHICH]   run every variant and compare with the recording, bit for bit, or for the
//                                       approximations within the error that PTX allows
//     conformance --list [WHICH]        the variants, what kind each is of, and how it is compared
//
// WHICH is the name of a variant, or of a kind: all in one of the files below. --record leaves alone what DIR has already,
// and stops at the first variant that fails, since that may take the context with it: DIR/NAME.part stays behind, and the
// next run goes on after it. So a variant that hangs costs no other one (record.sh).
//
// Only outputs are recorded. Inputs are drawn again each time: check.h's generator (splitmix64, seeded with a hash of the
// variant's name) and its `draw`, after every combination of special values. A recording starts with a 64-bit hash of the
// inputs, so that a changed generator is noticed. Recordings of an H200 are in h200.tar.gz; record.sh makes them.
#include <dirent.h>

#include "../check.h"

enum { MAX_INPUTS = 4 };

// When is a result right? Its bits are the recorded ones; or it is an approximation, and the two lie within twice its bound
// of one another: `ulps` units of the format's last place, or `absolute`.
struct rule {
    int exponent_bits, mantissa_bits; // of one element; 0: bits
    double ulps, absolute;
};
static constexpr struct rule bits()
{
    return {0, 0, 0, 0};
}
static constexpr struct rule ulp_f32(double ulps, double absolute)
{
    return {8, 23, ulps, absolute};
}
static constexpr struct rule ulp_f64(double ulps)
{
    return {11, 52, ulps, 0};
}
static constexpr struct rule ulp_f16(double ulps, double absolute)
{
    return {5, 10, ulps, absolute};
}
static constexpr struct rule ulp_bf16(double ulps, double absolute)
{
    return {8, 7, ulps, absolute};
}

struct variant {
    const char *name;
    void (*draw)(const struct variant *v, u8 **inputs); // fills inputs of the sizes below
    void (*launch)(u8 *out, u8 *const *inputs);
    size_t input_bytes[MAX_INPUTS];
    size_t out_bytes, element_bytes; // an element is what a mismatch is reported for
    struct rule rule;
    enum input_kind kinds[3]; // scalar variants: what a, b and c are
    struct variant *next;
    const char *kind;
    const void *about; // what `draw` and `launch` of this kind know of it
};
static struct variant *first_variant, **last_variant = &first_variant;
static const char *current_kind;

static bool kind_begin(const char *kind)
{
    current_kind = kind;
    return true;
}
static bool variant_add(struct variant *v)
{
    v->kind = current_kind;
    *last_variant = v;
    last_variant = &v->next;
    return true;
}

// A variant whose results are bits: its sizes are those of an element, of the output and of the inputs.
#define VARIANT(NAME, DRAW, LAUNCH, ABOUT, OUT_BYTES, ELEMENT_BYTES, ...)                               \
    static struct variant NAME##_variant = {#NAME,     DRAW,          LAUNCH, {__VA_ARGS__},            \
                                            OUT_BYTES, ELEMENT_BYTES, bits(), {UNUSED, UNUSED, UNUSED}, \
                                            NULL,      NULL,          ABOUT};                           \
    static const bool NAME##_added = variant_add(&NAME##_variant);

// The variant that runs, and its inputs on the host, for a `launch` that has more to do than to start a kernel.
static const struct variant *running;
static u8 **host_inputs;

static const bool scalar_kind = kind_begin("scalar");
#include "scalar.cuh"
static const bool tensor_kind = kind_begin("tensor");
#include "tensor.cuh"
static const bool wgmma_kind = kind_begin("wgmma");
#include "wgmma.cuh"
static const bool mbarrier_kind = kind_begin("mbarrier");
#include "mbarrier.cuh"
static const bool tma_kind = kind_begin("tma");
#include "tma.cuh"
static const bool tensormap_kind = kind_begin("tensormap");
#include "tensormap.cuh"
static const bool bulk_kind = kind_begin("bulk");
#include "bulk.cuh"
static const bool cluster_kind = kind_begin("cluster");
#include "cluster.cuh"
static const bool encode_kind = kind_begin("encode");
#include "encode.cuh"

// ---- Comparing -------------------------------------------------------------------------------------------------------

static u64 hash_bytes(u64 hash, const u8 *bytes, size_t count) // FNV-1a
{
    for (size_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * 0x100000001b3ull;
    return hash;
}

static double decode_bits(u64 x, const struct rule *r)
{
    const u64 mantissa = x & ((1ull << r->mantissa_bits) - 1);
    const int exponent = (int)(x >> r->mantissa_bits & ((1u << r->exponent_bits) - 1));
    const int bias = (1 << (r->exponent_bits - 1)) - 1;
    const bool negative = x >> (r->exponent_bits + r->mantissa_bits) & 1;
    double d = ldexp((double)mantissa + (exponent ? ldexp(1, r->mantissa_bits) : 0),
                     (exponent ? exponent : 1) - bias - r->mantissa_bits);
    if (exponent == (1 << r->exponent_bits) - 1) d = mantissa ? nan("") : HUGE_VAL;
    return negative ? -d : d;
}

static bool near_enough(u64 got, u64 want, const struct rule *r)
{
    const double x = decode_bits(got, r), y = decode_bits(want, r);
    if (x != x || y != y) return x != x && y != y;
    if (isinf(x) || isinf(y)) return x == y;
    const double larger = fmax(fabs(x), fabs(y)), least = ldexp(1, 2 - (1 << (r->exponent_bits - 1)));
    const double unit = ldexp(1, ilogb(fmax(larger, least)) - r->mantissa_bits);
    return fabs(x - y) <= 2 * r->ulps * unit || fabs(x - y) <= 2 * r->absolute;
}

// Element i agrees; in a pair, both halves must.
static bool agrees(const struct variant *v, const u8 *got, const u8 *want, size_t i)
{
    const size_t n = v->element_bytes;
    if (!memcmp(got + i * n, want + i * n, n)) return true;
    if (!v->rule.exponent_bits) return false;
    const size_t width = (size_t)(v->rule.exponent_bits + v->rule.mantissa_bits + 1) / 8;
    for (size_t at = i * n; at < (i + 1) * n; at += width) {
        u64 x = 0, y = 0;
        memcpy(&x, got + at, width);
        memcpy(&y, want + at, width);
        if (!near_enough(x, y, &v->rule)) return false;
    }
    return true;
}

static void print_element(const u8 *bytes, size_t count)
{
    printf("0x");
    for (size_t i = count; i-- > 0;) printf("%02x", bytes[i]);
}

// Compares with the recording; prints a line.
static bool compare(const struct variant *v, u8 *const *inputs, const u8 *got, const u8 *want)
{
    const size_t count = v->out_bytes / v->element_bytes;
    size_t wrong = 0, first = 0;
    for (size_t i = count; i-- > 0;)
        if (!agrees(v, got, want, i)) wrong++, first = i;
    if (!wrong) {
        printf("%s: ok, %zu\n", v->name, count);
        return true;
    }
    printf("%s: %zu of %zu differ; first %zu: got ", v->name, wrong, count, first);
    print_element(got + first * v->element_bytes, v->element_bytes);
    printf(", recorded ");
    print_element(want + first * v->element_bytes, v->element_bytes);
    if (v->draw == draw_scalar)
        for (int k = 0; k < 3; k++) {
            u64 x;
            memcpy(&x, inputs[k] + first * sizeof x, sizeof x);
            if (v->kinds[k] != UNUSED) printf(", %c=0x%llx", 'a' + k, (unsigned long long)x);
        }
    printf("\n");
    return false;
}

// ---- Running ---------------------------------------------------------------------------------------------------------

// Writes the recording, first as .part.
static bool write_recording(const char *folder, const char *name, u64 hash, const u8 *out, size_t bytes)
{
    char part[4096], path[4096];
    snprintf(part, sizeof part, "%s/%s.part", folder, name);
    snprintf(path, sizeof path, "%s/%s.bin", folder, name);
    FILE *file = fopen(part, "wb");
    bool ok = file && fwrite(&hash, sizeof hash, 1, file) == 1 && fwrite(out, bytes, 1, file) == 1;
    if (file && fclose(file)) ok = false;
    if (ok && rename(part, path)) ok = false;
    if (!ok) printf("%s: cannot write %s\n", name, path);
    return ok;
}

static bool check_recording(const char *folder, const struct variant *v, u64 hash, u8 *const *inputs,
                            const u8 *out)
{
    u8 *const recorded = (u8 *)malloc(v->out_bytes);
    u64 recorded_hash = 0;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.bin", folder, v->name);
    FILE *file = fopen(path, "rb");
    bool ok = false;
    if (!file)
        printf("%s: cannot open %s\n", v->name, path);
    else if (fread(&recorded_hash, sizeof hash, 1, file) != 1 || fread(recorded, v->out_bytes, 1, file) != 1)
        printf("%s: %s is truncated\n", v->name, path);
    else if (recorded_hash != hash)
        printf("%s: was recorded for other inputs; record again\n", v->name);
    else
        ok = compare(v, inputs, out, recorded);
    if (file) fclose(file);
    free(recorded);
    return ok;
}

static bool run(const struct variant *v, const char *folder, bool record)
{
    u8 *host[MAX_INPUTS] = {}, *device[MAX_INPUTS] = {}, *out_gmem;
    u8 *const out = (u8 *)malloc(v->out_bytes);
    running = v;
    host_inputs = host;
    random_state = hash_bytes(0xcbf29ce484222325ull, (const u8 *)v->name, strlen(v->name));
    for (int k = 0; k < MAX_INPUTS; k++) host[k] = (u8 *)calloc(1, v->input_bytes[k] + 1);
    v->draw(v, host);
    u64 hash = 0xcbf29ce484222325ull;
    for (int k = 0; k < MAX_INPUTS; k++) {
        hash = hash_bytes(hash, host[k], v->input_bytes[k]);
        CUDA_CHECK(cudaMalloc((void **)&device[k], v->input_bytes[k] + 16));
        CUDA_CHECK(cudaMemcpy(device[k], host[k], v->input_bytes[k], cudaMemcpyHostToDevice));
    }
    CUDA_CHECK(cudaMalloc((void **)&out_gmem, v->out_bytes));
    CUDA_CHECK(cudaMemset(out_gmem, 0xa5, v->out_bytes));
    v->launch(out_gmem, device);
    bool ok = launched(v->name);
    if (ok) {
        CUDA_CHECK(cudaMemcpy(out, out_gmem, v->out_bytes, cudaMemcpyDeviceToHost));
        ok = record ? write_recording(folder, v->name, hash, out, v->out_bytes)
                    : check_recording(folder, v, hash, host, out);
    }
    for (int k = 0; k < MAX_INPUTS; k++) {
        free(host[k]);
        cudaFree(device[k]); // fails when the kernel has: that is known
    }
    cudaFree(out_gmem);
    free(out);
    return ok;
}

// Whether there is DIR/NAME with this ending.
static bool exists(const char *folder, const char *name, const char *ending)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%s", folder, name, ending);
    FILE *file = fopen(path, "rb");
    if (file) fclose(file);
    return file;
}

// Records one more variant, or finds that it is not to be: already there, or known to fail.
static bool record_one(const struct variant *v, const char *folder)
{
    if (exists(folder, v->name, ".bin") || exists(folder, v->name, ".part")) return true;
    char part[4096];
    snprintf(part, sizeof part, "%s/%s.part", folder, v->name);
    FILE *file = fopen(part, "wb");
    if (file) fclose(file);
    return run(v, folder, true);
}

// How many recordings in the folder are of no variant; each is named.
static int strangers(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        const char *dot = strrchr(entry->d_name, '.');
        if (!dot || strcmp(dot, ".bin")) continue;
        const struct variant *v = first_variant;
        while (v && (strlen(v->name) != (size_t)(dot - entry->d_name) ||
                     strncmp(v->name, entry->d_name, strlen(v->name))))
            v = v->next;
        if (v) continue;
        printf("%s: there is no such variant\n", entry->d_name);
        count++;
    }
    if (dir) closedir(dir);
    return count;
}

static bool chosen(const struct variant *v, const char *which)
{
    return !which || !strcmp(which, v->name) || !strcmp(which, v->kind);
}

static int list(const char *which)
{
    for (const struct variant *v = first_variant; v; v = v->next) {
        if (!chosen(v, which)) continue;
        if (!v->rule.exponent_bits)
            printf("%s: %s, bits\n", v->name, v->kind);
        else
            printf("%s: %s, ulp(%g), absolute %g\n", v->name, v->kind, v->rule.ulps, v->rule.absolute);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if ((argc == 2 || argc == 3) && !strcmp(argv[1], "--list")) return list(argc == 3 ? argv[2] : NULL);
    const bool record = argc >= 3 && !strcmp(argv[1], "--record");
    if (argc < 3 || argc > 4 || !(record || !strcmp(argv[1], "--check"))) {
        fprintf(
            stderr,
            "usage: conformance --record DIR [NAME|KIND] | --check DIR [NAME|KIND] | --list [NAME|KIND]\n");
        return 2;
    }
    int good = 0, bad = 0, of_kind = 0;
    for (const struct variant *v = first_variant; v; v = v->next) {
        if (chosen(v, argc == 4 ? argv[3] : NULL)) {
            const bool ok = record ? record_one(v, argv[2]) : run(v, argv[2], false);
            *(ok ? &good : &bad) += 1;
            of_kind += ok;
            if (record && !ok) return 3;
        }
        if (!v->next || strcmp(v->kind, v->next->kind)) {
            if (of_kind) printf("%s: %d variants\n", v->kind, of_kind);
            of_kind = 0;
        }
    }
    if (!record && argc == 3) bad += strangers(argv[2]);
    printf("conformance: %d variants %s, %d %s\n", good, record ? "recorded" : "ok", bad,
           record ? "failed" : "differ");
    return bad != 0 || good == 0;
}
