/* fatbin.c: finds the PTX to run inside the fatbin that nvcc embeds in a program.
 *
 * A fatbin is a header and a sequence of entries, each with a header of its own and a payload: PTX text or a cubin
 * (SASS, which this simulator does not execute). NVIDIA does not document the format; the offsets below are those of
 * what nvcc 13.0 writes. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "../runtime/runtime.h"
#include "fatbin.h"

enum { FATBIN_MAGIC = 0xba55ed50, WRAPPER_MAGIC = 0x466243b1 };
enum { KIND_PTX = 1, KIND_ELF = 2 };
enum { FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000 };
enum { MAX_PTX = 1 << 30 }; /* bytes of text that are taken for possible */

/* The most that so many compressed bytes can hold: of zstd, blocks of 4 bytes that repeat one 128 Ki times (RFC 8878, "Blocks"); of
 * LZ4, lengths that grow by 255 a byte. */
enum { ZSTD_BLOCK = 4, ZSTD_BLOCK_HOLDS = 128 << 10, LZ4_BYTE_HOLDS = 255 };

static const char *const HOW_TO_COMPILE =
    "compile with `-arch=sm_90a`, or with `-gencode arch=compute_90a,code=[sm_90a,compute_90a]`";

struct fatbin_header {
    u32 magic;
    u16 version, header_bytes;
    u64 bytes; /* of all entries, this header not counted */
};

struct entry_header {
    u16 kind, version;
    u32 header_bytes;
    u64 padded_bytes;     /* payload with padding: the next entry follows */
    u32 compressed_bytes; /* 0: stored as it is */
    u32 unused_20, unused_24;
    u32 arch; /* 90 for sm_90 and for sm_90a */
    u32 unused_32, unused_36;
    u64 flags;
    u64 unused_48;
    u64 raw_bytes; /* after decompression */
};

/* What a fatbin without usable PTX holds instead, one word an entry, for the message. */
struct inventory {
    char text[256];
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void note(struct inventory *inv, const char *format, ...)
{
    char item[64];
    va_list args;
    va_start(args, format);
    vsnprintf(item, sizeof item, format, args);
    va_end(args);
    if (strstr(inv->text, item) || inv->used + strlen(item) + 3 > sizeof inv->text) return;
    inv->used += (size_t)snprintf(inv->text + inv->used, sizeof inv->text - inv->used, "%s%s",
                                  inv->used ? ", " : "", item);
}

/* libzstd, opened when the first compressed fatbin is met: nothing of it is needed to build the simulator. */
static struct {
    size_t (*decompress)(void *to, size_t capacity, const void *from, size_t bytes);
    unsigned (*is_error)(size_t code);
} zstd;

static void open_zstd(void)
{
    void *library = dlopen("libzstd.so.1", RTLD_NOW);
    if (!library) return;
    *(void **)&zstd.decompress = dlsym(library, "ZSTD_decompress");
    *(void **)&zstd.is_error = dlsym(library, "ZSTD_isError");
}

/* The payload as NUL-terminated text, malloc'ed; NULL and *why when it cannot be unpacked. */
static char *unpack(const struct entry_header *e, const u8 *payload, size_t *length, const char **why)
{
    bool zipped = e->flags & (FLAG_ZSTD | FLAG_LZ4);
    u64 bytes = zipped ? e->raw_bytes : e->padded_bytes, packed = e->compressed_bytes;
    u64 most = e->flags & FLAG_ZSTD ? (packed / ZSTD_BLOCK + 1) * ZSTD_BLOCK_HOLDS : packed * LZ4_BYTE_HOLDS;
    if (bytes > MAX_PTX || packed > e->padded_bytes || (zipped && bytes > most)) {
        *why = "its PTX is damaged (an entry says that it is larger than it can be)";
        return NULL;
    }
    char *text = malloc(bytes + 1);
    if (!text) {
        *why = "out of host memory while unpacking its PTX";
        return NULL;
    }
    if (e->flags & FLAG_ZSTD) {
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        pthread_once(&once, open_zstd);
        if (!zstd.decompress || !zstd.is_error) {
            free(text);
            *why =
                "its PTX is compressed and libzstd.so.1 is not here; install libzstd1, or compile with nvcc -no-compress";
            return NULL;
        }
        size_t got = zstd.decompress(text, bytes, payload, e->compressed_bytes);
        if (zstd.is_error(got)) {
            free(text);
            *why = "its compressed PTX is damaged (zstd cannot read it)";
            return NULL;
        }
        bytes = got;
    } else if (e->flags & FLAG_LZ4) {
        bytes = lz4_unpack((u8 *)text, bytes, payload, e->compressed_bytes);
        if (bytes == LZ4_DAMAGED) {
            free(text);
            *why = "its compressed PTX is damaged (it is no LZ4 block)";
            return NULL;
        }
    } else {
        memcpy(text, payload, bytes);
    }
    text[bytes] = 0;
    *length = strlen(text); /* what follows is padding */
    return text;
}

/* How well PTX for `target` suits an sm_90a device: 0 not at all, else higher is better. */
static int suitability(const char *target)
{
    if (strcmp(target, "sm_90a") == 0) return 1000;
    char *end;
    long arch = strtol(strncmp(target, "sm_", 3) == 0 ? target + 3 : "", &end, 10);
    return *end == 0 && arch > 0 && arch <= 90 ? (int)arch : 0;
}

/* The word after .target, without what follows a comma. */
static void target_of(const char *ptx, char target[32])
{
    target[0] = 0;
    const char *at = strstr(ptx, "\n.target");
    if (at) sscanf(at + strlen("\n.target"), " %31[a-z0-9_]", target);
}

/* PTX text that a program hands over itself; copied, since messages quote it. NULL, and *why: not for this device. */
static char *plain_ptx(const char *text, size_t *length, const char **why)
{
    static __thread char message[128];
    char target[32];
    target_of(text, target);
    char *copy = suitability(target) ? strdup(text) : NULL;
    snprintf(message, sizeof message, "it is PTX for %s, which an sm_90a device does not run",
             target[0] ? target : "no known target");
    *why = message;
    if (copy) *length = strlen(copy);
    return copy;
}

char *fatbin_ptx(const void *fatbin, size_t *length, const char **why)
{
    static __thread char message[768];
    struct fatbin_header header;
    const char *text = fatbin;
    if (strncmp(text, "\177ELF", 4) == 0) {
        *why = "it is machine code (SASS); load its PTX instead";
        return NULL;
    }
    if (*text == '.' || *text == '/' || (*text > 0 && *text <= ' ')) return plain_ptx(text, length, why);
    memcpy(&header, fatbin, sizeof header);
    if (header.magic == WRAPPER_MAGIC) {
        struct {
            u32 magic, version;
            const void *fatbin, *prelinked;
        } wrapper;
        memcpy(&wrapper, fatbin, sizeof wrapper);
        if (wrapper.version != 1) {
            *why =
                "it was linked from relocatable device code (-rdc=true or -dc), a piece of PTX a file, and the "
                "simulated GPU links none; compile each program from one .cu file, or include the others, without -rdc";
            return NULL;
        }
        fatbin = wrapper.fatbin;
        memcpy(&header, fatbin, sizeof header);
    }
    if (header.magic != FATBIN_MAGIC) {
        snprintf(message, sizeof message,
                 "its device code does not start as a fatbin does (0x%08x, not 0x%08x)", header.magic,
                 FATBIN_MAGIC);
        *why = message;
        return NULL;
    }

    char *best = NULL;
    int best_score = 0;
    struct inventory inventory = {.used = 0};
    const char *trouble = NULL;
    const u8 *at = (const u8 *)fatbin + header.header_bytes;
    u64 left = header.bytes;
    struct entry_header e;
    while (left >= sizeof e) {
        memcpy(&e, at, sizeof e);
        if (e.header_bytes < sizeof e || e.header_bytes > left || e.padded_bytes > left - e.header_bytes) {
            trouble = "its device code is damaged (an entry reaches past the end)";
            break;
        }
        const u8 *payload = at + e.header_bytes;
        at = payload + e.padded_bytes;
        left -= e.header_bytes + e.padded_bytes;
        if (e.kind == KIND_ELF) note(&inventory, "machine code (SASS) for sm_%u", e.arch);
        if (e.kind != KIND_PTX) continue;
        size_t bytes;
        char *ptx = unpack(&e, payload, &bytes, &trouble), target[32];
        if (!ptx) continue;
        target_of(ptx, target);
        int score = suitability(target);
        if (score == 0) note(&inventory, "PTX for %s", target[0] ? target : "no known target");
        if (score > best_score) {
            free(best);
            best = ptx;
            best_score = score;
            *length = bytes;
        } else {
            free(ptx);
        }
    }
    if (best) return best;
    if (trouble) {
        *why = trouble;
    } else {
        snprintf(message, sizeof message, "it holds no PTX that an sm_90a device runs, but %s; %s",
                 inventory.used ? inventory.text : "nothing", HOW_TO_COMPILE);
        *why = message;
    }
    return NULL;
}
