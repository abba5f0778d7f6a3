// The file: a header, then master, m and v in fp32, as they lie in memory. It is written beside its place and then renamed, which
// POSIX does at once; fsync before and after makes that true of the disk, too.
#define _GNU_SOURCE
#include "checkpoint.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <unistd.h>

#include "../../../common/harness/npy.h"
#include "parallel.h"

enum { VERSION = 1 };
static const char MAGIC[8] = "KCGPT-2";

struct header {
    char magic[8];
    uint32_t version, header_bytes;
    struct settings settings;
    int32_t step, good_steps, updates;
    float scale;
    uint64_t parameters;
    uint64_t checksum; // of the header with 0 here, and of the numbers
};

// FNV-1a on 8 bytes at a time: x -> (x ^ word) * prime is a bijection of x and of word, so one changed word changes the end.
static uint64_t checksum(uint64_t sum, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, (const char *)data + i, bytes - i < 8 ? bytes - i : 8);
        sum = (sum ^ word) * 0x100000001b3u;
    }
    return sum;
}

static uint64_t checksum_of(const struct header *header, const float *numbers)
{
    struct header without = *header;
    without.checksum = 0;
    const uint64_t sum = checksum(0xcbf29ce484222325u, &without, sizeof without);
    return checksum(sum, numbers, 3 * header->parameters * sizeof *numbers);
}

static bool write_all(int file, const void *data, size_t bytes)
{
    for (const char *at = data; bytes > 0;) {
        const ssize_t written = write(file, at, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        at += written, bytes -= (size_t)written;
    }
    return true;
}

// The rename itself is on the disk once its folder is.
static bool sync_folder(const char *path)
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    const int folder = open(dirname(copy), O_RDONLY | O_DIRECTORY);
    const bool ok = folder >= 0 && fsync(folder) == 0;
    if (folder >= 0) close(folder);
    return ok;
}

static bool write_file(const char *path, const struct header *header, const float *numbers,
                       struct error *error)
{
    char partial[PATH_MAX];
    if (snprintf(partial, sizeof partial, "%s.partial", path) >= (int)sizeof partial)
        return error_set(error, "%s: the name is too long", path);
    const int file = open(partial, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    bool ok = file >= 0 && write_all(file, header, sizeof *header) &&
              write_all(file, numbers, 3 * header->parameters * sizeof *numbers) && fsync(file) == 0;
    if (file >= 0) ok = close(file) == 0 && ok;
    ok = ok && rename(partial, path) == 0 && sync_folder(path);
    return ok || error_set(error, "%s: cannot be written: %s", path, strerror(errno));
}

static void download(void *to, const void *from, size_t bytes)
{
    CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

bool checkpoint_save(const char *path, const struct settings *settings, int step, const struct model *m,
                     const float *numbers, struct error *error)
{
    struct header header;
    memset(&header, 0, sizeof header); // the gaps between its members, too: they are in the file
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    header.version = VERSION;
    header.header_bytes = sizeof header;
    memcpy(&header.settings, settings, sizeof *settings);
    header.step = step;
    header.parameters = m->parameters;
    download(&header.scale, m->state.scale, sizeof header.scale);
    download(&header.good_steps, m->state.good_steps, sizeof header.good_steps);
    download(&header.updates, m->state.steps, sizeof header.updates);
    header.checksum = checksum_of(&header, numbers);
    return write_file(path, &header, numbers, error);
}

float *checkpoint_numbers(size_t parameters)
{
    float *numbers = malloc(3 * parameters * sizeof *numbers);
    if (!numbers) die_input("no memory for a checkpoint of %zu parameters", parameters);
    return numbers;
}

static bool read_file(FILE *file, const char *path, struct checkpoint *c, struct error *error)
{
    struct header header;
    if (fread(&header, 1, sizeof header, file) != sizeof header ||
        memcmp(header.magic, MAGIC, sizeof MAGIC) != 0)
        return error_set(error, "%s: not a checkpoint of this trainer", path);
    if (header.version != VERSION || header.header_bytes != sizeof header)
        return error_set(error, "%s: version %u, expected %d", path, header.version, VERSION);
    if (fseek(file, 0, SEEK_END) != 0) return error_set(error, "%s: %s", path, strerror(errno));
    const uint64_t bytes = (uint64_t)ftell(file) - sizeof header;
    if (header.parameters > bytes || bytes != 3 * header.parameters * sizeof(float))
        return error_set(error, "%s: %llu bytes behind the header, expected %llu for %llu parameters", path,
                         (unsigned long long)bytes,
                         (unsigned long long)(3 * header.parameters * sizeof(float)),
                         (unsigned long long)header.parameters);
    c->numbers = checkpoint_numbers(header.parameters);
    fseek(file, sizeof header, SEEK_SET);
    if (fread(c->numbers, 1, bytes, file) != bytes || checksum_of(&header, c->numbers) != header.checksum)
        return error_set(error, "%s: damaged: its checksum is not that of what it holds", path);
    c->settings = header.settings;
    c->step = header.step;
    c->scale = header.scale, c->good_steps = header.good_steps, c->updates = header.updates;
    c->parameters = header.parameters;
    return true;
}

bool checkpoint_load(const char *path, struct checkpoint *c, struct error *error)
{
    *c = (struct checkpoint){0};
    FILE *file = fopen(path, "rb");
    if (!file) return error_set(error, "%s: %s", path, strerror(errno));
    const bool ok = read_file(file, path, c, error);
    fclose(file);
    if (!ok) checkpoint_free(c);
    return ok;
}

void checkpoint_free(struct checkpoint *c)
{
    free(c->numbers);
    c->numbers = NULL;
}

static void upload(void *to, const void *from, size_t bytes)
{
    CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}

void checkpoint_restore(const struct checkpoint *c, struct model *m)
{
    parallel_set(m, c->numbers, c->numbers + c->parameters);
    upload(m->state.scale, &c->scale, sizeof c->scale);
    upload(m->state.good_steps, &c->good_steps, sizeof c->good_steps);
    upload(m->state.steps, &c->updates, sizeof c->updates);
}

// --- llm.c's ----------------------------------------------------------------------------------------------------------

enum { LLMC_MAGIC = 20240326, LLMC_F32 = 3, LLMC_BF16 = 5 };

float *llmc_load(const char *path, struct model_config *config, struct error *error)
{
    // llm.c's order of the parameters: by layer of the network, weight and bias side by side.
    static const enum parameter order[NUM_PARAMETERS] = {WTE,       WPE,       LN1_W, LN1_B, QKV_W, QKV_B,
                                                         PROJ_W,    PROJ_B,    LN2_W, LN2_B, FC_W,  FC_B,
                                                         FC_PROJ_W, FC_PROJ_B, LNF_W, LNF_B};
    int32_t header[256];
    FILE *file = fopen(path, "rb");
    if (!file) return error_set(error, "%s: %s", path, strerror(errno)), NULL;
    const bool known = fread(header, 1, sizeof header, file) == sizeof header && header[0] == LLMC_MAGIC &&
                       (header[1] == LLMC_F32 || header[1] == LLMC_BF16);
    if (!known) {
        fclose(file);
        error_set(error, "%s: expected a checkpoint of llm.c, version %d or %d", path, LLMC_F32, LLMC_BF16);
        return NULL;
    }
    config->positions = header[2], config->vocabulary = header[3], config->layers = header[4];
    config->heads = header[5], config->channels = header[6], config->padded_vocabulary = header[7];
    struct model_config smallest = *config;
    smallest.batch = smallest.length = 1;
    const char *refusal = model_refuse(&smallest);
    if (refusal) {
        fclose(file);
        return error_set(error, "%s: %s", path, refusal), NULL;
    }
    const struct model plan = model_plan(&smallest);
    const enum dtype dtype = header[1] == LLMC_F32 ? F32 : BF16;
    float *parameters = malloc(plan.parameters * sizeof *parameters);
    void *stored = malloc(plan.parameters * dtype_bytes(dtype));
    if (!parameters || !stored) die_input("no memory for %zu parameters", plan.parameters);
    const size_t count = fread(stored, dtype_bytes(dtype), plan.parameters, file);
    const bool ends = count == plan.parameters && fgetc(file) == EOF;
    fclose(file);
    size_t at = 0;
    for (int i = 0; ends && i < NUM_PARAMETERS; i++) {
        const struct array *a = &plan.parameter[order[i]];
        const size_t n = (size_t)a->elements * (size_t)a->count;
        for (size_t k = 0; k < n; k++)
            parameters[a->offset + k] = (float)dtype_get(dtype, stored, (int64_t)(at + k));
        at += n;
    }
    free(stored);
    if (ends) return parameters;
    free(parameters);
    error_set(error, "%s: shorter or longer than its header's %zu parameters", path, plan.parameters);
    return NULL;
}
