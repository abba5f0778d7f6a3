#include "shape.h"

#include <ctype.h>
#include <limits.h>

int shape_find(const char *const *names, const char *text, size_t length)
{
    for (int i = 0; i < SHAPE_MAX_DIMS && names[i]; i++)
        if (strlen(names[i]) == length && strncmp(names[i], text, length) == 0) return i;
    return -1;
}

static size_t name_length(const char *text)
{
    size_t length = 0;
    while (isalnum((unsigned char)text[length]) || text[length] == '_') length++;
    return length;
}

bool shape_read(const char *text, const char *const *names, const int *smallest, int64_t *dim,
                struct error *error)
{
    for (int i = 0; i < SHAPE_MAX_DIMS; i++) dim[i] = -1;
    for (const char *p = text; *p;) {
        size_t length = name_length(p);
        int i = shape_find(names, p, length);
        if (i < 0 || p[length] != '=')
            return error_set(error, "'%s': found '%.20s', expected NAME=SIZE of this chapter", text, p);
        if (dim[i] >= 0) return error_set(error, "'%s': %s comes twice", text, names[i]);
        char *end;
        errno = 0;
        long long value = strtoll(p + length + 1, &end, 10);
        if (end == p + length + 1 || (*end && *end != ','))
            return error_set(error, "'%s': %s is '%.20s', expected a whole number", text, names[i],
                             p + length + 1);
        int least = smallest ? smallest[i] : 1;
        if (errno || value < least || value > INT_MAX)
            return error_set(error, "'%s': %s is %.*s, expected %d to %d", text, names[i],
                             (int)(end - p - (long)length - 1), p + length + 1, least, INT_MAX);
        dim[i] = value;
        p = *end ? end + 1 : end;
    }
    for (int i = 0; i < SHAPE_MAX_DIMS && names[i]; i++)
        if (dim[i] < 0) return error_set(error, "'%s': %s is missing", text, names[i]);
    return true;
}

char *shape_write(const char *const *names, const int64_t *dim, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < SHAPE_MAX_DIMS && names[i] && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s=%lld", i ? "," : "", names[i],
                                 (long long)dim[i]);
    return text;
}

// A recursive-descent parser: sum = product {+- product}, product = atom {*/ atom}, atom = number | name | (sum).
struct parser {
    const char *text, *p;
    const char *const *names;
    const int64_t *dim;
    struct error *error;
};

static bool sum(struct parser *parser, int64_t *value);

static bool atom(struct parser *parser, int64_t *value)
{
    if (*parser->p == '(') {
        parser->p++;
        if (!sum(parser, value)) return false;
        if (*parser->p++ != ')') return error_set(parser->error, "'%s': ')' is missing", parser->text);
        return true;
    }
    size_t length = name_length(parser->p);
    if (length == 0)
        return error_set(parser->error, "'%s': found '%s', expected a number or a name", parser->text,
                         parser->p);
    int i = shape_find(parser->names, parser->p, length);
    if (isdigit((unsigned char)*parser->p))
        *value = strtoll(parser->p, NULL, 10);
    else if (i >= 0)
        *value = parser->dim[i];
    else
        return error_set(parser->error, "'%s': no dimension is called '%.*s'", parser->text, (int)length,
                         parser->p);
    parser->p += length;
    return true;
}

static bool product(struct parser *parser, int64_t *value)
{
    if (!atom(parser, value)) return false;
    while (*parser->p == '*' || *parser->p == '/') {
        char op = *parser->p++;
        int64_t right;
        if (!atom(parser, &right)) return false;
        if (op == '/' && right == 0) return error_set(parser->error, "'%s': division by zero", parser->text);
        if (op == '/')
            *value /= right;
        else if (__builtin_mul_overflow(*value, right, value))
            return error_set(parser->error, "'%s' overflows 64 bits", parser->text);
    }
    return true;
}

static bool sum(struct parser *parser, int64_t *value)
{
    if (!product(parser, value)) return false;
    while (*parser->p == '+' || *parser->p == '-') {
        char op = *parser->p++;
        int64_t right;
        if (!product(parser, &right)) return false;
        if (op == '+' ? __builtin_add_overflow(*value, right, value)
                      : __builtin_sub_overflow(*value, right, value))
            return error_set(parser->error, "'%s' overflows 64 bits", parser->text);
    }
    return true;
}

const char *shape_evaluate(const char *text, const char *const *names, const int64_t *dim, int64_t *value,
                           struct error *error)
{
    struct parser parser = {text, text, names, dim, error};
    if (!sum(&parser, value)) return NULL;
    if (*parser.p && *parser.p != ',') {
        error_set(error, "'%s': found '%s', expected an operator", text, parser.p);
        return NULL;
    }
    return parser.p;
}
