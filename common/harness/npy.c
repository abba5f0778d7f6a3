#include "npy.h"

#include <ctype.h>
#include <math.h>
#include <sys/stat.h>

static const struct {
    const char *name, *descr, *suffix;
    size_t bytes;
    int mantissa_bits; // stored fraction bits; 0 for integers
    int exponent_bits;
} TYPES[] = {
    [F32] = {"f32", "<f4", ".npy", 4, 23, 8},       [F64] = {"f64", "<f8", ".npy", 8, 52, 11},
    [F16] = {"f16", "<f2", ".npy", 2, 10, 5},       [BF16] = {"bf16", "<u2", ".bf16.npy", 2, 7, 8},
    [E4M3] = {"e4m3", "|u1", ".e4m3.npy", 1, 3, 4}, [E5M2] = {"e5m2", "|u1", ".e5m2.npy", 1, 2, 5},
    [I32] = {"i32", "<i4", ".npy", 4, 0, 0},        [I64] = {"i64", "<i8", ".npy", 8, 0, 0},
    [U8] = {"u8", "|u1", ".npy", 1, 0, 0},
};

enum { DTYPES = sizeof TYPES / sizeof *TYPES };

const char *dtype_name(enum dtype dtype)
{
    return TYPES[dtype].name;
}

size_t dtype_bytes(enum dtype dtype)
{
    return TYPES[dtype].bytes;
}

const char *dtype_suffix(enum dtype dtype)
{
    return TYPES[dtype].suffix;
}

double dtype_epsilon(enum dtype dtype)
{
    return TYPES[dtype].mantissa_bits ? ldexp(1, -TYPES[dtype].mantissa_bits) : 0;
}

double dtype_least(enum dtype dtype)
{
    if (!TYPES[dtype].exponent_bits) return 0;
    const int least_exponent = 2 - (1 << (TYPES[dtype].exponent_bits - 1)); // of a normal number
    return ldexp(dtype_epsilon(dtype), least_exponent);
}

// F16, BF16, E4M3 and E5M2 have the same layout: sign, exponent with bias 2^(e-1)-1, fraction. E4M3 ("fn") has no
// infinity: its all-ones exponent is an ordinary one, and only an all-ones fraction there means NaN.
// OCP 8-bit Floating Point Specification 1.0, table 1.
static double small_float_decode(enum dtype dtype, unsigned bits)
{
    int mbits = TYPES[dtype].mantissa_bits, ebits = TYPES[dtype].exponent_bits;
    int exponent = bits >> mbits & ((1 << ebits) - 1), all_ones = (1 << ebits) - 1, bias = all_ones >> 1;
    unsigned fraction = bits & ((1u << mbits) - 1);
    double sign = bits >> (mbits + ebits) & 1 ? -1 : 1;
    if (dtype == E4M3 ? exponent == all_ones && fraction == (1u << mbits) - 1
                      : exponent == all_ones && fraction)
        return NAN;
    if (dtype != E4M3 && exponent == all_ones) return sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - mbits);
    return sign * ldexp(fraction + (1u << mbits), exponent - bias - mbits);
}

static unsigned small_float_encode(enum dtype dtype, double value)
{
    int mbits = TYPES[dtype].mantissa_bits, ebits = TYPES[dtype].exponent_bits;
    int all_ones = (1 << ebits) - 1, bias = all_ones >> 1;
    unsigned sign = signbit(value) ? 1u << (mbits + ebits) : 0;
    unsigned nan = ((unsigned)all_ones << mbits) | ((1u << mbits) - 1);
    unsigned overflow = dtype == E4M3 ? nan : (unsigned)all_ones << mbits;
    if (isnan(value)) return sign | nan;
    if (isinf(value)) return sign | overflow;
    int exponent;
    frexp(value, &exponent);
    if (--exponent < 1 - bias) exponent = 1 - bias;
    // Adding the rounded fraction to the exponent field lets a carry move to the next binade by itself.
    unsigned scaled = (unsigned)nearbyint(ldexp(fabs(value), mbits - exponent));
    unsigned bits = value == 0 ? 0 : ((unsigned)(exponent + bias - 1) << mbits) + scaled;
    return sign | (bits >= overflow ? overflow : bits);
}

double dtype_get(enum dtype dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case F32: return ((const float *)data)[i];
    case F64: return ((const double *)data)[i];
    case I32: return ((const int32_t *)data)[i];
    case I64: return (double)((const int64_t *)data)[i];
    case U8: return ((const uint8_t *)data)[i];
    case E4M3:
    case E5M2: return small_float_decode(dtype, ((const uint8_t *)data)[i]);
    case F16: return small_float_decode(dtype, ((const uint16_t *)data)[i]);
    case BF16: { // the upper half of an F32
        uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    }
    abort();
}

void dtype_set(enum dtype dtype, void *data, int64_t i, double value)
{
    switch (dtype) {
    case F32: ((float *)data)[i] = (float)value; return;
    case F64: ((double *)data)[i] = value; return;
    case I32: ((int32_t *)data)[i] = (int32_t)nearbyint(value); return;
    case I64: ((int64_t *)data)[i] = (int64_t)nearbyint(value); return;
    case U8: ((uint8_t *)data)[i] = (uint8_t)nearbyint(value); return;
    case E4M3:
    case E5M2: ((uint8_t *)data)[i] = (uint8_t)small_float_encode(dtype, value); return;
    case F16:
    case BF16: ((uint16_t *)data)[i] = (uint16_t)small_float_encode(dtype, value); return;
    }
    abort();
}

char *npy_shape_text(int rank, const int64_t *shape, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "(");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < size) snprintf(text + used, size - used, rank == 1 ? ",)" : ")");
    return text;
}

void npy_free(struct npy *array)
{
    free(array->data);
    *array = (struct npy){0};
}

// The header is a Python dictionary literal such as
//   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
// padded with spaces and ended by a newline.
struct header {
    char descr[16];
    bool fortran_order;
    int rank;
    int64_t shape[NPY_MAX_RANK];
};

static const char *skip_spaces(const char *p)
{
    while (*p == ' ') p++;
    return p;
}

static bool accept(const char **p, const char *token)
{
    size_t length = strlen(token);
    *p = skip_spaces(*p);
    if (strncmp(*p, token, length) != 0) return false;
    *p += length;
    return true;
}

static bool parse_string(const char **p, char *text, size_t size)
{
    *p = skip_spaces(*p);
    char quote = **p;
    if (quote != '\'' && quote != '"') return false;
    const char *end = strchr(*p + 1, quote);
    if (!end || (size_t)(end - *p) > size) return false;
    memcpy(text, *p + 1, (size_t)(end - *p - 1));
    text[end - *p - 1] = 0;
    *p = end + 1;
    return true;
}

static bool parse_shape(const char *path, const char **p, struct header *header, struct error *error)
{
    if (!accept(p, "(")) return error_set(error, "%s: header: shape is not a tuple: %.40s", path, *p);
    while (!accept(p, ")")) {
        *p = skip_spaces(*p);
        if (!isdigit((unsigned char)**p))
            return error_set(error, "%s: header: shape holds '%.*s', expected a whole number of at least 1",
                             path, (int)strcspn(*p, ",) "), *p);
        errno = 0;
        char *end;
        long long size = strtoll(*p, &end, 10);
        if (errno)
            return error_set(error, "%s: header: shape holds %.*s, which overflows 64 bits", path,
                             (int)(end - *p), *p);
        if (header->rank == NPY_MAX_RANK)
            return error_set(error, "%s: header: more than %d dimensions", path, NPY_MAX_RANK);
        header->shape[header->rank++] = size;
        *p = end;
        if (!accept(p, ",")) {
            if (accept(p, ")")) break;
            return error_set(error, "%s: header: shape is not a tuple of numbers: %.40s", path, *p);
        }
    }
    return true;
}

static bool parse_header(const char *path, const char *p, struct header *header, struct error *error)
{
    bool have_descr = false, have_order = false, have_shape = false;
    if (!accept(&p, "{"))
        return error_set(error, "%s: header: begins with '%.20s', expected a dictionary", path, p);
    while (!accept(&p, "}")) {
        char key[16];
        if (!parse_string(&p, key, sizeof key) || !accept(&p, ":"))
            return error_set(error, "%s: header: found '%.20s', expected a key such as 'descr':", path, p);
        if (strcmp(key, "descr") == 0 && !have_descr) {
            have_descr = true;
            if (!parse_string(&p, header->descr, sizeof header->descr))
                return error_set(error, "%s: header: descr is '%.40s', expected a plain dtype such as '<f4'",
                                 path, p);
        } else if (strcmp(key, "fortran_order") == 0 && !have_order) {
            have_order = true;
            header->fortran_order = accept(&p, "True");
            if (!header->fortran_order && !accept(&p, "False"))
                return error_set(error, "%s: header: fortran_order is '%.20s', expected False", path, p);
        } else if (strcmp(key, "shape") == 0 && !have_shape) {
            have_shape = true;
            if (!parse_shape(path, &p, header, error)) return false;
        } else {
            return error_set(error, "%s: header: key '%s' is unknown or comes twice", path, key);
        }
        if (!accept(&p, ",")) {
            if (accept(&p, "}")) break;
            return error_set(error, "%s: header: found '%.20s', expected ',' or '}'", path, p);
        }
    }
    p = skip_spaces(p);
    if (*p == '\n') p++;
    if (*p) return error_set(error, "%s: header: '%.20s' after the dictionary", path, p);
    if (!have_descr || !have_order || !have_shape)
        return error_set(error, "%s: header: '%s' is missing", path,
                         !have_descr   ? "descr"
                         : !have_order ? "fortran_order"
                                       : "shape");
    return true;
}

// Finds the accepted dtype that the header's descr stands for.
static bool find_dtype(const char *path, const char *descr, unsigned accepted, enum dtype *dtype,
                       struct error *error)
{
    char expected[64] = "";
    for (int i = 0; i < DTYPES; i++) {
        if (!(accepted & 1u << i) || !TYPES[i].descr) continue; // or no file holds it
        if (strcmp(descr, TYPES[i].descr) == 0) {
            *dtype = (enum dtype)i;
            return true;
        }
        size_t used = strlen(expected);
        snprintf(expected + used, sizeof expected - used, "%s'%s' (%s)", used ? " or " : "", TYPES[i].descr,
                 TYPES[i].name);
    }
    return error_set(error, "%s: dtype '%s'%s, expected %s", path, descr,
                     descr[0] == '>' ? " is big-endian" : "", expected);
}

// Elements of a shape, checked so that their bytes fit in an int64_t.
static bool count_elements(const char *path, const struct header *header, size_t bytes, int64_t *count,
                           struct error *error)
{
    char text[256];
    npy_shape_text(header->rank, header->shape, text, sizeof text);
    int64_t total = (int64_t)bytes;
    for (int i = 0; i < header->rank; i++) {
        if (header->shape[i] < 1)
            return error_set(error, "%s: shape %s, expected every dimension to be at least 1", path, text);
        if (__builtin_mul_overflow(total, header->shape[i], &total))
            return error_set(error, "%s: shape %s: the size overflows 64 bits", path, text);
    }
    *count = total / (int64_t)bytes;
    return true;
}

// Reads magic, version and header from `file`; on success the file stands at the data and *data_offset says where.
static bool read_header(const char *path, FILE *file, int64_t file_bytes, struct header *header,
                        int64_t *data_offset, struct error *error)
{
    unsigned char start[12];
    size_t got = fread(start, 1, 10, file);
    if (got < 6 || memcmp(start, "\x93NUMPY", 6) != 0)
        return error_set(error, "%s: not a .npy file: it does not begin with \\x93NUMPY", path);
    if (got < 10)
        return error_set(error, "%s: truncated: %lld bytes, too short for a header", path,
                         (long long)file_bytes);
    if (start[6] < 1 || start[6] > 3 || start[7] != 0)
        return error_set(error, "%s: .npy version %d.%d, expected 1.0, 2.0 or 3.0", path, start[6], start[7]);
    int64_t length = start[8] | start[9] << 8, offset = 10;
    if (start[6] > 1) {
        if (fread(start + 10, 1, 2, file) != 2)
            return error_set(error, "%s: truncated: %lld bytes, too short for a header", path,
                             (long long)file_bytes);
        length |= (int64_t)start[10] << 16 | (int64_t)start[11] << 24;
        offset = 12;
    }
    *data_offset = offset + length;
    if (*data_offset > file_bytes)
        return error_set(error, "%s: truncated: %lld bytes, its header alone needs %lld", path,
                         (long long)file_bytes, (long long)*data_offset);
    char *text = calloc((size_t)length + 1, 1);
    if (!text) return error_set(error, "%s: no memory for a header of %lld bytes", path, (long long)length);
    bool ok = fread(text, 1, (size_t)length, file) == (size_t)length ||
              error_set(error, "%s: cannot read: %s", path, strerror(errno));
    if (ok && strlen(text) != (size_t)length) ok = error_set(error, "%s: header: holds a zero byte", path);
    ok = ok && parse_header(path, text, header, error);
    free(text);
    return ok;
}

static bool load_from(const char *path, FILE *file, unsigned accepted, struct npy *array, struct error *error)
{
    struct stat info;
    if (fstat(fileno(file), &info) != 0)
        return error_set(error, "%s: cannot read: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return error_set(error, "%s: not a regular file, expected a .npy file", path);

    struct header header = {0};
    int64_t offset = 0;
    if (!read_header(path, file, info.st_size, &header, &offset, error)) return false;
    if (!find_dtype(path, header.descr, accepted, &array->dtype, error)) return false;
    if (header.fortran_order)
        return error_set(
            error, "%s: fortran_order is True, expected C order: save numpy.ascontiguousarray(...)", path);
    if (!count_elements(path, &header, dtype_bytes(array->dtype), &array->count, error)) return false;

    int64_t need = array->count * (int64_t)dtype_bytes(array->dtype), have = info.st_size - offset;
    if (have != need) {
        char text[256];
        return error_set(error, "%s: %s: %lld bytes of data, shape %s of %s needs %lld", path,
                         have < need ? "truncated" : "too long", (long long)have,
                         npy_shape_text(header.rank, header.shape, text, sizeof text),
                         dtype_name(array->dtype), (long long)need);
    }
    array->rank = header.rank;
    memcpy(array->shape, header.shape, sizeof header.shape);
    array->data = malloc((size_t)need);
    if (!array->data) return error_set(error, "%s: no memory for its %lld bytes", path, (long long)need);
    if (fread(array->data, 1, (size_t)need, file) != (size_t)need) {
        npy_free(array);
        return error_set(error, "%s: cannot read: %s", path, strerror(errno));
    }
    return true;
}

bool npy_load(const char *path, unsigned accepted, struct npy *array, struct error *error)
{
    *array = (struct npy){0};
    FILE *file = fopen(path, "rb");
    if (!file) return error_set(error, "%s: cannot open: %s", path, strerror(errno));
    bool ok = load_from(path, file, accepted, array, error);
    fclose(file);
    return ok;
}

bool npy_save(const char *path, const struct npy *array, struct error *error)
{
    char shape[256], dict[320], header[512];
    npy_shape_text(array->rank, array->shape, shape, sizeof shape);
    snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
             TYPES[array->dtype].descr, shape);
    // Magic, version and length are 10 bytes; the data must begin at a multiple of 64.
    int length = (int)((10 + strlen(dict) + 1 + 63) / 64 * 64 - 10);
    snprintf(header, sizeof header, "%-*s\n", length - 1, dict);
    unsigned char start[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)length, (unsigned char)(length >> 8)};

    FILE *file = fopen(path, "wb");
    if (!file) return error_set(error, "%s: cannot write: %s", path, strerror(errno));
    size_t bytes = (size_t)array->count * dtype_bytes(array->dtype);
    bool ok = fwrite(start, 1, 10, file) == 10 && fwrite(header, 1, (size_t)length, file) == (size_t)length &&
              fwrite(array->data, 1, bytes, file) == bytes;
    if (fclose(file) != 0 || !ok) return error_set(error, "%s: cannot write: %s", path, strerror(errno));
    return true;
}
