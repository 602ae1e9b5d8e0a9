#include "core/error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

static const char *const status_names[] = {
    [RSSM_OK] = "RSSM_OK",
    [RSSM_ERR_ARGUMENT] = "RSSM_ERR_ARGUMENT",
    [RSSM_ERR_STRUCT_SIZE] = "RSSM_ERR_STRUCT_SIZE",
    [RSSM_ERR_UNSUPPORTED] = "RSSM_ERR_UNSUPPORTED",
    [RSSM_ERR_OUT_OF_MEMORY] = "RSSM_ERR_OUT_OF_MEMORY",
    [RSSM_ERR_OVERFLOW] = "RSSM_ERR_OVERFLOW",
    [RSSM_ERR_IO] = "RSSM_ERR_IO",
    [RSSM_ERR_JSON] = "RSSM_ERR_JSON",
    [RSSM_ERR_CONFIG] = "RSSM_ERR_CONFIG",
    [RSSM_ERR_MODEL] = "RSSM_ERR_MODEL",
    [RSSM_ERR_TP] = "RSSM_ERR_TP",
    [RSSM_ERR_STATE] = "RSSM_ERR_STATE",
    [RSSM_ERR_ROLE] = "RSSM_ERR_ROLE",
    [RSSM_ERR_MISSING] = "RSSM_ERR_MISSING",
    [RSSM_ERR_SHAPE] = "RSSM_ERR_SHAPE",
    [RSSM_ERR_DTYPE] = "RSSM_ERR_DTYPE",
    [RSSM_ERR_DEVICE] = "RSSM_ERR_DEVICE",
    [RSSM_ERR_STRIDE] = "RSSM_ERR_STRIDE",
    [RSSM_ERR_ALIGNMENT] = "RSSM_ERR_ALIGNMENT",
    [RSSM_ERR_OVERLAP] = "RSSM_ERR_OVERLAP",
    [RSSM_ERR_VALUE] = "RSSM_ERR_VALUE",
    [RSSM_ERR_STREAM_DATA] = "RSSM_ERR_STREAM_DATA",
    [RSSM_ERR_CUDA] = "RSSM_ERR_CUDA",
    [RSSM_ERR_DEVICE_LOST] = "RSSM_ERR_DEVICE_LOST",
    [RSSM_ERR_INTERNAL] = "RSSM_ERR_INTERNAL",
    [RSSM_ERR_NO_SLOT] = "RSSM_ERR_NO_SLOT",
    [RSSM_ERR_HANDLE] = "RSSM_ERR_HANDLE",
};

const char *rssm_status_name(rssm_status status)
{
    if (status < 0 || status >= (int32_t)(sizeof(status_names) / sizeof(status_names[0])))
        return "unknown status";
    return status_names[status];
}

/* Bytes of the whole UTF-8 character at c, 0 if there is none. The text is zero-terminated, so a cut one is seen. */
static int utf8_length(const unsigned char *c)
{
    int length = c[0] < 0x80                   ? 1
                 : c[0] >= 0xC2 && c[0] < 0xE0 ? 2
                 : (c[0] & 0xF0) == 0xE0       ? 3
                 : c[0] >= 0xF0 && c[0] < 0xF5 ? 4
                                               : 0;
    for (int i = 1; i < length; i++)
        if ((c[i] & 0xC0) != 0x80)
            return 0;
    bool overlong = (c[0] == 0xE0 && c[1] < 0xA0) || (c[0] == 0xF0 && c[1] < 0x90);
    bool beyond = (c[0] == 0xED && c[1] >= 0xA0) || (c[0] == 0xF4 && c[1] >= 0x90);
    return length && (overlong || beyond) ? 0 : length;
}

/* One line of whole UTF-8 characters, whatever the arguments held: paths and a config's strings may be anything. */
static void tidy(char *text)
{
    unsigned char *c = (unsigned char *)text;
    while (*c) {
        int length = utf8_length(c);
        if (!length || *c < 0x20 || *c == 0x7F) {
            *c = '?';
            length = 1;
        }
        c += length;
    }
}

static void __attribute__((format(printf, 4, 0)))
fill(rssm_error *err, rssm_status status, rssm_where where, const char *format, va_list args)
{
    err->status = status;
    err->role = where.role;
    err->dim = where.dim;
    err->cuda_error = 0;
    err->expected = where.expected;
    err->got = where.got;
    if (vsnprintf(err->message, sizeof(err->message), format, args) < 0)
        err->message[0] = 0;
    tidy(err->message);
}

rssm_status rssm_fail(rssm_error *err, rssm_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fill(err, status, (rssm_where){.dim = -1}, format, args);
    va_end(args);
    return status;
}

rssm_status rssm_fail_at(rssm_error *err, rssm_status status, rssm_where where, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fill(err, status, where, format, args);
    va_end(args);
    return status;
}

rssm_status rssm_out_of_memory(rssm_error *err)
{
    return rssm_fail(err, RSSM_ERR_OUT_OF_MEMORY, "out of host memory");
}
