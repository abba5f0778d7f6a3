// The trainer: GPT-2 on text, from this chapter's steps, or from chapter 22's on several GPUs.
#include <limits.h>
#include <math.h>
#include <time.h>

#include "../../../common/harness/bench.h"
#include "../../../common/harness/error.h"
#include "../../09_cublas_attention/blas.h"
#include "../launchers.h"
#include "../profile.h"
#include "checkpoint.h"
#include "inspect.h"
#include "options.h"
#include "parallel.h"
#include "record.h"
#include "text.h"

// What a run has at hand.
struct run_state {
    struct options options;
    struct place place;
    struct device device;
    struct text text;
    struct model *model;
    cudaStream_t stream;
    int *batch[2],
        *validation; // (2, rows): inputs, targets; pinned, as what follows, so that no copy waits for the host
    float *losses;   // (rows)
    float *numbers;  // lr, norm
    FILE *json;
    double *took; // seconds of each step; steps until then
    int timed;
};

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static float learning_rate(const struct settings *s, int step)
{
    if (step < s->warmup) return s->lr * (float)(step + 1) / (float)s->warmup;
    const double done = (step - s->warmup) / fmax(s->steps - s->warmup, 1);
    return (float)(s->lr * (s->final_lr + (1 - s->final_lr) * (1 + cos(acos(-1) * done)) / 2));
}

// Normal numbers of GPT-2's deviation, 0.02, and of the matrices that add to the residual that over sqrt(2 layers); layernorms
// begin with 1, biases with 0.
static float *first_parameters(const struct model *m, uint64_t seed)
{
    float *parameters = calloc(m->parameters, sizeof *parameters);
    if (!parameters) die_input("no memory for %zu parameters", m->parameters);
    const double deviation = 0.02, smaller = deviation / sqrt(2.0 * m->config.layers);
    for (int p = 0; p < NUM_PARAMETERS; p++) {
        const struct array *a = &m->parameter[p];
        float *first = parameters + a->offset, *last = first + a->elements * a->count;
        if (p == LN1_W || p == LN2_W || p == LNF_W)
            for (float *x = first; x < last; x++) *x = 1;
        if (a->offset >= m->decayed) continue;
        for (float *x = first; x < last; x++) { // Box and Muller
            const uint64_t i = 2 * (uint64_t)(x - parameters);
            const double u = (double)((random_bits(~seed, i) >> 11) + 1) * 0x1p-53,
                         angle = (double)(random_bits(~seed, i + 1) >> 11) * 0x1p-53;
            const double normal = sqrt(-2 * log(u)) * cos(2 * acos(-1) * angle);
            *x = (float)(normal * (p == PROJ_W || p == FC_PROJ_W ? smaller : deviation));
        }
    }
    return parameters;
}

// This process's part of a batch.
static struct windows windows(const struct run_state *r)
{
    const struct model_config *c = &r->model->config;
    return (struct windows){r->options.settings.model.batch, r->place.rank * c->batch, c->batch, c->length};
}

// The mean loss of all processes' tokens, after what has been launched.
static double mean_loss(struct run_state *r)
{
    const size_t rows = (size_t)r->model->rows;
    double sum = 0;
    CUDA_CHECK(cudaMemcpyAsync(r->losses, activation(r->model, LOSS, 0), rows * sizeof *r->losses,
                               cudaMemcpyDeviceToHost, r->stream));
    CUDA_CHECK(cudaStreamSynchronize(r->stream));
    parallel_check();
    for (size_t i = 0; i < rows; i++) sum += r->losses[i];
    return sum / (double)rows;
}

static void upload(struct run_state *r, const int *tokens)
{
    CUDA_CHECK(cudaMemcpyAsync(r->model->tokens, tokens, 2 * (size_t)r->model->rows * sizeof *tokens,
                               cudaMemcpyHostToDevice, r->stream));
}

static double validation_loss(struct run_state *r)
{
    const struct model_config *c = &r->options.settings.model;
    const int batches = text_validation_batches(&r->text, c->batch, c->length), most = 20;
    const int used = batches < most ? batches : most;
    double sum = 0;
    for (int i = 0; i < used; i++) {
        text_validation_batch(&r->text, i, windows(r), r->validation, r->validation + r->model->rows);
        upload(r, r->validation);
        forward_pass(r->model, r->stream);
        loss_pass(r->model, r->stream);
        parallel_loss(r->model, r->stream);
        sum += mean_loss(r);
    }
    return sum / used;
}

static void validate(struct run_state *r, int step)
{
    const struct model_config *c = &r->options.settings.model;
    if (text_validation_batches(&r->text, c->batch, c->length) == 0) return;
    const double loss = validation_loss(r);
    printf("step %d: validation loss %.4f\n", step, loss);
    if (r->json) fprintf(r->json, "{\"step\": %d, \"validation_loss\": %.9g}\n", step, loss);
}

// Rank 0 writes what all of them have.
static void save(struct run_state *r, int step)
{
    struct error error;
    float *numbers = r->place.rank == 0 ? checkpoint_numbers(r->model->parameters) : NULL;
    parallel_numbers(r->model, numbers, r->stream);
    parallel_check();
    if (numbers && !checkpoint_save(r->options.save, &r->options.settings, step, r->model, numbers, &error))
        die_input("--save %s", error.text);
    free(numbers);
}

// Says where the first number lies that is none, and ends the program. Loss and norm are those of all processes, the number is here.
static _Noreturn void stop(struct run_state *r, int step, double loss, double norm)
{
    char where[200], who[40] = "";
    const bool found = find_non_finite(r->model, r->stream, where, sizeof where);
    if (r->place.ranks > 1) snprintf(who, sizeof who, "rank %d: ", r->place.rank);
    fprintf(r->place.rank == 0 ? stdout : stderr, "%sstep %d: loss %g, gradient norm %g: first in %s\n", who,
            step + 1, loss, norm, found ? where : "nothing that is still there: a second pass is finite");
    parallel_end(r->model);
    exit(EXIT_WRONG);
}

// Puts the tokens of a step where those of the step before are not.
static void next_batch(struct run_state *r, int step)
{
    const struct settings *s = &r->options.settings;
    int *tokens = r->batch[step % 2];
    text_batch(&r->text, s->seed, step, windows(r), tokens, tokens + r->model->rows);
}

static void train_step(struct run_state *r, int step)
{
    const struct settings *s = &r->options.settings;
    struct model *m = r->model;
    const double begin = seconds();
    upload(r, r->batch[step % 2]);
    r->numbers[0] = learning_rate(s, step);
    CUDA_CHECK(cudaMemcpyAsync(m->lr, &r->numbers[0], sizeof(float), cudaMemcpyHostToDevice, r->stream));
    CUDA_CHECK((m->profile ? r->options.step->launches : r->options.step->step)(m, r->stream));
    CUDA_CHECK(
        cudaMemcpyAsync(&r->numbers[1], m->state.norm, sizeof(float), cudaMemcpyDeviceToHost, r->stream));
    next_batch(r, step + 1); // while the GPU works
    const double loss = mean_loss(r), took = seconds() - begin, norm = r->numbers[1];
    if (!isfinite(loss) || !isfinite(norm)) stop(r, step, loss, norm);
    if (!m->profile) r->took[r->timed++] = took;

    const double rate = m->rows * r->place.ranks / took, flops = model_flops(m) / took / 1e12;
    const double limit = device_limit(&r->device, s->model.dtype == BF16 ? LIMIT_BF16_TENSOR : LIMIT_FP32);
    printf("step %d/%d: loss %.4f  norm %.3f  lr %.2e", step + 1, s->steps, loss, norm, r->numbers[0]);
    if (!r->device.simulated) printf("  %.0f tokens/s  %.1f TFLOP/s", rate, flops);
    if (!r->device.simulated && limit > 0) printf(" = %.1f%% of %.0f", 100 * flops / limit, limit);
    printf("\n");
    if (!r->json) return;
    fprintf(r->json, "{\"step\": %d, \"loss\": %.17g, \"norm\": %.9g, \"lr\": %.9g", step + 1, loss, norm,
            r->numbers[0]);
    if (!r->device.simulated) fprintf(r->json, ", \"tokens/s\": %.6g, \"TFLOP/s\": %.5g", rate, flops);
    fprintf(r->json, "}\n");
}

static void train(struct run_state *r, int first_step)
{
    const struct options *o = &r->options;
    const int steps = o->settings.steps,
              profiled = o->profile < steps - first_step ? o->profile : steps - first_step;
    if (first_step > steps) die_input("--steps %d: the checkpoint has %d steps already", steps, first_step);
    next_batch(r, first_step);
    for (int step = first_step; step < steps; step++) {
        if (profiled && step == steps - profiled) r->model->profile = profile_begin(r->stream);
        train_step(r, step);
        if (r->model->profile) continue; // Nothing else is to be between its events.
        if ((step + 1) % o->validate_every == 0 || step + 1 == steps) validate(r, step + 1);
        if (o->save && o->save_every && (step + 1) % o->save_every == 0 && step + 1 < steps)
            save(r, step + 1);
    }
    if (r->model->profile) {
        profile_print(r->model->profile, profiled, !r->device.simulated);
        parallel_profile(r->model, profiled, !r->device.simulated);
        r->model->profile = NULL;
    }
    if (o->save) save(r, steps);
    if (o->record && r->place.rank == 0)
        record_speed(o, &r->device, r->model, r->place.ranks, r->took, r->timed);
}

// The model that the flags, the checkpoint or llm.c's file describe, with its parameters.
static void make_model(struct run_state *r, struct checkpoint *checkpoint)
{
    struct model_config *c = &r->options.settings.model, part;
    const char *init = r->options.init;
    struct error error;
    float *parameters = NULL;
    if (!r->options.resume) {
        c->vocabulary = r->text.vocabulary;
        c->padded_vocabulary = (c->vocabulary + 127) / 128 * 128; // whole tiles of the product
        c->positions = c->length;
    }
    if (init && !(parameters = llmc_load(init, c, &error))) die_input("--init %s", error.text);
    const char *refusal = model_refuse(c);
    if (refusal) die_input("the model: %s", refusal);
    if (c->vocabulary != r->text.vocabulary)
        die_input("the text has %d tokens, expected the model's %d", r->text.vocabulary, c->vocabulary);
    if (c->attention != ATTENTION_9 && r->device.major != 9)
        die_input("--attention %d needs sm_90, and %s is sm_%d%d", c->attention, r->device.name,
                  r->device.major, r->device.minor);
    part = *c;
    part.batch /= r->place.ranks;
    if (part.batch * r->place.ranks != c->batch)
        die_input("--batch %d: expected a multiple of the %d GPUs", c->batch, r->place.ranks);
    r->model = parallel_model(&part, r->options.step);
    if (checkpoint->numbers && checkpoint->parameters != r->model->parameters)
        die_input("--resume %s: %zu parameters, and flags ask for %zu", r->options.resume,
                  checkpoint->parameters, r->model->parameters);
    if (checkpoint->numbers) return checkpoint_restore(checkpoint, r->model);
    if (!parameters) parameters = first_parameters(r->model, r->options.settings.seed);
    parallel_set(r->model, parameters, NULL);
    free(parameters);
}

static void pinned(void *memory, size_t bytes)
{
    CUDA_CHECK(cudaMallocHost((void **)memory, bytes));
}

// Each process has algorithms of its own: what it timed.
static void remember_algorithms(const struct run_state *r)
{
    char path[PATH_MAX], rank[40] = "";
    struct error error;
    if (!r->options.algorithms) return;
    if (r->place.ranks > 1) snprintf(rank, sizeof rank, ".%d", r->place.rank);
    snprintf(path, sizeof path, "%s%s", r->options.algorithms, rank);
    if (!blas_remember(path, &error)) die_input("--algorithms %s", error.text);
}

static void open_run(struct run_state *r, struct checkpoint *checkpoint)
{
    const struct options *o = &r->options;
    struct error error;
    if (o->file_count == 0) die_input("no text: expected FILE...; --help");
    if (!text_load(o->files, o->file_count, o->validation_file, o->validation, &r->text, &error))
        die_input("%s", error.text);
    if (r->text.training <= (size_t)o->settings.model.length)
        die_input("the text has %zu tokens to train on, expected more than --length %d", r->text.training,
                  o->settings.model.length);
    if (o->json && r->place.rank == 0 && !(r->json = fopen(o->json, "w")))
        die_input("--json %s: %s", o->json, strerror(errno));
    if (r->json) setvbuf(r->json, NULL, _IOLBF, 0);
    r->device = device_open();
    if (o->record && r->device.simulated)
        die_input("--record: %s has no speed to measure, expected a real GPU", r->device.name);
    if (o->settings.tf32) blas_allow_tf32();
    remember_algorithms(r);
    make_model(r, checkpoint);
    CUDA_CHECK(cudaStreamCreate(&r->stream));
    const size_t batch_bytes = 2 * (size_t)r->model->rows * sizeof **r->batch;
    pinned(&r->batch[0], batch_bytes), pinned(&r->batch[1], batch_bytes), pinned(&r->validation, batch_bytes);
    pinned(&r->losses, (size_t)r->model->rows * sizeof *r->losses);
    pinned(&r->numbers, 2 * sizeof *r->numbers);
    r->took = malloc((size_t)(o->settings.steps + 1) * sizeof *r->took);
    if (!r->took) die_input("no memory for %d steps", o->settings.steps);
}

static void check_checkpoint(const char *path)
{
    struct checkpoint c;
    struct error error;
    if (!checkpoint_load(path, &c, &error)) die_input("--check %s", error.text);
    printf("%s: %zu parameters after %d of %d steps\n", path, c.parameters, c.step, c.settings.steps);
    checkpoint_free(&c);
    exit(EXIT_RIGHT);
}

// The command, for a record.
static char *command_line(int argc, char **argv, char *text, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < argc && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? " " : "", argv[i]);
    return text;
}

int main(int argc, char **argv)
{
    struct checkpoint checkpoint = {0};
    struct vocabulary vocabulary;
    struct error error;
    struct run_state run = {.options = options_read(argc, argv, &checkpoint)};
    const struct options *o = &run.options;
    char command[1000];
    run.options.command = command_line(argc, argv, command, sizeof command);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (o->check) check_checkpoint(o->check);
    if (o->tokenizer && !vocabulary_load(o->tokenizer, &vocabulary, &error))
        die_input("--tokenizer %s", error.text);
    run.place = parallel_begin();
    open_run(&run, &checkpoint);
    printf("%zu parameters, %.2f MB of activations, %zu tokens of which %zu are trained on; %s\n",
           run.model->parameters, (double)run.model->activation_bytes / 1e6, run.text.count,
           run.text.training, run.device.name);
    train(&run, checkpoint.step);
    parallel_end(run.model);
    if (o->sample && run.place.rank == 0)
        print_sample(run.model, &run.text, o->tokenizer ? &vocabulary : NULL, o->sample, o->temperature,
                     o->settings.seed, run.stream);
    if (run.json && fclose(run.json) != 0) die_input("--json %s: %s", o->json, strerror(errno));
    return EXIT_RIGHT;
}
