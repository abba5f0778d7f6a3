/* printf.c: printf as a kernel calls it.
 *
 * nvcc lowers printf(format, ...) to vprintf(format, buffer), the buffer being the arguments one after another, each at
 * its natural alignment: 4 bytes for int and smaller, 8 for long, long long, double and pointers. So the conversions in
 * the format say where each argument lies. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "heap.h"
#include "runtime.h"

struct text {
    char *bytes;
    size_t used, capacity;
};

static void append(struct text *t, const char *bytes, size_t count)
{
    if (!count) return;
    if (t->used + count > t->capacity) {
        size_t capacity = (t->used + count) * 2 + 256;
        char *larger = realloc(t->bytes, capacity);
        if (!larger) return;
        t->bytes = larger;
        t->capacity = capacity;
    }
    memcpy(t->bytes + t->used, bytes, count);
    t->used += count;
}

__attribute__((format(printf, 2, 3))) static void append_format(struct text *t, const char *format, ...)
{
    char piece[512];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    if (length < (int)sizeof piece) {
        append(t, piece, length > 0 ? (size_t)length : 0);
    } else {
        char *long_piece = malloc((size_t)length + 1);
        if (long_piece) {
            vsnprintf(long_piece, (size_t)length + 1, format, again);
            append(t, long_piece, (size_t)length);
            free(long_piece);
        }
    }
    va_end(again);
}

/* The C string at a device address, copied, and never read past the end of its allocation. NULL if it is in none. */
static char *device_string(u64 address)
{
    struct allocation a;
    if (!heap_find(address, &a)) return NULL;
    size_t room = a.address + a.bytes - address;
    return strndup((const char *)address, room);
}

/* The arguments that are left. nvcc's buffer begins on 8 bytes in each thread's local memory. */
struct arguments {
    const u8 *bytes;
    size_t at, room;
    bool too_few;
};

/* Takes the next argument out of the buffer. */
static u64 take(struct arguments *args, size_t bytes)
{
    u64 value = 0;
    args->at = (args->at + bytes - 1) / bytes * bytes;
    if (args->at + bytes > args->room)
        args->too_few = true;
    else
        memcpy(&value, args->bytes + args->at, bytes);
    args->at += bytes;
    return value;
}

static void append_string(struct text *out, const char *spec, u64 address)
{
    char *string = address ? device_string(address) : NULL;
    if (string) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        append_format(out, spec, string);
#pragma GCC diagnostic pop
    } else if (address) {
        append_format(out, "(no string at 0x%llx)", (unsigned long long)address);
    } else {
        append_format(out, "(null)");
    }
    free(string);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored \
    "-Wformat-nonliteral" /* each conversion is checked as it is copied into `spec` */
int device_printf(u64 format_address, const u8 *buffer, size_t room)
{
    struct arguments args = {.bytes = buffer, .room = room};
    char *format = format_address ? device_string(format_address) : NULL;
    if (!format) return -1;
    struct text out = {.bytes = NULL};
    int count = 0;
    for (const char *at = format; *at;) {
        size_t plain = strcspn(at, "%");
        append(&out, at, plain);
        at += plain;
        if (!*at) break;
        if (at[1] == '%') {
            append(&out, "%", 1);
            at += 2;
            continue;
        }
        /* %[flags][width][.precision][size]type; spec gets the same, with * replaced and size made long long */
        const char *start = at++;
        char spec[64];
        size_t used = 0;
        spec[used++] = '%';
        while (*at && strchr("-+ #0123456789.*", *at) && used < sizeof spec - 16) {
            if (*at == '*') {
                used += (size_t)snprintf(spec + used, sizeof spec - used, "%d", (int)take(&args, 4));
                count++;
            } else {
                spec[used++] = *at;
            }
            at++;
        }
        int longs = 0, shorts = 0;
        for (; *at && strchr("lhzjt", *at); at++) {
            shorts += *at == 'h';
            longs += *at != 'h';
        }
        char type = *at;
        size_t bytes = longs ? 8 : 4;
        if (type && strchr("di", type)) {
            s64 value = (s64)take(&args, bytes);
            if (bytes == 4) value = (s32)value;
            if (shorts == 1) value = (s16)value;
            if (shorts == 2) value = (s8)value;
            snprintf(spec + used, sizeof spec - used, "ll%c", type);
            append_format(&out, spec, (long long)value);
        } else if (type && strchr("ouxX", type)) {
            u64 value = take(&args, bytes);
            if (shorts == 1) value = (u16)value;
            if (shorts == 2) value = (u8)value;
            snprintf(spec + used, sizeof spec - used, "ll%c", type);
            append_format(&out, spec, (unsigned long long)value);
        } else if (type == 'c') {
            snprintf(spec + used, sizeof spec - used, "c");
            append_format(&out, spec, (int)take(&args, 4));
        } else if (type && strchr("fFeEgGaA", type)) {
            u64 bits = take(&args, 8);
            double value;
            memcpy(&value, &bits, sizeof value);
            snprintf(spec + used, sizeof spec - used, "%c", type);
            append_format(&out, spec, value);
        } else if (type == 'p') {
            snprintf(spec + used, sizeof spec - used, "p");
            append_format(&out, spec, (void *)take(&args, 8));
        } else if (type == 's') {
            snprintf(spec + used, sizeof spec - used, "s");
            append_string(&out, spec, take(&args, 8));
        } else { /* no conversion that CUDA's printf knows: printed as it stands */
            append(&out, start, (size_t)(at - start) + (type != 0));
            at += type != 0;
            continue;
        }
        count++;
        at++;
    }
    if (args.too_few)
        count = TOO_FEW_ARGUMENTS;
    else
        fwrite(out.bytes, 1, out.used, stdout); /* one call: stdio's lock keeps it whole */
    free(out.bytes);
    free(format);
    return count;
}
#pragma GCC diagnostic pop
