#define _POSIX_C_SOURCE 200809L
#define _GNU_SOURCE     1
#include "host.h"

#include "json.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where the plugin is, seen from the program's own folder: in a build tree, and where meson installs both. */
#ifndef RSSM_PLUGIN_FROM_BIN
#define RSSM_PLUGIN_FROM_BIN "replayssm.so"
#endif
static const char *const beside_program[] = {"../plugin/replayssm.so", RSSM_PLUGIN_FROM_BIN};

int host_refuse(const host *h, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; *c != 0; c++) /* one line, whatever the message holds */
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    fprintf(stderr, "%s: %s\n", h->program, text);
    if (h->json) {
        json out = json_to(stdout);
        json_object(&out, NULL);
        json_string(&out, "error", text);
        json_end(&out);
    }
    return EXIT_REFUSED;
}

int host_check(host *h, rssm_status status, const char *what)
{
    if (status == RSSM_OK)
        return EXIT_OK;
    return host_refuse(h, "%s: %s (%s)", what, h->error.message, h->api->status_name(status));
}

/* The plugin that belongs to this program; text[size] holds the answer. Falls back to the loader's own search. */
static const char *default_plugin(char *text, size_t size)
{
    char program[2048];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    char *slash = NULL;
    if (length > 0) {
        program[length] = 0;
        slash = strrchr(program, '/');
    }
    for (size_t i = 0; slash != NULL && i < sizeof beside_program / sizeof beside_program[0]; i++) {
        snprintf(text, size, "%.*s/%s", (int)(slash - program), program, beside_program[i]);
        if (access(text, R_OK) == 0)
            return text;
    }
    return "replayssm.so";
}

int host_load(host *h, const char *plugin_path)
{
    char beside[4096];
    const char *path = plugin_path;
    if (path == NULL)
        path = getenv("REPLAYSSM_PLUGIN");
    if (path == NULL || path[0] == 0)
        path = default_plugin(beside, sizeof beside);

    h->error.struct_size = sizeof h->error;
    h->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (h->library == NULL)
        return host_refuse(h, "cannot load the plugin: %s", dlerror());

    void *symbol = dlsym(h->library, RSSM_GET_API_SYMBOL);
    if (symbol == NULL)
        return host_refuse(h, "%s is not a replayssm plugin: no symbol %s", path, RSSM_GET_API_SYMBOL);
    rssm_get_api_fn get_api; /* ISO C has no cast from void * to a function */
    memcpy(&get_api, &symbol, sizeof get_api);

    h->api = get_api(RSSM_ABI_MAJOR);
    if (h->api == NULL)
        return host_refuse(h, "%s does not speak ABI %d", path, RSSM_ABI_MAJOR);
    if (h->api->struct_size < sizeof *h->api)
        return host_refuse(h, "%s has a shorter table than ABI %d.%d", path, RSSM_ABI_MAJOR, RSSM_ABI_MINOR);
    return EXIT_OK;
}

int host_init(host *h, const rssm_init_args *args)
{
    const char *what = args->config_path != NULL ? args->config_path : "init";
    int code = host_check(h, h->api->init(args, &h->plugin, &h->error), what);
    if (code != EXIT_OK)
        return code;
    h->model.struct_size = sizeof h->model;
    h->layout.struct_size = sizeof h->layout;
    code = host_check(h, h->api->describe(h->plugin, &h->model, &h->error), "describe");
    if (code == EXIT_OK)
        code = host_check(h, h->api->pool_layout(h->plugin, &h->layout, &h->error), "pool_layout");
    return code;
}

int host_ready(host *h)
{
    int code = host_check(h, h->api->prepare(h->plugin, &h->error), "prepare");
    if (code == EXIT_OK)
        code = host_check(h, h->api->pool_create(h->plugin, NULL, &h->error), "pool_create");
    return code;
}

int host_reset(host *h, void *stream)
{
    const rssm_reset_args args = {.struct_size = sizeof args, .stream = stream};
    return host_check(h, h->api->reset(h->plugin, &args, &h->error), "reset");
}

int host_pool(host *h, void *slab, void *stream)
{
    const rssm_pool_args args = {
        .struct_size = sizeof args, .slab = slab, .slab_bytes = (uint64_t)h->layout.slab_bytes};
    int code = host_check(h, h->api->pool_create(h->plugin, &args, &h->error), "pool_create");
    return code == EXIT_OK ? host_reset(h, stream) : code;
}

void host_close(host *h)
{
    if (h->plugin != NULL)
        h->api->teardown(&h->plugin, &h->error);
    if (h->library != NULL)
        dlclose(h->library);
    h->api = NULL;
    h->library = NULL;
}

const rssm_tensor_info *host_tensor(const host *h, int32_t i)
{
    const char *first = (const char *)h->layout.tensors;
    return (const rssm_tensor_info *)(first + (uint64_t)i * h->layout.tensors[0].struct_size);
}
