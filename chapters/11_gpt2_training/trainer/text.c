#include "text.h"

#include <stdlib.h>
#include <string.h>

// llm.c's files begin with 256 whole numbers: a magic number, a version, a count.
enum { HEADER_NUMBERS = 256, TOKEN_MAGIC = 20240520, TOKENIZER_MAGIC = 20240328 };
enum { BYTES = 256, GPT2_VOCABULARY = 50257, GPT2_SEPARATOR = 50256 };

uint64_t random_bits(uint64_t seed, uint64_t index)
{
    uint64_t x = seed + (index + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// The whole file; the caller frees it.
static unsigned char *read_file(const char *path, size_t *bytes, struct error *error)
{
    FILE *file = fopen(path, "rb");
    unsigned char *data = NULL;
    long end = -1;
    if (file && fseek(file, 0, SEEK_END) == 0) end = ftell(file);
    if (end >= 0 && fseek(file, 0, SEEK_SET) == 0) data = malloc((size_t)end + 1);
    if (!data || fread(data, 1, (size_t)end, file) != (size_t)end) {
        error_set(error, "%s: cannot be read: %s", path, strerror(errno ? errno : EIO));
        free(data);
        data = NULL;
    }
    if (file) fclose(file);
    *bytes = (size_t)end;
    return data;
}

// Appends the file's tokens to those of the text.
static bool append(const char *path, struct text *text, struct error *error)
{
    size_t bytes;
    errno = 0;
    unsigned char *data = read_file(path, &bytes, error);
    if (!data) return false;
    int32_t header[HEADER_NUMBERS] = {0};
    if (bytes >= sizeof header) memcpy(header, data, sizeof header);
    const bool tokens = header[0] == TOKEN_MAGIC;
    const int vocabulary = tokens ? GPT2_VOCABULARY : BYTES;
    const size_t count = tokens ? (uint32_t)header[2] : bytes, between = !tokens && text->count > 0;
    if (tokens && (header[1] != 1 || bytes != sizeof header + 2 * count))
        error_set(error, "%s: version %d and %zu bytes, expected version 1 and %zu bytes for its %zu tokens",
                  path, header[1], bytes, sizeof header + 2 * count, count);
    else if (text->count > 0 && text->vocabulary != vocabulary)
        error_set(error, "%s: %s, expected the same kind as the files before", path,
                  tokens ? "a file of tokens" : "a file of bytes");
    else {
        uint16_t *grown = realloc(text->token, (text->count + between + count + 1) * sizeof *grown);
        if (!grown) die_input("no memory for %zu tokens", text->count + count);
        text->token = grown;
        if (between) grown[text->count++] = 0;
        for (size_t i = 0; i < count; i++) {
            grown[text->count + i] = data[i];
            if (tokens) memcpy(&grown[text->count + i], data + sizeof header + 2 * i, 2);
            if (grown[text->count + i] >= vocabulary) {
                error_set(error, "%s: token %zu is %d, expected one below %d", path, i,
                          grown[text->count + i], vocabulary);
                free(data);
                return false;
            }
        }
        text->count += count;
        text->vocabulary = vocabulary;
        text->separator = tokens ? GPT2_SEPARATOR : 0;
        free(data);
        return true;
    }
    free(data);
    return false;
}

bool text_load(char *const *files, int count, const char *validation_file, double validation,
               struct text *text, struct error *error)
{
    *text = (struct text){0};
    for (int i = 0; i < count; i++)
        if (!append(files[i], text, error)) return text_free(text), false;
    text->training = text->count - (size_t)((double)text->count * validation);
    if (!validation_file) return true;
    text->training = text->count;
    return append(validation_file, text, error) || (text_free(text), false);
}

void text_free(struct text *text)
{
    free(text->token);
    *text = (struct text){0};
}

static void copy_window(const struct text *text, size_t begin, int length, int *tokens, int *targets)
{
    for (int t = 0; t < length; t++) {
        tokens[t] = text->token[begin + (size_t)t];
        targets[t] = text->token[begin + (size_t)t + 1];
    }
}

void text_batch(const struct text *text, uint64_t seed, int step, struct windows w, int *tokens, int *targets)
{
    const size_t places = text->training - (size_t)w.length;
    for (int i = 0; i < w.count; i++) {
        const uint64_t number = (uint64_t)step * (uint64_t)w.batch + (uint64_t)(w.first + i);
        copy_window(text, random_bits(seed, number) % places, w.length, tokens + i * w.length,
                    targets + i * w.length);
    }
}

int text_validation_batches(const struct text *text, int batch, int length)
{
    const size_t tokens = text->count - text->training;
    return tokens == 0 ? 0 : (int)((tokens - 1) / ((size_t)batch * (size_t)length));
}

void text_validation_batch(const struct text *text, int i, struct windows w, int *tokens, int *targets)
{
    const size_t window = (size_t)i * (size_t)w.batch + (size_t)w.first;
    copy_window(text, text->training + window * (size_t)w.length, w.count * w.length, tokens, targets);
}

bool vocabulary_load(const char *path, struct vocabulary *v, struct error *error)
{
    size_t bytes, at = HEADER_NUMBERS * sizeof(uint32_t);
    uint32_t header[HEADER_NUMBERS];
    errno = 0;
    unsigned char *data = read_file(path, &bytes, error);
    *v = (struct vocabulary){0};
    if (!data) return false;
    if (bytes >= at) memcpy(header, data, at);
    if (bytes < at || header[0] != TOKENIZER_MAGIC || header[2] > 1 << 20) {
        free(data);
        return error_set(error, "%s: not a tokenizer file of llm.c, which begins with %d", path,
                         TOKENIZER_MAGIC);
    }
    v->piece = calloc(header[2] + 1, sizeof *v->piece);
    v->length = calloc(header[2] + 1, 1);
    if (!v->piece || !v->length) die_input("no memory for %u tokens", header[2]);
    while (v->count < (int)header[2] && at < bytes && at + 1 + data[at] <= bytes) {
        v->length[v->count] = data[at];
        v->piece[v->count++] = (char *)data + at + 1;
        at += 1 + data[at];
    }
    return v->count == (int)header[2] ||
           error_set(error, "%s: ends after %d of %u tokens", path, v->count, header[2]);
}

// The bytes of a character of UTF-8 that is not whole yet.
static struct {
    unsigned char byte[4];
    int count, wanted;
} character;

void print_rest(void)
{
    for (int i = 0; i < character.count; i++) printf("\\x%02x", character.byte[i]);
    character.count = 0;
}

// Whether `byte` may be the next one (Unicode 15, table 3-7): no character has two encodings, and none is a surrogate.
static bool continues(unsigned char byte)
{
    const unsigned char first = character.byte[0];
    const unsigned least = character.count > 1 ? 0x80
                           : first == 0xe0     ? 0xa0
                           : first == 0xf0     ? 0x90
                                               : 0x80,
                   most = character.count > 1 ? 0xbf
                          : first == 0xed     ? 0x9f
                          : first == 0xf4     ? 0x8f
                                              : 0xbf;
    return character.count > 0 && byte >= least && byte <= most;
}

static void print_byte(unsigned char byte)
{
    if (!continues(byte)) {
        print_rest();
        character.wanted = byte < 0x80   ? 1
                           : byte < 0xc2 ? 0
                           : byte < 0xe0 ? 2
                           : byte < 0xf0 ? 3
                           : byte < 0xf5 ? 4
                                         : 0;
    }
    if (byte < ' ' && byte != '\n' && byte != '\t') byte = '.';
    character.byte[character.count++] = byte;
    if (character.wanted == 0)
        print_rest();
    else if (character.count == character.wanted)
        fwrite(character.byte, 1, (size_t)character.count, stdout), character.count = 0;
}

void vocabulary_print(const struct vocabulary *v, int token)
{
    if (v && token < v->count)
        for (int i = 0; i < v->length[token]; i++) print_byte((unsigned char)v->piece[token][i]);
    else if (v)
        print_rest(), printf("[%d]", token);
    else
        print_byte(token == 0 ? '\n' : (unsigned char)token);
}
