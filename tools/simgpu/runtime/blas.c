/* blas.c: see blas.h. */
#include "blas.h"
#include "../exec/numeric.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *status_name(status s)
{
    switch (s) {
#define STATUS(value, name, text) \
    case name: return #name;
        STATUSES(STATUS)
#undef STATUS
    }
    return "unknown status";
}

const char *status_text(status s)
{
    switch (s) {
#define STATUS(value, name, text) \
    case name: return text;
        STATUSES(STATUS)
#undef STATUS
    }
    return "unknown status";
}

__attribute__((format(printf, 2, 3))) status blas_fail(status s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("simgpu: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return s;
}

/* ---- Number formats ----------------------------------------------------------------------------------------------- */

size_t element_bytes(data_type t)
{
    return t == R_64F ? 8 : t == R_32F ? 4 : t == R_8F_E4M3 ? 1 : 2;
}

const char *type_name(data_type t)
{
    switch (t) {
    case R_32F: return "f32";
    case R_64F: return "f64";
    case R_16F: return "f16";
    case R_16BF: return "bf16";
    case R_8F_E4M3: return "e4m3";
    }
    return "type";
}

static float from_bf16(u16 bits)
{
    union {
        u32 bits;
        float value;
    } u = {.bits = (u32)bits << 16};
    return u.value;
}

static u16 to_bf16(float value)
{
    union {
        float value;
        u32 bits;
    } u = {.value = value};
    if (value != value) return 0x7fff;
    return (u16)((u.bits + 0x7fff + (u.bits >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

static float from_f16(u16 bits)
{
    union {
        u16 bits;
        _Float16 value;
    } u = {.bits = bits};
    return (float)u.value;
}

static u16 to_f16(float value)
{
    union {
        _Float16 value;
        u16 bits;
    } u = {.value = (_Float16)value};
    return u.bits;
}

float element_read(data_type t, const void *array, size_t index)
{
    if (t == R_32F) return ((const float *)array)[index];
    if (t == R_8F_E4M3) return f32_of_e4m3(((const u8 *)array)[index]);
    u16 bits = ((const u16 *)array)[index];
    return t == R_16F ? from_f16(bits) : from_bf16(bits);
}

void element_write(data_type t, void *array, size_t index, float value)
{
    if (t == R_32F)
        ((float *)array)[index] = value;
    else
        ((u16 *)array)[index] = t == R_16F ? to_f16(value) : to_bf16(value);
}

/* ---- Matrices ------------------------------------------------------------------------------------------------------- */

/* Where element (r, c) lies. */
static size_t index_of(const struct matrix *m, int r, int c)
{
    return m->by_rows ? (size_t)r * (size_t)m->ld + (size_t)c : (size_t)c * (size_t)m->ld + (size_t)r;
}

float *matrix_dense(const struct matrix *m)
{
    float *dense = malloc(((size_t)m->rows * (size_t)m->columns + 1) * sizeof *dense), *to = dense;
    if (!dense) {
        fprintf(stderr, "simgpu: out of host memory for cuBLAS\n");
        exit(3);
    }
    for (int c = 0; c < m->columns; c++)
        for (int r = 0; r < m->rows; r++) *to++ = element_read(m->type, m->data, index_of(m, r, c));
    return dense;
}

void matrix_store(const struct matrix *m, const float *dense)
{
    for (int c = 0; c < m->columns; c++)
        for (int r = 0; r < m->rows; r++) element_write(m->type, m->data, index_of(m, r, c), *dense++);
}

bool matrix_in_bounds(const char *caller, const char *verb, const struct matrix *m)
{
    if (m->rows == 0 || m->columns == 0) return true;
    char who[128];
    snprintf(who, sizeof who, "%s: %s (%d x %d, ld %d, %s)", caller, m->name, m->rows, m->columns, m->ld,
             type_name(m->type));
    int lines = m->by_rows ? m->rows : m->columns, line = m->by_rows ? m->columns : m->rows;
    u64 elements = (u64)(lines - 1) * (u64)m->ld + (u64)line;
    return simgpu_check_access(who, verb, m->data, elements * element_bytes(m->type));
}

void matrix_touch(const struct matrix *m, bool writes)
{
    int lines = m->by_rows ? m->rows : m->columns, line = m->by_rows ? m->columns : m->rows;
    for (int i = 0; i < lines; i++)
        simgpu_touches(writes, (u8 *)m->data + (size_t)i * (size_t)m->ld * element_bytes(m->type),
                       (size_t)line * element_bytes(m->type));
}
