#include "record.h"

#include <stdlib.h>

#include "../../../common/harness/error.h"
#include "../../../common/harness/npy.h"
#include "../../../common/harness/results.h"

static int shorter(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// "baseline", "baseline_value" and "ratio" of a speed.
static const char *baseline(double speed, char *text, size_t size)
{
    char *name = NULL;
    const char *beside = getenv("COOKBOOK_BASELINE");
    const double value = beside ? strtod(beside, &name) : 0;
    if (value > 0)
        snprintf(text, size, "\"baseline\": \"%s\", \"baseline_value\": %.6g, \"ratio\": %.4f",
                 name + strspn(name, " "), value, speed / value);
    else
        snprintf(text, size, "\"baseline\": null, \"baseline_value\": null, \"ratio\": null");
    return text;
}

void record_speed(const struct options *o, const struct device *device, const struct model *m, int gpus,
                  double *took, int steps)
{
    enum { WARM_UP = 5 };
    const struct model_config *c = &m->config;
    const int count = steps - WARM_UP;
    took += WARM_UP;
    if (count < 10) die_input("--record: %d steps, expected at least %d", steps, WARM_UP + 10);
    qsort(took, (size_t)count, sizeof *took, shorter);
    const double median = took[count / 2];
    const enum limit which = c->dtype == BF16 ? LIMIT_BF16_TENSOR : LIMIT_FP32;
    const double limit = device_limit(device, which), reached = model_flops(m) / median / 1e12;
    const double tokens = (double)gpus * c->batch * c->length;
    char shape[300], key[600], value[3000], measured[2000], beside[300],
        share[200] = "\"fraction_of_limit\": null, \"limit\": null";
    snprintf(shape, sizeof shape,
             "layers=%d,heads=%d,channels=%d,length=%d,batch=%d,attention=%d,products=%d%s%s%s", c->layers,
             c->heads, c->channels, c->length, c->batch, c->attention, c->products,
             c->deterministic ? ",deterministic" : "", c->recompute ? ",recompute" : "",
             o->algorithms ? ",algorithms=fastest" : "");
    if (gpus > 1) snprintf(shape + strlen(shape), sizeof shape - strlen(shape), ",gpus=%d", gpus);
    if (limit > 0)
        snprintf(share, sizeof share,
                 "\"fraction_of_limit\": %.4f, \"limit\": {\"name\": \"%s\", \"value\": %.1f}",
                 reached / limit, which == LIMIT_FP32 ? "fp32" : "bf16 tensor core", limit);
    results_key(key, sizeof key, parallel_chapter, NULL, o->step->name, shape,
                o->settings.tf32 ? "tf32" : dtype_name(c->dtype), "tokens/s");
    snprintf(value, sizeof value, "\"value\": %.6g, \"spread\": [%.6g, %.6g], %s, %s, %s", tokens / median,
             tokens / took[count * 3 / 4], tokens / took[count / 4],
             baseline(tokens / median, beside, sizeof beside), share,
             bench_circumstances(device, o->command, measured, sizeof measured));
    struct results results = {0};
    struct error error;
    results_add(&results, key, value);
    if (!results_merge(&results, o->record, &error)) die_input("--record %s", error.text);
}
