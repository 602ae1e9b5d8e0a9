/* The life of a plugin in a host: load, init, describe, close; and saying what went wrong. */
#ifndef EXAMPLES_HOST_H_
#define EXAMPLES_HOST_H_

#include "options.h"

#include <replayssm.h>

typedef struct host {
    const char *program; /* starts every line on stderr                             */
    int json;            /* 1: a refusal is also an object {"error": ...} on stdout */
    void *library;
    const rssm_api *api;
    rssm_plugin *plugin;
    rssm_error error; /* pass &host.error to the calls of the table */
    rssm_description model;
    rssm_layout layout;
} host;

/* All return EXIT_OK, or EXIT_REFUSED once the reason is printed. */
int host_load(host *h, const char *plugin_path);    /* NULL: $REPLAYSSM_PLUGIN, else the one beside the program */
int host_init(host *h, const rssm_init_args *args); /* and fills h->model and h->layout */
int host_ready(host *h);                            /* prepare, and a pool of the plugin's own */
int host_reset(host *h, void *stream);              /* every slot fresh */
int host_pool(host *h, void *slab, void *stream);   /* a pool in layout.slab_bytes at slab, and host_reset */
/* `status` of the last call; on failure prints the plugin's message after `what`. */
int host_check(host *h, rssm_status status, const char *what);
/* Prints and returns EXIT_REFUSED. */
int host_refuse(const host *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
void host_close(host *h);

/* The i-th tensor of the layout, walked by the plugin's own struct size. */
const rssm_tensor_info *host_tensor(const host *h, int32_t i);

#endif
