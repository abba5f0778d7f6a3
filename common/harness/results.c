#define _GNU_SOURCE
#include "results.h"

#include <limits.h>
#include <unistd.h>

void results_key(char *key, size_t size, const char *chapter, const char *operation, const char *step,
                 const char *what, const char *dtype, const char *metric)
{
    char member[200] = "";
    if (operation) snprintf(member, sizeof member, "\"operation\": \"%s\", ", operation);
    snprintf(
        key, size,
        "\"chapter\": \"%s\", %s\"step\": \"%s\", \"case\": \"%s\", \"dtype\": \"%s\", \"metric\": \"%s\"",
        chapter, member, step, what, dtype, metric);
}

void results_add(struct results *results, const char *key, const char *value)
{
    char *record;
    if (results->count == RESULTS_MAX || asprintf(&record, "{%s, %s}", key, value) < 0)
        die_input("--json: more than %d results in one run", RESULTS_MAX);
    results->key_length[results->count] = strlen(key) + 2; // with '{' and ','
    results->record[results->count++] = record;
}

char *results_quote(const char *text, char *out, size_t size)
{
    size_t used = 0;
    out[used++] = '"';
    for (; *text && used + 8 < size; text++) {
        if (*text == '"' || *text == '\\') out[used++] = '\\';
        if ((unsigned char)*text < ' ')
            used += (size_t)snprintf(out + used, size - used, "\\u%04x", *text);
        else
            out[used++] = *text;
    }
    out[used++] = '"';
    out[used] = 0;
    return out;
}

// Index of the new record that replaces this line of the old file, or -1.
static int find_record(const struct results *results, const char *line)
{
    for (int i = 0; i < results->count; i++)
        if (strncmp(line, results->record[i], results->key_length[i]) == 0) return i;
    return -1;
}

static void write_record(FILE *file, const char *record, bool *first)
{
    fprintf(file, "%s%s", *first ? "" : ",\n", record);
    *first = false;
}

// Copies the records of the old file, each replaced by its newer one; `written` marks those.
static bool copy_old(const struct results *results, const char *path, FILE *old, FILE *file, bool *written,
                     bool *first, struct error *error)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    bool ok = true;
    while (ok && (length = getline(&line, &size, old)) > 0) {
        while (length > 0 && (line[length - 1] == '\n' || line[length - 1] == ',')) line[--length] = 0;
        if (strcmp(line, "[") == 0 || strcmp(line, "]") == 0) continue;
        if (line[0] != '{' || line[length - 1] != '}') {
            ok = error_set(error, "%s: found '%.40s', expected a results file with one record a line", path,
                           line);
            break;
        }
        int i = find_record(results, line);
        if (i >= 0 && written[i]) continue;
        if (i >= 0) written[i] = true;
        write_record(file, i >= 0 ? results->record[i] : line, first);
    }
    free(line);
    return ok;
}

bool results_merge(struct results *results, const char *path, struct error *error)
{
    if (results->count == 0) return true;
    char temporary[PATH_MAX];
    bool written[RESULTS_MAX] = {false}, first = true, ok = true;
    snprintf(temporary, sizeof temporary, "%s.tmp%d", path, (int)getpid());
    FILE *file = fopen(temporary, "w");
    if (!file) return error_set(error, "%s: cannot write: %s", path, strerror(errno));
    fprintf(file, "[\n");
    FILE *old = fopen(path, "r");
    if (old) {
        ok = copy_old(results, path, old, file, written, &first, error);
        fclose(old);
    }
    for (int i = 0; i < results->count; i++) {
        if (!written[i]) write_record(file, results->record[i], &first);
        free(results->record[i]);
    }
    results->count = 0;
    fprintf(file, "\n]\n");
    bool wrote = !ferror(file);
    if (fclose(file) != 0 || !wrote) ok = error_set(error, "%s: cannot write: %s", path, strerror(errno));
    if (ok && rename(temporary, path) != 0)
        ok = error_set(error, "%s: cannot write: %s", path, strerror(errno));
    if (!ok) unlink(temporary);
    return ok;
}
