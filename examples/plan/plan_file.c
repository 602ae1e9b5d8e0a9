#define _POSIX_C_SOURCE 200809L
#include "plan_file.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

int plan_file_open(plan_file *file, const char *path)
{
    struct stat about;
    *file = (plan_file){.path = path};
    if (lstat(path, &about) == 0 && !S_ISREG(about.st_mode)) { /* a link too: /dev/stdout is one, and shall stay */
        file->out = fopen(path, "w");
        return file->out != NULL ? 0 : -1;
    }
    const int length = snprintf(file->part, sizeof file->part, "%s.%ld.part", path, (long)getpid());
    if (length < 0 || (size_t)length >= sizeof file->part) {
        errno = ENAMETOOLONG;
        return -1;
    }
    file->out = fopen(file->part, "wx"); /* x: never somebody else's file */
    return file->out != NULL ? 0 : -1;
}

int plan_file_close(plan_file *file)
{
    const int write_failed = ferror(file->out) != 0;
    errno = 0;
    int code = fclose(file->out) != 0 || write_failed ? -1 : 0;
    if (code != 0 && errno == 0)
        errno = EIO; /* of an earlier write */
    if (file->part[0] == 0)
        return code;
    if (code == 0)
        code = rename(file->part, file->path);
    if (code != 0) {
        const int why = errno;
        remove(file->part);
        errno = why;
    }
    return code;
}
